//! Reports at once a process whose score is not its container's, and a write of another process to a kept file.
//!
//! Two maps hold what is guarded, by cgroup id. The programs report only that, and nothing that the daemon itself did.
//! Each cgroup has a credit of records that is restored after a moment; so endless writes to one cost little and hide
//! no other. See `enforcer_common::guard` for the kernel's side.
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt, io,
};

use aya::maps::{HashMap, MapData, MapError, PerCpuArray, RingBuf};
use enforcer_common::guard::{CREDIT, Guarded, MAX_GUARDED, MAX_WANTED, Wanted, counts};
use tokio::{
    io::unix::AsyncFd,
    time::{Instant, sleep_until},
};

use crate::{model::CgroupId, raw};

mod event;
mod own;
mod pace;
mod table;

pub use self::{
    event::{ForeignWrite, GuardEvent, Kept, Process, ScoreCause, WrongScore},
    own::PidNamespace,
};
use self::{pace::Pace, table::Table};

/// The most records of one pass before other tasks run.
const PASS_RECORDS: usize = 256;

/// The guard: its maps and pending events.
///
/// Call [`set_wanted`](Self::set_wanted) and [`set_guarded`](Self::set_guarded) after each reconciliation, and wait for
/// [`next`](Self::next) beside everything else. Both sets start empty, and then no event comes.
pub struct Guard {
    ring: Ring,
    wanted: Table<Wanted, i16>,
    guarded: Table<Guarded, ()>,
    counts: PerCpuArray<MapData, u64>,
    /// By the programs that are attached.
    sight: Sight,
    inbox: Inbox,
    /// The kernel's count of losses when it was last read.
    dropped: u64,
}

/// Events read from the ring.
struct Inbox {
    pids_are_ours: bool,
    pace: Pace,
    waiting: VecDeque<GuardEvent>,
    delivered: Delivered,
}

/// What the guard reports of all cgroups that it was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    /// Wrong scores are reported: all four programs are attached, and the kernel's table holds each container.
    pub scores: bool,
    /// Foreign writes are reported: the program is attached, and the kernel's table holds each cgroup.
    pub writes: bool,
}

/// Events of the guard since the programs were loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuardCounts {
    /// Wrong scores.
    pub scores: KindCounts,
    /// Foreign writes.
    pub writes: KindCounts,
    /// Records that could not be decoded.
    pub unusable: u64,
}

/// Counts of one kind: `seen = delivered + dropped + held` once the ring is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindCounts {
    /// All events of the kind.
    pub seen: u64,
    /// Delivered one by one.
    pub delivered: u64,
    /// Lost because the ring buffer was full; delivered together as [`GuardEvent::Lost`].
    pub dropped: u64,
    /// Held back because one cgroup had too many; delivered together as [`GuardEvent::Overrun`].
    pub held: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Delivered {
    scores: u64,
    writes: u64,
    unusable: u64,
}

/// Why something is not guarded.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// The map is too small for all entries; those that fit are guarded.
    #[error("the map {map} holds {max} cgroups, {more} too few: what the rest gets is found by looks alone")]
    TooMany {
        /// Name of the map.
        map: &'static str,
        /// How many fit.
        max: usize,
        /// How many did not.
        more: usize,
    },
    /// The kernel refused an entry; the next call with another set retries it.
    #[error("cannot change the map {map}")]
    Map {
        /// Name of the map.
        map: &'static str,
        /// The error from aya.
        #[source]
        source: MapError,
    },
}

/// The ring buffer is registered with the runtime at the first wait.
enum Ring {
    Loaded(RingBuf<MapData>),
    Registered(AsyncFd<RingBuf<MapData>>),
    /// Registering failed.
    Broken,
}

/// The guard's maps.
pub(super) struct Maps {
    pub(super) ring: RingBuf<MapData>,
    pub(super) wanted: HashMap<MapData, u64, Wanted>,
    pub(super) guarded: HashMap<MapData, u64, Guarded>,
    pub(super) counts: PerCpuArray<MapData, u64>,
}

