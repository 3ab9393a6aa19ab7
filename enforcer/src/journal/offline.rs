//! Lets `events`, `why` and `replay` read the log without a daemon.

use std::{
    collections::VecDeque,
    path::Path,
    sync::{Arc, RwLock},
};

use super::{
    Cursor, Filter, Range, Record, Stale,
    disk::{inherit, look_into},
    log::read_segments,
    medium::Folder,
    record::Kept,
    store::{self, Hint, Segments, StoreError},
    tail::{self, Left},
};

/// How many events are read at a time.
const BATCH_RECORDS: usize = 256;

/// The log of a state directory, read without the daemon, which may be down.
///
/// Events that a killed daemon had not written there yet are read from the tail in its run directory, as by the next
/// start.
#[derive(Debug)]
pub struct Offline {
    segments: Segments,
    /// The events after the segments.
    tail: Vec<Kept>,
    pending: VecDeque<Record>,
    next: u64,
    filter: Filter,
}

impl Offline {
    /// Opens it to read the events after `after`; without it, all.
    pub fn open(
        state_dir: &Path,
        run_dir: &Path,
        after: Option<&Cursor>,
        filter: Filter,
    ) -> Result<Result<Self, Stale>, StoreError> {
        // The tail first: a daemon moves events from there to the segments.
        let left = left_in(run_dir);
        let segments = store::look(&look_into(state_dir)?)?;
        let end = segments.last().map_or(1, |segment| segment.index_end().unwrap_or(segment.header.first));
        // Ignore a segment that was begun and is empty.
        let written = segments.iter().rfind(|segment| segment.header.first < end);
        let left = left.filter(|left| {
            let Hint { epoch, opened, .. } = left.hint();
            end <= opened || written.is_none_or(|written| written.header.epoch == epoch)
        });
        // From here on the epoch is the tail's, even if no segment has that epoch.
        let taken_over = left.as_ref().map(|left| (end.max(left.hint().opened), left.hint().epoch));
        let tail = left.map_or_else(Vec::new, |left| {
            let next = end.max(left.hint().opened);
            inherit(left.records, left.mark, next, true).pending
        });
        let in_tail = tail.first().map_or(1, |first| first.sequence);
        let oldest = segments.first().map_or(in_tail, |segment| segment.header.first);
        let epoch = after.and_then(|after| {
            let holds = |first: u64| first <= after.sequence;
            let in_tail = taken_over.filter(|(first, _)| holds(*first)).map(|(_, epoch)| epoch);
            let segment = segments.iter().rev().find(|segment| holds(segment.header.first));
            in_tail.or(segment.map(|segment| segment.header.epoch))
        });
        let segments = Arc::new(RwLock::new(segments));
        let next = match after {
            None => oldest,
            Some(after) => {
                let next = after.sequence.saturating_add(1);
                let ours = after.sequence == 0 || epoch.is_some_and(|epoch| epoch.to_string() == after.epoch);
                if !ours || next < oldest {
                    let range = Range { oldest, newest: oldest.max(1) - 1 };
                    let lost = if ours { oldest - next } else { oldest - 1 };
                    return Ok(Err(Stale { range, lost }));
                }
                next
            }
        };
        Ok(Ok(Self { segments, tail, pending: VecDeque::new(), next, filter }))
    }
}

/// What a process left in its run directory. Logs a tail that cannot be read, and returns `None`.
fn left_in(run_dir: &Path) -> Option<Left> {
    let looked = Folder::open(run_dir).and_then(|folder| tail::look(&folder));
    looked.unwrap_or_else(|error| {
        if error.kind() != std::io::ErrorKind::NotFound {
            tracing::warn!(
                "the newest events may be missing: cannot read {}: {error}",
                run_dir.join(tail::NAME).display()
            );
        }
        None
    })
}

impl Iterator for Offline {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        loop {
            if let Some(record) = self.pending.pop_front() {
                return Some(record);
            }
            let mut read = read_segments(&self.segments, self.next, u64::MAX, BATCH_RECORDS);
            if read.is_empty() {
                read = std::mem::take(&mut self.tail);
                read.retain(|kept| kept.sequence >= self.next);
            }
            self.next = read.last()?.sequence + 1;
            let wanted: Vec<_> = read.into_iter().filter(|record| self.filter.takes(record)).collect();
            let strange = wanted.iter().filter(|record| record.kind.is_none()).count();
            if strange > 0 {
                tracing::warn!("{strange} events are left out: this version does not know their types");
            }
            self.pending.extend(wanted.into_iter().filter_map(Kept::known));
        }
    }
}
