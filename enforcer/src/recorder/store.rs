//! Holds the last minutes of the flight recorder, and copies from them what a file needs.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    sync::Arc,
};

use super::{ring::Consumer, tap::Tapped};
use crate::{
    model::CgroupId,
    policy::flight::{Member, Origin, Processes, Writer, encode_bytes, split_bytes},
};

/// How much is kept in memory, and for how long at least if it fits.
const MEMORY_BYTES: usize = 1 << 20;
const KEEP_NS: u64 = 600_000_000_000;

/// How much of the time before a decision its file covers.
const BEFORE_NS: u64 = 120_000_000_000;
const BEFORE_BYTES: usize = 512 * 1024;

/// Names of pods that are gone are kept as long as their records can be; at most this many.
const MOST_GONE: usize = 4_096;

/// The most readings of processes that are kept, each of some KiB.
const MOST_READINGS: usize = 12;

/// In place of a time: a candidate at present.
const STILL: u64 = u64::MAX;

/// The first byte of a whole state of the engine. A segment begins with one.
const KEY: u8 = 0;

/// The recorder's statistics.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RecorderStats {
    /// Records taken since the start.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Records that found no room in the ring.
    pub lost: u64,
    /// Bytes held in memory now, without the ring.
    pub held_bytes: usize,
}

/// The records from one whole state to the next.
#[derive(Clone, Debug, Default)]
struct Segment {
    /// Each record with its length before it.
    bytes: Vec<u8>,
    end_ns: u64,
}

/// Which records are written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Extent {
    /// All records.
    All,
    /// The records shortly before now.
    Recent,
    /// The records since the last whole state.
    Latest,
}

/// The records in memory.
#[derive(Debug)]
pub(super) struct Store {
    ring: Consumer,
    tapped: Arc<Tapped>,
    /// The last segment is still growing.
    segments: VecDeque<Arc<Segment>>,
    held_bytes: usize,
    /// The candidates by cgroup, and until when each was one.
    names: BTreeMap<CgroupId, (Arc<Member>, u64)>,
    /// Readings of processes, in order.
    processes: VecDeque<Arc<Processes>>,
    scratch: Vec<u8>,
    records: u64,
    bytes: u64,
}

impl Store {
    pub(super) fn new(ring: Consumer, tapped: Arc<Tapped>) -> Self {
        Self {
            ring,
            tapped,
            segments: VecDeque::new(),
            held_bytes: 0,
            names: BTreeMap::new(),
            processes: VecDeque::new(),
            scratch: Vec::new(),
            records: 0,
            bytes: 0,
        }
    }

    /// Takes the records from the ring.
    pub(super) fn drain(&mut self) {
        let mut scratch = std::mem::take(&mut self.scratch);
        loop {
            scratch.clear();
            let Some(at_ns) = self.ring.take(&mut scratch) else { break };
            self.take(at_ns, &scratch);
        }
        // A buffer that a thousand pods filled is not kept for ever.
        scratch.clear();
        scratch.shrink_to(4_096);
        self.scratch = scratch;
        self.forget();
    }

    fn take(&mut self, at_ns: u64, record: &[u8]) {
        self.records += 1;
        self.bytes += u64::try_from(record.len()).unwrap_or(0);
        if record.first() == Some(&KEY) || self.segments.is_empty() {
            self.segments.push_back(Arc::default());
        }
        if let Some(segment) = self.segments.back_mut() {
            let segment = Arc::make_mut(segment);
            let before = segment.bytes.len();
            encode_bytes(record, &mut segment.bytes);
            segment.end_ns = segment.end_ns.max(at_ns);
            self.held_bytes += segment.bytes.len() - before;
        }
    }

    /// Drops segments that are too old, or exceed the limit.
    fn forget(&mut self) {
        let now_ns = self.segments.back().map_or(0, |segment| segment.end_ns);
        while let Some(first) = self.segments.front()
            && self.segments.len() > 1
            && (self.held_bytes > MEMORY_BYTES || now_ns.saturating_sub(first.end_ns) > KEEP_NS)
        {
            self.held_bytes -= first.bytes.len();
            self.segments.pop_front();
        }
    }

