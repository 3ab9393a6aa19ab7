//! Returns memory that the daemon has freed to the kernel.

use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::emit;
use crate::{journal::Journal, raw};

/// The `what` of the degradation while the daemon's memory is not locked, at the start too.
pub(super) const MEMORY_LOCK: &str = "memoryLock";

/// The delay after the first change of candidates. Changes come in bursts, so one trim serves several.
const PAUSE: Duration = Duration::from_secs(10);

/// The delay after a trim without a change: answers to requests take memory too. A trim costs as much as a hundred looks at
/// how much memory is left.
const IDLE_PAUSE: Duration = Duration::from_hours(1);

/// Returns freed memory some time after a change.
#[derive(Debug, Default)]
pub(super) struct Trimming {
    due: Option<Instant>,
    /// Whether the last trim could not lock the heap again.
    is_unlocked: bool,
}

/// What a trim has changed about the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lock {
    Lost(Errno),
    Regained,
}

impl Trimming {
    /// Notes a change that has freed memory.
    pub(super) fn note(&mut self, now: Instant) {
        let due = now + PAUSE;
        self.due = Some(self.due.map_or(due, |before| before.min(due)));
    }

    /// When [`settle`](Self::settle) must be called.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns freed memory if that is due. If memory is short, it is put off, because a trim unlocks the heap. Reports when
    /// the heap cannot be locked again, and when it can.
    pub(super) fn settle(&mut self, now: Instant, is_short: bool, journal: &Journal) {
        let work = if is_short { raw::lock_memory } else { raw::trim_locked_heap };
        match self.trim(now, is_short, work) {
            Some(Lock::Lost(error)) => {
                let message = format!(
                    "the heap cannot be locked again after freed memory was returned: {error}; the daemon may react late \
                     under memory pressure; it retries every {} s",
                    PAUSE.as_secs()
                );
                emit::degraded(journal, MEMORY_LOCK, &message);
            }
            Some(Lock::Regained) => emit::recovered(journal, MEMORY_LOCK, "the heap is locked again"),
            None => {}
        }
    }

    /// A trim that is put off or fails is retried after [`PAUSE`]. While the heap is unlocked, a shortage does not put
    /// off locking it.
    fn trim(
        &mut self,
        now: Instant,
        is_short: bool,
        trim: impl FnOnce() -> Result<(), Errno>,
    ) -> Option<Lock> {
        if self.due.is_none_or(|due| now < due) {
            return None;
        }
        self.due = Some(now + PAUSE);
        if is_short && !self.is_unlocked {
            return None;
        }
        let before = self.is_unlocked;
        let locked = trim();
        self.is_unlocked = locked.is_err();
        match locked {
            Ok(()) => {
                if !is_short {
                    self.due = Some(now + IDLE_PAUSE);
                }
                before.then_some(Lock::Regained)
            }
            Err(error) => (!before).then_some(Lock::Lost(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_that_come_together_are_one_and_a_shortage_puts_it_off() {
        let start = Instant::now();
        let mut trimming = Trimming::default();
        let never = || -> Result<(), Errno> { panic!("it is not due") };
        assert_eq!(trimming.trim(start, false, never), None);
        assert_eq!(trimming.due(), None);
        trimming.note(start);
        trimming.note(start + PAUSE / 2);
        assert_eq!(trimming.due(), Some(start + PAUSE));
        assert_eq!(trimming.trim(start + PAUSE, true, never), None);
        assert_eq!(trimming.due(), Some(start + 2 * PAUSE));
        assert_eq!(trimming.trim(start + 2 * PAUSE, false, || Ok(())), None);
        assert_eq!(
            trimming.due(),
            Some(start + 2 * PAUSE + IDLE_PAUSE),
            "answers to requests take memory too"
        );
        trimming.note(start + 3 * PAUSE);
        assert_eq!(trimming.due(), Some(start + 4 * PAUSE));
    }

    #[test]
    fn a_lock_that_is_lost_is_reported_once_and_so_is_its_return() {
        let start = Instant::now();
        let mut trimming = Trimming::default();
        trimming.note(start);
        let lost = |trimming: &mut Trimming, number| {
            trimming.trim(start + number * PAUSE, false, || Err(Errno::NOMEM))
        };
        assert_eq!(lost(&mut trimming, 1), Some(Lock::Lost(Errno::NOMEM)));
        assert_eq!(lost(&mut trimming, 2), None);
        assert_eq!(
            trimming.trim(start + 3 * PAUSE, true, || Ok(())),
            Some(Lock::Regained),
            "in a shortage too"
        );
        assert_eq!(trimming.due(), Some(start + 4 * PAUSE), "the freed memory is still to be returned");
    }
}
