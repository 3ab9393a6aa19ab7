mod envelope;
mod lines;
mod reader;

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use serde_json::json;
use tokio::sync::watch;
use ulid::{Generator, Ulid};

use super::{
    Cursor, Event, EventType, Filter, Observer, Subject, disk::Disk, record::Kept, retention::Limits,
    tail::Tail, trouble::Trouble,
};

use self::envelope::Envelope;
pub(super) use self::reader::read_segments;
pub use self::{
    lines::{Line, Passed},
    reader::{Batch, Reader},
};

/// How many bytes of events are kept in memory, beside those that the disk has not taken yet.
const WINDOW_BYTES: usize = 256 << 10;

/// How many bytes are kept in memory when there is no disk, or it takes nothing.
const RETAINED_BYTES: usize = 2 << 20;

/// The most events that one batch holds, so that a reader far behind does not hold the log for long.
const BATCH_RECORDS: usize = 256;

/// The log; clones share it.
#[derive(Clone)]
pub struct Journal {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    node: String,
    source: String,
    epoch: Ulid,
    log: Mutex<Log>,
    /// Woken when there is something to write.
    work: Condvar,
    /// The newest sequence that readers see; they wait for it to move.
    newest: watch::Sender<u64>,
    /// The newest sequence that a power cut cannot take any more.
    durable: watch::Sender<u64>,
    disk: Option<Disk>,
    /// Whether the disk works, so that it is told when it does not.
    pub(super) trouble: Mutex<Trouble>,
    /// How much the disk keeps.
    limits: Mutex<Limits>,
    /// Who counts what is appended and lost, once it is known.
    observer: OnceLock<Arc<dyn Observer>>,
}

/// Where a log on a disk goes on.
pub(super) struct Start {
    pub(super) epoch: Ulid,
    /// The sequence of the next event.
    pub(super) next: u64,
    /// The newest event that a segment holds.
    pub(super) written: u64,
    /// The newest event that a power cut cannot take.
    pub(super) durable: u64,
    /// What no segment has yet, or readers cannot get from one. There may be holes in it: what no tail had room for.
    pub(super) pending: Vec<Kept>,
    /// Before that sequence readers get nothing of `pending` from a segment, though it is there.
    pub(super) unreadable_end: u64,
    pub(super) tail: Option<Tail>,
    pub(super) limits: Limits,
}

/// What there is for the writer.
pub(super) enum Work {
    /// These are to be written: one follows the other.
    Records(Vec<Kept>),
    /// Nothing, but something was appended or some time went by.
    Nothing,
    /// The log is closed, and all is written.
    Closed,
}

pub(super) struct Log {
    /// In order, with holes where a process before lost some.
    records: VecDeque<Kept>,
    bytes: usize,
    next: u64,
    ids: Generator,
    tail: Option<Tail>,
    /// Everything up to this one is in a segment, and readers may take it from there.
    written: u64,
    /// See [`Start`]; 0 as soon as the disk takes something.
    unreadable_end: u64,
    /// The newest event that was given up before a segment held it.
    given_up: u64,
    /// The newest event that the tail had no room for.
    unprotected: u64,
    /// Whether there are segments at all.
    has_disk: bool,
    /// Readers see events up to this one: a kill cannot take them any more.
    visible: u64,
    /// Whether the disk refuses: then events are shown although a kill would take them.
    disk_is_down: bool,
    /// How much is kept here of what is written.
    window_bytes: usize,
    /// How much is kept here at all.
    retained_bytes: usize,
    closing: bool,
}

/// The sequences that are kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Range {
    /// The oldest that is kept; one past `newest` in an empty log.
    pub oldest: u64,
    /// The newest; 0 before the first.
    pub newest: u64,
}

/// How much the log holds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Load {
    /// What its segments and their indexes take on the disk.
    pub stored_bytes: u64,
    /// How many events no segment has yet.
    pub unwritten_records: u64,
}

/// Why a cursor cannot be resumed from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Stale {
    /// What is kept.
    pub range: Range,
    /// How many events behind the cursor are kept no longer.
    pub lost: u64,
}

impl Journal {
    /// An empty log for the node of that name and boot, in memory alone.
    #[must_use]
    pub fn new(node: &str, boot_id: &str) -> Self {
        Self::in_memory(node, boot_id, RETAINED_BYTES)
    }

    fn in_memory(node: &str, boot_id: &str, retained_bytes: usize) -> Self {
        let log = Log::new(1, None, retained_bytes, retained_bytes);
        Self::from_parts(node, boot_id, Ulid::generate(), log, 0, None, Limits::default())
    }

