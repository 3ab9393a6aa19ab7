//! Reclaim counters, and how begin and end events are paired.
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::stall::{self, StallKey};

/// One CPU's totals for one kind of reclaim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReclaimTotals {
    /// Reclaims that began.
    pub begun: u64,
    /// Reclaims that ended and whose begin was seen.
    pub ended: u64,
    /// Time spent in them.
    pub total_ns: u64,
    /// The longest of them.
    pub max_ns: u64,
    /// Ends whose begin was not seen: it came before we attached, or was evicted from the map.
    pub unpaired: u64,
}

const _: () = assert!(size_of::<ReclaimTotals>() == 40);

/// Index into the totals: direct reclaim by an allocating task because the machine is short of memory.
pub const DIRECT: u32 = 0;
/// Index into the totals: reclaim against a memory cgroup's own limit.
pub const MEMCG: u32 = 1;
/// Index into the totals: sleeps of tasks whose cgroup is over `memory.high`.
pub const MEMORY_HIGH: u32 = 2;
/// Index into the totals: waits within reclaim; their time is also part of the reclaim's time.
pub const THROTTLED: u32 = 3;
/// Index into the totals: any of these by kernel threads, such as kswapd and khugepaged. No task waits for them.
pub const KERNEL_THREAD: u32 = 4;
/// Number of kinds.
pub const KINDS: u32 = 5;

// The first kinds are the kinds of stalls, with the same numbers.
const _: () = assert!(
    DIRECT == stall::DIRECT
        && MEMCG == stall::MEMCG
        && MEMORY_HIGH == stall::MEMORY_HIGH
        && THROTTLED == stall::THROTTLED
        && KERNEL_THREAD == stall::KINDS
);

/// The reclaim state of one task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TaskReclaim {
    /// When the current reclaim began; 0 outside of reclaim.
    pub begin_ns: u64,
    /// When the latest run of reclaims began: the kernel tries several times before it gives up and kills.
    pub run_since_ns: u64,
    /// When the latest reclaim ended; 0 if none has.
    pub end_ns: u64,
    /// The key of the current or latest reclaim: the task may change its cgroup meanwhile.
    pub key: StallKey,
    /// When the task entered the handling of `memory.high` excess; 0 outside of it.
    pub high_since_ns: u64,
    /// Time of reclaim within that handling.
    pub high_reclaim_ns: u64,
    /// The key of the sleep that follows.
    pub high: StallKey,
}

/// Reclaims of one task with at most this gap belong to one run. The retries of one allocation follow each other
/// within microseconds, but the task may lose its CPU in between.
pub const RUN_GAP_NS: u64 = 10_000_000;

impl TaskReclaim {
    /// Records that the task began to reclaim.
    #[inline]
    pub const fn begin(&mut self, key: StallKey, now_ns: u64) {
        let same_run = self.end_ns != 0 && now_ns.saturating_sub(self.end_ns) <= RUN_GAP_NS;
        if !same_run {
            self.run_since_ns = now_ns;
        }
        self.begin_ns = now_ns;
        self.key = key;
    }

    /// Records that the task ended a reclaim of this kind. Returns its key and duration; `None` if its begin was not
    /// seen or was before `not_before_ns`. A begin whose end was not seen is ignored: the next begin replaces it.
    #[inline]
    pub const fn end(&mut self, kind: u32, now_ns: u64, not_before_ns: u64) -> Option<(StallKey, u64)> {
        let took_ns = now_ns.saturating_sub(self.begin_ns);
        let is_ours = self.key.kind == kind || self.key.kind == KERNEL_THREAD;
        let is_paired = self.begin_ns != 0 && self.begin_ns >= not_before_ns && is_ours;
        self.begin_ns = 0;
        self.end_ns = now_ns;
        if !is_paired {
            return None;
        }
        if self.high_since_ns != 0 {
            self.high_reclaim_ns += took_ns;
            // The reclaim names the cgroup whose memory.high was exceeded.
            self.high.limit_id = self.key.limit_id;
        }
        Some((self.key, took_ns))
    }

    /// Records that the task is over `memory.high`: it reclaims, and may have to sleep afterwards.
    #[inline]
    pub const fn begin_high(&mut self, key: StallKey, now_ns: u64) {
        self.high_since_ns = now_ns;
        self.high_reclaim_ns = 0;
        self.high = key;
    }

    /// Records that this is over. Returns the key of the sleep and its duration without the reclaim; `None` if its
    /// begin was not seen or was before `not_before_ns`, or if it did not sleep.
    #[inline]
    pub const fn end_high(&mut self, now_ns: u64, not_before_ns: u64) -> Option<(StallKey, u64)> {
        if self.high_since_ns == 0 || self.high_since_ns < not_before_ns {
            self.high_since_ns = 0;
            return None;
        }
        let took_ns = now_ns.saturating_sub(self.high_since_ns).saturating_sub(self.high_reclaim_ns);
        self.high_since_ns = 0;
        if took_ns < LEAST_SLEEP_NS {
            return None;
        }
        Some((self.high, took_ns))
    }

    /// When the run that led to an OOM at `now_ns` began; 0 if the latest run is too old for that.
    #[must_use]
    pub const fn led_here_since_ns(&self, now_ns: u64) -> u64 {
        let busy = self.begin_ns != 0;
        let fresh = self.end_ns != 0 && now_ns.saturating_sub(self.end_ns) <= LED_HERE_NS;
        if busy || fresh { self.run_since_ns } else { 0 }
    }
}

/// Shortest time that counts as a sleep of `memory.high`. The kernel leaves out sleeps of at most `HZ / 100` jiffies
/// (`mem_cgroup_handle_over_high`), so that the shortest takes 8 ms with any `HZ`. A shorter time is bookkeeping, or that
/// of what interrupted it.
pub const LEAST_SLEEP_NS: u64 = 5_000_000;

