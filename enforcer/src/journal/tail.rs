//! The newest events, on tmpfs: those that a killed process had shown to readers and the disk had not taken yet.
//!
//! An event is copied here before any reader sees it, without waiting for a disk. The file has two halves. Each is
//! filled from its start, and used again once a segment holds everything in it. Readers see an event that does not fit
//! when it is in a segment. While the disk refuses writes, they see it once the [mark](Tail::mark) in the file covers
//! it: a kill loses that event, and its sequence is not used again. After a kill the next start takes from here what
//! the segments lack. A power cut loses the tail, which is reported: see `Recovered::after_power_cut`.

use std::{io, sync::Arc};

use ulid::Ulid;
use zerocopy::{
    FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout,
    little_endian::{U32, U64, U128},
};

use super::{
    medium::{Access, Medium, MediumFile},
    record::Kept,
    store::{Hint, is_foreign, set_aside},
};

/// The file's name.
pub(super) const NAME: &str = "journal.tail";

/// The size of each half. An event that does not fit is unprotected until the disk has it.
pub(super) const HALF_BYTES: u64 = 256 << 10;

/// Names the format; the last byte is its version.
const MAGIC: [u8; 8] = *b"enftail\x01";

/// The header at the start of the file.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct RawHead {
    magic: [u8; 8],
    epoch: U128,
    opened: U64,
    mark: U64,
    boot: U32,
    crc: U32,
}

const HEAD_BYTES: u64 = size_of::<RawHead>() as u64;

/// The header before each line.
#[derive(FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct Frame {
    len: U32,
    crc: U32,
    sequence: U64,
}

const FRAME_BYTES: usize = size_of::<Frame>();

/// The file, and how full its halves are.
#[derive(Debug)]
pub(super) struct Tail {
    medium: Arc<dyn Medium>,
    file: Box<dyn MediumFile>,
    /// Part of the checksums, so that frames of another log are not accepted.
    epoch: Ulid,
    /// The sequence with which the process began that created the file.
    opened: u64,
    /// The checksum of the boot id.
    boot: u32,
    mark: u64,
    halves: [Half; 2],
    active: usize,
    half_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Half {
    bytes: u64,
    /// The newest sequence in it; 0 if there is none.
    newest: u64,
}

/// What an earlier process left.
#[derive(Debug)]
pub(super) struct Left {
    epoch: Ulid,
    opened: u64,
    /// The newest sequence that readers may have seen.
    pub(super) mark: u64,
    /// In order.
    pub(super) records: Vec<Kept>,
}

impl Left {
    pub(super) fn hint(&self) -> Hint<'_> {
        let Self { epoch, opened, mark: _, records } = self;
        Hint { epoch: *epoch, opened: *opened, records }
    }
}

impl Tail {
    /// Opens the file, creates it if it does not exist, and returns what an earlier process of this boot left in it.
    pub(super) fn open(
        medium: &Arc<dyn Medium>,
        boot_id: &str,
        half_bytes: u64,
    ) -> io::Result<(Self, Option<Left>)> {
        let file = medium.open(NAME, Access::Make).or_else(|error| {
            if is_foreign(&error) {
                set_aside(&**medium, NAME)?;
            }
            medium.open(NAME, Access::Make)
        })?;
        let bytes = HEAD_BYTES + 2 * half_bytes;
        if file.size()? != bytes {
            file.set_len(0)?;
            file.set_len(bytes)?;
        }
        // Allocate all pages now, so that none is missing when memory is short.
        file.reserve(bytes)?;
        let boot = crc32fast::hash(boot_id.as_bytes());
        let raw = RawHead::read(&*file)?;
        let is_ours = raw.is_whole() && raw.boot.get() == boot;
        let mut tail = Self {
            medium: Arc::clone(medium),
            file,
            epoch: Ulid::from(raw.epoch.get()),
            opened: raw.opened.get(),
            boot,
            mark: raw.mark.get(),
            halves: [Half::default(); 2],
            active: 0,
            half_bytes,
        };
        if !is_ours {
            return Ok((tail, None));
        }
        let mut records: Vec<Kept> = Vec::new();
        for half in 0..tail.halves.len() {
            records.extend(tail.read(half)?);
        }
        records.sort_by_key(|record| record.sequence);
        let [first, second] = tail.halves;
        tail.active = usize::from(second.newest > first.newest);
        let Self { epoch, opened, mark, .. } = tail;
        Ok((tail, Some(Left { epoch, opened, mark, records })))
    }

