//! The verdict: the first line, from which the exit status follows.

use std::fmt;

use super::Document;
use crate::{
    sense::{self, State},
    serve::OrderView,
};

/// The facilities without which no value can be written or no pod evicted, and what is said if they are missing.
const INDISPENSABLE: &[(&str, &str)] = &[(sense::CGROUP2, "no cgroup v2"), ("cgroupKill", "no cgroup.kill")];

/// Whether this host can be enforced on, and what is lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    /// It cannot, for this reason.
    CannotEnforce(&'static str),
    /// It can, with these shortcomings.
    Ready(Shortcomings),
}

/// What is lost where enforcement works.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Shortcomings {
    /// The facilities that are missing.
    missing: usize,
    /// The facilities of which a lesser alternative is used.
    lesser: usize,
    /// The facilities of which nothing is known. They count for nothing.
    unknown: usize,
    /// Whether eBPF programs were refused or could not be loaded.
    pub(super) refused: bool,
    /// Whether an operator has paused eviction.
    pub(super) paused: bool,
    /// Whether something else on this node may evict at the same time.
    pub(super) evictors: bool,
}

impl Verdict {
    pub(super) fn of(document: &Document) -> Self {
        let count = |state| document.facilities.iter().filter(|facility| facility.state == state).count();
        let is_missing =
            |name| document.facilities.iter().any(|one| one.name == name && one.state == State::Missing);
        if let Some((_, reason)) = INDISPENSABLE.iter().find(|(name, _)| is_missing(*name)) {
            return Self::CannotEnforce(reason);
        }
        Self::Ready(Shortcomings {
            missing: count(State::Missing),
            lesser: count(State::Lesser),
            unknown: count(State::Unknown),
            refused: document
                .programs
                .as_ref()
                .is_some_and(|programs| programs.error.is_some() || !programs.failed.is_empty()),
            paused: document.orders.iter().any(OrderView::is_pause),
            evictors: !document.evictors.is_empty(),
        })
    }

    /// Whether nothing is lost, as far as known.
    pub(super) fn is_whole(self) -> bool {
        match self {
            Self::CannotEnforce(_) => false,
            Self::Ready(lost) => lost == Shortcomings { unknown: lost.unknown, ..Shortcomings::default() },
        }
    }
}

impl Shortcomings {
    /// How many facilities are lost in part or whole.
    pub(super) const fn lost(self) -> usize {
        self.missing + self.lesser
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lost = match self {
            Self::CannotEnforce(reason) => return write!(f, "CANNOT ENFORCE: {reason}"),
            Self::Ready(lost) => lost,
        };
        let Shortcomings { missing, lesser, unknown, refused, paused, evictors } = *lost;
        f.write_str("READY")?;
        match missing {
            0 => {}
            1 => f.write_str(", 1 feature missing")?,
            missing => write!(f, ", {missing} features missing")?,
        }
        for (count, word) in [(lesser, "lesser"), (unknown, "unknown")] {
            if count > 0 {
                write!(f, ", {count} {word}")?;
            }
        }
        for (is, words) in
            [(refused, "eBPF programs refused"), (paused, "eviction paused"), (evictors, "another evictor")]
        {
            if is {
                write!(f, ", {words}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const NONE: Shortcomings =
        Shortcomings { missing: 0, lesser: 0, unknown: 0, refused: false, paused: false, evictors: false };

    #[rstest]
    #[case::whole(Verdict::Ready(NONE), true, "READY")]
    #[case::unknown(Verdict::Ready(Shortcomings { unknown: 3, ..NONE }), true, "READY, 3 unknown")]
    #[case::one(Verdict::Ready(Shortcomings { missing: 1, ..NONE }), false, "READY, 1 feature missing")]
    #[case::two(Verdict::Ready(Shortcomings { missing: 2, lesser: 1, ..NONE }), false, "READY, 2 features missing, 1 lesser")]
    #[case::paused(Verdict::Ready(Shortcomings { paused: true, ..NONE }), false, "READY, eviction paused")]
    #[case::others(Verdict::Ready(Shortcomings { refused: true, evictors: true, ..NONE }), false, "READY, eBPF programs refused, another evictor")]
    #[case::none(Verdict::CannotEnforce("no cgroup v2"), false, "CANNOT ENFORCE: no cgroup v2")]
    fn one_line_says_it(#[case] verdict: Verdict, #[case] whole: bool, #[case] line: &str) {
        assert_eq!((verdict.is_whole(), verdict.to_string().as_str()), (whole, line));
    }
}
