//! One segment of the log on disk: the events as NDJSON, and beside them an index that says which bytes are whole.
//!
//! `<first sequence>.ndjson` can be read by anything at any time. `<first sequence>.index` holds a header and one entry
//! per event: offset, length and time of its line, and checksums of line and entry. An event counts once both exist
//! and agree; [`Segment::recover`] cuts off what a crash left half written.

mod block;

use std::{
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use ulid::Ulid;
use zerocopy::{FromZeros as _, IntoBytes as _};

use self::format::{ENTRY_BYTES, Entry, HEADER_BYTES, RawHeader, Read};
use super::{
    medium::{Access, Medium, MediumFile},
    record::{self, Kept},
};

/// How much of a file is read at once, in bytes.
const CHUNK_BYTES: usize = 256 << 10;

/// More entries than any segment has: a longer index is damaged.
const MAX_ENTRIES: u64 = 1 << 20;

/// The header of a segment's index.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Header {
    /// The log epoch that its events belong to.
    pub(super) epoch: Ulid,
    /// The sequence of its first event.
    pub(super) first: u64,
    /// The id of the boot in which it was created.
    pub(super) boot_id: String,
    /// When it was created, in milliseconds since that boot; 0 if unknown.
    pub(super) begun_boot_ms: u64,
    /// When it was created, in milliseconds since 1970 by the wall clock.
    pub(super) begun_ms: i64,
}

/// A segment, open for reading.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) header: Header,
    data_path: PathBuf,
    data: Box<dyn MediumFile>,
    index: Box<dyn MediumFile>,
    /// Whether its file names are synced.
    is_named: AtomicBool,
}

/// What exists under a segment's names.
#[derive(Debug)]
pub(super) enum Found {
    /// A segment.
    Segment(Segment),
    /// A segment of this newer format, which this build cannot read.
    Newer(u8),
    /// The index is missing or is not an index; the events may be whole.
    NoIndex,
}

/// What recovery found in a segment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Extent {
    /// Events up to the last whole one, damaged ones included.
    pub(super) records: u64,
    /// How many of `records` are damaged.
    pub(super) damaged: u64,
    /// Where the line of the last whole event ends.
    pub(super) data_bytes: u64,
    /// Events that had no entry and got one.
    pub(super) reindexed: u64,
    /// Bytes of data behind the last whole event, which were cut off.
    pub(super) cut_bytes: u64,
    /// Events behind the last whole one that the index has room for: they existed once.
    pub(super) gone: u64,
}

impl Extent {
    /// The size of both files in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.data_bytes + HEADER_BYTES + self.records * ENTRY_BYTES
    }
}

/// The names of a segment's files.
pub(super) fn names(first: u64) -> (String, String) {
    (format!("{first:020}.ndjson"), format!("{first:020}.index"))
}

impl Segment {
    /// Creates the files, readable by owner and group, and writes the header.
    pub(super) fn create(medium: &dyn Medium, header: Header) -> io::Result<Self> {
        let (data_name, index_name) = names(header.first);
        // The index first: data without an index counts as damage.
        let index = medium.open(&index_name, Access::New)?;
        let segment = index
            .write_all_at(RawHeader::new(&header).as_bytes(), 0)
            .and_then(|()| medium.open(&data_name, Access::New));
        match segment {
            Ok(data) => Ok(Self::from_parts(medium, header, data, index, false)),
            Err(error) => {
                // The next attempt replaces it, or the next start removes it.
                if let Err(error) = medium.remove(&index_name) {
                    tracing::debug!(%error, index_name, "a segment that could not be begun stays");
                }
                Err(error)
            }
        }
    }

    fn from_parts(
        medium: &dyn Medium,
        header: Header,
        data: Box<dyn MediumFile>,
        index: Box<dyn MediumFile>,
        is_named: bool,
    ) -> Self {
        let data_path = medium.path(&names(header.first).0);
        Self { header, data_path, data, index, is_named: AtomicBool::new(is_named) }
    }

    /// Creates a new index for the events of a segment whose index is lost or damaged.
    pub(super) fn reindex(medium: &dyn Medium, header: Header) -> io::Result<Self> {
        let (data_name, index_name) = names(header.first);
        let data = medium.open(&data_name, Access::Write)?;
        let index = medium.open(&index_name, Access::Make)?;
        index.set_len(0)?;
        let segment = Self::from_parts(medium, header, data, index, false);
        segment.recover(true)?;
        // Last: without a header the next start repeats this, as it must if this one did not finish.
        segment.index.write_all_at(RawHeader::new(&segment.header).as_bytes(), 0)?;
        Ok(segment)
    }