    /// Discards the content and starts again for a log of `epoch`, whose next event is `next`. `pending` are the events
    /// before it that the disk has not taken.
    pub(super) fn begin(&mut self, epoch: Ulid, next: u64, pending: &[Kept]) -> io::Result<()> {
        let opened = pending.first().map_or(next, |first| first.sequence);
        // Readers see them. Those that do not fit here, or that a kill keeps from getting here, are reported as lost.
        let mark = if pending.is_empty() { 0 } else { next - 1 };
        (self.epoch, self.opened, self.mark) = (epoch, opened, mark);
        (self.halves, self.active) = ([Half::default(); 2], 0);
        self.write_head()?;
        for kept in pending {
            self.push(kept, 0)?;
        }
        Ok(())
    }

    /// Removes all events after `newest`: other events will get their sequences.
    pub(super) fn forget_after(&mut self, newest: u64) -> io::Result<()> {
        for place in 0..self.halves.len() {
            let records = self.read(place)?;
            let kept = records.iter().take_while(|record| record.sequence <= newest);
            let lens = kept.clone().map(|record| FRAME_BYTES + record.line.len());
            let bytes = u64::try_from(lens.sum::<usize>()).map_err(io::Error::other)?;
            let half = Half { bytes, newest: kept.last().map_or(0, |record| record.sequence) };
            if self.halves.get(place).is_some_and(|read| read.bytes > bytes) {
                self.file.write_all_at(&[0; FRAME_BYTES], offset(place, self.half_bytes) + bytes)?;
            }
            if let Some(to) = self.halves.get_mut(place) {
                *to = half;
            }
        }
        let [first, second] = self.halves;
        self.active = usize::from(second.newest > first.newest);
        Ok(())
    }

    /// Notes that readers see events up to `sequence`, of which not all are here or in a segment.
    pub(super) fn mark(&mut self, sequence: u64) -> io::Result<()> {
        if sequence <= self.mark {
            return Ok(());
        }
        self.mark = sequence;
        self.write_head()
    }

    /// Removes the file, so that the next start sees that the end of this log is unknown.
    pub(super) fn give_up(self) {
        if let Err(error) = self.medium.remove(NAME) {
            tracing::warn!("cannot remove {}: {error}", self.medium.path(NAME).display());
        }
    }

    fn write_head(&self) -> io::Result<()> {
        let mut raw = RawHead {
            magic: MAGIC,
            epoch: u128::from(self.epoch).into(),
            opened: self.opened.into(),
            mark: self.mark.into(),
            boot: self.boot.into(),
            crc: 0.into(),
        };
        raw.crc = raw.checksum().into();
        // It lies within one page, so that no kill leaves half of it.
        self.file.write_all_at(raw.as_bytes(), 0)
    }

    /// Copies an event in. `written` is the newest sequence that a segment holds. Returns false if there was no room.
    pub(super) fn push(&mut self, record: &Kept, written: u64) -> io::Result<bool> {
        let len = u32::try_from(record.line.len()).map_err(io::Error::other)?;
        let frame = Frame {
            len: len.into(),
            crc: crc(self.epoch, record.sequence, &record.line).into(),
            sequence: record.sequence.into(),
        };
        let mut bytes = Vec::with_capacity(FRAME_BYTES + record.line.len() + FRAME_BYTES);
        bytes.extend_from_slice(frame.as_bytes());
        bytes.extend_from_slice(&record.line);
        let size = u64::try_from(bytes.len()).map_err(io::Error::other)?;
        if self.halves[self.active].bytes + size > self.half_bytes {
            let other = 1 - self.active;
            if self.halves[other].newest > written || size > self.half_bytes {
                return Ok(false);
            }
            self.active = other;
            self.halves[other] = Half::default();
        }
        let half = &mut self.halves[self.active];
        if half.bytes == 0 {
            half.newest = 0;
        }
        let offset = offset(self.active, self.half_bytes) + half.bytes;
        // Frames that remain from an earlier use of this half must not be read as the next ones.
        if half.bytes + size + u64::try_from(FRAME_BYTES).map_err(io::Error::other)? <= self.half_bytes {
            bytes.extend_from_slice(&[0; FRAME_BYTES]);
        }
        self.file.write_all_at(&bytes, offset)?;
        half.bytes += size;
        half.newest = record.sequence;
        Ok(true)
    }