    /// The log that goes on behind what the disk holds.
    pub(super) fn on_disk(node: &str, boot_id: &str, start: Start, disk: Disk) -> Self {
        let Start { epoch, next, written, durable, pending, unreadable_end, tail, limits } = start;
        let mut log = Log::new(next, tail, WINDOW_BYTES, RETAINED_BYTES);
        log.has_disk = true;
        log.written = written;
        log.unreadable_end = unreadable_end;
        log.bytes = pending.iter().map(|record| record.line.len()).sum();
        log.records = pending.into();
        Self::from_parts(node, boot_id, epoch, log, durable, Some(disk), limits)
    }

    fn from_parts(
        node: &str,
        boot_id: &str,
        epoch: Ulid,
        log: Log,
        durable: u64,
        disk: Option<Disk>,
        limits: Limits,
    ) -> Self {
        let newest = log.next - 1;
        Self {
            shared: Arc::new(Shared {
                node: node.to_owned(),
                source: format!("urn:enforcer:{node}:{boot_id}"),
                epoch,
                log: Mutex::new(log),
                work: Condvar::new(),
                newest: watch::Sender::new(newest),
                durable: watch::Sender::new(durable),
                disk,
                trouble: Mutex::default(),
                limits: Mutex::new(limits),
                observer: OnceLock::new(),
            }),
        }
    }

    /// Appends an event and returns its sequence. Never waits for a reader or a disk.
    #[expect(clippy::must_use_candidate, reason = "most producers have no use for the sequence")]
    pub fn append(&self, event: Event) -> u64 {
        let Event { kind, subject, data } = event;
        let shared = &*self.shared;
        let namespace = match &subject {
            Subject::Node => None,
            Subject::Pod(pod) => Some(pod.namespace.as_str()),
        };
        if let Some(observer) = shared.observer.get() {
            observer.on_event(kind, namespace, &data);
        }
        // As far as it can be done before, it is: others append too.
        let payload = envelope::payload(&data);
        let now = jiff::Timestamp::now();
        let mut log = shared.log();
        let id = match log.ids.generate() {
            Ok(id) => id,
            Err(overflow) => overflow.commit_overflow_increment(),
        };
        let sequence = log.next;
        let (subject, pod) = match subject {
            Subject::Node => (shared.node.clone(), None),
            Subject::Pod(pod) => (pod.to_string(), Some(pod)),
        };
        let (source, subject) = (shared.source.as_str(), subject.as_str());
        let line = Envelope { id, kind, sequence, source, subject, time: now }.line(&payload);
        let (kind, line) = (Some(kind), Bytes::from(line));
        let record = Kept { sequence, time_ms: now.as_millisecond(), kind, pod, line };
        log.push(record);
        let visible = log.visible;
        drop(log);
        shared.work.notify_one();
        shared.show(visible);
        sequence
    }

    /// Keeps that much from now on.
    pub fn set_limits(&self, limits: Limits) {
        *self.shared.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits;
        self.shared.work.notify_all();
    }

    /// Reports each event that is appended from now on, and each loss, to the observer. The first observer stays.
    #[must_use]
    pub fn observed_by(self, observer: Arc<dyn Observer>) -> Self {
        let _first = self.shared.observer.get_or_init(|| observer);
        self
    }

    /// Notes that a reader missed that many events: they left the log before it had read them.
    pub fn note_lost_to_reader(&self, events: u64) {
        if let Some(observer) = self.shared.observer.get() {
            observer.on_lost_to_reader(events);
        }
    }

    /// What its segments take on the disk, and how many events wait for it.
    #[must_use]
    pub fn load(&self) -> Load {
        let unwritten = {
            let log = self.shared.log();
            (log.next - 1).saturating_sub(log.written)
        };
        let unwritten_records = if self.has_disk() { unwritten } else { 0 };
        Load { stored_bytes: self.shared.disk.as_ref().map_or(0, Disk::stored_bytes), unwritten_records }
    }

    pub(super) fn disk(&self) -> Option<&Disk> {
        self.shared.disk.as_ref()
    }

    /// The sequences that are kept.
    #[must_use]
    pub fn range(&self) -> Range {
        let (in_memory, newest) = {
            let log = self.shared.log();
            (log.oldest(), log.visible)
        };
        let on_disk = self.shared.disk.as_ref().and_then(Disk::oldest);
        Range { oldest: on_disk.map_or(in_memory, |oldest| oldest.min(in_memory)), newest }
    }

    /// The newest sequence that a power cut cannot take any more; without a disk, that of the last start.
    #[must_use]
    pub fn durable(&self) -> watch::Receiver<u64> {
        self.shared.durable.subscribe()
    }

    /// Whether anything of it outlives this process.
    #[must_use]
    pub fn has_disk(&self) -> bool {
        self.shared.disk.is_some()
    }

