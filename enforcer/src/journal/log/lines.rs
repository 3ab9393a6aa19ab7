//! How a stream reads the log: a bounded number of lines at a time, passed by reference.
//!
//! Events in memory are copied once, under the log's lock, to the stream's buffer. Others are read from the disk, which
//! may be slow: the caller chooses the thread.

use std::sync::{Arc, PoisonError};

use tokio::sync::watch;
use ulid::Ulid;

use super::{BATCH_RECORDS, Journal, Reader};
use crate::journal::{EventType, Record, record::Kept, segment::Segment};

/// One event of the log.
#[derive(Clone, Copy, Debug)]
pub struct Line<'line> {
    /// Its log epoch.
    pub epoch: Ulid,
    /// Its position in the log.
    pub sequence: u64,
    /// The whole event, one line of JSON with its line end.
    pub bytes: &'line [u8],
    kind: Option<EventType>,
}

impl Line<'_> {
    /// Its type; `None` if this version does not know it.
    #[must_use]
    pub fn kind(&self) -> Option<EventType> {
        self.kind.or_else(|| Record::from_line(self.bytes).map(|record| record.kind))
    }
}

/// How far a reader got.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Passed {
    /// It passed some events. Those that it wants, possibly none, were handed over.
    Some,
    /// It missed these events, which are no longer kept or cannot be read. It continues after them.
    Gap {
        /// The first missed sequence.
        from: u64,
        /// The last missed sequence.
        to: u64,
    },
    /// It passed none: the next events are on the disk.
    Disk,
    /// It passed none: it is at the log's end.
    End,
}

impl Journal {
    /// The newest sequence that readers see.
    #[must_use]
    pub fn newest(&self) -> watch::Receiver<u64> {
        self.shared.newest.subscribe()
    }
}

