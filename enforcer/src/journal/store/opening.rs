//! Opens the folder of segments and repairs it. No content of the folder keeps the log from being written.

use std::{
    collections::BTreeSet,
    io,
    ops::Range,
    sync::{Arc, PoisonError, RwLock},
};

use ulid::Ulid;

use super::{CLEAN, LOCK, Recovered, Store, StoreError, Unsynced, failed};
use crate::journal::{
    medium::{Access, Medium, MediumFile},
    record::Kept,
    retention::{Clock, Limits},
    segment::{self, Extent, Found, Header, Segment, names},
};

/// What the tail of an earlier process says about the log's end. It exists only in the boot that wrote it.
#[derive(Clone, Copy, Debug)]
pub(in crate::journal) struct Hint<'left> {
    /// The epoch that process wrote in.
    pub(in crate::journal) epoch: Ulid,
    /// The sequence that it began with.
    pub(in crate::journal) opened: u64,
    /// The events in it, in order.
    pub(in crate::journal) records: &'left [Kept],
}

impl Hint<'_> {
    /// Whether the log's last event is also in this tail: then a process of another epoch took this tail over, and was
    /// killed before it began its own.
    fn has_last(&self, segment: &Segment) -> bool {
        let newest = segment.index_end().unwrap_or_default().saturating_sub(1);
        let Ok(place) = self.records.binary_search_by_key(&newest, |kept| kept.sequence) else {
            return false;
        };
        let last = segment.read(newest, 1).unwrap_or_default();
        last.first().map(|last| &last.line) == self.records.get(place).map(|kept| &kept.line)
    }
}

/// The most files of one name that are set aside; more mean a disk that damages everything.
const MOST_ASIDE: u32 = 100;

/// The result of looking at the segments so far.
#[derive(Default)]
struct Findings {
    segments: Vec<Arc<Segment>>,
    recovered: Recovered,
    /// The sequence behind everything that cannot be read.
    beyond: u64,
    /// Whether events at the end are damaged. Their number is unknown.
    end_is_damaged: bool,
    /// The last segment with its extent, if it can be appended to.
    last: Option<(Arc<Segment>, Extent)>,
    /// See [`Store`].
    unrepaired: Option<Arc<Segment>>,
    unreadable: Range<u64>,
    /// See [`Store`].
    readable_end: u64,
}

