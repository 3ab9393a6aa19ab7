//! When to take the next snapshot, by headroom and rate; pure.

use std::time::Duration;

/// The shortest and the longest pause. At rest only the memory summary is read.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(10);

/// How many looks to take before the headroom is gone.
const LOOKS: u64 = 8;

/// A headroom that lasts longer than this needs no look at every cgroup.
const CONCERN_NS: u64 = 60_000_000_000;

/// What to do next, and when.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Look {
    /// The longest time to wait.
    pub within: Duration,
    /// Whether to read every guarded cgroup, not only the node.
    pub at_all: bool,
}

/// Decides when to look next: several times before the headroom is gone at the current pace, and seldom if it lasts.
///
/// `headroom_bytes` is the memory available above the threshold; `slope_bytes_per_second` is its change, if known.
#[must_use]
pub fn next_look(headroom_bytes: u64, slope_bytes_per_second: Option<i64>) -> Look {
    let fill = slope_bytes_per_second.filter(|slope| *slope < 0).map_or(0, i64::unsigned_abs);
    let lasts_ns = u128::from(headroom_bytes)
        .saturating_mul(1_000_000_000)
        .checked_div(u128::from(fill))
        .and_then(|ns| u64::try_from(ns).ok())
        .unwrap_or(u64::MAX);
    // Below the threshold every cgroup is of interest, whether memory falls or rises.
    let at_all = headroom_bytes == 0 || lasts_ns <= CONCERN_NS;
    let within = if headroom_bytes == 0 { SHORTEST } else { Duration::from_nanos(lasts_ns / LOOKS) };
    Look { within: within.clamp(SHORTEST, LONGEST), at_all }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn at_rest_it_looks_seldom_and_at_the_node_alone() {
        for slope in [None, Some(0), Some(1 << 30), Some(-1)] {
            assert_eq!(next_look(1_000 * MIB, slope), Look { within: LONGEST, at_all: false }, "{slope:?}");
        }
    }

    #[test]
    fn the_sooner_it_ends_the_more_often() {
        let mib = i64::try_from(MIB).unwrap();
        let look = |headroom: u64, slope: i64| next_look(headroom * MIB, Some(-slope * mib));
        assert_eq!(look(1_000, 10), Look { within: LONGEST, at_all: false }, "100 s");
        assert_eq!(look(1_000, 20), Look { within: Duration::from_millis(6_250), at_all: true }, "50 s");
        assert_eq!(look(160, 10), Look { within: Duration::from_secs(2), at_all: true });
        assert_eq!(look(1, 1_000), Look { within: SHORTEST, at_all: true });
        assert_eq!(look(0, -5), Look { within: SHORTEST, at_all: true });
        // u64::MAX bytes at i64::MIN a second last two seconds.
        assert_eq!(next_look(u64::MAX, Some(i64::MIN)), Look { within: SHORTEST, at_all: true });
    }
}
