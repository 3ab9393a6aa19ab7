//! How long the tasks of a cgroup were stalled by memory: the key and the value of the `STALLS` map, and the record of
//! stalls that exceed the limits.
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::record::{COMM_LEN, Header};

/// [`Header::kind`] of [`StallRecord`].
pub const KIND_STALL: u32 = 20;

/// [`StallKey::kind`]: an allocating task reclaimed because the machine is short of memory.
pub const DIRECT: u32 = 0;
/// [`StallKey::kind`]: a task reclaimed against a memory cgroup's limit.
pub const MEMCG: u32 = 1;
/// [`StallKey::kind`]: a task had to sleep because its cgroup is over `memory.high`. The reclaim before the sleep is
/// [`MEMCG`].
pub const MEMORY_HIGH: u32 = 2;
/// [`StallKey::kind`]: a reclaiming task waited for writeback, or for the progress of other tasks. Within a reclaim it
/// is part of that reclaim's time.
pub const THROTTLED: u32 = 3;
/// Number of stall kinds.
pub const KINDS: u32 = 4;

/// Entries of the map: room for 500 pods of 3 containers, each with every kind of stall. Only existing entries take
/// memory.
pub const MAX_STALLS: u32 = 8192;

/// The stalled cgroup, the cgroup that set the limit, and the kind of stall.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct StallKey {
    /// The task's cgroup when the stall began.
    pub cgroup_id: u64,
    /// The cgroup whose limit was hit; 0 if the machine was short of memory, or the kernel did not pass it.
    pub limit_id: u64,
    /// One of the kinds above.
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
}

/// Number of histogram buckets.
pub const BUCKETS: usize = 24;

/// The totals of one key. All except the window only grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StallTotals {
    /// Number of stalls.
    pub count: u64,
    /// Their total duration.
    pub total_ns: u64,
    /// Duration of the longest stall.
    pub max_ns: u64,
    /// When the current window began.
    pub window_since_ns: u64,
    /// Total duration of the stalls in the window.
    pub window_ns: u64,
    /// When a record was last emitted; 0: never.
    pub reported_ns: u64,
    /// How many due records were suppressed because one had been emitted just before.
    pub held: u64,
    /// Number of stalls by duration: see [`bucket`].
    pub buckets: [u64; BUCKETS],
}

impl StallTotals {
    /// Totals of no stalls.
    pub const EMPTY: Self = Self {
        count: 0,
        total_ns: 0,
        max_ns: 0,
        window_since_ns: 0,
        window_ns: 0,
        reported_ns: 0,
        held: 0,
        buckets: [0; BUCKETS],
    };
}

impl Default for StallTotals {
    fn default() -> Self {
        Self::EMPTY
    }
}

/// The bucket of a stall: 0 below 1 µs, `n` from 2^(n-1) to below 2^n µs, the last one everything longer (4.2 s).
#[must_use]
#[inline]
pub const fn bucket(stall_ns: u64) -> usize {
    let us = stall_ns / 1_000;
    let mut index = 0;
    let mut rest = us;
    // Binary search instead of counting leading zeros, for which BPF has no instruction.
    let mut step: u32 = 32;
    while step > 0 {
        if rest >= 1 << step {
            rest >>= step;
            index += step as usize;
        }
        step /= 2;
    }
    let index = if us == 0 { 0 } else { index + 1 };
    if index < BUCKETS { index } else { BUCKETS - 1 }
}

/// When a stall gets a record of its own. Set by the daemon before the programs are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StallLimits {
    /// Least duration of a single stall.
    pub stall_ns: u64,
    /// Least total duration of one key's stalls within the window.
    pub budget_ns: u64,
    /// Length of the window.
    pub window_ns: u64,
    /// Least time between two records of one key.
    pub gap_ns: u64,
    /// Stalls that began before this are ignored: an earlier daemon stored them, and their end may have been missed.
    pub not_before_ns: u64,
}

impl StallLimits {
    /// A stall of 50 ms, or stalls of 100 ms within a second; at most one record a second.
    pub const DEFAULT: Self = Self {
        stall_ns: 50_000_000,
        budget_ns: 100_000_000,
        window_ns: 1_000_000_000,
        gap_ns: 1_000_000_000,
        not_before_ns: 0,
    };

    /// Whether a stall exceeds the limits; `window_ns` is the window's total with this stall.
    #[must_use]
    #[inline]
    pub const fn are_exceeded(&self, stall_ns: u64, window_ns: u64) -> bool {
        stall_ns >= self.stall_ns || window_ns >= self.budget_ns
    }
}

impl Default for StallLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A stall, or the total of the window, exceeded the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StallRecord {
    /// Kind [`KIND_STALL`].
    pub header: Header,
    /// When the stall ended.
    pub time_ns: u64,
    /// The key that the stall is counted under.
    pub key: StallKey,
    /// Duration of the stall.
    pub stall_ns: u64,
    /// Total duration of the stalls in the window, including this one.
    pub window_ns: u64,
    /// Thread id of the stalled task.
    pub tid: u32,
    /// Process id of the stalled task.
    pub tgid: u32,
    /// Name of the thread, zero-padded.
    pub comm: [u8; COMM_LEN],
}

impl StallRecord {
    /// Size of the record.
    pub const SIZE_BYTES: u16 = 80;

    /// A record with only its header set.
    pub const EMPTY: Self = Self {
        header: Header::new(KIND_STALL, Self::SIZE_BYTES),
        time_ns: 0,
        key: StallKey { cgroup_id: 0, limit_id: 0, kind: 0, reserved: 0 },
        stall_ns: 0,
        window_ns: 0,
        tid: 0,
        tgid: 0,
        comm: [0; COMM_LEN],
    };
}

const _: () = assert!(size_of::<StallKey>() == 24);
const _: () = assert!(size_of::<StallTotals>() == 56 + 8 * BUCKETS);
const _: () = assert!(size_of::<StallRecord>() == StallRecord::SIZE_BYTES as usize);
// The ring buffer aligns its entries to 8 bytes.
const _: () = assert!(align_of::<StallRecord>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_ends_at_a_power_of_two() {
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(999), 0);
        assert_eq!(bucket(1_000), 1);
        for n in 1..BUCKETS - 1 {
            let from_us = 1_u64 << (n - 1);
            assert_eq!(bucket(from_us * 1_000), n);
            assert_eq!(bucket(from_us * 2_000 - 1), n);
        }
        assert_eq!(bucket((1 << (BUCKETS - 2)) * 1_000), BUCKETS - 1);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn limits_are_exceeded_by_one_stall_or_by_many() {
        let limits = StallLimits::DEFAULT;
        assert!(!limits.are_exceeded(limits.stall_ns - 1, limits.budget_ns - 1));
        assert!(limits.are_exceeded(limits.stall_ns, limits.stall_ns));
        assert!(limits.are_exceeded(1, limits.budget_ns));
    }
}
