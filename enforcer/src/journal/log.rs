//! Puts events in order, and keeps the newest in memory for readers and the disk's writer.

mod envelope;
mod lines;
mod reader;
mod window;

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use enforcer_events::{EventType, Payload, node::StreamGap};
use serde_json::Value;
use tokio::sync::watch;
use ulid::{Generator, Ulid};

use super::{
    Cursor, Event, Filter, Observer, RawEvent, Subject, disk::Disk, record::Kept, retention::Limits,
    tail::Tail, trouble::Trouble,
};

use self::envelope::Envelope;
pub(super) use self::reader::read_segments;
pub use self::{
    lines::{Line, Passed},
    reader::{Batch, Reader},
};

/// How many bytes of events are kept in memory besides those that the disk has not taken yet.
const WINDOW_BYTES: usize = 256 << 10;

/// How many bytes of events are kept in memory without a disk, or while it refuses writes.
const RETAINED_BYTES: usize = 2 << 20;

/// The most events in one batch, so that a reader far behind does not lock the log for long.
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
    /// The newest sequence that readers see; they wait for it to change.
    newest: watch::Sender<u64>,
    /// The newest sequence that survives a power cut.
    durable: watch::Sender<u64>,
    disk: Option<Disk>,
    /// Whether the disk works, so that each change is reported once.
    pub(super) trouble: Mutex<Trouble>,
    /// How much the disk keeps.
    limits: Mutex<Limits>,
    /// Counts appended and lost events; set once.
    observer: OnceLock<Arc<dyn Observer>>,
}

/// The state from which a log on a disk continues.
pub(super) struct Start {
    pub(super) epoch: Ulid,
    /// The sequence of the next event.
    pub(super) next: u64,
    /// The newest event that a segment holds.
    pub(super) written: u64,
    /// The newest event that survives a power cut.
    pub(super) durable: u64,
    /// Events that no segment has yet, or that readers cannot get from one. Those that the tail had no room for are
    /// holes.
    pub(super) pending: Vec<Kept>,
    /// Events of `pending` before this sequence are in a segment, but readers cannot get them there.
    pub(super) unreadable_end: u64,
    pub(super) tail: Option<Tail>,
    pub(super) limits: Limits,
}

/// Work for the writer.
pub(super) enum Work {
    /// Consecutive events to write.
    Records(Vec<Kept>),
    /// Nothing to write now: the thread was woken or its wait timed out.
    Nothing,
    /// The log is closed and all is written.
    Closed,
}

pub(super) struct Log {
    /// In order, with holes where an earlier process lost events.
    records: VecDeque<Kept>,
    bytes: usize,
    next: u64,
    ids: Generator,
    tail: Option<Tail>,
    /// All events up to this one are in a segment, and readers may read them there.
    written: u64,
    /// See [`Start`]; 0 once the disk takes something.
    unreadable_end: u64,
    /// The newest event that was dropped before a segment held it.
    given_up: u64,
    /// The newest event that the tail had no room for.
    unprotected: u64,
    /// Whether there are segments at all.
    has_disk: bool,
    /// Readers see events up to this one: a kill cannot lose them any more.
    visible: u64,
    /// Whether the disk refuses writes. Then readers see events although a kill would lose them.
    disk_is_down: bool,
    /// Written events are dropped from memory above this size.
    window_bytes: usize,
    /// Any events are dropped from memory above this size.
    retained_bytes: usize,
    closing: bool,
}

/// The range of kept sequences.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Range {
    /// The oldest; one past `newest` in an empty log.
    pub oldest: u64,
    /// The newest; 0 before the first.
    pub newest: u64,
}

/// How much the log holds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Load {
    /// The size of its segments and their indexes on the disk.
    pub stored_bytes: u64,
    /// How many events no segment has yet.
    pub unwritten_records: u64,
}

/// A cursor from which reading cannot resume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Stale {
    /// The kept events.
    pub range: Range,
    /// How many events after the cursor are no longer kept.
    pub lost: u64,
}

impl Journal {
    /// An empty log for this node and boot, in memory only.
    #[must_use]
    pub fn new(node: &str, boot_id: &str) -> Self {
        Self::in_memory(node, boot_id, RETAINED_BYTES)
    }

    fn in_memory(node: &str, boot_id: &str, retained_bytes: usize) -> Self {
        let log = Log::new(1, None, retained_bytes, retained_bytes);
        Self::from_parts(node, boot_id, Ulid::generate(), log, 0, None, Limits::default())
    }

