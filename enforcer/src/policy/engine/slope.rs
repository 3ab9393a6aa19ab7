//! When memory will be exhausted, by how fast it has been filled in the last moment.
//!
//! The sampler's fastest fill fades slowly, so that the next look is never too late. To cut a grace period short by it would
//! be to kill for a burst that was over long ago.

use super::{NodeSample, scale};
use crate::policy::wire::wire;

/// Over less time than this a difference tells nothing: counters are batched, and a burst of a few milliseconds is none yet.
const SPAN_NS: u64 = 100_000_000;

const SECOND_NS: u64 = 1_000_000_000;

/// How fast the node's memory is being filled.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slope {
    /// When it was looked at, and what was available.
    base: Option<(u64, u64)>,
    fill_bytes_per_second: u64,
}

impl Slope {
    /// Takes a look in. Answers when memory, or what kubepods may have of it, will be exhausted; none if it is not being
    /// filled.
    pub(super) fn observe(&mut self, node: &NodeSample) -> Option<u64> {
        let (now_ns, available) = (node.now_ns, node.memory.available);
        let (since_ns, before) = *self.base.get_or_insert((now_ns, available));
        // A clock that went back begins anew.
        let span_ns = now_ns.checked_sub(since_ns);
        if span_ns.is_none_or(|span_ns| span_ns >= SPAN_NS) {
            let filled = before.saturating_sub(available);
            self.fill_bytes_per_second = scale(filled, SECOND_NS, span_ns.unwrap_or(0));
            self.base = Some((now_ns, available));
        }
        let allocatable = node.allocatable.map_or(u64::MAX, |level| level.available);
        let fills = self.fill_bytes_per_second > 0;
        fills.then(|| scale(available.min(allocatable), SECOND_NS, self.fill_bytes_per_second))
    }
}

wire!(struct Slope { base, fill_bytes_per_second });

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::engine::Level;

    const MS: u64 = 1_000_000;
    const MIB: u64 = 1 << 20;

    fn look(slope: &mut Slope, at_ms: u64, available_mib: u64) -> Option<u64> {
        let node = NodeSample::memory(at_ms * MS, available_mib * MIB, 4_096 * MIB);
        slope.observe(&node).map(|in_ns| in_ns / MS)
    }

    #[test]
    fn it_follows_the_last_moment_and_forgets_a_burst_that_is_over() {
        let mut slope = Slope::default();
        assert_eq!(look(&mut slope, 1_000, 1_000), None);
        assert_eq!(look(&mut slope, 1_099, 500), None, "too soon to tell");
        assert_eq!(look(&mut slope, 1_100, 500), Some(100));
        assert_eq!(look(&mut slope, 1_150, 400), Some(80), "less is left");
        assert_eq!(look(&mut slope, 1_300, 500), None, "it is over");
        assert_eq!(look(&mut slope, 1_400, 600), None, "and more comes back");
        assert_eq!(look(&mut slope, 3_400, 500), Some(10_000));
    }

    #[test]
    fn a_clock_that_goes_back_makes_it_begin_anew() {
        let mut slope = Slope::default();
        look(&mut slope, 9_000, 1_000);
        assert_eq!(look(&mut slope, 1_000, 10), None);
        assert_eq!(look(&mut slope, 1_100, 5), Some(100));
    }

    #[test]
    fn what_kubepods_may_have_can_end_first() {
        let mut slope = Slope::default();
        look(&mut slope, 0, 1_000);
        let allocatable = Some(Level { available: 90 * MIB, capacity: 4_096 * MIB });
        let node = NodeSample { allocatable, ..NodeSample::memory(100 * MS, 900 * MIB, 4_096 * MIB) };
        assert_eq!(slope.observe(&node), Some(90 * MS));
    }
}
