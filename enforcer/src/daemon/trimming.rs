//! Returns memory that the daemon has freed to the kernel.

use std::time::{Duration, Instant};

use crate::raw;

/// The delay after the first change of candidates. Changes come in bursts, so one trim serves several.
const PAUSE: Duration = Duration::from_secs(10);

/// Returns freed memory some time after a change.
#[derive(Debug, Default)]
pub(super) struct Trimming {
    due: Option<Instant>,
}

impl Trimming {
    /// Notes a change that has freed memory.
    pub(super) fn note(&mut self, now: Instant) {
        self.due.get_or_insert(now + PAUSE);
    }

    /// When [`trim`](Self::trim) must be called.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns freed memory if that is due. If memory is short, it is put off by [`PAUSE`]: the heap is unlocked meanwhile.
    pub(super) fn trim(&mut self, now: Instant, is_short: bool) {
        if self.due.is_none_or(|due| now < due) {
            return;
        }
        let is_done = !is_short && raw::trim_locked_heap();
        self.due = (!is_done).then(|| now + PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_that_come_together_are_one_and_a_shortage_puts_it_off() {
        let start = Instant::now();
        let mut trimming = Trimming::default();
        trimming.trim(start, false);
        assert_eq!(trimming.due(), None);
        trimming.note(start);
        trimming.note(start + PAUSE / 2);
        assert_eq!(trimming.due(), Some(start + PAUSE));
        trimming.trim(start + PAUSE, true);
        assert_eq!(trimming.due(), Some(start + 2 * PAUSE));
        trimming.trim(start + 2 * PAUSE, false);
        assert_eq!(trimming.due(), None);
    }
}
