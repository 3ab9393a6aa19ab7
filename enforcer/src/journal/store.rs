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

/// Says that the writer before came to its end in order, and with which event.
const CLEAN: &str = "clean";

/// Held by the writer.
const LOCK: &str = "lock";

/// A folder that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The system refused something.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Another process writes there.
    #[error("another enforcer writes the journal in {}: stop it first, or give this one another stateDir", path.display())]
    Locked {
        /// The folder.
        path: PathBuf,
        /// The file in it that is locked.
        lock: PathBuf,
    },
    /// Others may change what is there.
    #[error("{} {why}, so the journal cannot be kept there: {remedy}, or name another stateDir", path.display())]
    Unsafe {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
        /// What to do about it.
        remedy: String,
    },
}

/// What a start found that is worth telling.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Recovered {
    /// How many whole events there are.
    pub events: u64,
    /// How many of them had lost their index entry, and have it again.
    pub reindexed: u64,
    /// How many of the last segment's events are damaged.
    pub damaged: u64,
    /// How many bytes were cut off that were no whole event.
    pub cut_bytes: u64,
    /// How many events came back from the tail in the run directory.
    pub from_tail: u64,
    /// How many events a reader may have seen that no disk had taken when the process before was killed.
    pub lost: u64,
    /// Files that could not be read as what they are named: set aside under that name, for a person to look at; and why.
    pub set_aside: Vec<(PathBuf, String)>,
    /// Whether the machine stopped without the writer's coming to its end: readers may have seen events that are lost.
    pub after_power_cut: bool,
    /// Why the disk takes nothing for now, if so.
    pub refused: Option<String>,
}

/// The segments, oldest first; shared with the readers.
pub(super) type Segments = Arc<RwLock<Vec<Arc<Segment>>>>;

/// The folder, open for writing.
#[derive(Debug)]
pub(super) struct Store {
    medium: Arc<dyn Medium>,
    boot_id: String,
    clock: Clock,
    limits: Limits,
    /// A segment that holds this much is closed, and the next begun.
    segment_bytes: u64,
    epoch: Ulid,
    segments: Segments,
    /// What all segments but the current one hold.
    closed_bytes: u64,
    /// The segment that is written to, and how far; none until the first event.
    current: Option<(Arc<Segment>, Extent)>,
    /// The sequence that the next event must have, if none was lost.
    next: u64,
    /// The sequence behind the newest event that a start found in a segment; before `next` where what stood behind it could
    /// not be read.
    readable_end: u64,
    /// How many events came never.
    lost: u64,
    /// Events that will never come either, and that the start has told of.
    reported_lost: Vec<Range<u64>>,
    /// The last segment of a process before, if its index could not be made whole: the disk was full.
    unrepaired: Option<Arc<Segment>>,
    /// Events of these sequences are in that one, and no reader finds them there.
    unreadable: Range<u64>,
    /// Whether what a tail of this boot holds goes on where this ends.
    takes_tail: bool,
    /// Held while there is a writer; none where a disk refused it.
    lock: Option<Box<dyn MediumFile>>,
}

