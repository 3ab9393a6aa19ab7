//! The log's folder: its segments in order, and retention.
//!
//! One writer at a time holds the folder's lock; readers need none. Nothing here waits for a disk but
//! [`Segment::sync`], [`Store::close`] and opening.

use std::{
    io,
    ops::Range,
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
};

use ulid::Ulid;

use super::{
    medium::{Access, Medium, MediumFile},
    record::Kept,
    retention::{Clock, Limits, MAX_SEGMENTS, ages_ms},
    segment::{Extent, Found, Header, Segment, names},
};

mod opening;
#[cfg(test)]
mod tests;

pub(super) use self::opening::{Hint, Lock, is_foreign, set_aside};

/// The file that says that the last writer ended cleanly, and with which event.
const CLEAN: &str = "clean";

/// The file whose lock the writer holds.
const LOCK: &str = "lock";

/// A folder that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A system call failed.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
    /// Another process writes to the folder.
    #[error("another enforcer writes the journal in {}: stop it first, or give this one another stateDir", path.display())]
    Locked {
        /// The folder.
        path: PathBuf,
        /// The locked file in it.
        lock: PathBuf,
    },
    /// Other users may change its content.
    #[error("{} {why}, so the journal cannot be kept there: {remedy}, or name another stateDir", path.display())]
    Unsafe {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
        /// How to fix it.
        remedy: String,
    },
}

/// What a start found and has to report.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Recovered {
    /// Whole events found.
    pub events: u64,
    /// How many of them had lost their index entry and were indexed again.
    pub reindexed: u64,
    /// Damaged events in the last segment.
    pub damaged: u64,
    /// Bytes that were cut off because they were not a whole event.
    pub cut_bytes: u64,
    /// Events that came back from the tail in the run directory.
    pub from_tail: u64,
    /// Events that readers may have seen, and that no disk had taken when the earlier process was killed.
    pub lost: u64,
    /// Files with unreadable content, under the names to which they were renamed for inspection; and why.
    pub set_aside: Vec<(PathBuf, String)>,
    /// Whether the machine stopped before the writer ended: readers may have seen events that are lost.
    pub after_power_cut: bool,
    /// Why the disk refuses writes for now, if it does.
    pub refused: Option<String>,
}

/// The segments, oldest first. Shared with the readers.
pub(super) type Segments = Arc<RwLock<Vec<Arc<Segment>>>>;

/// The folder, open for writing.
#[derive(Debug)]
pub(super) struct Store {
    medium: Arc<dyn Medium>,
    boot_id: String,
    clock: Clock,
    limits: Limits,
    /// A segment of this size is closed and the next one begun.
    segment_bytes: u64,
    epoch: Ulid,
    segments: Segments,
    /// The size of all segments but the current one.
    closed_bytes: u64,
    /// The segment that is written to, and how far; `None` until the first event.
    current: Option<(Arc<Segment>, Extent)>,
    /// The sequence that the next event must have, if none was lost.
    next: u64,
    /// One past the newest event that a start found in a segment. Less than `next` if later ones could not be read.
    readable_end: u64,
    /// Events that never came.
    lost: u64,
    /// More events that will never come; the start has reported these.
    reported_lost: Vec<Range<u64>>,
    /// The last segment of an earlier process, if its index could not be repaired because the disk was full.
    unrepaired: Option<Arc<Segment>>,
    /// The sequences of events that are in `unrepaired`, but that no reader finds there.
    unreadable: Range<u64>,
    /// Whether a tail of this boot continues where the segments end.
    takes_tail: bool,
    /// Whether the disk has forgotten the names that were removed. After a power cut the index of a removed segment would
    /// otherwise describe the data of the next segment of that name, and give its events the epoch of others.
    names_are_synced: bool,
    /// Held while there is a writer; `None` where a disk refused it.
    lock: Option<Box<dyn MediumFile>>,
}

/// A written part of a segment that is not synced yet.
#[derive(Debug)]
pub(super) struct Unsynced {
    pub(super) segment: Arc<Segment>,
    pub(super) extent: Extent,
    /// The newest event in it.
    pub(super) newest: u64,
}

fn failed(what: &'static str, medium: &dyn Medium, name: &str) -> impl FnOnce(io::Error) -> StoreError {
    let path = medium.path(name);
    move |source| StoreError::Io { what, path, source }
}

impl Store {
    /// The segments, for readers.
    pub(super) fn segments(&self) -> Segments {
        Arc::clone(&self.segments)
    }

    /// The folder that holds them.
    pub(super) fn medium(&self) -> Arc<dyn Medium> {
        Arc::clone(&self.medium)
    }

    /// The epoch of the events that are written.
    pub(super) fn epoch(&self) -> Ulid {
        self.epoch
    }