    /// Notes which pods are candidates.
    pub(super) fn name(&mut self, members: impl Iterator<Item = Member>, now_ns: u64) {
        // The previous candidates were known until now.
        for (_, seen_ns) in self.names.values_mut().filter(|(_, seen_ns)| *seen_ns == STILL) {
            *seen_ns = now_ns;
        }
        for member in members {
            let known = self.names.get(&member.cgroup).map(|(known, _)| Arc::clone(known));
            let cgroup = member.cgroup;
            let member = known.filter(|known| **known == member).unwrap_or_else(|| Arc::new(member));
            self.names.insert(cgroup, (member, STILL));
        }
        // Segments are kept for one longer than `KEEP_NS`.
        let kept_ns = now_ns.saturating_sub(2 * KEEP_NS);
        self.names.retain(|_, (_, seen_ns)| *seen_ns >= kept_ns);
        let gone = self.names.iter().filter(|(_, (_, seen_ns))| *seen_ns != STILL);
        let mut gone: Vec<_> = gone.map(|(cgroup, (_, seen_ns))| (*seen_ns, *cgroup)).collect();
        gone.sort_unstable();
        let too_many = gone.len().saturating_sub(MOST_GONE);
        for (_, cgroup) in gone.iter().take(too_many) {
            self.names.remove(cgroup);
        }
    }

    /// The cgroups of all pods that have a name here.
    pub(super) fn pods(&self) -> BTreeSet<CgroupId> {
        self.names.keys().copied().collect()
    }

    /// Keeps a reading of processes; the oldest are dropped.
    pub(super) fn take_processes(&mut self, read: Processes) {
        let kept_ns = read.read_ns.saturating_sub(KEEP_NS);
        self.processes.push_back(Arc::new(read));
        while self.processes.len() > MOST_READINGS
            || self.processes.front().is_some_and(|oldest| oldest.read_ns < kept_ns)
        {
            self.processes.pop_front();
        }
    }

    /// Returns a copy to be written elsewhere; it shares the records.
    pub(super) fn copy(&self, extent: Extent) -> Copy {
        let now_ns = self.segments.back().map_or(0, |segment| segment.end_ns);
        let (mut bytes, mut segments) = (0, VecDeque::new());
        for segment in self.segments.iter().rev() {
            bytes += segment.bytes.len();
            let is_far = match extent {
                Extent::All => false,
                Extent::Recent => now_ns.saturating_sub(segment.end_ns) > BEFORE_NS || bytes > BEFORE_BYTES,
                Extent::Latest => true,
            };
            if is_far && !segments.is_empty() {
                break;
            }
            segments.push_front(Arc::clone(segment));
        }
        let members = self.names.values().map(|(member, _)| Arc::clone(member)).collect();
        let is_of_extent = |read: &&Arc<Processes>| match extent {
            Extent::All => true,
            Extent::Recent => now_ns.saturating_sub(read.read_ns) <= BEFORE_NS,
            Extent::Latest => false,
        };
        let processes = self.processes.iter().filter(is_of_extent).map(Arc::clone).collect();
        Copy { segments: segments.into(), members, processes, seed: self.tapped.seed() }
    }

    pub(super) fn lost(&self) -> u64 {
        self.tapped.lost()
    }

    pub(super) fn stats(&self) -> RecorderStats {
        RecorderStats {
            records: self.records,
            bytes: self.bytes,
            lost: self.lost(),
            held_bytes: self.held_bytes,
        }
    }
}

/// A copy of records and names, ready to be written.
#[derive(Debug)]
pub(super) struct Copy {
    segments: Vec<Arc<Segment>>,
    members: Vec<Arc<Member>>,
    processes: Vec<Arc<Processes>>,
    seed: u128,
}

impl Copy {
    pub(super) fn seed(&self) -> u128 {
        self.seed
    }

    #[cfg(test)]
    pub(super) fn names(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().map(|member| &**member)
    }

    pub(super) fn write(&self, origin: &Origin, out: &mut dyn io::Write) -> io::Result<()> {
        let mut writer = Writer::new(env!("CARGO_PKG_VERSION"), origin);
        let members: Vec<Member> = self.members.iter().map(|member| (**member).clone()).collect();
        writer.names(&members);
        writer.processes(self.processes.iter().map(|read| &**read));
        for segment in &self.segments {
            let mut left = segment.bytes.as_slice();
            while let Some((record, rest)) = split_bytes(left) {
                left = rest;
                writer.record(record);
                if writer.written().len() >= 64 * 1024 {
                    out.write_all(&writer.take_written())?;
                }
            }
        }
        out.write_all(&writer.finish())
    }
}