impl Store {
    /// Opens the folder and repairs it. A disk that refuses writes is not an error: it may accept them later.
    pub(in crate::journal) fn open(
        medium: &Arc<dyn Medium>,
        lock: Lock,
        boot_id: &str,
        hint: Option<Hint<'_>>,
        limits: Limits,
        clock: Clock,
    ) -> Result<(Self, Recovered), StoreError> {
        let Lock { held: lock, refused } = lock;
        let clean = read_clean(&**medium);
        let mut findings = Findings::default();
        for first in firsts(&**medium)? {
            findings.look_at(&**medium, first);
        }
        let next = findings.end(hint.as_ref());
        let Findings {
            segments,
            mut recovered,
            last,
            end_is_damaged,
            unrepaired,
            unreadable,
            readable_end,
            beyond: _,
        } = findings;
        recovered.events = next - segments.first().map_or(next, |first| first.header.first);
        let newest = segments.last().map(|segment| &segment.header);
        let was_clean =
            clean.is_some() && clean == newest.map(|newest| (newest.epoch, next - 1)) && !end_is_damaged;
        // An empty segment does not count: its process was killed before it took the tail over.
        let written = segments.iter().rfind(|segment| segment.header.first < next);
        let goes_on = |hint: &Hint<'_>| {
            next <= hint.opened || written.is_none_or(|written| written.header.epoch == hint.epoch)
        };
        let is_taken_over = |hint: &Hint<'_>| written.is_some_and(|written| hint.has_last(written));
        let hint = hint.filter(|hint| end_is_damaged || goes_on(hint) || is_taken_over(hint));
        let takes_tail = hint.is_some();
        // A tail that began behind the damage has everything that readers have seen since.
        let hint = hint.filter(|hint| if end_is_damaged { next <= hint.opened } else { goes_on(hint) });
        recovered.after_power_cut =
            newest.is_some_and(|newest| newest.boot_id != boot_id) && !takes_tail && !was_clean;
        let epoch = hint.map(|hint| hint.epoch);
        let epoch = epoch.or_else(|| newest.filter(|_| was_clean).map(|newest| newest.epoch));
        let epoch = epoch.unwrap_or_else(Ulid::generate);
        let current = last.filter(|(last, _)| last.header.boot_id == boot_id && last.header.epoch == epoch);
        let bytes = |segment: &Arc<Segment>| segment.bytes().unwrap_or(0);
        let closed = segments.len() - usize::from(current.is_some());
        recovered.refused = refused;
        let store = Self {
            medium: Arc::clone(medium),
            boot_id: boot_id.to_owned(),
            clock,
            limits,
            segment_bytes: limits.segment_bytes(),
            epoch,
            closed_bytes: segments.iter().take(closed).map(bytes).sum(),
            segments: Arc::new(RwLock::new(segments)),
            current,
            next,
            readable_end,
            lost: 0,
            reported_lost: Vec::new(),
            unrepaired,
            unreadable,
            takes_tail,
            // A start may have removed empty segments.
            names_are_synced: false,
            lock,
        };
        Ok((store, recovered))
    }

    /// Removes the mark of a clean end of the earlier process.
    ///
    /// The mark must not reappear after a power cut: readers will have seen newer events. If the disk refuses, the log
    /// continues in a new epoch, and the error says why.
    pub(in crate::journal) fn forget_clean(&mut self) -> Result<(), StoreError> {
        let forgotten = forget_clean(&*self.medium);
        if forgotten.is_err() {
            self.epoch = Ulid::generate();
            if let Some((_, closed)) = self.current.take() {
                self.closed_bytes += closed.bytes();
            }
        }
        forgotten
    }

    /// The segments that an earlier process may have left unsynced, which are all of this boot; and the newest event
    /// before them.
    pub(in crate::journal) fn unsynced(&self) -> (Vec<Unsynced>, u64) {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        let of_this_boot = segments.partition_point(|segment| segment.header.boot_id != self.boot_id);
        let mut newest = self.next - 1;
        let mut unsynced = Vec::new();
        for segment in segments.iter().skip(of_this_boot).rev() {
            let extent = match &self.current {
                Some((current, extent)) if Arc::ptr_eq(current, segment) => *extent,
                // Its extent is unknown, so a failed sync does not write it again.
                Some(_) | None => Extent::default(),
            };
            unsynced.push(Unsynced { segment: Arc::clone(segment), extent, newest });
            newest = segment.header.first - 1;
        }
        unsynced.reverse();
        (unsynced, newest)
    }
}

impl Findings {
    fn look_at(&mut self, medium: &dyn Medium, first: u64) {
        match open_segment(medium, first) {
            Ok(Opened::Segment(segment)) => {
                self.end_is_damaged = false;
                self.segments.push(Arc::new(segment));
            }
            Ok(Opened::Made(segment)) => {
                // Its epoch and its number of events are unknown.
                self.end_is_damaged = true;
                self.segments.push(Arc::new(segment));
            }
            Ok(Opened::Nothing) => {}
            Ok(Opened::Foreign { why, newest }) => {
                self.pass(first, newest);
                self.set_aside(medium, first, &why);
            }
            Ok(Opened::Refused { error, newest }) => {
                self.pass(first, newest);
                self.leave(medium, first, &error);
            }
            Err(error) => {
                self.pass(first, None);
                if is_foreign(&error) {
                    self.set_aside(medium, first, &error.to_string());
                } else {
                    self.leave(medium, first, &error);
                }
            }
        }
    }

    /// Repairs the last segment, and returns the sequence behind every event that is or was in it. Damaged events at
    /// its end are restored from the tail, if it has them.
    fn end(&mut self, hint: Option<&Hint<'_>>) -> u64 {
        let Some(last) = self.segments.last().cloned() else {
            self.readable_end = 1;
            return self.beyond.max(1);
        };
        let first = last.header.first;
        let extent = last.recover(true).map(|extent| (extent, true)).or_else(|error| {
            tracing::warn!("cannot repair {}: {error}", last.data_path().display());
            last.recover(false).map(|extent| (extent, false))
        });
        match extent {
            Ok((mut extent, is_repaired)) => {
                if is_repaired
                    && extent.gone > 0
                    && let Some(hint) = hint.filter(|hint| hint.epoch == last.header.epoch)
                {
                    self.recovered.from_tail += restore(&last, &mut extent, hint.records);
                }
                let Extent { records, damaged, reindexed, cut_bytes, gone, data_bytes: _ } = extent;
                self.recovered.damaged = damaged.saturating_add(gone);
                self.recovered.reindexed = reindexed;
                self.recovered.cut_bytes = cut_bytes;
                self.end_is_damaged |= gone > 0;
                let end = first.saturating_add(records).saturating_add(gone);
                if !is_repaired && reindexed > 0 {
                    self.unreadable = last.index_end().unwrap_or(end).min(end)..end;
                    self.unrepaired = Some(Arc::clone(&last));
                }
                if is_repaired && gone == 0 && end >= self.beyond {
                    self.last = Some((last, extent));
                }
                self.readable_end = end;
                self.beyond.max(end)
            }
            Err(error) => {
                tracing::warn!("cannot read {}: {error}", last.data_path().display());
                self.pass(first, None);
                self.readable_end = self.beyond;
                self.beyond
            }
        }
    }

