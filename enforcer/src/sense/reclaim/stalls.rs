//! The map of stalls, read as a whole.
use std::{fmt, io};

use aya::maps::{HashMap, MapData, MapError};
use enforcer_common::stall::{BUCKETS, DIRECT, MEMCG, MEMORY_HIGH, StallKey, StallTotals, THROTTLED};

use crate::{model::CgroupId, raw};

/// Entries read in one system call. More cost memory for as long as the daemon runs.
const CHUNK: usize = 128;

/// The kind of a stall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StallKind {
    /// It reclaimed because the machine is short of memory.
    DirectReclaim,
    /// It reclaimed against a memory cgroup's limit.
    MemcgReclaim,
    /// It was put to sleep as its cgroup exceeds `memory.high`; without the reclaim before that.
    MemoryHigh,
    /// It waited within reclaim for writeback or for other tasks. A part of the reclaim's time.
    Throttled,
}

impl StallKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::DirectReclaim, Self::MemcgReclaim, Self::MemoryHigh, Self::Throttled];

    /// Its word in events and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DirectReclaim => "directReclaim",
            Self::MemcgReclaim => "memcgReclaim",
            Self::MemoryHigh => "memoryHigh",
            Self::Throttled => "throttled",
        }
    }

    /// The kind with this number in the programs.
    #[must_use]
    pub const fn of(number: u32) -> Option<Self> {
        match number {
            DIRECT => Some(Self::DirectReclaim),
            MEMCG => Some(Self::MemcgReclaim),
            MEMORY_HIGH => Some(Self::MemoryHigh),
            THROTTLED => Some(Self::Throttled),
            _ => None,
        }
    }
}

/// The stalls of one kind of one cgroup's tasks against one limit, since the programs were loaded. All only grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The tasks' cgroup when each stall began.
    pub cgroup: CgroupId,
    /// The cgroup whose limit it was; `None` if the machine was short, or the kernel does not report it.
    pub limit: Option<CgroupId>,
    /// The kind of the stalls.
    pub kind: StallKind,
    /// Number of stalls.
    pub count: u64,
    /// Their total duration.
    pub total_ns: u64,
    /// Duration of the longest.
    pub max_ns: u64,
    /// Number of records held back because another had been sent just before.
    pub held: u64,
    /// By length: bucket 0 is below 1 µs, bucket `n` from 2^(n-1) to below 2^n µs, the last everything longer.
    pub buckets: [u64; BUCKETS],
}

impl Stall {
    /// Total duration of stalls, by kind in the order of [`StallKind::ALL`].
    pub fn sum_ns<'a>(stalls: impl Iterator<Item = &'a Self>) -> [u64; StallKind::ALL.len()] {
        let mut sums = [0_u64; StallKind::ALL.len()];
        for stall in stalls {
            for (sum, kind) in sums.iter_mut().zip(StallKind::ALL) {
                *sum += if kind == stall.kind { stall.total_ns } else { 0 };
            }
        }
        sums
    }
}

/// Why stalls could not be read.
#[derive(Debug, thiserror::Error)]
pub enum StallsError {
    /// The kernel refused to read the map.
    #[error("cannot read the map STALLS: its entries are still counted, and are read the next time")]
    Read(#[source] io::Error),
    /// The kernel refused to remove an entry; the next call retries it.
    #[error("cannot remove a cgroup that is gone from the map STALLS")]
    Remove(#[source] MapError),
}

/// The map of stalls.
pub struct Stalls {
    map: HashMap<MapData, StallKey, StallTotals>,
    keys: Box<[StallKey]>,
    values: Box<[StallTotals]>,
}

impl fmt::Debug for Stalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stalls").finish_non_exhaustive()
    }
}

impl Stalls {
    pub(in crate::sense) fn new(map: HashMap<MapData, StallKey, StallTotals>) -> Self {
        Self { map, keys: Box::default(), values: Box::default() }
    }

    /// All totals, in no order. One system call for every 128 entries, and none an entry.
    ///
    /// It is no snapshot of one moment: stalls go on during the reading.
    pub fn read(&mut self) -> Result<Vec<Stall>, StallsError> {
        if self.keys.is_empty() {
            self.keys = vec![StallKey::default(); CHUNK].into();
            self.values = vec![StallTotals::EMPTY; CHUNK].into();
        }
        let mut stalls = Vec::new();
        let mut cursor = raw::BatchCursor::default();
        loop {
            let batch = raw::lookup_batch(&self.map, &mut cursor, &mut self.keys, &mut self.values);
            let read = match batch {
                // More entries share one bucket of the map than fit in the buffers.
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                    let longer = self.keys.len().saturating_mul(2);
                    self.keys = vec![StallKey::default(); longer].into();
                    self.values = vec![StallTotals::EMPTY; longer].into();
                    continue;
                }
                batch => batch.map_err(StallsError::Read)?,
            };
            let entries = self.keys.iter().zip(&self.values).take(read.entries);
            stalls.extend(entries.filter_map(|(key, totals)| stall(key, totals)));
            if read.is_last {
                return Ok(stalls);
            }
        }
    }

    /// All totals, entry by entry: two system calls an entry. For comparison.
    pub fn read_one_by_one(&self) -> Result<Vec<Stall>, MapError> {
        let entries = self.map.iter().filter_map(|entry| match entry {
            Ok((key, totals)) => stall(&key, &totals).map(Ok),
            Err(error) => Some(Err(error)),
        });
        entries.collect()
    }

    /// Removes the totals of removed cgroups, whether they were stalled or the limit owner.
    pub fn forget(&mut self, gone: impl Fn(CgroupId) -> bool) -> Result<usize, StallsError> {
        let mut removed = 0;
        for stall in self.read()? {
            if !gone(stall.cgroup) && !stall.limit.is_some_and(&gone) {
                continue;
            }
            match self.map.remove(&key(&stall)) {
                Ok(()) => removed += 1,
                // It was removed already.
                Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(StallsError::Remove(error)),
            }
        }
        Ok(removed)
    }
}

fn stall(key: &StallKey, totals: &StallTotals) -> Option<Stall> {
    let StallTotals { count, total_ns, max_ns, held, buckets, .. } = *totals;
    let kind = StallKind::of(key.kind)?;
    let limit = (key.limit_id != 0).then_some(CgroupId(key.limit_id));
    Some(Stall { cgroup: CgroupId(key.cgroup_id), limit, kind, count, total_ns, max_ns, held, buckets })
}

fn key(stall: &Stall) -> StallKey {
    let kind = match stall.kind {
        StallKind::DirectReclaim => DIRECT,
        StallKind::MemcgReclaim => MEMCG,
        StallKind::MemoryHigh => MEMORY_HIGH,
        StallKind::Throttled => THROTTLED,
    };
    StallKey {
        cgroup_id: stall.cgroup.0,
        limit_id: stall.limit.map_or(0, |limit| limit.0),
        kind,
        reserved: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_found_again_by_what_was_read_of_it() {
        for (number, kind) in (0..).zip(StallKind::ALL) {
            let entry = StallKey { cgroup_id: 7, limit_id: u64::from(number) * 9, kind: number, reserved: 0 };
            let read = stall(&entry, &StallTotals { count: 3, ..StallTotals::EMPTY }).unwrap();
            assert_eq!((read.kind, read.count), (kind, 3));
            assert_eq!(key(&read), entry);
        }
    }

    #[test]
    fn a_kind_of_another_build_is_passed_over() {
        let entry = StallKey { kind: enforcer_common::stall::KINDS, ..StallKey::default() };
        assert_eq!(stall(&entry, &StallTotals::EMPTY), None);
    }
}