impl Guard {
    pub(super) fn new(maps: Maps, sight: Sight, pids_are_ours: bool) -> Self {
        let Maps { ring, wanted, guarded, counts } = maps;
        let entries = |max: u32| usize::try_from(max).unwrap_or(usize::MAX);
        Self {
            ring: Ring::Loaded(ring),
            wanted: Table::new("WANTED", wanted, entries(MAX_WANTED)),
            guarded: Table::new("GUARDED", guarded, entries(MAX_GUARDED)),
            counts,
            sight,
            inbox: Inbox {
                pids_are_ours,
                pace: Pace::default(),
                waiting: VecDeque::new(),
                delivered: Delivered::default(),
            },
            dropped: 0,
        }
    }

    /// What is reported of all cgroups that were given last.
    #[must_use]
    pub fn sight(&self) -> Sight {
        Sight {
            scores: self.sight.scores && self.wanted.is_whole(),
            writes: self.sight.writes && self.guarded.is_whole(),
        }
    }

    /// Guards the scores of these containers' processes, and of no others. Cheap if nothing changed.
    ///
    /// A process that has a wrong score already is not reported: sweep new containers.
    pub fn set_wanted(&mut self, wanted: &BTreeMap<CgroupId, i16>) -> Result<(), GuardError> {
        self.wanted.set(wanted, score_record)
    }

    /// Guards the files of these cgroups, and of no others. Cheap if nothing changed.
    pub fn set_guarded(&mut self, guarded: &BTreeSet<CgroupId>) -> Result<(), GuardError> {
        self.guarded.set(&guarded.iter().map(|id| (*id, ())).collect(), |()| Guarded::default())
    }