    /// The sequence that the next event must have.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Skips events that will never come. [`Self::take_lost`] does not count them.
    pub(super) fn skip_to(&mut self, next: u64) {
        self.next = self.next.max(next);
    }

    /// One past the newest event that a start found in a segment.
    pub(super) fn readable_end(&self) -> u64 {
        self.readable_end
    }

    /// Goes back to accept events from `next` on again: no readable segment holds them.
    pub(super) fn go_back_to(&mut self, next: u64) {
        self.next = self.next.min(next.max(self.readable_end));
    }

    /// Sets the ranges that will never come. [`Self::take_lost`] does not count them.
    pub(super) fn set_reported_lost(&mut self, lost: Vec<Range<u64>>) {
        self.reported_lost = lost;
    }

    /// Events that are on the disk, but that no reader finds there for now.
    pub(super) fn unreadable(&self) -> Range<u64> {
        self.unreadable.clone()
    }

    /// Whether a tail of this boot continues where the segments end.
    pub(super) fn takes_tail(&self) -> bool {
        self.takes_tail
    }

    /// How many events were skipped since the last call: memory dropped them before the disk took them.
    pub(super) fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }

    /// Sets the retention limits.
    pub(super) fn set_limits(&mut self, limits: Limits) {
        (self.limits, self.segment_bytes) = (limits, limits.segment_bytes());
    }

    /// Smaller and fewer segments, for tests.
    #[cfg(test)]
    pub(super) fn set_sizes(&mut self, segment_bytes: u64, max_bytes: u64) {
        self.segment_bytes = segment_bytes;
        self.limits.max_bytes = max_bytes;
    }

    /// Writes events up to the first hole among them; later ones need another call. Written events survive a kill of
    /// this process, and a power cut once the returned part is synced.
    pub(super) fn append(&mut self, records: &[Kept]) -> Result<Option<Unsynced>, StoreError> {
        // The position of an event in its segment gives its sequence, so a segment has no hole.
        let records = records.chunk_by(Kept::is_before).next().unwrap_or_default();
        let (Some(first), Some(last)) = (records.first(), records.last()) else { return Ok(None) };
        self.take_lock()?;
        self.repair()?;
        let continues = self.current.as_ref().is_some_and(|(segment, extent)| {
            // Lost events leave a hole too.
            first.sequence == segment.header.first + extent.records && !self.is_full(segment, extent)
        });
        if !continues {
            let begun = self.begin(first.sequence)?;
            if let Some((_, closed)) = self.current.replace(begun) {
                self.closed_bytes += closed.bytes();
            }
        }
        let Some((segment, extent)) = &mut self.current else { return Ok(None) };
        let written = segment.append(extent, records);
        written.map_err(failed("write", &*self.medium, &names(segment.header.first).0))?;
        let unsynced = Unsynced { segment: Arc::clone(segment), extent: *extent, newest: last.sequence };
        self.lost += self.lost_before(first.sequence);
        self.next = last.sequence + 1;
        self.retain();
        Ok(Some(unsynced))
    }

    /// How many events before `first`, the next one, were dropped and not reported yet.
    fn lost_before(&self, first: u64) -> u64 {
        let reported = self.reported_lost.iter().map(|reported| {
            let (from, to) = (reported.start.max(self.next), reported.end.min(first));
            to.saturating_sub(from)
        });
        first.saturating_sub(self.next).saturating_sub(reported.sum())
    }

    /// Repairs the index that a start on a full or read-only disk could not repair. No later start would: each looks at
    /// the last segment only.
    fn repair(&mut self) -> Result<(), StoreError> {
        let Some(segment) = &self.unrepaired else { return Ok(()) };
        // The index must reach the disk before the next segment does, in case of a power cut.
        match repair(&*self.medium, segment.header.first) {
            Err(error) if is_refused_for_now(&error) => {
                return Err(failed("repair", &*self.medium, &names(segment.header.first).1)(error));
            }
            // The log continues without those events: the new ones are worth more.
            Err(error) => tracing::warn!("cannot repair {}: {error}", segment.data_path().display()),
            Ok(()) => {}
        }
        self.unrepaired = None;
        Ok(())
    }

    fn is_full(&self, segment: &Segment, extent: &Extent) -> bool {
        if extent.records == 0 {
            return false;
        }
        extent.bytes() >= self.segment_bytes
            || ages_ms([&segment.header].into_iter(), &self.boot_id, self.clock.now())
                .first()
                .is_some_and(|age_ms| *age_ms >= self.limits.segment_age_ms())
    }

    fn begin(&mut self, first: u64) -> Result<(Arc<Segment>, Extent), StoreError> {
        let now = self.clock.now();
        let header = Header {
            epoch: self.epoch,
            first,
            boot_id: self.boot_id.clone(),
            begun_boot_ms: now.boot_ms,
            begun_ms: now.wall_ms,
        };
        let name = names(first).0;
        // Empty segments that were begun before. They stay in the list until their names are removed, so that a failed
        // removal is retried; readers have their files open. The list is never locked while the disk works.
        let listed = self.listed();
        let whole = listed.partition_point(|segment| segment.header.first < first);
        for empty in listed.iter().skip(whole) {
            self.names_are_synced = false;
            empty.remove(&*self.medium).map_err(failed("remove", &*self.medium, &name))?;
        }
        // A disk that refuses this keeps no event from being written: the next segment tries again.
        if !self.names_are_synced {
            match self.medium.sync() {
                Ok(()) => self.names_are_synced = true,
                Err(error) => tracing::debug!(%error, "cannot sync the names of removed segments"),
            }
        }
        let segment = Segment::create(&*self.medium, header);
        let segment = Arc::new(segment.map_err(failed("create", &*self.medium, &name))?);
        let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        segments.truncate(whole);
        segments.push(Arc::clone(&segment));
        Ok((segment, Extent::default()))
    }

    /// The present segments; only the writer changes them. This copy keeps the files of removed ones open, because the
    /// last close of a removed file makes the disk work, too.
    fn listed(&self) -> Vec<Arc<Segment>> {
        self.segments.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Removes segments above the limits of size and age. As in [`Self::begin`], the list is never locked while the
    /// disk works.
    pub(super) fn retain(&mut self) {
        let segments = self.listed();
        let ages_ms =
            ages_ms(segments.iter().map(|segment| &segment.header), &self.boot_id, self.clock.now());
        let open_bytes = self.current.as_ref().map_or(0, |(_, extent)| extent.bytes());
        let closed = segments.len() - usize::from(self.current.is_some());
        let mut gone = 0;
        // The newest segment with events stays, even if nothing is written any more.
        for (segment, next_age_ms) in segments.iter().zip(ages_ms.iter().skip(1)).take(closed) {
            let is_too_much = self.closed_bytes.saturating_add(open_bytes) > self.limits.max_bytes
                || segments.len() - gone > MAX_SEGMENTS;
            if !is_too_much && *next_age_ms <= self.limits.max_age_ms {
                break;
            }
            let bytes = segment.bytes().unwrap_or(0);
            if let Err(error) = segment.remove(&*self.medium) {
                tracing::warn!("cannot remove {}, which is too old: {error}", segment.data_path().display());
                break;
            }
            self.closed_bytes = self.closed_bytes.saturating_sub(bytes);
            gone += 1;
        }
        if gone > 0 {
            self.segments.write().unwrap_or_else(PoisonError::into_inner).drain(..gone);
        }
    }

    /// Marks a clean end: all events that readers saw are on the disk. Everything must be synced before.
    pub(super) fn close(mut self) -> Result<(), StoreError> {
        self.take_lock()?;
        let failed = |what| failed(what, &*self.medium, CLEAN);
        let text = format!("{}:{}\n", self.epoch, self.next - 1);
        let write = || {
            let file = self.medium.open(CLEAN, Access::Make)?;
            file.set_len(0)?;
            file.write_all_at(text.as_bytes(), 0)?;
            file.sync()
        };
        write().map_err(failed("write"))?;
        self.medium.sync().map_err(failed("sync the folder of"))
    }

    /// Takes the lock if a disk refused it before.
    fn take_lock(&mut self) -> Result<(), StoreError> {
        if self.lock.is_none() {
            self.lock = Some(opening::lock(&*self.medium)?);
        }
        Ok(())
    }
}

