//! The log on a disk: its location, and what a start takes over from an earlier process.

use std::{
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
};

use ulid::Ulid;

use super::{
    Journal,
    log::Start,
    medium::{Folder, Medium},
    record::Kept,
    retention::{Clock, Limits},
    store::{self, Recovered, Segments, Store, StoreError, Unsynced},
    tail::{self, Left, Tail},
    writer,
};

/// The segments' folder in the state directory.
const FOLDER: &str = "journal";

/// The log's state on disk.
#[derive(Debug)]
pub(super) struct Disk {
    segments: Segments,
    /// Events with this sequence or a later one are of the log's present epoch, in a segment or not.
    began: u64,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Disk {
    pub(super) fn segments(&self) -> &Segments {
        &self.segments
    }

    /// The oldest sequence that a segment holds.
    pub(super) fn oldest(&self) -> Option<u64> {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        segments.first().map(|segment| segment.header.first)
    }

    /// The size of all segments and their indexes, in bytes.
    pub(super) fn stored_bytes(&self) -> u64 {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner).clone();
        segments.iter().filter_map(|segment| segment.bytes().ok()).sum()
    }

    /// The epoch of the event with that sequence; `None` if it is the present one.
    pub(super) fn epoch(&self, sequence: u64) -> Option<Ulid> {
        if sequence >= self.began {
            return None;
        }
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        let later = segments.partition_point(|segment| segment.header.first <= sequence);
        segments.get(later.checked_sub(1)?).map(|segment| segment.header.epoch)
    }

    /// Waits until the writer has ended.
    pub(super) fn join(&self) {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = writer {
            crate::threads::join(thread);
        }
    }
}

/// The log's folder in a state directory.
#[must_use]
pub fn folder(state_dir: &Path) -> PathBuf {
    state_dir.join(FOLDER)
}

/// Opens the log's folder for reading only.
pub(super) fn look_into(state_dir: &Path) -> Result<Folder, StoreError> {
    let path = folder(state_dir);
    Folder::open(&path).map_err(|source| StoreError::Io { what: "open", path, source })
}

/// An opened log whose writer does not run yet.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) journal: Journal,
    pub(super) store: Store,
    pub(super) unsynced: Vec<Unsynced>,
    pub(super) recovered: Recovered,
}

impl Journal {
    /// Opens the log in the state directory, with its tail in the run directory, and starts its writer.
    ///
    /// Events that an earlier process left only in the tail are first written to the segments. A disk that refuses
    /// writes is not an error: it is reported, and writing is retried.
    pub fn open(
        node: &str,
        boot_id: &str,
        state_dir: &Path,
        run_dir: &Path,
    ) -> Result<(Self, Recovered), StoreError> {
        Self::open_with(node, boot_id, state_dir, run_dir, Limits::default())
    }

    /// Like [`Self::open`], with these retention limits.
    pub fn open_with(
        node: &str,
        boot_id: &str,
        state_dir: &Path,
        run_dir: &Path,
        limits: Limits,
    ) -> Result<(Self, Recovered), StoreError> {
        let state: Arc<dyn Medium> = Arc::new(Folder::private(state_dir, FOLDER)?);
        let run = Folder::open(run_dir).map_err(|source| StoreError::Io {
            what: "open",
            path: run_dir.to_owned(),
            source,
        });
        let run: Arc<dyn Medium> = Arc::new(run?);
        let opened = open(node, boot_id, &state, &run, limits, Clock::system(), tail::HALF_BYTES)?;
        let Opened { journal, store, unsynced, recovered } = opened;
        let writer = writer::start(&journal.shared, store, unsynced).map_err(|source| StoreError::Io {
            what: "start the writer of",
            path: folder(state_dir),
            source,
        })?;
        if let Some(disk) = journal.disk() {
            *disk.writer.lock().unwrap_or_else(PoisonError::into_inner) = Some(writer);
        }
        Ok((journal, recovered))
    }
}