    /// The `source` of its events: `urn:enforcer:<node>:<boot id>`.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.shared.source
    }

    /// The event that tells one reader that those are kept no longer: it is on its stream alone, and not in the log. Its
    /// sequence is the last one that is missing. Told again, it has the same id.
    #[must_use]
    pub fn gap(&self, from: u64, to: u64) -> String {
        let (first, last) = (format!("{from:020}"), format!("{to:020}"));
        let count = to.saturating_sub(from).saturating_add(1);
        let data = json!({"fromSequence": first, "toSequence": last, "count": count});
        let Shared { epoch, source, node, .. } = &*self.shared;
        let envelope = Envelope {
            id: Ulid(epoch.0 ^ u128::from(to)),
            kind: EventType::StreamGap,
            sequence: to,
            source,
            subject: node,
            time: jiff::Timestamp::now(),
        };
        envelope.line(&envelope::payload(&data))
    }

    /// The cursor that stands behind the event of that sequence.
    #[must_use]
    pub fn cursor(&self, sequence: u64) -> Cursor {
        let epoch =
            self.shared.disk.as_ref().and_then(|disk| disk.epoch(sequence)).unwrap_or(self.shared.epoch);
        Cursor { epoch: epoch.to_string(), sequence }
    }

    /// The sequence behind which the cursor's reader goes on, if nothing behind it is lost.
    pub fn resume(&self, cursor: &Cursor) -> Result<u64, Stale> {
        let range = self.range();
        let ours = cursor.sequence <= range.newest
            && (cursor.sequence == 0 || self.cursor(cursor.sequence).epoch == cursor.epoch);
        if !ours {
            return Err(Stale { range, lost: range.oldest - 1 });
        }
        let next = cursor.sequence.saturating_add(1);
        if next < range.oldest {
            Err(Stale { range, lost: range.oldest - next })
        } else {
            Ok(cursor.sequence)
        }
    }

    /// A reader of what comes behind `after`; without it, of all that is kept.
    #[must_use]
    pub fn reader(&self, after: Option<u64>, filter: Filter) -> Reader {
        let next = after.map_or_else(|| self.range().oldest, |sequence| sequence.saturating_add(1));
        Reader { journal: self.clone(), newest: self.shared.newest.subscribe(), next, filter }
    }

    /// Ends the log in order: what is not on the disk yet is written there.
    pub fn close(&self) {
        self.shared.log().close();
        self.shared.work.notify_all();
        if let Some(disk) = &self.shared.disk {
            disk.join();
        }
    }
}

impl Shared {
    /// Notes that many events that left memory before the disk took them.
    pub(super) fn note_lost(&self, events: u64) {
        if let Some(observer) = self.observer.get() {
            observer.on_lost_by_disk(events);
        }
    }

    pub(super) fn log(&self) -> MutexGuard<'_, Log> {
        // A panic cannot leave the log between two states: each field is changed after the last step that may fail.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next of up to `most` events that no segment has yet. While there are none, or the time is not there, waits:
    /// not longer than `patience`, and not on when something is appended.
    pub(super) fn work(&self, most: usize, not_before: Option<Instant>, patience: Duration) -> Work {
        let mut log = self.log();
        for has_waited in [false, true] {
            let now = Instant::now();
            let early = not_before.filter(|not_before| *not_before > now && !log.closing);
            if early.is_none() {
                let unwritten = log.behind(log.settled(), most);
                if !unwritten.is_empty() {
                    return Work::Records(unwritten);
                }
                if log.closing {
                    return Work::Closed;
                }
            }
            if !has_waited {
                let patience = early.map_or(patience, |early| early.duration_since(now));
                (log, _) = self.work.wait_timeout(log, patience).unwrap_or_else(PoisonError::into_inner);
            }
        }
        Work::Nothing
    }

    /// All events behind that one that are in memory.
    pub(super) fn behind(&self, sequence: u64) -> Vec<Kept> {
        let log = self.log();
        log.records.range(log.place_behind(sequence)..).cloned().collect()
    }

    /// The newest event that the writer needs not care for any more.
    pub(super) fn settled(&self) -> u64 {
        self.log().settled()
    }

