//! The binary format of the index.

use ulid::Ulid;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{I64, U32, U64, U128},
};

use super::Header;

/// The first bytes of an index; the format version follows them.
const MAGIC: [u8; 7] = *b"enfidx\0";

/// The version that is written, and the newest that can be read. Older ones can be read as well.
const VERSION: u8 = 1;

/// The longest valid line. No appended line comes near it.
pub(super) const MAX_LINE_BYTES: usize = 4 << 20;

#[derive(FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub(super) struct RawHeader {
    magic: [u8; 7],
    version: u8,
    epoch: U128,
    first: U64,
    boot_id: [u8; 40],
    /// Zero in old files, which did not store it.
    begun_boot_ms: U64,
    begun_ms: I64,
    reserved: [u8; 4],
    crc: U32,
}

pub(super) const HEADER_BYTES: u64 = size_of::<RawHeader>() as u64;
pub(super) const ENTRY_BYTES: u64 = size_of::<Entry>() as u64;
const _: () = assert!(HEADER_BYTES == 96 && ENTRY_BYTES == 32, "the format is fixed");

/// The location of one event.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub(super) struct Entry {
    offset: U64,
    time_ms: I64,
    len: U32,
    line_crc: U32,
    reserved: U32,
    crc: U32,
}

/// The result of reading the first bytes of an index.
pub(super) enum Read {
    Header(Header),
    /// A header of this newer, unknown version.
    Newer(u8),
    /// No valid header.
    None,
}

impl Entry {
    /// The entry of a line; `None` if the line is empty or too long.
    pub(super) fn new(offset: u64, time_ms: i64, line: &[u8]) -> Option<Self> {
        let fits = (1..=MAX_LINE_BYTES).contains(&line.len());
        let len = u32::try_from(line.len()).ok().filter(|_| fits)?;
        let mut entry = Self {
            offset: offset.into(),
            time_ms: time_ms.into(),
            len: len.into(),
            line_crc: crc32fast::hash(line).into(),
            reserved: 0.into(),
            crc: 0.into(),
        };
        entry.crc = checksum(entry.as_bytes()).into();
        Some(entry)
    }

    pub(super) fn is_whole(&self) -> bool {
        let fits = usize::try_from(self.len.get()).is_ok_and(|len| (1..=MAX_LINE_BYTES).contains(&len));
        fits && self.crc.get() == checksum(self.as_bytes())
    }

    pub(super) fn is_of(&self, line: &[u8]) -> bool {
        crc32fast::hash(line) == self.line_crc.get()
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset.get()
    }

    pub(super) fn len(&self) -> u32 {
        self.len.get()
    }

    /// The offset of the end of its line.
    pub(super) fn end(&self) -> u64 {
        self.offset.get().saturating_add(self.len.get().into())
    }
}

impl RawHeader {
    pub(super) fn new(header: &Header) -> Self {
        let mut boot_id = [0; 40];
        for (to, from) in boot_id.iter_mut().zip(header.boot_id.bytes()) {
            *to = from;
        }
        let mut raw = Self {
            magic: MAGIC,
            version: VERSION,
            epoch: u128::from(header.epoch).into(),
            first: header.first.into(),
            boot_id,
            begun_boot_ms: header.begun_boot_ms.into(),
            begun_ms: header.begun_ms.into(),
            reserved: [0; 4],
            crc: 0.into(),
        };
        raw.crc = checksum(raw.as_bytes()).into();
        raw
    }

    pub(super) fn read(&self) -> Read {
        if self.magic != MAGIC {
            return Read::None;
        }
        // Check this before the checksum: another version may keep it elsewhere.
        if self.version > VERSION {
            return Read::Newer(self.version);
        }
        let boot_id: Vec<u8> = self.boot_id.iter().copied().take_while(|byte| *byte != 0).collect();
        match String::from_utf8(boot_id) {
            Ok(boot_id) if self.version == VERSION && self.crc.get() == checksum(self.as_bytes()) => {
                Read::Header(Header {
                    epoch: Ulid::from(self.epoch.get()),
                    first: self.first.get(),
                    boot_id,
                    begun_boot_ms: self.begun_boot_ms.get(),
                    begun_ms: self.begun_ms.get(),
                })
            }
            Ok(_) | Err(_) => Read::None,
        }
    }
}

/// The checksum of all but the last four bytes, which hold it.
fn checksum(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes.get(..bytes.len() - size_of::<U32>()).unwrap_or_default())
}