/// Opens the log in one folder with its tail in another.
pub(super) fn open(
    node: &str,
    boot_id: &str,
    state: &Arc<dyn Medium>,
    run: &Arc<dyn Medium>,
    limits: Limits,
    clock: Clock,
    half_bytes: u64,
) -> Result<Opened, StoreError> {
    // The lock comes first: the tail is whole only when the process that wrote it has ended.
    let lock = store::Lock::take(&**state)?;
    let (mut tail, left) = match Tail::open(run, boot_id, half_bytes) {
        Ok((tail, left)) => (Some(tail), left),
        Err(error) => {
            let path = run.path(tail::NAME);
            tracing::warn!(
                "cannot use {}, so readers see events only when they are on the disk: {error}",
                path.display()
            );
            (None, None)
        }
    };
    let (mut store, mut recovered) =
        Store::open(state, lock, boot_id, left.as_ref().map(Left::hint), limits, clock)?;
    let is_same_log = left.as_ref().is_some_and(|left| left.hint().epoch == store.epoch());
    let (mark, records) = match left {
        Some(left) if store.takes_tail() => {
            // The process that wrote the tail has reported what was lost before it began.
            store.skip_to(left.hint().opened);
            let Left { mark, records, .. } = left;
            (mark, records)
        }
        Some(_) | None => (0, Vec::new()),
    };
    let began = store.next();
    // A full disk can leave events in a segment that readers cannot find there. They read them from memory.
    let unreadable = store.unreadable();
    let mut readable: Vec<Kept> =
        records.iter().filter(|kept| is_same_log && unreadable.contains(&kept.sequence)).cloned().collect();
    // A segment that cannot be read leaves a gap after the others. Events of it that the tail still has come back.
    let from = if is_same_log { began } else { store.readable_end() };
    let Inherited { mut pending, next: inherited, mut lost } = inherit(records, mark, from, is_same_log);
    let next = inherited.max(began);
    let before_began = |lost: &Range<u64>| lost.end.min(began).saturating_sub(lost.start);
    recovered.lost = lost.iter().map(|lost| lost.end - lost.start - before_began(lost)).sum();
    if let Some(first) = pending.first().filter(|first| first.sequence < began) {
        store.go_back_to(first.sequence);
        lost.extend((inherited < began).then_some(inherited..began));
    }
    // The start reports it. It does not count as a loss of the present process.
    store.set_reported_lost(lost);
    let began = began.min(store.next());
    recovered.from_tail += u64::try_from(pending.len()).unwrap_or(u64::MAX);
    // The tail must say where this log continues before the mark of a clean end is removed: after a kill in between,
    // one of the two must exist.
    if !is_same_log {
        take_over(&mut store, &mut pending, &mut recovered);
    }
    tail = tail.and_then(|mut tail| {
        let written =
            if is_same_log { tail.forget_after(next - 1) } else { tail.begin(store.epoch(), next, &pending) };
        keep(tail, written)
    });
    if let Err(error) = store.forget_clean() {
        recovered.refused.get_or_insert_with(|| crate::chain(&error));
        take_over(&mut store, &mut pending, &mut recovered);
        tail = tail.and_then(|mut tail| {
            let written = tail.begin(store.epoch(), next, &pending);
            keep(tail, written)
        });
    }
    take_over(&mut store, &mut pending, &mut recovered);
    let written = if pending.is_empty() { next - 1 } else { store.next() - 1 };
    store.skip_to(written + 1);
    let (unsynced, durable) = store.unsynced();
    let epoch = store.epoch();
    let unreadable_end = readable.last().map_or(0, |last| last.sequence + 1);
    readable.append(&mut pending);
    let pending = readable;
    let disk = Disk { segments: store.segments(), began, writer: Mutex::new(None) };
    let start = Start { epoch, next, written, durable, pending, unreadable_end, tail, limits };
    Ok(Opened { journal: Journal::on_disk(node, boot_id, start, disk), store, unsynced, recovered })
}

/// The part of a tail that the log takes over.
pub(super) struct Inherited {
    /// In order, possibly with holes.
    pub(super) pending: Vec<Kept>,
    /// The sequence of the next event.
    next: u64,
    /// The ranges that are missing before `next`.
    lost: Vec<Range<u64>>,
}

/// Takes the events from a tail that no segment has: from `next` on, up to those that no reader can have seen.
pub(super) fn inherit(records: Vec<Kept>, mark: u64, mut next: u64, is_same_log: bool) -> Inherited {
    let (mut pending, mut lost) = (Vec::new(), Vec::new());
    for record in records {
        if record.sequence < next {
            continue;
        }
        // A hole is an event that did not fit in the tail and had not reached its segment. Readers saw nothing after
        // it, except up to the mark. Where a segment is damaged, this is unknown.
        if record.sequence > next && record.sequence > mark + 1 && is_same_log {
            break;
        }
        if record.sequence > next {
            lost.push(next..record.sequence);
        }
        next = record.sequence + 1;
        pending.push(record);
    }
    if mark >= next {
        lost.push(next..mark + 1);
        next = mark + 1;
    }
    Inherited { pending, next, lost }
}

/// Returns the tail if it could be written, and gives it up otherwise.
fn keep(tail: Tail, written: io::Result<()>) -> Option<Tail> {
    match written {
        Ok(()) => Some(tail),
        Err(error) => {
            tracing::warn!(
                "cannot write the journal's tail, so readers see events only when they are on the disk: {error}"
            );
            tail.give_up();
            None
        }
    }
}

/// Writes the tail's events in runs without a hole. Events that the disk refuses stay in `records`.
fn take_over(store: &mut Store, records: &mut Vec<Kept>, recovered: &mut Recovered) {
    let written = store.next();
    records.retain(|record| record.sequence >= written);
    for run in records.chunk_by(Kept::is_before) {
        if let Err(error) = store.append(run) {
            recovered.refused.get_or_insert_with(|| crate::chain(&error));
            break;
        }
    }
    let written = store.next();
    records.retain(|record| record.sequence >= written);
}

#[cfg(test)]
mod tests;
