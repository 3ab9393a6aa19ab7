//! What cgroup files hold, compared as the kernel rounds it.

use std::fmt;

use crate::model::{CgroupFile, CgroupValue};

/// The page size of a node.
#[derive(Clone, Copy, Debug)]
pub struct PageSize(u64);

impl PageSize {
    /// The size of this machine's pages.
    #[must_use]
    pub fn of_this_machine() -> Self {
        Self::new(u64::try_from(rustix::param::page_size()).unwrap_or(4096))
    }

    /// Pages of that many bytes; 0 counts as 1.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self(bytes.max(1))
    }

    /// What a file holds once `value` was written to it.
    #[must_use]
    pub fn held(self, value: &CgroupValue) -> CgroupValue {
        value.clone().as_held(self.0)
    }
}

/// What a cgroup's file holds.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Held {
    /// A value.
    Value(CgroupValue),
    /// Text that is no value of that file, without the trailing newline: it differs from all values.
    Other(String),
}

impl Held {
    /// Reads a file's content.
    #[must_use]
    pub fn read(file: CgroupFile, content: &str) -> Self {
        file.parse(content).map_or_else(|| Self::Other(content.trim_ascii_end().to_owned()), Self::Value)
    }

    /// The value; `None` for other text.
    #[must_use]
    pub fn value(&self) -> Option<CgroupValue> {
        match self {
            Self::Value(value) => Some(value.clone()),
            Self::Other(_) => None,
        }
    }

    /// Whether this is what writing `value` leaves.
    #[must_use]
    pub fn is(&self, value: &CgroupValue, page: PageSize) -> bool {
        self.value().is_some_and(|held| page.held(&held) == page.held(value))
    }
}

impl fmt::Display for Held {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => value.fmt(formatter),
            Self::Other(text) => formatter.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_value_differs_from_every_value() {
        let page = PageSize::new(4096);
        let planned = CgroupFile::CpuWeight.parse("79").unwrap();
        assert!(Held::read(CgroupFile::CpuWeight, "79\n").is(&planned, page));
        let other = Held::read(CgroupFile::CpuWeight, "idle\n");
        assert!(!other.is(&planned, page));
        assert_eq!(other.to_string(), "idle");
    }
}
