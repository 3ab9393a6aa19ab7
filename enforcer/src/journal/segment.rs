//! One segment of the log on disk: the events as NDJSON, and beside them an index that says which bytes are whole.
//!
//! `<first sequence>.ndjson` can be read by anything at any time. `<first sequence>.index` holds a header and an entry
//! an event: where its line is, how long, when it was appended, and checksums of line and entry. An event counts
//! once both are there and agree; what a crash left half written is cut off by [`Segment::recover`].

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use ulid::Ulid;
use zerocopy::{
    FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout,
    little_endian::{I64, U32, U64, U128},
};

use super::Record;

/// The first bytes of an index; the last one is the version of the format.
const MAGIC: [u8; 8] = *b"enfidx\0\x01";

/// The longest line that is taken for one: nothing that is appended comes near it.
const MAX_LINE_BYTES: u32 = 4 << 20;

/// What a segment says of itself.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Header {
    /// The log epoch that its events belong to.
    pub(super) epoch: Ulid,
    /// The sequence of its first event.
    pub(super) first: u64,
    /// The boot in which it was begun.
    pub(super) boot_id: String,
}

#[derive(FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    epoch: U128,
    first: U64,
    boot_id: [u8; 40],
    reserved: [u8; 20],
    crc: U32,
}

const HEADER_BYTES: u64 = size_of::<RawHeader>() as u64;
const ENTRY_BYTES: u64 = size_of::<Entry>() as u64;
const _: () = assert!(HEADER_BYTES == 96 && ENTRY_BYTES == 32, "the format is fixed");

/// Where one event is.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct Entry {
    offset: U64,
    time_ms: I64,
    len: U32,
    line_crc: U32,
    reserved: U32,
    crc: U32,
}

impl Entry {
    fn new(offset: u64, time_ms: i64, line: &[u8]) -> Option<Self> {
        let len = u32::try_from(line.len()).ok().filter(|len| (1..=MAX_LINE_BYTES).contains(len))?;
        let mut entry = Self {
            offset: offset.into(),
            time_ms: time_ms.into(),
            len: len.into(),
            line_crc: crc32fast::hash(line).into(),
            reserved: 0.into(),
            crc: 0.into(),
        };
        entry.crc = entry.checksum().into();
        Some(entry)
    }

    fn checksum(&self) -> u32 {
        let bytes = self.as_bytes();
        crc32fast::hash(bytes.get(..bytes.len() - size_of::<U32>()).unwrap_or_default())
    }

    fn is_whole(&self) -> bool {
        self.crc.get() == self.checksum() && (1..=MAX_LINE_BYTES).contains(&self.len.get())
    }

    fn end(&self) -> u64 {
        self.offset.get().saturating_add(self.len.get().into())
    }
}

impl RawHeader {
    fn new(header: &Header) -> Self {
        let mut boot_id = [0; 40];
        for (to, from) in boot_id.iter_mut().zip(header.boot_id.bytes()) {
            *to = from;
        }
        let mut raw = Self {
            magic: MAGIC,
            epoch: u128::from(header.epoch).into(),
            first: header.first.into(),
            boot_id,
            reserved: [0; 20],
            crc: 0.into(),
        };
        raw.crc = raw.checksum().into();
        raw
    }

    fn checksum(&self) -> u32 {
        let bytes = self.as_bytes();
        crc32fast::hash(bytes.get(..bytes.len() - size_of::<U32>()).unwrap_or_default())
    }

    fn read(&self) -> Option<Header> {
        if self.magic != MAGIC || self.crc.get() != self.checksum() {
            return None;
        }
        let boot_id: Vec<u8> = self.boot_id.iter().copied().take_while(|byte| *byte != 0).collect();
        Some(Header {
            epoch: Ulid::from(self.epoch.get()),
            first: self.first.get(),
            boot_id: String::from_utf8(boot_id).ok()?,
        })
    }
}

/// A segment, open for reading.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) header: Header,
    data_path: PathBuf,
    data: File,
    index: File,
}

/// What recovery found in a segment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Extent {
    /// How many events there are, up to the last whole one.
    pub(super) records: u64,
    /// How many of them are damaged.
    pub(super) damaged: u64,
    /// Where the last one's line ends.
    pub(super) data_bytes: u64,
    /// How many events were in the data alone, and got an entry again.
    pub(super) reindexed: u64,
    /// How many bytes of data behind the last whole event were no event.
    pub(super) cut_bytes: u64,
}

impl Segment {
    /// The files of a segment with that first sequence.
    pub(super) fn paths(dir: &Path, first: u64) -> (PathBuf, PathBuf) {
        (dir.join(format!("{first:020}.ndjson")), dir.join(format!("{first:020}.index")))
    }