    /// The next event. Must be called inside a tokio runtime; safe to cancel. After an error every call fails.
    pub async fn next(&mut self) -> io::Result<GuardEvent> {
        loop {
            if let Some(event) = self.inbox.waiting.pop_front() {
                return Ok(event);
            }
            let ring = self.ring.registered()?;
            let due = self.inbox.pace.due(Instant::now());
            tokio::select! {
                guard = ring.readable_mut() => {
                    let mut guard = guard?;
                    // Readiness is edge-triggered: it may only be cleared once the ring was seen empty.
                    if self.inbox.take(guard.get_inner_mut()) {
                        guard.clear_ready();
                    }
                    self.look_for_losses();
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => self.restore_credit(),
            }
        }
    }

    /// The events so far, without waiting.
    ///
    /// A caller that learned of a write from another source, such as inotify, gets the writer here.
    pub fn take(&mut self) -> Vec<GuardEvent> {
        let ring = match &mut self.ring {
            Ring::Loaded(ring) => ring,
            Ring::Registered(ring) => ring.get_mut(),
            Ring::Broken => return Vec::new(),
        };
        self.inbox.take(ring);
        self.look_for_losses();
        self.inbox.waiting.drain(..).collect()
    }

    /// The counts so far.
    pub fn counts(&self) -> Result<GuardCounts, MapError> {
        let count = |index| self.count(index);
        let Delivered { scores, writes, unusable } = self.inbox.delivered;
        Ok(GuardCounts {
            scores: KindCounts {
                seen: count(counts::SCORE_SEEN)?,
                delivered: scores,
                dropped: count(counts::SCORE_DROPPED)?,
                held: count(counts::SCORE_HELD)?,
            },
            writes: KindCounts {
                seen: count(counts::WRITE_SEEN)?,
                delivered: writes,
                dropped: count(counts::WRITE_DROPPED)?,
                held: count(counts::WRITE_HELD)?,
            },
            unusable,
        })
    }

    fn count(&self, index: u32) -> Result<u64, MapError> {
        Ok(self.counts.get(&index, 0)?.iter().sum())
    }

    /// Notes the kernel's losses. It loses records only while the ring is full, so a reader that checks at the ring's
    /// end misses none.
    fn look_for_losses(&mut self) {
        let dropped = match self
            .count(counts::SCORE_DROPPED)
            .and_then(|scores| Ok(scores + self.count(counts::WRITE_DROPPED)?))
        {
            Ok(dropped) => dropped,
            Err(error) => {
                tracing::debug!(%error, "cannot read the guard's losses");
                return;
            }
        };
        let new = dropped.saturating_sub(self.dropped);
        self.dropped = dropped;
        if new > 0 {
            self.inbox.pace.lost(new);
            self.restore_credit();
        }
    }

    /// Restores the credit of cgroups whose interval is over, before they are checked. One that had used up much of it
    /// may have had more events.
    fn restore_credit(&mut self) {
        let now = Instant::now();
        while let Some(key @ (of, cgroup)) = self.inbox.pace.pop(now) {
            let credit = self.inbox.pace.credit(key);
            let reported = self.reported(key);
            let is_used_up = reported > CREDIT - credit / 2;
            self.inbox.pace.ended(key, is_used_up, now);
            let spent = CREDIT - self.inbox.pace.credit(key);
            if reported != spent {
                self.renew(key, spent);
            }
            if is_used_up {
                self.inbox.waiting.push_back(GuardEvent::Overrun { cgroup, of });
            }
        }
        if let Some(lost) = self.inbox.pace.pop_lost(now) {
            for key in self.wanted.ids().into_iter().map(|id| (Kept::Scores, id)) {
                self.renew(key, 0);
            }
            for key in self.guarded.ids().into_iter().map(|id| (Kept::Files, id)) {
                self.renew(key, 0);
            }
            self.inbox.waiting.push_back(GuardEvent::Lost(lost));
        }
    }

    /// How much of its credit a cgroup has used.
    fn reported(&self, (of, cgroup): pace::Key) -> u32 {
        match of {
            Kept::Scores => self.wanted.record(cgroup).map_or(0, |record| record.reported),
            Kept::Files => self.guarded.record(cgroup).map_or(0, |record| record.reported),
        }
    }

    /// Sets how much of its credit a cgroup has used.
    fn renew(&mut self, (of, cgroup): pace::Key, reported: u32) {
        match of {
            Kept::Scores => {
                if let Some(score) = self.wanted.get(cgroup) {
                    self.wanted.renew(cgroup, Wanted { reported, ..score_record(score) });
                }
            }
            Kept::Files => {
                if self.guarded.get(cgroup).is_some() {
                    self.guarded.renew(cgroup, Guarded { reported });
                }
            }
        }
    }
}

fn score_record(score: i16) -> Wanted {
    Wanted { score: i32::from(score), reported: 0 }
}

fn key(event: &GuardEvent) -> Option<pace::Key> {
    match event {
        GuardEvent::Score(WrongScore { container, .. }) => Some((Kept::Scores, *container)),
        GuardEvent::Written(ForeignWrite { cgroup, .. }) => Some((Kept::Files, *cgroup)),
        GuardEvent::Overrun { .. } | GuardEvent::Lost(_) => None,
    }
}

impl Inbox {
    /// Takes the ring's records, up to one pass; returns whether that was all.
    fn take(&mut self, ring: &mut RingBuf<MapData>) -> bool {
        for _ in 0..PASS_RECORDS {
            let Some(record) = ring.next() else { return true };
            match event::decode(&record, self.pids_are_ours) {
                Ok(event) => {
                    self.delivered.note(&event);
                    if let Some(key) = key(&event) {
                        self.pace.saw(key, Instant::now());
                    }
                    self.waiting.push_back(event);
                }
                Err(error) => {
                    self.delivered.unusable += 1;
                    tracing::debug!(%error, "cannot use a record");
                }
            }
        }
        false
    }
}

impl Delivered {
    fn note(&mut self, event: &GuardEvent) {
        match event {
            GuardEvent::Score(_) => self.scores += 1,
            GuardEvent::Written(_) => self.writes += 1,
            GuardEvent::Overrun { .. } | GuardEvent::Lost(_) => {}
        }
    }
}

impl Ring {
    fn registered(&mut self) -> io::Result<&mut AsyncFd<RingBuf<MapData>>> {
        if let Self::Loaded(_) = self
            && let Self::Loaded(ring) = std::mem::replace(self, Self::Broken)
        {
            *self = Self::Registered(raw::readable(ring)?);
        }
        match self {
            Self::Registered(ring) => Ok(ring),
            Self::Loaded(_) | Self::Broken => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Guard")
            .field("wanted", &self.wanted)
            .field("guarded", &self.guarded)
            .field("sight", &self.sight)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
