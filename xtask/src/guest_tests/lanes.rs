//! Hands out batches to guests side by side, so that no two exclusive ones run at a time.
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::guest_tests::batch::Batch;

/// The batches that are still to run, and whether an exclusive one is running.
#[derive(Debug)]
pub(crate) struct Lanes {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    waiting: Vec<Batch>,
    exclusive_is_running: bool,
}

/// A batch that its holder runs, until this is dropped.
#[derive(Debug)]
pub(crate) struct Taken<'a> {
    lanes: &'a Lanes,
    pub(crate) batch: Batch,
}

impl Lanes {
    pub(crate) fn new(batches: Vec<Batch>) -> Self {
        let state = State { waiting: batches, exclusive_is_running: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The first batch that may run now. Waits if only exclusive batches are left and one is running. `None` when all
    /// have been taken.
    pub(crate) fn take(&self) -> Option<Taken<'_>> {
        let mut state = self.lock();
        loop {
            if state.waiting.is_empty() {
                return None;
            }
            let may_run = |batch: &Batch| !(batch.exclusive && state.exclusive_is_running);
            if let Some(index) = state.waiting.iter().position(may_run) {
                let batch = state.waiting.remove(index);
                state.exclusive_is_running |= batch.exclusive;
                return Some(Taken { lanes: self, batch });
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.batch.exclusive {
            self.lanes.lock().exclusive_is_running = false;
            self.lanes.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::*;
    use crate::guest::{Init, kernel::KernelName};

    fn batch(name: &str, exclusive: bool) -> Batch {
        let (kernel, init) = (KernelName::V6_12, Init::Own);
        Batch { kernel, init, exclusive, name: name.to_owned(), tests: Vec::new() }
    }

    #[test]
    fn exclusive_batches_run_one_at_a_time_and_the_rest_fills_in() {
        let lanes =
            Lanes::new(vec![batch("e1", true), batch("e2", true), batch("s1", false), batch("s2", false)]);
        let name = |taken: &Option<Taken<'_>>| taken.as_ref().unwrap().batch.name.clone();
        let first = lanes.take();
        let second = lanes.take();
        assert_eq!((name(&first), name(&second)), ("e1".to_owned(), "s1".to_owned()));
        drop(first);
        let third = lanes.take();
        assert_eq!(name(&third), "e2");
        assert_eq!(name(&lanes.take()), "s2");
        assert!(lanes.take().is_none());
    }

    #[test]
    fn with_only_exclusive_batches_left_a_lane_waits_for_the_running_one() {
        let lanes = Lanes::new(vec![batch("e1", true), batch("e2", true)]);
        let first = lanes.take().unwrap();
        let (told, taken) = mpsc::channel();
        thread::scope(|scope| {
            let lanes = &lanes;
            scope.spawn(move || told.send(lanes.take().map(|taken| taken.batch.name.clone())));
            // It would come at once if it came too early.
            assert!(taken.recv_timeout(Duration::from_millis(50)).is_err());
            drop(first);
            assert_eq!(taken.recv().unwrap().as_deref(), Some("e2"));
        });
    }
}
