//! OOM records that earlier daemons read, kept and reported: each is reported once, whenever a daemon was killed.
//!
//! A record goes through three places: the kernel's ring, the file of [`PendingRecords`], the journal. It enters each
//! before it leaves the one before, so after a kill it is in at least one of them. A record in two of them is
//! recognised by itself and by the id of its incident.
use std::{
    collections::{HashMap, HashSet},
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use aya::maps::{MapData, RingBuf};
use enforcer_events::{
    Event, Payload,
    oom::{Averted, Detected, Incident},
};
use ulid::{Generator, Ulid};

use super::emit;
use crate::{
    clock,
    journal::{Batch, EventType, Filter, Journal, PendingRecords},
    sense::{Again, Mark, RecordRing, decode},
};

/// How many events back the journal is searched. A record waits for seconds at most until it is reported.
const LOOK_BACK: u64 = 20_000;

/// More than a ring holds: if there are as many, the kernel is killing faster than the daemon reads.
const MOST_AT_ONCE: usize = 16_384;

/// The bits of an id that are not its time.
const RANDOM: u128 = (1 << 80) - 1;

/// The records that were left, and the log that keeps new ones.
pub(super) struct Backlog {
    journal: Journal,
    boot: u128,
    keeper: RecordLog,
    /// Records to begin with, in order.
    left: Vec<Vec<u8>>,
    again: Again,
    reported: Reported,
    ids: Generator,
    /// The newest event that this daemon appended.
    newest: u64,
}

/// The file, shared with the reader of the ring.
#[derive(Clone, Debug)]
struct RecordLog {
    state: Arc<Mutex<State>>,
    journal: Journal,
}

#[derive(Debug)]
struct State {
    /// `None` if the file cannot be written.
    unreported: Option<PendingRecords>,
    /// Whether the ring was seen empty. Until then it may hold records that were read before and must stay known.
    has_caught_up: bool,
}

/// The OOM events in the journal.
#[derive(Debug, Default)]
struct Reported {
    /// Incidents by the part of their id that is their own.
    ids: HashMap<u128, Ulid>,
    detected: HashSet<Ulid>,
    closed: HashSet<Ulid>,
    /// Victims that were dying: process id and start.
    averted: HashSet<(u32, Option<u64>)>,
}

impl Backlog {
    /// Reads the records left in the run directory, and if there are any, their events in the journal.
    pub(super) fn open(run_dir: &Path, boot_id: &str, journal: &Journal) -> Self {
        let (unreported, left) = match PendingRecords::open(run_dir, boot_id) {
            Ok((unreported, left)) => (Some(unreported), left),
            Err(error) => {
                emit_unprotected(journal, &error);
                (None, Vec::new())
            }
        };
        let reported = if left.is_empty() { Reported::default() } else { Reported::read(journal) };
        let mut again = Again::default();
        for record in &left {
            again.note(record);
        }
        Self {
            journal: journal.clone(),
            boot: spread(boot_id),
            keeper: RecordLog {
                state: Arc::new(Mutex::new(State { unreported, has_caught_up: false })),
                journal: journal.clone(),
            },
            left,
            again,
            reported,
            ids: Generator::new(),
            newest: 0,
        }
    }

    /// Takes all records that are in the ring now.
    pub(super) fn catch_up(&mut self, ring: &mut RingBuf<MapData>) {
        for _ in 0..MOST_AT_ONCE {
            let Some(record) = ring.next() else {
                self.keeper.lock().has_caught_up = true;
                return;
            };
            self.inherit(&record);
        }
    }

    /// Takes a record that leaves its ring now.
    pub(super) fn inherit(&mut self, record: &[u8]) {
        if self.again.is_one(record) {
            return;
        }
        self.keeper.keep(record);
        self.again.note(record);
        self.left.push(record.to_vec());
    }

    /// Returns the records to begin with, once.
    pub(super) fn left(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.left)
    }

    /// Wraps the ring: every record is kept before it is taken out, and records that were read before are skipped.
    pub(super) fn ring<R: RecordRing>(&mut self, ring: R) -> KeptRing<R> {
        KeptRing { ring, again: std::mem::take(&mut self.again), keeper: self.keeper.clone() }
    }

    /// Notes that a record of the ring has gone through the incidents.
    pub(super) fn taken(&mut self) {
        if let Some(unreported) = &mut self.keeper.lock().unreported {
            unreported.taken();
        }
    }

    /// The id of an incident that begins with this mark: the same for every daemon that reads it.
    pub(super) fn id(&mut self, first: &Mark) -> Ulid {
        let own = (u128::from(first.time_ns) << 16 | u128::from(first.tid & 0xffff)) ^ self.boot;
        if let Some(reported) = self.reported.ids.get(&(own & RANDOM)) {
            return *reported;
        }
        let now = self.fresh_id();
        Ulid::from((u128::from(now) & !RANDOM) | (own & RANDOM))
    }

    /// Returns the id of an incident without a mark: it comes from counters, and no other daemon reports it.
    pub(super) fn fresh_id(&mut self) -> Ulid {
        match self.ids.generate() {
            Ok(id) => id,
            Err(overflow) => overflow.commit_overflow_increment(),
        }
    }

    /// Whether an earlier daemon has reported this event.
    pub(super) fn is_reported(&self, payload: &Payload) -> bool {
        let Reported { ids: _, detected, closed, averted } = &self.reported;
        match payload {
            Payload::OomDetected(data) => detected.contains(&data.incident_id),
            Payload::OomIncident(data) => closed.contains(&data.incident_id),
            Payload::OomAverted(data) => {
                data.incident_id.is_some_and(|id| closed.contains(&id))
                    || dying(data).is_some_and(|victim| averted.contains(&victim))
            }
            _ => false,
        }
    }

    /// Notes the newest event that was appended.
    pub(super) fn appended(&mut self, sequence: u64) {
        self.newest = self.newest.max(sequence);
    }

    /// No incident is open. Drops the kept records, if a kill can no longer lose their events.
    pub(super) fn settle(&mut self) {
        let mut state = self.keeper.lock();
        if state.has_caught_up
            && state.unreported.as_ref().is_some_and(PendingRecords::can_settle)
            && self.journal.range().newest >= self.newest
            && let Some(Err(error)) = state.unreported.as_mut().map(PendingRecords::settle)
        {
            emit_unprotected(&self.journal, &error);
            state.unreported = None;
        }
    }
}

