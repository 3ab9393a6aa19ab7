//! What a repeating test prints about its rounds.
use std::ops::AddAssign;

use serde::Deserialize;

/// How many rounds ran, and the daemon's memory and descriptors in the first and in the last of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Rounds {
    #[serde(rename = "rounds")]
    pub(crate) count: u64,
    pub(crate) first: Option<Holding>,
    pub(crate) last: Option<Holding>,
}

/// The memory and descriptors of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Holding {
    pub(crate) resident_bytes: u64,
    pub(crate) descriptors: u64,
}

impl Rounds {
    /// Reads the line `soak: {"rounds":10,"first":{"residentBytes":…,"descriptors":…},"last":…}`.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line.trim_end().strip_prefix("soak: ")?).ok()
    }

    /// By how many bytes the daemon grew from the first round to the last.
    fn growth_bytes(&self) -> Option<i64> {
        let (first, last) = (self.first?, self.last?);
        Some(last.resident_bytes.cast_signed().wrapping_sub(first.resident_bytes.cast_signed()))
    }
}

/// Adds the rounds. The figures are those of the daemon that grew more: each run had its own.
impl AddAssign for Rounds {
    fn add_assign(&mut self, other: Self) {
        let held = if other.growth_bytes() > self.growth_bytes() { other } else { *self };
        *self = Self { count: self.count + other.count, ..held };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(count: u64, first: u64, last: u64) -> Rounds {
        let held = |resident_bytes| Some(Holding { resident_bytes, descriptors: 40 });
        Rounds { count, first: held(first), last: held(last) }
    }

    #[test]
    fn a_line_is_read_with_and_without_a_daemon() {
        let line = r#"soak: {"rounds":9,"first":{"residentBytes":7,"descriptors":40},"last":{"residentBytes":8,"descriptors":40}}"#;
        assert_eq!(Rounds::parse(line), Some(rounds(9, 7, 8)));
        let without = Rounds { count: 3, ..Rounds::default() };
        assert_eq!(Rounds::parse("soak: {\"rounds\":3,\"first\":null,\"last\":null}\r\n"), Some(without));
        assert_eq!(Rounds::parse("soak: it rains"), None);
        assert_eq!(Rounds::parse("rounds: 3"), None);
    }

    #[test]
    fn rounds_add_up_and_the_largest_growth_is_kept() {
        let mut sum = Rounds::default();
        for one in
            [rounds(2, 10, 11), rounds(3, 10, 30), Rounds { count: 4, ..Rounds::default() }, rounds(5, 9, 8)]
        {
            sum += one;
        }
        assert_eq!(sum, rounds(14, 10, 30));
    }
}
