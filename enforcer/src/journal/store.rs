//! The log's folder: its segments in order, what a start finds in them, and retention.
//!
//! One writer at a time holds the folder's lock; readers need none.

use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

use rustix::fs::FlockOperation;
use ulid::Ulid;

use super::{
    Record,
    segment::{Extent, Header, Segment},
};

/// A segment that holds this much is closed, and the next begun.
const SEGMENT_BYTES: u64 = 8 << 20;

/// How much the closed segments may hold together; the oldest go first.
const RETAINED_BYTES: u64 = 64 << 20;

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
    },
}

/// What a start found that is worth telling.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Recovered {
    /// How many whole events there are.
    pub events: u64,
    /// How many of them had lost their index entry, and have it again.
    pub reindexed: u64,
    /// How many of the last segment's events are damaged, with whole ones behind them.
    pub damaged: u64,
    /// How many bytes were cut off that were no whole event.
    pub cut_bytes: u64,
    /// How many events came back from the tail in the run directory.
    pub from_tail: u64,
    /// Files that could not be read as what they are named: set aside under that name, for a person to look at.
    pub set_aside: Vec<PathBuf>,
    /// Whether the machine stopped without the writer's coming to its end: readers may have seen events that are lost.
    pub after_power_cut: bool,
}

/// The segments, oldest first; shared with the readers.
pub(super) type Segments = Arc<RwLock<Vec<Arc<Segment>>>>;

/// The folder, open for writing.
#[derive(Debug)]
pub(super) struct Store {
    dir: PathBuf,
    boot_id: String,
    segments: Segments,
    current: Arc<Segment>,
    extent: Extent,
    segment_bytes: u64,
    retained_bytes: u64,
    /// Its lock goes with it.
    _lock: File,
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::Io { what, path: path.to_owned(), source }
}

impl Store {
    /// Opens the folder, makes it where it is missing, and brings it in order.
    pub(super) fn open(dir: &Path, boot_id: &str) -> Result<(Self, Recovered), StoreError> {
        DirBuilder::new().recursive(true).mode(0o750).create(dir).map_err(failed("create", dir))?;
        let lock = lock(dir)?;
        let was_clean = fs::remove_file(dir.join(CLEAN)).is_ok();
        let mut recovered = Recovered::default();
        let mut segments = Vec::new();
        let firsts = firsts(dir)?;
        for (place, &first) in firsts.iter().enumerate() {
            let is_last = place + 1 == firsts.len();
            let before = segments.last().map(|segment: &Arc<Segment>| segment.header.epoch);
            match open_segment(dir, first, before, boot_id)
                .map_err(failed("read", &Segment::paths(dir, first).0))?
            {
                Some(segment) => segments.push(Arc::new(segment)),
                None => set_aside(dir, first, &mut recovered)?,
            }
            if is_last && let Some(last) = segments.last() {
                let extent = last.recover(true).map_err(failed("repair", last.data_path()))?;
                recovered.reindexed = extent.reindexed;
                recovered.cut_bytes = extent.cut_bytes;
                recovered.damaged = extent.damaged;
            }
        }
        let extent = match segments.last() {
            Some(last) => Some(last.recover(false).map_err(failed("read", last.data_path()))?),
            None => None,
        };
        let last = segments.last().cloned().zip(extent);
        let next = last.as_ref().map_or(1, |(last, extent)| last.header.first.saturating_add(extent.records));
        recovered.events = next - segments.first().map_or(next, |first| first.header.first);
        let same_boot = last.as_ref().is_some_and(|(last, _)| last.header.boot_id == boot_id);
        recovered.after_power_cut = last.is_some() && !same_boot && !was_clean;
        let (current, extent) = match last {
            Some((last, extent)) if same_boot && extent.data_bytes < SEGMENT_BYTES => (last, extent),
            last => {
                let epoch = last
                    .filter(|_| !recovered.after_power_cut)
                    .map_or_else(Ulid::generate, |(last, _)| last.header.epoch);
                // An empty one of that name is begun anew.
                segments.retain(|segment| segment.header.first != next);
                let created = create(dir, Header { epoch, first: next, boot_id: boot_id.to_owned() })?;
                segments.push(Arc::clone(&created));
                (created, Extent::default())
            }
        };
        let store = Self {
            dir: dir.to_owned(),
            boot_id: boot_id.to_owned(),
            segments: Arc::new(RwLock::new(segments)),
            current,
            extent,
            segment_bytes: SEGMENT_BYTES,
            retained_bytes: RETAINED_BYTES,
            _lock: lock,
        };
        Ok((store, recovered))
    }

    /// Smaller segments and less of them, for tests.
    #[cfg(test)]
    pub(super) fn set_sizes(&mut self, segment_bytes: u64, retained_bytes: u64) {
        (self.segment_bytes, self.retained_bytes) = (segment_bytes, retained_bytes);
    }

    /// The segments, for readers.
    pub(super) fn segments(&self) -> Segments {
        Arc::clone(&self.segments)
    }

    /// The epoch that events are written in.
    pub(super) fn epoch(&self) -> Ulid {
        self.current.header.epoch
    }

