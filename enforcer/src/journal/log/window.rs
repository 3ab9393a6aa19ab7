//! Which events the log keeps in memory.

use super::{BATCH_RECORDS, Log};

/// The room for events in memory is given back if it is for this many times as many as there are.
pub(super) const MOST_ROOM: usize = 4;

impl Log {
    /// Drops the oldest events above the limits. Events that are not in a segment have a higher limit.
    pub(super) fn trim(&mut self) {
        while let Some(oldest) = self.records.front() {
            let is_written = oldest.sequence <= self.written && oldest.sequence >= self.unreadable_end;
            let keep = if is_written { self.window_bytes } else { self.retained_bytes };
            if self.bytes <= keep || self.records.len() == 1 {
                break;
            }
            self.bytes -= oldest.line.len();
            if !is_written {
                self.given_up = oldest.sequence;
            }
            self.records.pop_front();
        }
        // The room of a burst is not kept for ever.
        if self.records.capacity() > MOST_ROOM * self.records.len().max(BATCH_RECORDS) {
            self.records.shrink_to(2 * self.records.len());
        }
    }
}
