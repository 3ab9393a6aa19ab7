use std::fmt;

/// A limit as the kernel holds it, of memory or of another amount. `Max` is above every amount.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Limit {
    /// That many bytes, or whatever the limit counts.
    Bytes(u64),
    /// No limit; the kernel writes it `max`.
    Max,
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

    /// The limit in whole units; a unit of 0 counts as 1.
    #[must_use]
    pub fn rounded_down(self, unit: u64) -> Self {
        match self {
            Self::Max => Self::Max,
            Self::Bytes(amount) => Self::Bytes(amount - amount % unit.max(1)),
        }
    }

    /// The amount; `None` without a limit.
    #[must_use]
    pub fn amount(self) -> Option<u64> {
        match self {
            Self::Max => None,
            Self::Bytes(amount) => Some(amount),
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
        assert!(Limit::Max > Limit::Bytes(u64::MAX));
    }
}