    /// Makes the files, for their owner and group, and writes the header.
    pub(super) fn create(dir: &Path, header: Header) -> io::Result<Self> {
        let (data_path, index_path) = Self::paths(dir, header.first);
        let make = |path: &Path| {
            OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o640).open(path)
        };
        let (data, index) = (make(&data_path)?, make(&index_path)?);
        index.write_all_at(RawHeader::new(&header).as_bytes(), 0)?;
        Ok(Self { header, data_path, data, index })
    }

    /// Gives the events of a segment whose index is lost or damaged a new one, as yet without entries.
    pub(super) fn reindex(dir: &Path, header: Header) -> io::Result<Self> {
        let (data_path, index_path) = Self::paths(dir, header.first);
        let data = OpenOptions::new().read(true).write(true).open(&data_path)?;
        let index = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o640)
            .open(index_path)?;
        index.write_all_at(RawHeader::new(&header).as_bytes(), 0)?;
        Ok(Self { header, data_path, data, index })
    }

    /// Opens the files; none if the index is no index.
    pub(super) fn open(dir: &Path, first: u64, write: bool) -> io::Result<Option<Self>> {
        let (data_path, index_path) = Self::paths(dir, first);
        let open = |path: &Path| OpenOptions::new().read(true).write(write).open(path);
        let (data, index) = (open(&data_path)?, open(&index_path)?);
        let mut raw = RawHeader::new(&Header { epoch: Ulid::nil(), first: 0, boot_id: String::new() });
        if index.metadata()?.len() < HEADER_BYTES {
            return Ok(None);
        }
        index.read_exact_at(raw.as_mut_bytes(), 0)?;
        let header = raw.read().filter(|header| header.first == first);
        Ok(header.map(|header| Self { header, data_path, data, index }))
    }

    /// Finds the events that are whole, and indexes those whose entry a crash lost; what lies behind the last of them is
    /// cut off. Damage before it is left as it is, and skipped when reading. Changes the files only if `repair`.
    pub(super) fn recover(&self, repair: bool) -> io::Result<Extent> {
        let data_len = self.data.metadata()?.len();
        let mut extent = Extent::default();
        for place in 0..self.entries()? {
            if let Some(entry) = self.entry(place)?.filter(|entry| entry.end() <= data_len)
                && self.line(&entry)?.is_some()
            {
                extent.damaged += place - extent.records;
                extent.records = place + 1;
                extent.data_bytes = entry.end();
            }
        }
        // What is there beyond: lines whose entries did not make it.
        let mut rest = vec![0; usize::try_from(data_len - extent.data_bytes).unwrap_or(0)];
        self.data.read_exact_at(&mut rest, extent.data_bytes)?;
        let mut offset = extent.data_bytes;
        for line in rest.split_inclusive(|byte| *byte == b'\n') {
            let expected = self.header.first.saturating_add(extent.records);
            if let Some(record) = Record::from_line(line).filter(|record| record.sequence >= expected)
                && let Some(entry) = Entry::new(offset, record.time_ms, line)
            {
                let place = record.sequence - self.header.first;
                if repair {
                    self.write_entry(place, &entry)?;
                }
                extent.damaged += place - extent.records;
                extent.records = place + 1;
                extent.data_bytes = entry.end();
                extent.reindexed += 1;
            }
            offset += u64::try_from(line.len()).map_err(io::Error::other)?;
        }
        extent.cut_bytes = data_len - extent.data_bytes;
        if repair {
            self.data.set_len(extent.data_bytes)?;
            self.index.set_len(HEADER_BYTES + extent.records * ENTRY_BYTES)?;
        }
        Ok(extent)
    }

    /// Writes events behind those that are there; a write that fails halfway is written over by the next.
    pub(super) fn append(&self, extent: &mut Extent, records: &[Record]) -> io::Result<()> {
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

    /// Waits until the disk holds what was written.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.data.sync_data()?;
        self.index.sync_data()
    }

    /// Reads up to `most` events with sequences of `from` and later, in order; damaged ones are left out.
    pub(super) fn read(&self, from: u64, most: usize) -> io::Result<Vec<Record>> {
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
                line.and_then(|line| Record::from_line(&line)).filter(|record| record.sequence == sequence),
            );
            place += 1;
        }
        Ok(records)
    }

    /// What its files hold; nothing if that cannot be told.
    pub(super) fn stored_bytes(&self) -> u64 {
        [&self.data, &self.index]
            .iter()
            .filter_map(|file| file.metadata().ok())
            .map(|metadata| metadata.len())
            .sum()
    }

    /// The file with the events.
    pub(super) fn data_path(&self) -> &Path {
        &self.data_path
    }

    /// Removes its files; whoever has it open reads on.
    pub(super) fn remove(&self) -> io::Result<()> {
        std::fs::remove_file(self.data_path.with_extension("index"))?;
        std::fs::remove_file(&self.data_path)
    }

    /// How many entries the index has room for as it stands.
    fn entries(&self) -> io::Result<u64> {
        Ok(self.index.metadata()?.len().saturating_sub(HEADER_BYTES) / ENTRY_BYTES)
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

    /// The line of an entry, if it is the one that the entry was made for.
    fn line(&self, entry: &Entry) -> io::Result<Option<Vec<u8>>> {
        let mut line = vec![0; usize::try_from(entry.len.get()).unwrap_or(0)];
        match self.data.read_exact_at(&mut line, entry.offset.get()) {
            Ok(()) => Ok(Some(line).filter(|line| crc32fast::hash(line) == entry.line_crc.get())),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
