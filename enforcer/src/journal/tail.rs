//! The newest events, on tmpfs: what the process had told before it was killed, and the disk had not taken yet.
//!
//! An event is copied here before any reader sees it, without waiting for a disk. The file has two halves; each is
//! filled from its start, and used again once a segment holds everything in it. An event that finds no room is shown
//! to readers when it is in a segment. After a kill the next start
//! takes from here what the segments lack. A power cut takes it away, which is told: see `Recovered::after_power_cut`.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::Path,
};

use ulid::Ulid;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U32, U64},
};

use super::Record;

/// Each half; an event that does not fit is on its own until the disk has it.
const HALF_BYTES: u64 = 256 << 10;

/// Before each line.
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
    file: File,
    /// Goes into the checksums, so that what belongs to another log is not taken for ours.
    epoch: Ulid,
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

impl Tail {
    /// Opens the file, makes it where it is missing, and returns what a process before left in it, in order.
    pub(super) fn open(path: &Path, epoch: Ulid) -> io::Result<(Self, Vec<Record>)> {
        Self::with_half(path, epoch, HALF_BYTES)
    }

    fn with_half(path: &Path, epoch: Ulid, half_bytes: u64) -> io::Result<(Self, Vec<Record>)> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o640).open(path)?;
        if file.metadata()?.len() != 2 * half_bytes {
            file.set_len(0)?;
            file.set_len(2 * half_bytes)?;
        }
        // All pages now, so that none is wanting when memory is short.
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 2 * half_bytes)?;
        let tail = Self { file, epoch, halves: [Half::default(); 2], active: 0, half_bytes };
        let mut left: Vec<Record> = Vec::new();
        for half in 0..tail.halves.len() {
            left.extend(tail.read(half)?);
        }
        left.sort_by_key(|record| record.sequence);
        Ok((tail, left))
    }

    /// Copies an event in. `written` is the newest sequence that a segment holds. False if there was no room.
    pub(super) fn push(&mut self, record: &Record, written: u64) -> io::Result<bool> {
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
        // What an older round left behind must not be read as what comes next.
        if half.bytes + size + u64::try_from(FRAME_BYTES).map_err(io::Error::other)? <= self.half_bytes {
            bytes.extend_from_slice(&[0; FRAME_BYTES]);
        }
        self.file.write_all_at(&bytes, offset)?;
        half.bytes += size;
        half.newest = record.sequence;
        Ok(true)
    }

    fn read(&self, half: usize) -> io::Result<Vec<Record>> {
        let mut bytes = vec![0; usize::try_from(self.half_bytes).unwrap_or(0)];
        self.file.read_exact_at(&mut bytes, offset(half, self.half_bytes))?;
        let mut records: Vec<Record> = Vec::new();
        let mut rest = bytes.as_slice();
        while let Ok((frame, after)) = Frame::read_from_prefix(rest) {
            let len = usize::try_from(frame.len.get()).unwrap_or(usize::MAX);
            let Some((line, after)) = after.split_at_checked(len) else { break };
            let follows = records.last().is_none_or(|last| frame.sequence.get() > last.sequence);
            if len == 0 || !follows || crc(self.epoch, frame.sequence.get(), line) != frame.crc.get() {
                break;
            }
            let Some(record) = Record::from_line(line) else { break };
            records.push(record);
            rest = after;
        }
        Ok(records)
    }
}

fn offset(half: usize, half_bytes: u64) -> u64 {
    if half == 0 { 0 } else { half_bytes }
}

fn crc(epoch: Ulid, sequence: u64, line: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&u128::from(epoch).to_le_bytes());
    hasher.update(&sequence.to_le_bytes());
    hasher.update(line);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::tests::record;

    fn sequences(records: &[Record]) -> Vec<u64> {
        records.iter().map(|record| record.sequence).collect()
    }

    #[test]
    fn what_was_pushed_is_there_after_a_kill() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tail");
        let (mut tail, left) = Tail::with_half(&path, Ulid::nil(), 2_000).unwrap();
        assert!(left.is_empty());
        for sequence in 1..=3 {
            assert!(tail.push(&record(sequence), 0).unwrap());
        }
        drop(tail);
        let (_, left) = Tail::with_half(&path, Ulid::nil(), 2_000).unwrap();
        assert_eq!(sequences(&left), [1, 2, 3]);
        assert_eq!(left[2].line, record(3).line);
    }

    #[test]
    fn nothing_that_the_disk_lacks_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tail");
        let (mut tail, _) = Tail::with_half(&path, Ulid::nil(), 1_000).unwrap();
        let pushed = (1..100).take_while(|&sequence| tail.push(&record(sequence), 0).unwrap()).count();
        let pushed = u64::try_from(pushed).unwrap();
        assert_eq!(
            sequences(&Tail::with_half(&path, Ulid::nil(), 1_000).unwrap().1),
            (1..=pushed).collect::<Vec<_>>()
        );
        // The disk has the first half: that one is used again, and what it held is not read any more.
        assert!(tail.push(&record(pushed + 1), pushed / 2).unwrap());
        let left = sequences(&Tail::with_half(&path, Ulid::nil(), 1_000).unwrap().1);
        assert_eq!(left, (pushed / 2 + 1..=pushed + 1).collect::<Vec<_>>());
    }

    #[test]
    fn what_another_log_left_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tail");
        let (mut tail, _) = Tail::with_half(&path, Ulid::nil(), 2_000).unwrap();
        tail.push(&record(1), 0).unwrap();
        assert!(Tail::with_half(&path, Ulid::generate(), 2_000).unwrap().1.is_empty());
    }

    #[test]
    fn an_event_without_room_is_refused_and_the_next_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (mut tail, _) = Tail::with_half(&dir.path().join("tail"), Ulid::nil(), 500).unwrap();
        let mut large = record(1);
        large.line = vec![b' '; 600].into();
        assert!(!tail.push(&large, 0).unwrap());
        assert!(tail.push(&record(2), 0).unwrap());
    }

    #[test]
    fn what_is_torn_ends_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tail");
        let (mut tail, _) = Tail::with_half(&path, Ulid::nil(), 2_000).unwrap();
        for sequence in 1..=3 {
            tail.push(&record(sequence), 0).unwrap();
        }
        let second = u64::try_from(FRAME_BYTES + record(1).line.len() + FRAME_BYTES + 5).unwrap();
        tail.file.write_all_at(b"x", second).unwrap();
        assert_eq!(sequences(&Tail::with_half(&path, Ulid::nil(), 2_000).unwrap().1), [1]);
    }
}