    /// Continues behind what cannot be read.
    fn pass(&mut self, first: u64, newest: Option<u64>) {
        self.end_is_damaged = true;
        let newest = newest.unwrap_or(first).max(first);
        self.beyond = self.beyond.max(newest.saturating_add(1));
    }

    fn leave(&mut self, medium: &dyn Medium, first: u64, error: &io::Error) {
        let why = format!("cannot be read, and is left where it is: {error}");
        self.recovered.set_aside.push((medium.path(&names(first).0), why));
    }

    fn set_aside(&mut self, medium: &dyn Medium, first: u64, why: &str) {
        let (data, index) = names(first);
        for name in [data, index] {
            match set_aside(medium, &name) {
                Ok(aside) => self.recovered.set_aside.push((medium.path(&aside), why.to_owned())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // It stays, and the next start skips it again.
                Err(error) => {
                    tracing::warn!("cannot set aside {}: {error}", medium.path(&name).display());
                }
            }
        }
    }
}

/// Restores the damaged events at a segment's end, up to the first that the tail lacks. Returns how many it restored.
fn restore(segment: &Segment, extent: &mut Extent, tail: &[Kept]) -> u64 {
    let from = segment.header.first.saturating_add(extent.records);
    let to = from.saturating_add(extent.gone);
    let start = tail.partition_point(|kept| kept.sequence < from);
    let intact = tail.get(start..).unwrap_or_default();
    let intact = intact.chunk_by(Kept::is_before).next().unwrap_or_default();
    let end = intact.partition_point(|kept| kept.sequence < to);
    let intact = intact.get(..end).unwrap_or_default();
    if intact.first().is_none_or(|first| first.sequence != from) {
        return 0;
    }
    let before = extent.records;
    if let Err(error) = segment.append(extent, intact) {
        tracing::warn!("cannot restore damaged events in {}: {error}", segment.data_path().display());
        return 0;
    }
    let restored = extent.records - before;
    extent.gone = extent.gone.saturating_sub(restored);
    restored
}

/// What exists under a segment's names, repaired.
enum Opened {
    Segment(Segment),
    /// A segment whose index was rebuilt from its events.
    Made(Segment),
    /// The rest of a segment that was just begun before a kill or a power cut.
    Nothing,
    /// The index is lost and cannot be rebuilt now; a later start retries.
    Refused {
        error: io::Error,
        /// The newest event in it.
        newest: Option<u64>,
    },
    /// Not one of ours, or of a newer version: set aside unchanged.
    Foreign {
        why: String,
        /// The newest event that can be read in it.
        newest: Option<u64>,
    },
}

fn open_segment(medium: &dyn Medium, first: u64) -> io::Result<Opened> {
    let (data_name, index_name) = names(first);
    let found = match Segment::open(medium, first, Access::Write) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied
            ) =>
        {
            Segment::open(medium, first, Access::Read)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // The events of an index without data are gone.
            remove(medium, &index_name);
            return Ok(Opened::Nothing);
        }
        opened => opened,
    }?;
    if let Found::Segment(segment) = found {
        return Ok(Opened::Segment(segment));
    }
    let data = medium.open(&data_name, Access::Read)?;
    let (newest, has_content) = segment::newest(&*data)?;
    match found {
        Found::Newer(version) => Ok(Opened::Foreign {
            why: format!("written by a newer version (format {version}): `jq` can read it"),
            newest,
        }),
        _ if !has_content => {
            remove(medium, &index_name);
            remove(medium, &data_name);
            Ok(Opened::Nothing)
        }
        // A file without any event may be anything.
        _ if newest.is_none_or(|newest| newest < first) => {
            Ok(Opened::Foreign { why: String::from("no event in it"), newest })
        }
        _ => {
            // A new epoch, as the old one is unknown: no cursor may match it.
            let header = Header {
                epoch: Ulid::generate(),
                first,
                boot_id: String::new(),
                begun_boot_ms: 0,
                begun_ms: 0,
            };
            let made = Segment::reindex(medium, header);
            Ok(made.map_or_else(|error| Opened::Refused { error, newest }, Opened::Made))
        }
    }
}