    /// The log that continues after the events on the disk.
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
    pub fn emit(&self, subject: Subject, payload: Payload) -> u64 {
        self.append(Event::new(subject, payload))
    }

    /// Appends an event, as [`Self::emit`] does.
    #[expect(clippy::must_use_candidate, reason = "most producers have no use for the sequence")]
    pub fn append(&self, event: Event) -> u64 {
        let (kind, data) = (event.kind(), event.data());
        let Event { subject, payload } = event;
        if let Some(observer) = self.shared.observer.get() {
            observer.on_event(subject.namespace(), &payload);
        }
        self.append_data(kind, subject, &data)
    }

    /// Appends an event whose payload may have any keys; it is not observed.
    #[expect(clippy::must_use_candidate, reason = "most producers have no use for the sequence")]
    pub fn append_raw(&self, event: RawEvent) -> u64 {
        let RawEvent { kind, subject, data } = event;
        self.append_data(kind, subject, &data)
    }

    fn append_data(&self, kind: EventType, subject: Subject, data: &Value) -> u64 {
        let shared = &*self.shared;
        // Serialize before taking the lock: other threads append too.
        let payload = envelope::payload(data);
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
        // It is kept as long as it is: the room that it was written in is twice that.
        let (kind, line) = (Some(kind), Bytes::from(line.into_boxed_str().into_boxed_bytes()));
        let record = Kept { sequence, time_ms: now.as_millisecond(), kind, pod, line };
        log.push(record);
        let visible = log.visible;
        drop(log);
        shared.work.notify_one();
        shared.show(visible);
        sequence
    }

    /// Sets the retention limits.
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

    /// Notes that a reader missed `events` events: they left the log before it had read them.
    pub fn note_lost_to_reader(&self, events: u64) {
        if let Some(observer) = self.shared.observer.get() {
            observer.on_lost_to_reader(events);
        }
    }

    /// The size of its segments, and how many events wait for the disk.
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

    /// The range of kept sequences.
    #[must_use]
    pub fn range(&self) -> Range {
        let (in_memory, newest) = {
            let log = self.shared.log();
            (log.oldest(), log.visible)
        };
        let on_disk = self.shared.disk.as_ref().and_then(Disk::oldest);
        Range { oldest: on_disk.map_or(in_memory, |oldest| oldest.min(in_memory)), newest }
    }

    /// The newest sequence that survives a power cut; without a disk, that of the last start.
    #[must_use]
    pub fn durable(&self) -> watch::Receiver<u64> {
        self.shared.durable.subscribe()
    }

    /// Whether the log outlives this process.
    #[must_use]
    pub fn has_disk(&self) -> bool {
        self.shared.disk.is_some()
    }

    /// The `source` of its events: `urn:enforcer:<node>:<boot id>`.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.shared.source
    }

    /// Whether an event is of this boot, by its `source`. The node may have had another name since.
    #[must_use]
    pub fn is_of_this_boot(&self, source: &str) -> bool {
        boot_id(source) == boot_id(&self.shared.source)
    }

    /// The event that says that these events are no longer kept. It goes to one reader only and is not in the log. Its
    /// sequence is the last missing one. For the same `to` it has the same id.
    #[must_use]
    pub fn gap(&self, from: u64, to: u64) -> String {
        let gap = StreamGap {
            from_sequence: format!("{from:020}"),
            to_sequence: format!("{to:020}"),
            count: to.saturating_sub(from).saturating_add(1),
        };
        let event = Event::new(Subject::Node, Payload::StreamGap(gap));
        let Shared { epoch, source, node, .. } = &*self.shared;
        let envelope = Envelope {
            id: Ulid(epoch.0 ^ u128::from(to)),
            kind: event.kind(),
            sequence: to,
            source,
            subject: node,
            time: jiff::Timestamp::now(),
        };
        envelope.line(&envelope::payload(&event.data()))
    }

    /// The cursor just after the event with this sequence.
    #[must_use]
    pub fn cursor(&self, sequence: u64) -> Cursor {
        let epoch =
            self.shared.disk.as_ref().and_then(|disk| disk.epoch(sequence)).unwrap_or(self.shared.epoch);
        Cursor { epoch: epoch.to_string(), sequence }
    }

    /// The sequence after which the cursor's reader continues, if no event after it is lost.
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

    /// A reader of the events after `after`; without it, of all kept events.
    #[must_use]
    pub fn reader(&self, after: Option<u64>, filter: Filter) -> Reader {
        let next = after.map_or_else(|| self.range().oldest, |sequence| sequence.saturating_add(1));
        Reader { journal: self.clone(), newest: self.shared.newest.subscribe(), next, filter }
    }

    /// Closes the log cleanly: writes the remaining events to the disk and waits for it.
    pub fn close(&self) {
        self.shared.log().close();
        self.shared.work.notify_all();
        if let Some(disk) = &self.shared.disk {
            disk.join();
        }
    }
}