/// How long after its last reclaim a task may still wait for the OOM lock: other tasks may run the OOM killer first.
pub const LED_HERE_NS: u64 = 1_000_000_000;

/// Whether an edge may be emitted now: at most about one per millisecond and kind.
#[must_use]
pub const fn edge_is_due(now_ns: u64, last_ns: u64) -> bool {
    now_ns.wrapping_sub(last_ns) >= EDGE_GAP_NS
}

/// Least time between two edges of one kind.
pub const EDGE_GAP_NS: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const fn key(kind: u32, cgroup_id: u64, limit_id: u64) -> StallKey {
        StallKey { cgroup_id, limit_id, kind, reserved: 0 }
    }

    const DIRECTLY: StallKey = key(DIRECT, 1, 0);

    #[test]
    fn retries_are_one_run() {
        let mut task = TaskReclaim::default();
        task.begin(DIRECTLY, 1_000);
        assert_eq!(task.end(DIRECT, 5_000, 0), Some((DIRECTLY, 4_000)));
        task.begin(DIRECTLY, 6_000);
        assert_eq!(task.run_since_ns, 1_000);
        task.end(DIRECT, 9_000, 0);
        assert_eq!(task.led_here_since_ns(10_000), 1_000);
    }

    #[test]
    fn a_pause_starts_a_new_run() {
        let mut task = TaskReclaim::default();
        task.begin(DIRECTLY, 1_000);
        task.end(DIRECT, 2_000, 0);
        let later = 2_000 + RUN_GAP_NS + 1;
        task.begin(DIRECTLY, later);
        assert_eq!(task.run_since_ns, later);
    }

    #[test]
    fn an_old_run_leads_nowhere() {
        let mut task = TaskReclaim::default();
        task.begin(DIRECTLY, 1_000);
        task.end(DIRECT, 2_000, 0);
        assert_eq!(task.led_here_since_ns(2_000 + LED_HERE_NS), 1_000);
        assert_eq!(task.led_here_since_ns(2_001 + LED_HERE_NS), 0);
        assert_eq!(TaskReclaim::default().led_here_since_ns(5), 0);
    }

    #[test]
    fn an_end_without_its_begin_has_no_duration() {
        let mut task = TaskReclaim::default();
        assert_eq!(task.end(DIRECT, 7, 0), None);
        task.begin(DIRECTLY, 8);
        assert_eq!(task.end(MEMCG, 9, 0), None, "the begin of another kind, whose end was lost");
        assert_eq!(task.end(DIRECT, 10, 0), None);
        assert_eq!(task.end_high(11, 0), None);
    }

    #[test]
    fn what_began_under_another_daemon_counts_for_nothing() {
        let mut task = TaskReclaim::default();
        task.begin(DIRECTLY, 1_000);
        assert_eq!(task.end(DIRECT, 9_000, 1_001), None);
        task.begin_high(key(MEMORY_HIGH, 5, 0), 1_000);
        assert_eq!(task.end_high(9_000, 1_001), None);
        assert_eq!(task.end_high(9_000, 0), None, "and is over");
    }

    #[test]
    fn a_begin_without_end_gives_way_to_the_next() {
        let mut task = TaskReclaim::default();
        task.begin(DIRECTLY, 1_000);
        let later = key(MEMCG, 2, 3);
        task.begin(later, 50_000);
        assert_eq!(task.end(MEMCG, 51_000, 0), Some((later, 1_000)));
    }

    #[test]
    fn a_thread_of_the_kernel_ends_what_it_began() {
        let mut task = TaskReclaim::default();
        let of_kernel = key(KERNEL_THREAD, 0, 0);
        task.begin(of_kernel, 10);
        assert_eq!(task.end(MEMCG, 15, 0), Some((of_kernel, 5)));
    }

    #[test]
    fn a_sleep_of_memory_high_is_without_its_reclaim() {
        let mut task = TaskReclaim::default();
        task.begin_high(key(MEMORY_HIGH, 5, 0), 1_000);
        task.begin(key(MEMCG, 5, 6), 2_000);
        task.end(MEMCG, 4_000, 0);
        let end_ns = 3_000 + LEAST_SLEEP_NS;
        assert_eq!(task.end_high(end_ns, 0), Some((key(MEMORY_HIGH, 5, 6), LEAST_SLEEP_NS)));
        assert_eq!(task.end_high(end_ns + 1_000, 0), None, "once only");
        task.begin(key(MEMCG, 5, 5), 12_000);
        assert_eq!(task.end(MEMCG, 13_000, 0).map(|(_, took_ns)| took_ns), Some(1_000));
        assert_eq!(task.high_reclaim_ns, 2_000, "a reclaim of its own is none of memory.high's");
    }

    #[test]
    fn what_is_too_short_for_the_kernels_sleeps_is_none() {
        let mut task = TaskReclaim::default();
        task.begin_high(key(MEMORY_HIGH, 5, 0), 1_000);
        task.begin(key(MEMCG, 5, 6), 2_000);
        task.end(MEMCG, 50_000_000, 0);
        assert_eq!(
            task.end_high(50_000_000 + LEAST_SLEEP_NS - 1_001, 0),
            None,
            "it reclaimed, and did not sleep"
        );
        assert_eq!(task.high_since_ns, 0, "and is over");
    }

    #[test]
    fn edges_keep_their_distance() {
        assert!(edge_is_due(EDGE_GAP_NS, 0));
        assert!(!edge_is_due(EDGE_GAP_NS + 5, 6));
        assert!(edge_is_due(EDGE_GAP_NS + 6, 6));
    }
}
