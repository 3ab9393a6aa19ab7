//! What is counted about reclaim, and how begins and ends pair up.
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// One CPU's totals of one kind of reclaim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReclaimTotals {
    /// Reclaims begun.
    pub begun: u64,
    /// Reclaims ended whose begin was seen.
    pub ended: u64,
    /// Time spent in them.
    pub total_ns: u64,
    /// The longest of them.
    pub max_ns: u64,
    /// Ends whose begin was not seen: it came before we attached, or was pushed out of the map.
    pub unpaired: u64,
}

const _: () = assert!(size_of::<ReclaimTotals>() == 40);

/// Index into the totals: reclaim for the whole machine by an allocating task.
pub const DIRECT: u32 = 0;
/// Index into the totals: reclaim against a memory cgroup's own limit.
pub const MEMCG: u32 = 1;
/// How many kinds of reclaim there are.
pub const KINDS: u32 = 2;

/// What one task is doing in reclaim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TaskReclaim {
    /// When the reclaim under way began; 0 outside of reclaim.
    pub begin_ns: u64,
    /// When the latest run of reclaims began: the kernel tries several times before it gives up and kills.
    pub run_since_ns: u64,
    /// When the latest reclaim ended; 0 if none has.
    pub end_ns: u64,
}

/// Reclaims of one task that are no further apart belong to one run. The retries of one allocation follow each
/// other within microseconds; it may lose its CPU in between.
pub const RUN_GAP_NS: u64 = 10_000_000;

impl TaskReclaim {
    /// The task began to reclaim.
    #[must_use]
    pub const fn begin(self, now_ns: u64) -> Self {
        let same_run = self.end_ns != 0 && now_ns.saturating_sub(self.end_ns) <= RUN_GAP_NS;
        let run_since_ns = if same_run { self.run_since_ns } else { now_ns };
        Self { begin_ns: now_ns, run_since_ns, end_ns: self.end_ns }
    }

    /// The task ended a reclaim: its new state, and how long the reclaim took.
    #[must_use]
    pub const fn end(self, now_ns: u64) -> (Self, Option<u64>) {
        let took = if self.begin_ns == 0 { None } else { Some(now_ns.saturating_sub(self.begin_ns)) };
        (Self { begin_ns: 0, run_since_ns: self.run_since_ns, end_ns: now_ns }, took)
    }

    /// When the run that led to an OOM at `now_ns` began; 0 if the latest one is too old to have.
    #[must_use]
    pub const fn led_here_since_ns(&self, now_ns: u64) -> u64 {
        let busy = self.begin_ns != 0;
        let fresh = self.end_ns != 0 && now_ns.saturating_sub(self.end_ns) <= LED_HERE_NS;
        if busy || fresh { self.run_since_ns } else { 0 }
    }
}

/// How long after its last reclaim a task may still wait for the OOM lock: others may be killing first.
pub const LED_HERE_NS: u64 = 1_000_000_000;

/// Whether an edge may be told now: at most about one in a millisecond of each kind.
#[must_use]
pub const fn edge_is_due(now_ns: u64, last_ns: u64) -> bool {
    now_ns.wrapping_sub(last_ns) >= EDGE_GAP_NS
}

/// Least time between two edges of one kind.
pub const EDGE_GAP_NS: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_one_run() {
        let first = TaskReclaim::default().begin(1_000);
        let (ended, took) = first.end(5_000);
        assert_eq!(took, Some(4_000));
        let retry = ended.begin(6_000);
        assert_eq!(retry.run_since_ns, 1_000);
        let (retry, _) = retry.end(9_000);
        assert_eq!(retry.led_here_since_ns(10_000), 1_000);
    }

    #[test]
    fn a_pause_starts_a_new_run() {
        let (ended, _) = TaskReclaim::default().begin(1_000).end(2_000);
        let later = 2_000 + RUN_GAP_NS + 1;
        assert_eq!(ended.begin(later).run_since_ns, later);
    }

    #[test]
    fn an_old_run_leads_nowhere() {
        let (ended, _) = TaskReclaim::default().begin(1_000).end(2_000);
        assert_eq!(ended.led_here_since_ns(2_000 + LED_HERE_NS), 1_000);
        assert_eq!(ended.led_here_since_ns(2_001 + LED_HERE_NS), 0);
        assert_eq!(TaskReclaim::default().led_here_since_ns(5), 0);
    }

    #[test]
    fn an_end_without_begin_has_no_duration() {
        assert_eq!(TaskReclaim::default().end(7).1, None);
    }

    #[test]
    fn edges_keep_their_distance() {
        assert!(edge_is_due(EDGE_GAP_NS, 0));
        assert!(!edge_is_due(EDGE_GAP_NS + 5, 6));
        assert!(edge_is_due(EDGE_GAP_NS + 6, 6));
    }
}
