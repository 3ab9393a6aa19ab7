//! When memory will be exhausted: the node's, and what the pods' own limit leaves.
//!
//! What fills the node need not fill kubepods, and the fill rate is the node's. So kubepods counts as filled no faster than
//! the pods in it grow.

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use super::{Engine, MS, NodeSample, candidates::Slot, scale, victim::release_ns};
use crate::threshold::Signal;

/// When each will be exhausted, in nanoseconds from now; `None` if it is not being filled.
#[derive(Clone, Copy, Debug, Default, Deserialize, Schema, Serialize)]
pub(super) struct Exhaustion {
    node_in_ns: Option<u64>,
    pods_in_ns: Option<u64>,
}

impl Exhaustion {
    /// When what the death of such a pod frees is exhausted.
    pub(super) fn in_ns(self, in_kubepods: bool) -> Option<u64> {
        let pods_in_ns = self.pods_in_ns.filter(|_| in_kubepods);
        self.node_in_ns.into_iter().chain(pods_in_ns).min()
    }
}

impl Engine {
    pub(super) fn exhaustion(&self, node: &NodeSample) -> Exhaustion {
        let in_ns = |headroom_bytes, fill_bytes_per_second| {
            (fill_bytes_per_second > 0).then(|| scale(headroom_bytes, 1_000 * MS, fill_bytes_per_second))
        };
        let fill_bytes_per_second = node.fill_bytes_per_second;
        let pods_in_ns = node.allocatable.filter(|_| fill_bytes_per_second > 0).and_then(|level| {
            let grown = self.growth(|slot| slot.facts.counts_for(Signal::AllocatableMemoryAvailable));
            in_ns(level.available, grown.min(fill_bytes_per_second))
        });
        Exhaustion { node_in_ns: in_ns(node.memory.available, fill_bytes_per_second), pods_in_ns }
    }

    /// How fast those candidates grow together, by their latest readings, in bytes a second.
    pub(super) fn growth(&self, counts: impl Fn(&Slot) -> bool) -> u64 {
        let slots = self.candidates.slots().map(|(_, slot)| slot).filter(|slot| counts(slot));
        let grown = slots.map(|slot| u64::try_from(slot.growth_bytes_per_second).unwrap_or(0));
        grown.fold(0, u64::saturating_add)
    }
}

/// How long a kill can be delayed so that so many bytes still come back before memory is exhausted; `None` if that is
/// not in sight.
pub(super) fn time_left_ns(exhausted_in_ns: Option<u64>, predicted_freed_bytes: u64) -> Option<u64> {
    exhausted_in_ns.map(|in_ns| in_ns.saturating_sub(release_ns(predicted_freed_bytes)))
}

/// Whether the kill cannot be delayed any longer.
pub(super) fn is_too_late(exhausted_in_ns: Option<u64>, predicted_freed_bytes: u64) -> bool {
    time_left_ns(exhausted_in_ns, predicted_freed_bytes) == Some(0)
}
