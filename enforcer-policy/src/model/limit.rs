//! The kernel's `max` as a type, so that no number stands for "no limit".

use std::fmt;

/// A limit as the kernel holds it, of memory or of another amount. `Max` is above every amount.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Limit {
    /// So many bytes, microseconds or processes, as the file has it.
    Amount(u64),
    /// No limit; the kernel writes it `max`.
    Max,
}

impl Limit {
    /// Reads a kernel limit file's content: `max` or a number, with or without a newline.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text.trim_ascii() {
            "max" => Some(Self::Max),
            number => number.parse().ok().map(Self::Amount),
        }
    }

    /// The limit in whole units; a unit of 0 counts as 1.
    #[must_use]
    pub fn rounded_down(self, unit: u64) -> Self {
        match self {
            Self::Max => Self::Max,
            Self::Amount(amount) => Self::Amount(amount - amount % unit.max(1)),
        }
    }

    /// The amount; `None` without a limit.
    #[must_use]
    pub fn amount(self) -> Option<u64> {
        match self {
            Self::Max => None,
            Self::Amount(amount) => Some(amount),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Max => formatter.write_str("max"),
            Self::Amount(amount) => amount.fmt(formatter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Limit;

    #[test]
    fn reads_what_it_prints() {
        for limit in [Limit::Max, Limit::Amount(0), Limit::Amount(u64::MAX)] {
            assert_eq!(Limit::parse(&format!("{limit}\n")), Some(limit));
        }
        assert_eq!(Limit::parse("-1"), None);
        assert!(Limit::Max > Limit::Amount(u64::MAX));
    }
}