/// Something that was written, and is to be synced.
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

    /// Where they are.
    pub(super) fn medium(&self) -> Arc<dyn Medium> {
        Arc::clone(&self.medium)
    }

    /// The epoch that events are written in.
    pub(super) fn epoch(&self) -> Ulid {
        self.epoch
    }

    /// The sequence that the next event must have.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Goes on behind events that will never come, and are no loss that [`Self::take_lost`] tells.
    pub(super) fn skip_to(&mut self, next: u64) {
        self.next = self.next.max(next);
    }

    /// Where the events end that a start found in segments.
    pub(super) fn readable_end(&self) -> u64 {
        self.readable_end
    }

    /// Takes the events from that one on again, which no segment holds that can be read.
    pub(super) fn go_back_to(&mut self, next: u64) {
        self.next = self.next.min(next.max(self.readable_end));
    }

    /// Those will never come, and are no loss that [`Self::take_lost`] tells.
    pub(super) fn set_reported_lost(&mut self, lost: Vec<Range<u64>>) {
        self.reported_lost = lost;
    }

    /// Events that are on the disk, and that no reader finds there for now.
    pub(super) fn unreadable(&self) -> Range<u64> {
        self.unreadable.clone()
    }

    /// Whether what a tail of this boot holds goes on where this ends.
    pub(super) fn takes_tail(&self) -> bool {
        self.takes_tail
    }

    /// How many events were passed over since the last call: they were given up before the disk took them.
    pub(super) fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }

    /// How much is kept from now on.
    pub(super) fn set_limits(&mut self, limits: Limits) {
        (self.limits, self.segment_bytes) = (limits, limits.segment_bytes());
    }

    /// Smaller segments and less of them, for tests.
    #[cfg(test)]
    pub(super) fn set_sizes(&mut self, segment_bytes: u64, max_bytes: u64) {
        self.segment_bytes = segment_bytes;
        self.limits.max_bytes = max_bytes;
    }

    /// Writes events, up to the first hole among them: those behind it are for another call. They outlive this process
    /// from then on, and a power cut once what is returned is synced.
    pub(super) fn append(&mut self, records: &[Kept]) -> Result<Option<Unsynced>, StoreError> {
        // In a segment the place of an event says its sequence, so a segment has no hole.
        let records = records.chunk_by(Kept::is_before).next().unwrap_or_default();
        let (Some(first), Some(last)) = (records.first(), records.last()) else { return Ok(None) };
        self.take_lock()?;
        self.repair()?;
        let continues = self.current.as_ref().is_some_and(|(segment, extent)| {
            // Events that were lost leave a hole too.
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

    /// How many events were given up before that one, which is the next, and nobody has told of.
    fn lost_before(&self, first: u64) -> u64 {
        let reported = self.reported_lost.iter().map(|reported| {
            let (from, to) = (reported.start.max(self.next), reported.end.min(first));
            to.saturating_sub(from)
        });
        first.saturating_sub(self.next).saturating_sub(reported.sum())
    }

    /// Makes the index whole that a start on a full or read-only disk could not. Later nobody would: a start looks at the
    /// last segment alone.
    fn repair(&mut self) -> Result<(), StoreError> {
        let Some(segment) = &self.unrepaired else { return Ok(()) };
        // Its index must not be behind what is written next when the power fails.
        match repair(&*self.medium, segment.header.first) {
            Err(error) if is_refused_for_now(&error) => {
                return Err(failed("repair", &*self.medium, &names(segment.header.first).1)(error));
            }
            // The log goes on without those events: all that comes is worth more.
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
        // Ones that were begun before, and hold nothing. They stay in the list until their names are gone, so that a
        // removal that fails is done again: whoever reads has their files open. The list is locked for no disk's time.
        let listed = self.listed();
        let whole = listed.partition_point(|segment| segment.header.first < first);
        for empty in listed.iter().skip(whole) {
            empty.remove(&*self.medium).map_err(failed("remove", &*self.medium, &name))?;
        }
        let segment = Segment::create(&*self.medium, header);
        let segment = Arc::new(segment.map_err(failed("create", &*self.medium, &name))?);
        let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        segments.truncate(whole);
        segments.push(Arc::clone(&segment));
        Ok((segment, Extent::default()))
    }

    /// The segments as they are now: nobody else changes them. Of those that go this keeps the files open meanwhile: the
    /// disk is at work when the last one closes them, too.
    fn listed(&self) -> Vec<Arc<Segment>> {
        self.segments.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Removes what is too much, or too old. As in [`Self::begin`], the list is locked for no disk's time.
    pub(super) fn retain(&mut self) {
        let segments = self.listed();
        let ages_ms =
            ages_ms(segments.iter().map(|segment| &segment.header), &self.boot_id, self.clock.now());
        let open_bytes = self.current.as_ref().map_or(0, |(_, extent)| extent.bytes());
        let closed = segments.len() - usize::from(self.current.is_some());
        let mut gone = 0;
        // The newest that has events stays, also when nothing is written any more.
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

    /// Notes that the end is in order: everything that anybody saw is on the disk. Everything must be synced before.
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

    /// Takes the lock, if a disk refused it before.
    fn take_lock(&mut self) -> Result<(), StoreError> {
        if self.lock.is_none() {
            self.lock = Some(opening::lock(&*self.medium)?);
        }
        Ok(())
    }
}

/// Whether that says that the disk takes nothing for now.
fn is_refused_for_now(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::ReadOnlyFilesystem
    )
}

/// Makes the index of a segment whole, by files of its own: those of its readers may have been opened on a disk that was
/// read-only.
fn repair(medium: &dyn Medium, first: u64) -> io::Result<()> {
    match Segment::open(medium, first, Access::Write)? {
        Found::Segment(segment) => {
            segment.recover(true)?;
            segment.sync(medium)
        }
        Found::Newer(_) | Found::NoIndex => Err(io::Error::other("its index has been replaced")),
    }
}

/// The segments of a folder that a daemon may be writing, or has left: for reading only, in order.
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
            // Retention was faster.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!("cannot read {}: {error}", medium.path(&names(first).0).display());
            }
        }
    }
    Ok(segments)
}
