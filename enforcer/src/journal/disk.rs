//! The log's writer: a thread that takes what was appended to the disk, many events at a time.
//!
//! Nobody waits for it. While the disk refuses, events stay in memory, the oldest go when they are too many, and both
//! are told.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use serde_json::json;
use ulid::Ulid;

use super::{
    Event, EventType, Journal, Subject,
    log::Shared,
    segment::Segment,
    store::{Recovered, Segments, Store, StoreError},
    tail::Tail,
};

/// The most events that are written at once.
const BATCH_RECORDS: usize = 1024;

/// How long the writer waits before it tries again, at first and at the most.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// The newest events' file in the run directory.
const TAIL: &str = "journal.tail";

/// The segments' folder in the state directory.
const FOLDER: &str = "journal";

/// What the log knows of its disk.
#[derive(Debug)]
pub(super) struct Disk {
    segments: Segments,
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

    /// What all segments and their indexes take.
    pub(super) fn stored_bytes(&self) -> u64 {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner).clone();
        segments.iter().map(|segment| segment.stored_bytes()).sum()
    }

    /// The epoch that the event of that sequence belongs to.
    pub(super) fn epoch(&self, sequence: u64) -> Option<Ulid> {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        let later = segments.partition_point(|segment| segment.header.first <= sequence);
        segments.get(later.checked_sub(1)?).map(|segment| segment.header.epoch)
    }

    /// Waits for the writer's end.
    pub(super) fn join(&self) {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if writer.is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the journal's writer panicked");
        }
    }
}

/// Where the log is in a state directory.
#[must_use]
pub fn folder(state_dir: &Path) -> std::path::PathBuf {
    state_dir.join(FOLDER)
}

impl Journal {
    /// Opens the log in the state directory, with its tail in the run directory, and starts its writer.
    ///
    /// What an earlier process left in the tail and not in the segments is written there first.
    pub fn open(
        node: &str,
        boot_id: &str,
        state_dir: &Path,
        run_dir: &Path,
    ) -> Result<(Self, Recovered), StoreError> {
        let (mut store, mut recovered) = Store::open(&folder(state_dir), boot_id)?;
        let path = run_dir.join(TAIL);
        let (tail, left) = Tail::open(&path, store.epoch()).map_err(|source| StoreError::Io {
            what: "open",
            path,
            source,
        })?;
        for record in left {
            // Behind one that found no room here and had not reached its segment, nothing was shown to anybody.
            if record.sequence > store.next() {
                break;
            }
            if record.sequence == store.next() {
                store.append(&[record])?;
                recovered.from_tail += 1;
            }
        }
        store.sync()?;
        let disk = Disk { segments: store.segments(), writer: Mutex::new(None) };
        let journal = Self::on_disk(node, boot_id, store.epoch(), store.next(), Some(tail), disk);
        let shared = Arc::clone(&journal.shared);
        let writer = std::thread::Builder::new()
            .name(String::from("journal"))
            .spawn(move || write(&shared, store))
            .map_err(|source| StoreError::Io {
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

/// The writer thread, until the log is closed.
fn write(shared: &Arc<Shared>, mut store: Store) {
    let (sender, segments) = mpsc::channel();
    let syncing = Arc::clone(shared);
    // A thread of its own, so that events are in their segment, where a kill cannot take them, while the disk works.
    let syncer = std::thread::Builder::new()
        .name(String::from("journal-sync"))
        .spawn(move || sync(&syncing, &segments));
    let mut trouble = Trouble::default();
    let mut wait = RETRY_MIN;
    while let Some(records) = shared.unwritten(BATCH_RECORDS) {
        let Some(newest) = records.last().map(|record| record.sequence) else { continue };
        match store.append(&records) {
            Ok(()) => {
                wait = RETRY_MIN;
                shared.set_written(newest);
                trouble.end(shared);
                if sender.send((Arc::clone(store.current()), newest)).is_err() {
                    tracing::error!("the journal is not synced any more");
                }
            }
            Err(error) => {
                shared.set_disk_down();
                trouble.begin(shared, error.into());
                if shared.is_closing() {
                    return;
                }
                std::thread::sleep(wait);
                wait = (wait * 2).min(RETRY_MAX);
            }
        }
    }
    drop(sender);
    let in_order = syncer.is_ok_and(|syncer| syncer.join().is_ok());
    if let Err(error) = store.close() {
        tracing::error!(
            in_order,
            "{:#}",
            anyhow::Error::new(error).context("the journal was not closed in order")
        );
    }
}

/// The thread that waits for the disk.
fn sync(shared: &Arc<Shared>, segments: &mpsc::Receiver<(Arc<Segment>, u64)>) {
    let mut trouble = Trouble::default();
    while let Ok((mut segment, mut newest)) = segments.recv() {
        // All that was written to it meanwhile is synced at once.
        let mut next = None;
        for (other, written) in segments.try_iter() {
            if !Arc::ptr_eq(&segment, &other) {
                next = Some((other, written));
                break;
            }
            newest = written;
        }
        loop {
            match segment.sync() {
                Ok(()) => {
                    shared.set_durable(newest);
                    trouble.end(shared);
                }
                Err(error) => {
                    let error = anyhow::Error::new(error)
                        .context(format!("cannot sync {}", segment.data_path().display()));
                    trouble.begin(shared, error);
                }
            }
            let Some(following) = next.take() else { break };
            (segment, newest) = following;
        }
    }
}

/// Whether something does not work, so that it is told once when it begins and once when it ends.
#[derive(Default)]
struct Trouble(bool);

impl Trouble {
    #[expect(clippy::needless_pass_by_value, reason = "called with an error that nobody else wants")]
    fn begin(&mut self, shared: &Arc<Shared>, error: anyhow::Error) {
        if std::mem::replace(&mut self.0, true) {
            return;
        }
        tracing::error!("{error:#}");
        let message = format!(
            "the journal cannot be written: events are kept in memory, the newest of them, and are lost with the power: {error:#}"
        );
        tell(shared, EventType::DegradedEntered, &message);
    }

    fn end(&mut self, shared: &Arc<Shared>) {
        if std::mem::take(&mut self.0) {
            let message = format!("the journal is written again; {} events were lost", shared.take_lost());
            tell(shared, EventType::DegradedLeft, &message);
        }
    }
}

fn tell(shared: &Arc<Shared>, kind: EventType, message: &str) {
    let data = json!({"what": "journal", "message": message});
    Journal { shared: Arc::clone(shared) }.append(Event { kind, subject: Subject::Node, data });
}

#[cfg(test)]
mod tests;
