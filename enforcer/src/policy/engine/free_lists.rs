//! Free pages on per-CPU lists, which a victim's death leaves there and `MemAvailable` leaves out.
//!
//! A CPU puts pages that it frees on lists of its own first. Up to Linux 6.6 these have a fixed length and never become shorter
//! by themselves. Since 6.7 they grow to an eighth of the memory, and each CPU shortens its own by an eighth at the most whenever
//! it brings its counters up to date: once a second, or when asked to (`decay_pcp_high` in `mm/page_alloc.c`, called by
//! `refresh_cpu_vm_stats`; `vmstat_refresh` in `mm/vmstat.c`). A CPU at rest does neither, and others cannot take from its lists
//! until an allocation has failed (`drain_all_pages`). So they do not come back in time by themselves: the daemon asks for it
//! after each death, and what is on them counts as long as that is under way.

use super::{Engine, MS, Reclaim};
use crate::policy::threshold::Signal;

/// How long after a death pages on the lists count, as far as they are on their way back.
const COUNT_NS: u64 = 20_000 * MS;

/// How often the node is looked at while an eviction waits for what is on the lists.
pub(super) const WATCH_NS: u64 = 5 * MS;

impl Engine {
    /// Whether [`NodeSample::free_lists_bytes`](super::NodeSample::free_lists_bytes) matters at the moment: memory is short soon
    /// after a victim's death.
    #[must_use]
    pub fn counts_free_lists(&self, now_ns: u64) -> bool {
        let is_recent = self.died_ns.is_some_and(|died_ns| now_ns.saturating_sub(died_ns) < COUNT_NS);
        is_recent && self.pressure.due().any(|reclaim| reclaim.threshold.signal == Signal::MemoryAvailable)
    }

    /// What counts of that as available: no more than half of the threshold, as it is not to be had at this moment.
    pub(super) fn on_free_lists(&self, now_ns: u64, reclaim: &Reclaim) -> u64 {
        if reclaim.threshold.signal == Signal::MemoryAvailable && self.counts_free_lists(now_ns) {
            self.free_lists_bytes.min(reclaim.amount / 2)
        } else {
            0
        }
    }

    /// Whether nothing but pages on the lists keeps somebody from being evicted.
    pub(super) fn waits_for_free_lists(&self, now_ns: u64) -> bool {
        self.free_lists_bytes > 0 && self.may_decide(now_ns).is_none() && self.may_decide_without(now_ns)
    }
}