impl Reader {
    /// Hands over the next events that it wants and that are in memory: up to `most_bytes`, but at least one event.
    /// `take` runs under the log's lock and blocks appending, so it must be quick.
    pub fn pass(&mut self, most_bytes: usize, mut take: impl FnMut(Line<'_>)) -> Passed {
        let shared = &self.journal.shared;
        let log = shared.log();
        if self.next > log.visible {
            return Passed::End;
        }
        let first = log.first_from(self.next);
        if self.next < first {
            if shared.disk.is_some() {
                return Passed::Disk;
            }
            let from = std::mem::replace(&mut self.next, first);
            return Passed::Gap { from, to: first - 1 };
        }
        let mut bytes = 0;
        for record in log.records.range(log.place_behind(self.next - 1)..).take(BATCH_RECORDS) {
            // After a hole the next call continues, and reports the gap.
            if record.sequence > log.visible || record.sequence != self.next {
                break;
            }
            if self.filter.takes(record) {
                if bytes > 0 && bytes + record.line.len() > most_bytes {
                    break;
                }
                bytes += record.line.len();
                take(Line {
                    epoch: shared.epoch,
                    sequence: record.sequence,
                    bytes: &record.line,
                    kind: record.kind,
                });
            }
            self.next = record.sequence + 1;
        }
        Passed::Some
    }

    /// Like [`pass`](Self::pass), but from the disk only, and may block on it. To be called after [`Passed::Disk`].
    pub fn pass_from_disk(&mut self, most_bytes: usize, mut take: impl FnMut(Line<'_>)) -> Passed {
        let in_memory = self.journal.shared.log().first_from(self.next);
        if self.next >= in_memory {
            return Passed::Some;
        }
        for segment in self.segments_from(self.next) {
            if segment.header.first >= in_memory {
                break;
            }
            let block = match segment.block(self.next, in_memory, most_bytes) {
                Ok(block) => block,
                Err(error) => {
                    tracing::warn!("cannot read {}: {error}", segment.data_path().display());
                    continue;
                }
            };
            let Some(first) = block.first() else { continue };
            if first > self.next {
                let from = std::mem::replace(&mut self.next, first);
                return Passed::Gap { from, to: first - 1 };
            }
            let wants_all = self.filter.is_empty();
            for (sequence, bytes) in block.lines() {
                let record = if wants_all { None } else { Kept::from_line(bytes) };
                if wants_all || record.as_ref().is_some_and(|record| self.filter.takes(record)) {
                    let kind = record.and_then(|record| record.kind);
                    take(Line { epoch: segment.header.epoch, sequence, bytes, kind });
                }
                self.next = sequence + 1;
            }
            return Passed::Some;
        }
        let from = std::mem::replace(&mut self.next, in_memory);
        Passed::Gap { from, to: in_memory - 1 }
    }

    /// The segments that hold this event and later ones.
    fn segments_from(&self, sequence: u64) -> Vec<Arc<Segment>> {
        let Some(disk) = &self.journal.shared.disk else { return Vec::new() };
        let segments = disk.segments().read().unwrap_or_else(PoisonError::into_inner);
        let later = segments.partition_point(|segment| segment.header.first <= sequence);
        segments.iter().skip(later.saturating_sub(1)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::journal::{Filter, RawEvent, Subject};

    fn fill(journal: &Journal, count: u64) {
        for n in 0..count {
            let kind = if n % 2 == 0 { EventType::PodAdded } else { EventType::PodRemoved };
            journal.append_raw(RawEvent {
                kind,
                subject: Subject::Node,
                data: json!({"pad": "x".repeat(100)}),
            });
        }
    }

    /// All that there is, with the largest number of bytes that came at once.
    fn drain(reader: &mut Reader, most_bytes: usize) -> (Vec<u64>, usize, u32) {
        let (mut sequences, mut most, mut from_disk) = (Vec::new(), 0, 0);
        loop {
            let mut bytes = 0;
            let mut take = |line: Line<'_>| {
                assert!(line.bytes.ends_with(b"\n"));
                assert!(line.kind().is_some());
                sequences.push(line.sequence);
                bytes += line.bytes.len();
            };
            match reader.pass(most_bytes, &mut take) {
                Passed::End => return (sequences, most, from_disk),
                Passed::Disk => {
                    from_disk += 1;
                    assert_eq!(reader.pass_from_disk(most_bytes, &mut take), Passed::Some);
                }
                Passed::Some => {}
                Passed::Gap { .. } => panic!("a gap"),
            }
            most = most.max(bytes);
        }
    }

    #[test]
    fn lines_come_once_in_order_and_few_at_a_time() {
        let journal = Journal::new("n1", "b1");
        fill(&journal, 1_000);
        let (sequences, most, _) = drain(&mut journal.reader(None, Filter::default()), 4_000);
        assert_eq!(sequences, (1..=1_000).collect::<Vec<_>>());
        assert!((3_000..=4_000).contains(&most), "{most}");
        let (one_by_one, _, _) = drain(&mut journal.reader(Some(990), Filter::default()), 1);
        assert_eq!(one_by_one, (991..=1_000).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_on_the_disk_comes_from_there() {
        let dir = tempfile::tempdir().unwrap();
        let (journal, _) = Journal::open("n1", "b1", &dir.path().join("state"), dir.path()).unwrap();
        // More than is kept in memory.
        fill(&journal, 3_000);
        let mut written = journal.durable();
        futures(async { written.wait_for(|newest| *newest == 3_000).await.map(|_| ()) }).unwrap();
        let (sequences, most, from_disk) = drain(&mut journal.reader(None, Filter::default()), 16_000);
        assert_eq!(sequences, (1..=3_000).collect::<Vec<_>>());
        assert!(from_disk > 10 && most <= 16_000, "{from_disk} {most}");
        let only = Filter { kinds: vec![EventType::PodRemoved], ..Filter::default() };
        let (some, _, from_disk) = drain(&mut journal.reader(Some(10), only), 16_000);
        assert_eq!(some, (12..=3_000).step_by(2).collect::<Vec<_>>());
        assert!(from_disk > 0);
        journal.close();
    }

    #[test]
    fn what_is_kept_no_longer_is_a_gap() {
        let journal = Journal::in_memory("n1", "b1", 2_000);
        fill(&journal, 100);
        let oldest = journal.range().oldest;
        let mut reader = journal.reader(Some(0), Filter::default());
        assert_eq!(reader.pass(1_000, |_| panic!("a line")), Passed::Gap { from: 1, to: oldest - 1 });
        assert_eq!(drain(&mut reader, 1_000).0, (oldest..=100).collect::<Vec<_>>());
    }

    fn futures<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
    }
}
