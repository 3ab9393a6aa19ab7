//! Reads many events of a segment at once, with two reads.

use std::{io, ops::Range};

use zerocopy::{FromZeros as _, IntoBytes as _};

use super::{ENTRY_BYTES, Entry, HEADER_BYTES, Segment};

/// The most events in a block.
const MOST: u64 = 256;

/// Consecutive whole events.
#[derive(Debug, Default)]
pub(in crate::journal) struct Block {
    first: u64,
    data: Vec<u8>,
    lines: Vec<Range<usize>>,
}

impl Block {
    /// The sequence of its first event; `None` if it is empty.
    pub(in crate::journal) fn first(&self) -> Option<u64> {
        (!self.lines.is_empty()).then_some(self.first)
    }

    /// The sequence and line of each event.
    pub(in crate::journal) fn lines(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let lines = self.lines.iter().filter_map(|line| self.data.get(line.clone()));
        (self.first..).zip(lines)
    }
}

impl Segment {
    /// The first consecutive whole events with sequences from `from` to below `end`: at most `most_bytes` bytes, but
    /// at least one event. Skips damaged events before the first whole one; a damaged event after it ends the block.
    pub(in crate::journal) fn block(&self, from: u64, end: u64, most_bytes: usize) -> io::Result<Block> {
        let entries = self.entries()?.min(end.saturating_sub(self.header.first));
        let mut place = from.saturating_sub(self.header.first);
        while place < entries {
            let read = self.entries_at(place, (entries - place).min(MOST))?;
            if read.is_empty() {
                break;
            }
            let damaged = read.iter().take_while(|entry| !entry.is_whole()).count();
            let whole = read.get(damaged..).unwrap_or_default();
            place += u64::try_from(damaged).map_err(io::Error::other)?;
            let Some(first) = whole.first() else { continue };
            let data = self.data_at(first.offset(), span(whole, most_bytes))?;
            let lines = lines(whole, &data);
            if !lines.is_empty() {
                return Ok(Block { first: self.header.first.saturating_add(place), data, lines });
            }
            place += 1;
        }
        Ok(Block::default())
    }

    /// Reads `count` entries; none if the index ends before.
    fn entries_at(&self, place: u64, count: u64) -> io::Result<Vec<Entry>> {
        let mut entries = vec![Entry::new_zeroed(); usize::try_from(count).map_err(io::Error::other)?];
        match self.index.read_exact_at(entries.as_mut_bytes(), HEADER_BYTES + place * ENTRY_BYTES) {
            Ok(()) => Ok(entries),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Reads up to `count` bytes; fewer where the file ends.
    fn data_at(&self, offset: u64, count: usize) -> io::Result<Vec<u8>> {
        let there = usize::try_from(self.data.size()?.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut data = vec![0; count.min(there)];
        self.data.read_exact_at(&mut data, offset)?;
        Ok(data)
    }
}

/// The size in bytes of the first entries that are adjacent in the file: the first one, and more as long as they fit.
fn span(entries: &[Entry], most_bytes: usize) -> usize {
    let mut bytes = 0;
    let mut end = None;
    for entry in entries {
        let len = usize::try_from(entry.len()).unwrap_or(usize::MAX);
        let follows = end.is_none_or(|end| end == entry.offset());
        if !entry.is_whole() || !follows || (bytes > 0 && bytes + len > most_bytes) {
            break;
        }
        bytes += len;
        end = Some(entry.end());
    }
    bytes
}

/// The ranges of the entries' lines in the data, up to the first line that is missing or does not match its entry.
fn lines(entries: &[Entry], data: &[u8]) -> Vec<Range<usize>> {
    let mut start = 0;
    let mut lines = Vec::new();
    for entry in entries {
        let end = start + usize::try_from(entry.len()).unwrap_or(usize::MAX - start);
        let is_whole = |line: &[u8]| entry.is_of(line);
        // Zeros that a power cut left in the index look like the entry of an empty line.
        if !entry.is_whole() || !data.get(start..end).is_some_and(is_whole) {
            break;
        }
        lines.push(start..end);
        start = end;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{
        medium::Folder,
        segment::{Extent, Header},
        tests::record,
    };

    fn segment(dir: &std::path::Path) -> Segment {
        let header = Header {
            epoch: ulid::Ulid::nil(),
            first: 11,
            boot_id: "b1".into(),
            begun_boot_ms: 0,
            begun_ms: 0,
        };
        let segment = Segment::create(&Folder::open(dir).unwrap(), header).unwrap();
        let records: Vec<_> = (11..=510).map(record).collect();
        segment.append(&mut Extent::default(), &records).unwrap();
        segment
    }

    fn sequences(block: &Block) -> Vec<u64> {
        block
            .lines()
            .map(|(sequence, line)| {
                assert_eq!(line, &record(sequence).line[..]);
                sequence
            })
            .collect()
    }

    #[test]
    fn a_block_is_what_follows_and_no_more_than_was_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let segment = segment(dir.path());
        let line = record(11).line.len();
        assert_eq!(sequences(&segment.block(11, u64::MAX, 3 * line).unwrap()), [11, 12, 13]);
        assert_eq!(sequences(&segment.block(20, u64::MAX, 1).unwrap()), [20]);
        assert_eq!(sequences(&segment.block(20, 22, 1 << 20).unwrap()), [20, 21]);
        assert_eq!(sequences(&segment.block(1, u64::MAX, 1 << 20).unwrap()).len(), 256);
        assert_eq!(sequences(&segment.block(509, u64::MAX, 1 << 20).unwrap()), [509, 510]);
        assert_eq!(segment.block(511, u64::MAX, 1 << 20).unwrap().first(), None);
    }

    #[test]
    fn damage_ends_a_block_and_the_next_begins_behind_it() {
        let dir = tempfile::tempdir().unwrap();
        let segment = segment(dir.path());
        let line = u64::try_from(record(11).line.len()).unwrap();
        // The text of 13, and the entry of 15.
        segment.data.write_all_at(b"x", 2 * line + 5).unwrap();
        segment.index.write_all_at(b"x", HEADER_BYTES + 4 * ENTRY_BYTES + 20).unwrap();
        assert_eq!(sequences(&segment.block(11, u64::MAX, 1 << 20).unwrap()), [11, 12]);
        assert_eq!(sequences(&segment.block(13, u64::MAX, 1 << 20).unwrap()), [14]);
        assert_eq!(segment.block(15, u64::MAX, 1 << 20).unwrap().first(), Some(16));
    }

    #[test]
    fn zeros_in_the_index_are_no_empty_events() {
        let dir = tempfile::tempdir().unwrap();
        let segment = segment(dir.path());
        segment.index.write_all_at(&[0; 64], HEADER_BYTES + 2 * ENTRY_BYTES).unwrap();
        assert_eq!(sequences(&segment.block(11, u64::MAX, 1 << 20).unwrap()), [11, 12]);
        assert_eq!(segment.block(13, u64::MAX, 1 << 20).unwrap().first(), Some(15));
    }
}