    /// Opens the files.
    pub(super) fn open(medium: &dyn Medium, first: u64, access: Access) -> io::Result<Found> {
        let (data_name, index_name) = names(first);
        let data = medium.open(&data_name, access)?;
        let index = match medium.open(&index_name, access) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::NoIndex),
            opened => opened?,
        };
        let mut raw = RawHeader::new_zeroed();
        if index.size()? < HEADER_BYTES {
            return Ok(Found::NoIndex);
        }
        index.read_exact_at(raw.as_mut_bytes(), 0)?;
        Ok(match raw.read() {
            Read::Header(header) if header.first == first => {
                Found::Segment(Self::from_parts(medium, header, data, index, true))
            }
            Read::Newer(version) => Found::Newer(version),
            Read::Header(_) | Read::None => Found::NoIndex,
        })
    }

    /// Finds the whole events, indexes those whose entry a crash lost, and cuts off what lies behind the last of them.
    /// Readers skip damage before it. Changes the files only if `repair`.
    pub(super) fn recover(&self, repair: bool) -> io::Result<Extent> {
        let data_len = self.data.size()?;
        let mut extent = Extent::default();
        let entries = self.entries()?;
        for place in 0..entries {
            if let Some(entry) = self.entry(place)?.filter(|entry| entry.end() <= data_len)
                && self.line(&entry)?.is_some_and(|line| self.holds(place, &line))
            {
                extent.damaged += place - extent.records;
                extent.records = place + 1;
                extent.data_bytes = entry.end();
            }
        }
        // Lines behind that whose entries were not written.
        let from = extent.data_bytes;
        lines(&*self.data, from, data_len, |offset, line| {
            let expected = self.header.first.saturating_add(extent.records);
            // A sequence that is far off is not ours: its entry would make the index arbitrarily large.
            let most = expected.saturating_add(data_len - from);
            if let Some(record) =
                Kept::from_line(line).filter(|record| record.sequence >= expected && record.sequence <= most)
                && let Some(entry) = Entry::new(offset, record.time_ms, line)
            {
                let place = record.sequence - self.header.first;
                // A line that does not match the checksum of its entry is damaged, even if it is valid JSON.
                if self.entry(place)?.is_some_and(|known| known.offset() == offset && !known.is_of(line)) {
                    return Ok(());
                }
                if repair {
                    self.write_entry(place, &entry)?;
                }
                extent.damaged += place - extent.records;
                extent.records = place + 1;
                extent.data_bytes = entry.end();
                extent.reindexed += 1;
            }
            Ok(())
        })?;
        extent.cut_bytes = data_len - extent.data_bytes;
        extent.gone = entries.saturating_sub(extent.records);
        if repair {
            self.data.set_len(extent.data_bytes)?;
            // The index keeps room for those that are gone, so that the next start also knows of them.
            self.index.set_len(HEADER_BYTES + (extent.records + extent.gone) * ENTRY_BYTES)?;
        }
        Ok(extent)
    }

    /// Appends events; the next call overwrites a write that failed halfway.
    pub(super) fn append(&self, extent: &mut Extent, records: &[Kept]) -> io::Result<()> {
        let mut lines = Vec::with_capacity(records.iter().map(|record| record.line.len()).sum());
        let mut entries = Vec::with_capacity(records.len());
        for record in records {
            let offset = extent.data_bytes + u64::try_from(lines.len()).map_err(io::Error::other)?;
            let entry = Entry::new(offset, record.time_ms, &record.line)
                .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "an event is too long"))?;
            lines.extend_from_slice(&record.line);
            entries.push(entry);
        }
        self.data.write_all_at(&lines, extent.data_bytes)?;
        self.index.write_all_at(entries.as_bytes(), HEADER_BYTES + extent.records * ENTRY_BYTES)?;
        extent.data_bytes = entries.last().map_or(extent.data_bytes, Entry::end);
        extent.records += u64::try_from(records.len()).map_err(io::Error::other)?;
        Ok(())
    }

    /// Syncs both files, and once their names.
    pub(super) fn sync(&self, medium: &dyn Medium) -> io::Result<()> {
        self.data.sync()?;
        self.index.sync()?;
        if !self.is_named.load(Ordering::Relaxed) {
            medium.sync()?;
            self.is_named.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Writes all events up to that extent again.
    ///
    /// After a failed sync the kernel marks the unwritten pages clean, and the next sync succeeds without them.
    pub(super) fn write_again(&self, extent: &Extent) -> io::Result<()> {
        let index_bytes = HEADER_BYTES + extent.records * ENTRY_BYTES;
        for (file, len) in [(&self.data, extent.data_bytes), (&self.index, index_bytes)] {
            let mut buffer = vec![0; CHUNK_BYTES];
            let mut offset = 0;
            while offset < len {
                let most = usize::try_from(len - offset).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
                let chunk = buffer.get_mut(..most).unwrap_or_default();
                file.read_exact_at(chunk, offset)?;
                file.write_all_at(chunk, offset)?;
                offset += u64::try_from(most).map_err(io::Error::other)?;
            }
        }
        Ok(())
    }

    /// Reads up to `most` events in order, from the sequence `from` on, without damaged ones.
    pub(super) fn read(&self, from: u64, most: usize) -> io::Result<Vec<Kept>> {
        let mut records = Vec::new();
        let entries = self.entries()?;
        let mut place = from.saturating_sub(self.header.first);
        while records.len() < most && place < entries {
            let line = match self.entry(place)? {
                Some(entry) => self.line(&entry)?,
                None => None,
            };
            let sequence = self.header.first.saturating_add(place);
            records.extend(
                line.and_then(|line| Kept::from_line(&line)).filter(|record| record.sequence == sequence),
            );
            place += 1;
        }
        Ok(records)
    }

    /// The file with the events.
    pub(super) fn data_path(&self) -> &Path {
        &self.data_path
    }

    /// The size of both files in bytes.
    pub(super) fn bytes(&self) -> io::Result<u64> {
        Ok(self.data.size()?.saturating_add(self.index.size()?))
    }

    /// Removes the files; readers that have them open can read on.
    pub(super) fn remove(&self, medium: &dyn Medium) -> io::Result<()> {
        let (data_name, index_name) = names(self.header.first);
        // The data first: an index without data counts as empty.
        for name in [data_name, index_name] {
            match medium.remove(&name) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// How many entries the index has room for.
    fn entries(&self) -> io::Result<u64> {
        Ok((self.index.size()?.saturating_sub(HEADER_BYTES) / ENTRY_BYTES).min(MAX_ENTRIES))
    }

    fn entry(&self, place: u64) -> io::Result<Option<Entry>> {
        let mut entry = Entry::new_zeroed();
        match self.index.read_exact_at(entry.as_mut_bytes(), HEADER_BYTES + place * ENTRY_BYTES) {
            Ok(()) => Ok(Some(entry).filter(Entry::is_whole)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn write_entry(&self, place: u64, entry: &Entry) -> io::Result<()> {
        self.index.write_all_at(entry.as_bytes(), HEADER_BYTES + place * ENTRY_BYTES)
    }

    /// Whether that line is the event of that place. Only the sequence is checked: the checksum says that the line is
    /// whole, and a newer version may have written other members.
    fn holds(&self, place: u64, line: &[u8]) -> bool {
        let sequence = self.header.first.checked_add(place);
        sequence.is_some() && record::sequence(line) == sequence
    }

    /// The sequence behind the last one that its index has room for.
    pub(super) fn index_end(&self) -> io::Result<u64> {
        Ok(self.header.first.saturating_add(self.entries()?))
    }

    /// The line of an entry, if it matches the entry's checksum.
    fn line(&self, entry: &Entry) -> io::Result<Option<Vec<u8>>> {
        let mut line = vec![0; usize::try_from(entry.len()).unwrap_or(0)];
        match self.data.read_exact_at(&mut line, entry.offset()) {
            Ok(()) => Ok(Some(line).filter(|line| entry.is_of(line))),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The newest event in the data of a segment that cannot be read, and whether the file holds anything but zeros.
pub(super) fn newest(data: &dyn MediumFile) -> io::Result<(Option<u64>, bool)> {
    let mut newest = None;
    let mut has_content = false;
    lines(data, 0, data.size()?, |_, line| {
        has_content |= line.iter().any(|byte| *byte != 0);
        newest = newest.max(Kept::from_line(line).map(|record| record.sequence));
        Ok(())
    })?;
    Ok((newest, has_content))
}

/// Passes on the lines between two offsets, each with its line end; a line longer than any event in parts.
fn lines(
    file: &dyn MediumFile,
    from: u64,
    to: u64,
    mut take: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut pending: Vec<u8> = Vec::new();
    // Where `pending` begins.
    let mut start = from;
    let mut offset = from;
    while offset < to {
        let most = usize::try_from(to - offset).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        let old = pending.len();
        pending.resize(old + most, 0);
        file.read_exact_at(pending.get_mut(old..).unwrap_or_default(), offset)?;
        offset += u64::try_from(most).map_err(io::Error::other)?;
        let at_end = offset == to || pending.len() > format::MAX_LINE_BYTES;
        let whole = if at_end {
            pending.len()
        } else {
            pending.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1)
        };
        let mut at = start;
        for line in pending.get(..whole).unwrap_or_default().split_inclusive(|byte| *byte == b'\n') {
            take(at, line)?;
            at += u64::try_from(line.len()).map_err(io::Error::other)?;
        }
        pending.drain(..whole);
        start = at;
    }
    Ok(())
}

mod format;
#[cfg(test)]
mod tests;