impl Shared {
    /// Notes that `events` events left memory before the disk took them.
    pub(super) fn note_lost(&self, events: u64) {
        if let Some(observer) = self.observer.get() {
            observer.on_lost_by_disk(events);
        }
    }

    pub(super) fn log(&self) -> MutexGuard<'_, Log> {
        // A panic cannot leave the log between two states: each field is changed after the last step that may fail.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next events, at most `most`, that no segment has yet. If there are none, or before `not_before`, waits up to
    /// `patience` or until something is appended.
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

    /// All events in memory after this one.
    pub(super) fn behind(&self, sequence: u64) -> Vec<Kept> {
        let log = self.log();
        log.records.range(log.place_behind(sequence)..).cloned().collect()
    }

    /// The newest event that the writer has finished with.
    pub(super) fn settled(&self) -> u64 {
        self.log().settled()
    }

    /// The retention limits.
    pub(super) fn limits(&self) -> Limits {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that all events up to this sequence are in a segment.
    pub(super) fn set_written(&self, sequence: u64) {
        let visible = {
            let mut log = self.log();
            log.written = log.written.max(sequence);
            // A write repairs the index first.
            log.unreadable_end = 0;
            log.disk_is_down = false;
            log.trim();
            log.show()
        };
        self.show(visible);
    }

    /// Notes that the disk refuses writes for now.
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

    /// Notes that all events up to this sequence survive a power cut.
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

    /// No more events will be appended.
    pub(super) fn close(&mut self) {
        self.closing = true;
    }

    fn push(&mut self, record: Kept) {
        // Do not overwrite events that readers find nowhere else.
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
            "cannot write the journal's tail, so readers see events only when they are on the disk: {error}"
        );
        // Its events do not count as protected any more.
        self.unprotected = self.unprotected.max(self.next - 1);
        if let Some(tail) = self.tail.take() {
            tail.give_up();
        }
    }

    /// Shows readers the events that a kill cannot lose any more; all events if nothing would ever protect them.
    fn show(&mut self) -> u64 {
        let is_safe = !self.has_disk || self.given_up.max(self.unprotected) <= self.written;
        if is_safe || self.disk_is_down {
            self.visible = self.next - 1;
        } else {
            self.visible = self.visible.max(self.written);
        }
        // After a kill, no new event may get the sequence of a lost one that readers saw.
        let marked = self.tail.as_mut().filter(|_| !is_safe).map(|tail| tail.mark(self.visible));
        if let Some(Err(error)) = marked {
            self.lose_tail(&error);
        }
        self.visible
    }

    /// The newest event that is in a segment or will never be.
    fn settled(&self) -> u64 {
        self.written.max(self.given_up)
    }

    fn oldest(&self) -> u64 {
        self.records.front().map_or(self.next, |record| record.sequence)
    }

    /// The index in memory of the first event after this one.
    fn place_behind(&self, sequence: u64) -> usize {
        self.records.partition_point(|record| record.sequence <= sequence)
    }

    /// The first visible event in memory with this sequence or a later one. Missing events before it are in the
    /// segments, or lost.
    fn first_from(&self, sequence: u64) -> u64 {
        let first = self.records.get(self.place_behind(sequence.saturating_sub(1)));
        first.map_or(self.next, |record| record.sequence).min(self.visible.saturating_add(1))
    }

    /// Up to `most` consecutive events in memory after this one. Stops at a hole.
    fn behind(&self, sequence: u64, most: usize) -> Vec<Kept> {
        let run = self.records.range(self.place_behind(sequence)..);
        let first = run.clone().next().map_or(0, |record| record.sequence);
        let run = run.zip(first..).take_while(|(record, place)| record.sequence == *place);
        run.take(most).map(|(record, _)| record.clone()).collect()
    }
}

/// The boot id in a `source`.
fn boot_id(source: &str) -> Option<&str> {
    source.rsplit_once(':').map(|(_, boot_id)| boot_id)
}

impl fmt::Debug for Journal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Journal").field("range", &self.range()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
