//! Free pages on per-CPU lists: a victim's death leaves pages there, and `MemAvailable` leaves them out.
//!
//! A CPU first puts pages that it frees on its own lists. Up to Linux 6.6 these have a fixed length and never shrink by
//! themselves. Since 6.7 they grow to an eighth of the memory, and each CPU shrinks its own by at most an eighth
//! whenever it updates its counters: once a second, or on request (`decay_pcp_high` in `mm/page_alloc.c`, called by
//! `refresh_cpu_vm_stats`; `vmstat_refresh` in `mm/vmstat.c`). An idle CPU does neither, and others cannot take from
//! its lists until an allocation has failed (`drain_all_pages`). So these pages do not come back in time by themselves:
//! the daemon bounds the lists after a kill, drains them after each death, and counts their pages while it drains.

use super::{Engine, MS, Reclaim};
use crate::threshold::Signal;

/// How long after a death pages on the lists count, while they are being returned.
const COUNT_NS: u64 = 20_000 * MS;

/// How often the node is polled while an eviction waits for the lists.
pub(super) const WATCH_NS: u64 = 5 * MS;

impl Engine {
    /// Whether [`NodeSample::free_lists_bytes`](super::NodeSample::free_lists_bytes) matters now: memory is short soon
    /// after a victim's death.
    #[must_use]
    pub fn counts_free_lists(&self, now_ns: u64) -> bool {
        let is_recent = self.died_ns.is_some_and(|died_ns| now_ns.saturating_sub(died_ns) < COUNT_NS);
        is_recent && self.pressure.due().any(|reclaim| reclaim.threshold.signal == Signal::MemoryAvailable)
    }

    /// How much of the lists counts as available: at most half of the threshold, as it cannot be allocated right now.
    pub(super) fn on_free_lists(&self, now_ns: u64, reclaim: &Reclaim) -> u64 {
        if reclaim.threshold.signal == Signal::MemoryAvailable && self.counts_free_lists(now_ns) {
            self.free_lists_bytes.min(reclaim.amount / 2)
        } else {
            0
        }
    }

    /// Whether an eviction is put off only because of pages on the lists.
    pub(super) fn waits_for_free_lists(&self, now_ns: u64) -> bool {
        self.free_lists_bytes > 0 && self.may_decide(now_ns).is_none() && self.may_decide_without(now_ns)
    }
}
