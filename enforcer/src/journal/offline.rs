use std::{
    collections::VecDeque,
    path::Path,
    sync::{Arc, RwLock},
};

use super::{
    Cursor, Filter, Range, Record, Stale,
    disk::look_into,
    log::read_segments,
    record::Kept,
    store::{self, Segments, StoreError},
};

/// How many events are read at a time.
const BATCH_RECORDS: usize = 256;

/// The log of a state directory, read without the daemon's help: it may be down.
///
/// Events that a daemon which was killed had not written yet are in its run directory, and come into the log with its
/// next start.
#[derive(Debug)]
pub struct Offline {
    segments: Segments,
    pending: VecDeque<Record>,
    next: u64,
    filter: Filter,
}

impl Offline {
    /// Opens it to read what comes behind `after`; without it, all.
    pub fn open(
        state_dir: &Path,
        after: Option<&Cursor>,
        filter: Filter,
    ) -> Result<Result<Self, Stale>, StoreError> {
        let segments = store::look(&look_into(state_dir)?)?;
        let oldest = segments.first().map_or(1, |segment| segment.header.first);
        let epoch = after.and_then(|after| {
            segments
                .iter()
                .rev()
                .find(|segment| segment.header.first <= after.sequence)
                .map(|segment| segment.header.epoch)
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
        Ok(Ok(Self { segments, pending: VecDeque::new(), next, filter }))
    }
}

impl Iterator for Offline {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        loop {
            if let Some(record) = self.pending.pop_front() {
                return Some(record);
            }
            let read = read_segments(&self.segments, self.next, u64::MAX, BATCH_RECORDS);
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
