use std::fmt;

/// A memory or swap limit as the kernel holds it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Limit {
    /// No limit; the kernel writes it `max`.
    Max,
    /// That many bytes.
    Bytes(u64),
}

impl Limit {
    /// Reads a kernel limit file's content: `max` or a number of bytes, with or without a newline.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text.trim_ascii() {
            "max" => Some(Self::Max),
            number => number.parse().ok().map(Self::Bytes),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Max => formatter.write_str("max"),
            Self::Bytes(bytes) => bytes.fmt(formatter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Limit;

    #[test]
    fn reads_what_it_prints() {
        for limit in [Limit::Max, Limit::Bytes(0), Limit::Bytes(u64::MAX)] {
            assert_eq!(Limit::parse(&format!("{limit}\n")), Some(limit));
        }
        assert_eq!(Limit::parse("-1"), None);
    }
}