    /// Reads a half, and continues after its last event.
    fn read(&mut self, half: usize) -> io::Result<Vec<Kept>> {
        let (records, bytes) = read_half(&*self.file, self.epoch, half, self.half_bytes)?;
        let newest = records.last().map_or(0, |record| record.sequence);
        if let Some(half) = self.halves.get_mut(half) {
            *half = Half { bytes, newest };
        }
        Ok(records)
    }
}

/// Reads the file of a process that has ended or still runs. Returns `None` if there is no such file or it is not
/// a tail. Changes nothing.
pub(super) fn look(medium: &dyn Medium) -> io::Result<Option<Left>> {
    let file = match medium.open(NAME, Access::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let Some(halves_bytes) = file.size()?.checked_sub(HEAD_BYTES).filter(|bytes| *bytes <= 2 * HALF_BYTES)
    else {
        return Ok(None);
    };
    let raw = RawHead::read(&*file)?;
    if !raw.is_whole() {
        return Ok(None);
    }
    let epoch = Ulid::from(raw.epoch.get());
    let mut records = Vec::new();
    for half in 0..2 {
        records.extend(read_half(&*file, epoch, half, halves_bytes / 2)?.0);
    }
    records.sort_by_key(|record| record.sequence);
    Ok(Some(Left { epoch, opened: raw.opened.get(), mark: raw.mark.get(), records }))
}

/// The events in a half, and their size in bytes.
fn read_half(
    file: &dyn MediumFile,
    epoch: Ulid,
    half: usize,
    half_bytes: u64,
) -> io::Result<(Vec<Kept>, u64)> {
    let mut bytes = vec![0; usize::try_from(half_bytes).unwrap_or(0)];
    file.read_exact_at(&mut bytes, offset(half, half_bytes))?;
    let mut records: Vec<Kept> = Vec::new();
    let mut rest = bytes.as_slice();
    let mut read_bytes = 0;
    while let Ok((frame, after)) = Frame::read_from_prefix(rest) {
        let len = usize::try_from(frame.len.get()).unwrap_or(usize::MAX);
        let Some((line, after)) = after.split_at_checked(len) else { break };
        let sequence = frame.sequence.get();
        let follows = records.last().is_none_or(|last| sequence > last.sequence);
        if len == 0 || !follows || crc(epoch, sequence, line) != frame.crc.get() {
            break;
        }
        let Some(record) = Kept::from_line(line).filter(|record| record.sequence == sequence) else { break };
        records.push(record);
        rest = after;
        read_bytes = bytes.len() - rest.len();
    }
    Ok((records, u64::try_from(read_bytes).map_err(io::Error::other)?))
}

impl RawHead {
    fn read(file: &dyn MediumFile) -> io::Result<Self> {
        let mut raw = Self::new_zeroed();
        file.read_exact_at(raw.as_mut_bytes(), 0)?;
        Ok(raw)
    }

    /// Whether it is a valid header of this format.
    fn is_whole(&self) -> bool {
        self.magic == MAGIC && self.crc.get() == self.checksum()
    }

    /// The checksum of all but the last four bytes, which hold it.
    fn checksum(&self) -> u32 {
        let bytes = self.as_bytes();
        crc32fast::hash(bytes.get(..bytes.len() - size_of::<U32>()).unwrap_or_default())
    }
}

fn offset(half: usize, half_bytes: u64) -> u64 {
    HEAD_BYTES + if half == 0 { 0 } else { half_bytes }
}

fn crc(epoch: Ulid, sequence: u64, line: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&u128::from(epoch).to_le_bytes());
    hasher.update(&sequence.to_le_bytes());
    hasher.update(line);
    hasher.finalize()
}

#[cfg(test)]
mod tests;