impl RecordLog {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a record that can be reported.
    fn keep(&self, record: &[u8]) {
        if decode(record).is_err() {
            return;
        }
        let mut state = self.lock();
        if let Some(Err(error)) =
            state.unreported.as_mut().map(|unreported| unreported.keep(record, clock::boottime_ns()))
        {
            emit_unprotected(&self.journal, &error);
            state.unreported = None;
        }
    }
}

impl Reported {
    fn read(journal: &Journal) -> Self {
        let mut reported = Self::default();
        let kinds = vec![EventType::OomDetected, EventType::OomIncident, EventType::OomAverted];
        let from = journal.range().newest.saturating_sub(LOOK_BACK);
        let mut reader = journal.reader(Some(from), Filter { kinds, ..Filter::default() });
        while let Some(batch) = reader.read() {
            let Batch::Records(records) = batch else { continue };
            for record in records {
                if let Ok(event) = Event::parse(&record.line) {
                    reported.note(&event.payload);
                }
            }
        }
        reported
    }

    fn note(&mut self, payload: &Payload) {
        match payload {
            Payload::OomDetected(Detected { incident_id, .. }) => {
                self.ids.insert(u128::from(*incident_id) & RANDOM, *incident_id);
                self.detected.insert(*incident_id);
            }
            Payload::OomIncident(Incident { incident_id, .. })
            | Payload::OomAverted(Averted { incident_id: Some(incident_id), .. }) => {
                self.ids.insert(u128::from(*incident_id) & RANDOM, *incident_id);
                self.closed.insert(*incident_id);
            }
            Payload::OomAverted(averted) => self.averted.extend(dying(averted)),
            _ => {}
        }
    }
}

/// The dying process: process id and start.
fn dying(averted: &Averted) -> Option<(u32, Option<u64>)> {
    averted.victims.first().map(|victim| (victim.pid, victim.start_time_ms))
}

/// Turns a boot id into bits for its incidents' ids.
fn spread(boot_id: &str) -> u128 {
    let hash = |salt: u32| {
        let mut hasher = crc32fast::Hasher::new_with_initial(salt);
        hasher.update(boot_id.as_bytes());
        u128::from(hasher.finalize())
    };
    hash(0) << 48 | hash(1) << 16 | hash(2) & 0xffff
}

fn emit_unprotected(journal: &Journal, error: &io::Error) {
    emit::degraded(
        journal,
        "untold",
        &format!(
            "an OOM kill that is being reported is lost if the daemon is killed: the run directory: {error}"
        ),
    );
}

/// A ring whose records are kept until they are reported.
#[derive(Debug)]
pub(super) struct KeptRing<R> {
    ring: R,
    again: Again,
    keeper: RecordLog,
}

impl<R: RecordRing> RecordRing for KeptRing<R> {
    async fn readable(&mut self) -> io::Result<()> {
        self.ring.readable().await
    }