/// Whether the error means that something other than our file has its name.
pub(in crate::journal) fn is_foreign(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidData
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::UnexpectedEof
    )
}

fn remove(medium: &dyn Medium, name: &str) {
    match medium.remove(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("cannot remove {}, which is empty: {error}", medium.path(name).display());
        }
        Ok(()) | Err(_) => {}
    }
}

/// Renames it to an unused name, and returns that name.
pub(in crate::journal) fn set_aside(medium: &dyn Medium, name: &str) -> io::Result<String> {
    for number in 0..MOST_ASIDE {
        let aside = if number == 0 { format!("{name}.damaged") } else { format!("{name}.damaged.{number}") };
        match medium.rename(name, &aside) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            renamed => return renamed.map(|()| aside),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// The first sequences of all segments in the folder, in order.
pub(super) fn firsts(medium: &dyn Medium) -> Result<Vec<u64>, StoreError> {
    let mut firsts = BTreeSet::new();
    for name in medium.names().map_err(failed("read", medium, ""))? {
        let stem = name.strip_suffix(".ndjson").or_else(|| name.strip_suffix(".index"));
        let stem = stem.filter(|stem| stem.len() == 20 && stem.bytes().all(|byte| byte.is_ascii_digit()));
        // No sequence follows the largest one.
        let first = stem.and_then(|stem| stem.parse::<u64>().ok());
        firsts.extend(first.filter(|first| (1..u64::MAX / 2).contains(first)));
    }
    Ok(firsts.into_iter().collect())
}

/// The lock on a folder of segments, held from before the tail is read. Released in between, it could not be taken
/// again while a child that another thread forks still has its copy of the descriptor.
pub(in crate::journal) struct Lock {
    /// `None` if the disk refuses writes: then no other process can write there either.
    held: Option<Box<dyn MediumFile>>,
    /// Why the disk refuses writes.
    refused: Option<String>,
}

impl Lock {
    /// Takes the lock.
    ///
    /// # Errors
    ///
    /// If another process holds it.
    pub(in crate::journal) fn take(medium: &dyn Medium) -> Result<Self, StoreError> {
        match lock(medium) {
            Ok(lock) => Ok(Self { held: Some(lock), refused: None }),
            Err(error @ StoreError::Locked { .. }) => Err(error),
            Err(error) => Ok(Self { held: None, refused: Some(crate::chain(&error)) }),
        }
    }
}

pub(super) fn lock(medium: &dyn Medium) -> Result<Box<dyn MediumFile>, StoreError> {
    let locked = medium.lock(LOCK).or_else(|error| {
        if !is_foreign(&error) {
            return Err(error);
        }
        // A link, a folder or a pipe of that name is not a lock.
        set_aside(medium, LOCK)?;
        medium.lock(LOCK)
    });
    locked.map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => StoreError::Locked { path: medium.path(""), lock: medium.path(LOCK) },
        _ => failed("lock", medium, LOCK)(error),
    })
}

/// The epoch and the last event of an earlier process that ended cleanly.
fn read_clean(medium: &dyn Medium) -> Option<(Ulid, u64)> {
    let file = medium.open(CLEAN, Access::Read).ok()?;
    let mut bytes = vec![0; usize::try_from(file.size().ok()?).ok().filter(|len| *len < 100)?];
    file.read_exact_at(&mut bytes, 0).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let (epoch, sequence) = text.strip_suffix('\n')?.split_once(':')?;
    Some((epoch.parse().ok()?, sequence.parse().ok()?))
}

fn forget_clean(medium: &dyn Medium) -> Result<(), StoreError> {
    match medium.remove(CLEAN) {
        // A process that removed it may have been killed before the removal was synced.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
            set_aside(medium, CLEAN).map_err(failed("set aside", medium, CLEAN))?;
        }
        removed => removed.map_err(failed("remove", medium, CLEAN))?,
    }
    medium.sync().map_err(failed("sync the folder of", medium, CLEAN))
}
