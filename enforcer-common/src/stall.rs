//! How long the tasks of a cgroup were kept from their work by memory: the key and the value of the `STALLS` map, and
//! the record that tells of much of it.
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::record::{COMM_LEN, Header};

/// [`Header::kind`] of [`StallRecord`].
pub const KIND_STALL: u32 = 20;

/// [`StallKey::kind`]: an allocating task reclaimed because the machine is short.
pub const DIRECT: u32 = 0;
/// [`StallKey::kind`]: a task reclaimed against a memory cgroup's limit.
pub const MEMCG: u32 = 1;
/// [`StallKey::kind`]: a task was made to sleep as its cgroup is over `memory.high`. The reclaim before the sleep is
/// [`MEMCG`].
pub const MEMORY_HIGH: u32 = 2;
/// [`StallKey::kind`]: a reclaiming task waited for writeback, or for others' progress. Within a reclaim it is a part of
/// that reclaim's time.
pub const THROTTLED: u32 = 3;
/// How many kinds of stalls there are.
pub const KINDS: u32 = 4;

/// Entries of the map: 500 pods of 3 containers, each stalled in every way, have room. It takes memory only for what is
/// there.
pub const MAX_STALLS: u32 = 8192;

/// Who was stalled, by whose limit, and how.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct StallKey {
    /// The task's cgroup when the stall began.
    pub cgroup_id: u64,
    /// The cgroup whose limit it was; 0 if it was the machine's shortage, or the kernel did not tell.
    pub limit_id: u64,
    /// One of the kinds.
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
}

/// How many buckets the histogram has.
pub const BUCKETS: usize = 24;

/// What came together under one key. All but the window only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StallTotals {
    /// Stalls.
    pub count: u64,
    /// How long they took together.
    pub total_ns: u64,
    /// How long the longest took.
    pub max_ns: u64,
    /// When the window under way began.
    pub window_since_ns: u64,
    /// Stalls within the window.
    pub window_ns: u64,
    /// When it was last told; 0: never.
    pub reported_ns: u64,
    /// How often it was not told though it was worth it, as it had been told just before.
    pub held: u64,
    /// Stalls by their length: see [`bucket`].
    pub buckets: [u64; BUCKETS],
}

impl StallTotals {
    /// Nothing yet.
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

/// The bucket of a stall: 0 below 1 µs, `n` from 2^(n-1) to below 2^n µs, the last one all that is longer (4.2 s).
#[must_use]
#[inline]
pub const fn bucket(stall_ns: u64) -> usize {
    let us = stall_ns / 1_000;
    let mut index = 0;
    let mut rest = us;
    // By halves instead of by a count of zeros, which the BPF machine does not have.
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

/// When a stall is worth a record of its own. Set by the daemon before the programs are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StallLimits {
    /// A single stall that is as long.
    pub stall_ns: u64,
    /// Stalls under one key that come to as much within the window.
    pub budget_ns: u64,
    /// The window.
    pub window_ns: u64,
    /// The least time between two records under one key.
    pub gap_ns: u64,
    /// What began before counts for nothing: it was noted under a daemon before, and its end may have been missed.
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

    /// Whether a stall is worth a record, after which the window has come to `window_ns`.
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

/// A stall, or what came together in the window, exceeded the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StallRecord {
    /// Kind [`KIND_STALL`].
    pub header: Header,
    /// When the stall ended.
    pub time_ns: u64,
    /// What it is counted under.
    pub key: StallKey,
    /// How long the stall took.
    pub stall_ns: u64,
    /// What the window came to, this stall included.
    pub window_ns: u64,
    /// Thread id of who was stalled.
    pub tid: u32,
    /// Process id.
    pub tgid: u32,
    /// Name of the thread, zero-padded.
    pub comm: [u8; COMM_LEN],
}

impl StallRecord {
    /// Size of the record.
    pub const SIZE_BYTES: u16 = 80;

    /// A record with its header and nothing else.
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