    fn next<T>(&mut self, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let Self { ring, again, keeper } = self;
        let mut read = Some(read);
        loop {
            let taken = ring.next(|record| {
                if again.is_one(record) {
                    return None;
                }
                keeper.keep(record);
                read.take().map(|read| read(record))
            });
            match taken {
                Some(None) => {}
                Some(taken) => return taken,
                None => {
                    keeper.lock().has_caught_up = true;
                    return None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use enforcer_common::record::{Header, MarkVictim};
    use zerocopy::IntoBytes as _;

    use super::*;
    use crate::{journal::Subject, sense::Record};

    /// A ring that outlives its readers.
    #[derive(Clone, Debug, Default)]
    struct Ring(Arc<Mutex<VecDeque<Vec<u8>>>>);

    impl Ring {
        fn put(&self, records: &[&[u8]]) {
            self.0.lock().unwrap().extend(records.iter().map(|record| record.to_vec()));
        }
    }

    impl RecordRing for Ring {
        async fn readable(&mut self) -> io::Result<()> {
            Ok(())
        }

        fn next<T>(&mut self, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
            let mut records = self.0.lock().unwrap();
            let read = read(records.front()?);
            records.pop_front();
            Some(read)
        }
    }

    fn mark(tid: u32) -> MarkVictim {
        MarkVictim { tid, tgid: tid, time_ns: u64::from(tid) * 1_000_000_000, ..MarkVictim::EMPTY }
    }

    fn read(backlog: &mut Backlog, ring: &Ring) -> Vec<u32> {
        let mut ring = backlog.ring(ring.clone());
        std::iter::from_fn(|| ring.next(tid)).collect()
    }

    fn tid(record: &[u8]) -> u32 {
        match decode(record) {
            Ok(Record::Mark(mark)) => mark.tid,
            _ => 0,
        }
    }

    fn left(backlog: &mut Backlog) -> Vec<u32> {
        backlog.left().iter().map(|record| tid(record)).collect()
    }

    fn decoded(record: &MarkVictim) -> Mark {
        match decode(record.as_bytes()) {
            Ok(Record::Mark(mark)) => mark,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_was_read_and_not_reported_is_left_until_it_is_settled() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::new("node", "boot");
        let open = || Backlog::open(dir.path(), "boot", &journal);
        let ring = Ring::default();
        ring.put(&[mark(1).as_bytes(), Header::new(99, 8).as_bytes(), mark(2).as_bytes()]);
        let mut first = open();
        assert_eq!(read(&mut first, &ring), [1, 0, 2]);
        first.taken();
        first.settle();
        drop(first);

        let mut second = open();
        assert_eq!(left(&mut second), [1, 2], "the second was still on its way");
        ring.put(&[mark(3).as_bytes()]);
        assert_eq!(read(&mut second, &ring), [3]);
        (0..3).for_each(|_| second.taken());
        second.settle();
        drop(second);
        assert_eq!(left(&mut open()), [0; 0]);
    }

    #[test]
    fn a_kill_between_keeping_and_taking_out_makes_no_second_one() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::new("node", "boot");
        let ring = Ring::default();
        ring.put(&[mark(1).as_bytes(), mark(2).as_bytes()]);
        let first = Backlog::open(dir.path(), "boot", &journal);
        first.keeper.keep(mark(1).as_bytes());
        drop(first);
        let mut second = Backlog::open(dir.path(), "boot", &journal);
        assert_eq!(left(&mut second), [1]);
        second.settle();
        assert_eq!(read(&mut second, &ring), [2]);
        let again = Backlog::open(dir.path(), "boot", &journal).left();
        assert_eq!(again.len(), 2, "nothing is given up before the ring was seen empty");
    }

    #[test]
    fn what_two_versions_emit_is_taken_once() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::new("node", "boot");
        let mut backlog = Backlog::open(dir.path(), "boot", &journal);
        backlog.inherit(mark(1).as_bytes());
        backlog.inherit(mark(2).as_bytes());
        backlog.inherit(mark(2).as_bytes());
        assert_eq!(left(&mut backlog), [1, 2]);
        let ring = Ring::default();
        let later = |tid| MarkVictim { time_ns: mark(tid).time_ns + 3_000, ..mark(tid) };
        ring.put(&[later(2).as_bytes(), later(3).as_bytes()]);
        assert_eq!(read(&mut backlog, &ring), [3]);
    }

    #[test]
    fn an_incident_keeps_its_id_and_is_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::new("node", "boot");
        let mut first = Backlog::open(dir.path(), "boot", &journal);
        let (one, other) = (decoded(&mark(1)), decoded(&mark(2)));
        let id = first.id(&one);
        assert_ne!(id, first.id(&other));
        first.keeper.keep(mark(1).as_bytes());
        let detected = |incident_id| {
            Payload::OomDetected(Detected {
                incident_id,
                scope: None,
                limit_owner: None,
                trigger: None,
                victim: None,
                place: None,
                reconstructed: false,
            })
        };
        let averted = |start_time_ms| {
            let data = serde_json::json!({
                "cause": "alreadyDying",
                "trigger": {"pid": 7, "tid": 7, "comm": "c"},
                "victims": [{"pid": 7, "startTimeMs": start_time_ms, "comm": "c"}],
            });
            Payload::parse(EventType::OomAverted, &data).unwrap()
        };
        for payload in [detected(id), averted(70)] {
            assert!(!first.is_reported(&payload));
            journal.emit(Subject::Node, payload);
        }
        drop(first);

        let mut second = Backlog::open(dir.path(), "boot", &journal);
        assert_eq!(second.id(&one), id);
        assert!(second.is_reported(&detected(id)));
        assert!(!second.reported.closed.contains(&id), "it has not been closed");
        let other = second.id(&other);
        assert!(!second.is_reported(&detected(other)));
        assert!(second.is_reported(&averted(70)));
        assert!(!second.is_reported(&averted(71)));
    }
}