    /// How much the disk is to keep.
    pub(super) fn limits(&self) -> Limits {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note that everything up to that sequence is in a segment.
    pub(super) fn set_written(&self, sequence: u64) {
        let visible = {
            let mut log = self.log();
            log.written = log.written.max(sequence);
            // Before it is written to, the index is made whole.
            log.unreadable_end = 0;
            log.disk_is_down = false;
            log.trim();
            log.show()
        };
        self.show(visible);
    }

    /// Takes note that the disk takes nothing for now.
    pub(super) fn set_disk_down(&self) {
        let visible = {
            let mut log = self.log();
            log.disk_is_down = true;
            log.show()
        };
        self.show(visible);
    }

    fn show(&self, visible: u64) {
        self.newest.send_if_modified(|newest| {
            let is_newer = visible > *newest;
            *newest = visible.max(*newest);
            is_newer
        });
    }

    /// Takes note that everything up to that sequence outlives a power cut.
    pub(super) fn set_durable(&self, sequence: u64) {
        self.durable.send_if_modified(|durable| {
            let is_newer = sequence > *durable;
            *durable = sequence.max(*durable);
            is_newer
        });
    }

    pub(super) fn is_closing(&self) -> bool {
        self.log().closing
    }
}

impl Log {
    fn new(next: u64, tail: Option<Tail>, window_bytes: usize, retained_bytes: usize) -> Self {
        Self {
            records: VecDeque::new(),
            bytes: 0,
            next,
            ids: Generator::new(),
            tail,
            written: next - 1,
            unreadable_end: 0,
            given_up: 0,
            unprotected: 0,
            has_disk: false,
            visible: next - 1,
            disk_is_down: false,
            window_bytes,
            retained_bytes,
            closing: false,
        }
    }

    /// There is nothing more to come.
    pub(super) fn close(&mut self) {
        self.closing = true;
    }

    fn push(&mut self, record: Kept) {
        // What readers find nowhere else is not overwritten.
        let settled = if self.unreadable_end > 0 { 0 } else { self.settled() };
        let pushed = self.tail.as_mut().map(|tail| tail.push(&record, settled));
        match pushed {
            Some(Ok(true)) => {}
            Some(Ok(false)) | None => self.unprotected = record.sequence,
            Some(Err(error)) => {
                self.unprotected = record.sequence;
                self.lose_tail(&error);
            }
        }
        self.next = record.sequence + 1;
        self.bytes += record.line.len();
        self.records.push_back(record);
        self.trim();
        self.show();
    }

    fn lose_tail(&mut self, error: &std::io::Error) {
        tracing::warn!(
            "cannot write the journal's tail, so events are told when they are on the disk: {error}"
        );
        // What it holds is not shown on the ground that it holds it.
        self.unprotected = self.unprotected.max(self.next - 1);
        if let Some(tail) = self.tail.take() {
            tail.give_up();
        }
    }

    /// Shows readers what a kill cannot take any more; everything, where nothing would ever protect it.
    fn show(&mut self) -> u64 {
        let is_safe = !self.has_disk || self.given_up.max(self.unprotected) <= self.written;
        if is_safe || self.disk_is_down {
            self.visible = self.next - 1;
        } else {
            self.visible = self.visible.max(self.written);
        }
        // No event of another content may have the sequence of one that was seen, and that a kill takes.
        let marked = self.tail.as_mut().filter(|_| !is_safe).map(|tail| tail.mark(self.visible));
        if let Some(Err(error)) = marked {
            self.lose_tail(&error);
        }
        self.visible
    }

    /// The newest event that is in a segment, or will never be.
    fn settled(&self) -> u64 {
        self.written.max(self.given_up)
    }

    /// Drops what readers find in the segments; and what is too much in any case.
    fn trim(&mut self) {
        while let Some(oldest) = self.records.front() {
            let is_written = oldest.sequence <= self.written && oldest.sequence >= self.unreadable_end;
            let keep = if is_written { self.window_bytes } else { self.retained_bytes };
            if self.bytes <= keep || self.records.len() == 1 {
                break;
            }
            self.bytes -= oldest.line.len();
            if !is_written {
                self.given_up = oldest.sequence;
            }
            self.records.pop_front();
        }
    }

    fn oldest(&self) -> u64 {
        self.records.front().map_or(self.next, |record| record.sequence)
    }

    /// Where the first event behind that one is in memory.
    fn place_behind(&self, sequence: u64) -> usize {
        self.records.partition_point(|record| record.sequence <= sequence)
    }

    /// The first event in memory of that one and those behind it, as far as readers see. What is missing before it is
    /// in the segments, or nowhere.
    fn first_from(&self, sequence: u64) -> u64 {
        let first = self.records.get(self.place_behind(sequence.saturating_sub(1)));
        first.map_or(self.next, |record| record.sequence).min(self.visible.saturating_add(1))
    }

    /// Up to `most` of the events in memory behind that one: those that follow one another. Behind a hole others go on.
    fn behind(&self, sequence: u64, most: usize) -> Vec<Kept> {
        let run = self.records.range(self.place_behind(sequence)..);
        let first = run.clone().next().map_or(0, |record| record.sequence);
        let run = run.zip(first..).take_while(|(record, place)| record.sequence == *place);
        run.take(most).map(|(record, _)| record.clone()).collect()
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Journal").field("range", &self.range()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