    /// The sequence that the next event must have.
    pub(super) fn next(&self) -> u64 {
        self.current.header.first.saturating_add(self.extent.records)
    }

    /// The segment that is written to.
    pub(super) fn current(&self) -> &Arc<Segment> {
        &self.current
    }

    /// Writes events. They outlive this process from then on, and a power cut once their segment is synced.
    pub(super) fn append(&mut self, records: &[Record]) -> Result<(), StoreError> {
        let Some(first) = records.first() else { return Ok(()) };
        let full = self.extent.data_bytes >= self.segment_bytes;
        // Events that were lost while the disk refused leave a hole: a segment has none.
        if full || first.sequence != self.next() {
            self.begin(first.sequence)?;
        }
        self.current.append(&mut self.extent, records).map_err(failed("write", self.current.data_path()))
    }

    /// Waits until the disk holds everything that was appended.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        self.current.sync().map_err(failed("sync", self.current.data_path()))
    }

    /// Notes that the end is in order: everything that anybody saw is on the disk.
    pub(super) fn close(self) -> Result<(), StoreError> {
        self.sync()?;
        let path = self.dir.join(CLEAN);
        fs::write(&path, format!("{}\n", self.next() - 1)).map_err(failed("write", &path))?;
        sync_dir(&self.dir)
    }

    fn begin(&mut self, first: u64) -> Result<(), StoreError> {
        let header = Header { epoch: self.current.header.epoch, first, boot_id: self.boot_id.clone() };
        self.current = create(&self.dir, header)?;
        self.extent = Extent::default();
        let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        segments.push(Arc::clone(&self.current));
        let mut bytes: u64 = 0;
        let mut kept = 0;
        for segment in segments.iter().rev().skip(1) {
            bytes = bytes.saturating_add(fs::metadata(segment.data_path()).map_or(0, |data| data.len()));
            if bytes > self.retained_bytes {
                break;
            }
            kept += 1;
        }
        let gone = segments.len() - 1 - kept;
        for segment in segments.drain(..gone) {
            segment.remove().map_err(failed("remove", segment.data_path()))?;
        }
        Ok(())
    }
}

/// The segments of a folder that a daemon may be writing, or has left: for reading only, in order.
pub(super) fn look(dir: &Path) -> Result<Vec<Arc<Segment>>, StoreError> {
    let mut segments = Vec::new();
    for first in firsts(dir)? {
        match Segment::open(dir, first, false) {
            Ok(segment) => segments.extend(segment.map(Arc::new)),
            // Retention was faster.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("read", &Segment::paths(dir, first).0)(error)),
        }
    }
    Ok(segments)
}

fn create(dir: &Path, header: Header) -> Result<Arc<Segment>, StoreError> {
    let path = Segment::paths(dir, header.first).0;
    let segment = Segment::create(dir, header).map_err(failed("create", &path))?;
    segment.sync().map_err(failed("sync", &path))?;
    // The names too.
    sync_dir(dir)?;
    Ok(Arc::new(segment))
}

/// A segment whose index is damaged gets a new one, made from its events.
fn open_segment(dir: &Path, first: u64, epoch: Option<Ulid>, boot_id: &str) -> io::Result<Option<Segment>> {
    match Segment::open(dir, first, true) {
        Ok(Some(segment)) => return Ok(Some(segment)),
        Ok(None) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let header = Header { epoch: epoch.unwrap_or_else(Ulid::generate), first, boot_id: boot_id.to_owned() };
    let segment = match Segment::reindex(dir, header) {
        Ok(segment) => segment,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // What holds no event at all may be anything: it is not touched.
    if segment.recover(false)?.records == 0 {
        return Ok(None);
    }
    segment.recover(true)?;
    Ok(Some(segment))
}

fn set_aside(dir: &Path, first: u64, recovered: &mut Recovered) -> Result<(), StoreError> {
    let (data, index) = Segment::paths(dir, first);
    for path in [data, index] {
        let aside = PathBuf::from(format!("{}.damaged", path.display()));
        match fs::rename(&path, &aside) {
            Ok(()) => recovered.set_aside.push(aside),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("set aside", &path)(error)),
        }
    }
    Ok(())
}

/// The first sequences of the segments there are, in order.
fn firsts(dir: &Path) -> Result<Vec<u64>, StoreError> {
    let mut firsts = BTreeSet::new();
    for entry in fs::read_dir(dir).map_err(failed("read", dir))? {
        let name = entry.map_err(failed("read", dir))?.file_name();
        let name = name.to_string_lossy();
        let stem = name.strip_suffix(".ndjson").or_else(|| name.strip_suffix(".index"));
        firsts.extend(stem.filter(|stem| stem.len() == 20).and_then(|stem| stem.parse::<u64>().ok()));
    }
    Ok(firsts.into_iter().collect())
}

fn lock(dir: &Path) -> Result<File, StoreError> {
    let path = dir.join(LOCK);
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o640).open(&path);
    let file = file.map_err(failed("create", &path))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(StoreError::Locked { path: dir.to_owned() }),
        Err(error) => Err(failed("lock", &path)(error.into())),
    }
}

fn sync_dir(dir: &Path) -> Result<(), StoreError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed("sync", dir))
}

#[cfg(test)]
mod tests;
