//! A reader of the log: a position in it.

use std::sync::{Arc, PoisonError};

use tokio::sync::watch;

use super::{BATCH_RECORDS, Journal};
use crate::journal::{Filter, Record, record::Kept, segment::Segment, store::Segments};

/// The result of a read.
#[derive(Debug)]
pub enum Batch {
    /// The next events that the reader wants, in order; possibly none of those that it passed.
    Records(Vec<Record>),
    /// Events that the reader missed: they are no longer kept, cannot be read, or have a type that this version does
    /// not know. It continues after them.
    Gap {
        /// The first missed sequence.
        from: u64,
        /// The last missed sequence.
        to: u64,
    },
}

/// A position in the log, and a filter for the events after it.
#[derive(Clone, Debug)]
pub struct Reader {
    pub(super) journal: Journal,
    pub(super) newest: watch::Receiver<u64>,
    pub(super) next: u64,
    pub(super) filter: Filter,
}

impl Reader {
    /// The next available events; `None` at the log's end. Events that are not in memory any more are read from the
    /// disk in the calling thread.
    pub fn read(&mut self) -> Option<Batch> {
        let (passed, in_memory) = {
            let log = self.journal.shared.log();
            if self.next > log.visible {
                return None;
            }
            let in_memory = log.first_from(self.next);
            let most =
                usize::try_from(log.visible - self.next + 1).unwrap_or(BATCH_RECORDS).min(BATCH_RECORDS);
            (if self.next >= in_memory { log.behind(self.next - 1, most) } else { Vec::new() }, in_memory)
        };
        let passed = if passed.is_empty() { self.segments(in_memory) } else { passed };
        Some(self.batch(passed, in_memory))
    }

    /// Passes the first events that can be handed over together, or the gap before them. Without events, passes the gap
    /// before `end`.
    fn batch(&mut self, mut passed: Vec<Kept>, end: u64) -> Batch {
        // The next batch begins after a hole, and reports the gap.
        let whole = passed.chunk_by(Kept::is_before).next().map_or(0, <[Kept]>::len);
        passed.truncate(whole);
        let behind = passed.last().map_or(end, |record| record.sequence + 1);
        // An event of an unknown type is not returned. A reader that wants it sees a gap; the event stays in the log.
        let is_strange = |record: &Kept| record.kind.is_none() && self.filter.takes(record);
        let strange = passed.iter().take_while(|record| is_strange(record)).count();
        passed.drain(..strange);
        let known = passed.iter().take_while(|record| !is_strange(record)).count();
        passed.truncate(known);
        let first = passed.first().map_or(behind, |record| record.sequence);
        if self.next < first {
            let from = std::mem::replace(&mut self.next, first);
            return Batch::Gap { from, to: first - 1 };
        }
        self.next = passed.last().map_or(self.next, |record| record.sequence + 1);
        let wanted = passed.into_iter().filter(|record| self.filter.takes(record));
        Batch::Records(wanted.filter_map(Kept::known).collect())
    }

    /// The next events from the segments, up to those that are in memory.
    fn segments(&self, in_memory: u64) -> Vec<Kept> {
        let Some(disk) = &self.journal.shared.disk else { return Vec::new() };
        read_segments(disk.segments(), self.next, in_memory, BATCH_RECORDS)
    }

    /// Waits until there is something to read. Safe to cancel.
    pub async fn readable(&mut self) {
        let next = self.next;
        // The journal that this reader holds keeps the sender alive, so waiting cannot fail.
        let waited = self.newest.wait_for(|newest| *newest >= next).await;
        debug_assert!(waited.is_ok(), "the reader holds its journal");
    }

    /// The last passed sequence.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.next - 1
    }
}

/// Up to `most` events with sequences from `from` to below `end`. Skips unreadable ones.
pub(in crate::journal) fn read_segments(segments: &Segments, from: u64, end: u64, most: usize) -> Vec<Kept> {
    let segments: Vec<Arc<Segment>> = {
        let segments = segments.read().unwrap_or_else(PoisonError::into_inner);
        let later = segments.partition_point(|segment| segment.header.first <= from);
        segments.iter().skip(later.saturating_sub(1)).cloned().collect()
    };
    for segment in segments {
        match segment.read(from, most) {
            Ok(mut records) => {
                records.retain(|record| record.sequence < end);
                if !records.is_empty() {
                    return records;
                }
            }
            Err(error) => tracing::warn!("cannot read {}: {error}", segment.data_path().display()),
        }
        if segment.header.first >= end {
            break;
        }
    }
    Vec::new()
}