/// Whether the error means that the disk refuses writes for now.
fn is_refused_for_now(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::ReadOnlyFilesystem
    )
}

/// Repairs the index of a segment. It opens the files itself: those of the readers may have been opened while the disk
/// was read-only.
fn repair(medium: &dyn Medium, first: u64) -> io::Result<()> {
    match Segment::open(medium, first, Access::Write)? {
        Found::Segment(segment) => {
            segment.recover(true)?;
            segment.sync(medium)
        }
        Found::Newer(_) | Found::NoIndex => Err(io::Error::other("its index has been replaced")),
    }
}

/// Opens the segments of a folder for reading only, in order. A daemon may be writing to it.
pub(super) fn look(medium: &dyn Medium) -> Result<Vec<Arc<Segment>>, StoreError> {
    let mut segments = Vec::new();
    for first in opening::firsts(medium)? {
        match Segment::open(medium, first, Access::Read) {
            Ok(Found::Segment(segment)) => segments.push(Arc::new(segment)),
            Ok(Found::Newer(version)) => {
                tracing::warn!(
                    "{} is of format {version}, which this version cannot read",
                    medium.path(&names(first).0).display()
                );
            }
            Ok(Found::NoIndex) => {}
            // Retention has removed it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!("cannot read {}: {error}", medium.path(&names(first).0).display());
            }
        }
    }
    Ok(segments)
}
