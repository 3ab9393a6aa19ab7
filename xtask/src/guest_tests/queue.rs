//! Which guest starts next, as far as there is room beside the others.
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::batch::Batch;

/// The batches that have not started, and the room that is left.
#[derive(Debug)]
pub(super) struct Queue<'a> {
    state: Mutex<State<'a>>,
    freed: Condvar,
    room: usize,
}

#[derive(Debug)]
struct State<'a> {
    waiting: &'a [Batch],
    free: usize,
}

/// The room of a guest that runs; dropping it makes room for another.
#[derive(Debug)]
pub(super) struct Place<'q, 'a> {
    queue: &'q Queue<'a>,
    size: usize,
}

impl<'a> Queue<'a> {
    /// The batches in their order, with room for so many guests.
    pub(super) fn new(batches: &'a [Batch], room: usize) -> Self {
        Self { state: Mutex::new(State { waiting: batches, free: room }), freed: Condvar::new(), room }
    }

    /// The next batch, once there is room for it; `None` if there is none.
    pub(super) fn next(&self) -> Option<(&'a Batch, Place<'_, 'a>)> {
        let mut state = self.lock();
        loop {
            let (first, rest) = state.waiting.split_first()?;
            let size = if first.need.alone { self.room } else { 1 };
            if let Some(free) = state.free.checked_sub(size) {
                *state = State { waiting: rest, free };
                return Some((first, Place { queue: self, size }));
            }
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<'a>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_, '_> {
    fn drop(&mut self) {
        self.queue.lock().free += self.size;
        self.queue.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        thread,
    };

    use super::*;
    use crate::{guest::kernel::KernelName, guest_tests::tier::Need};

    /// Batches, and whether each runs alone.
    fn batches(alone: &[bool]) -> Vec<Batch> {
        let batch = |alone: &bool| Batch {
            kernel: KernelName::V6_12,
            need: Need { alone: *alone, ..Need::default() },
            name: String::new(),
            tests: Vec::new(),
        };
        alone.iter().map(batch).collect()
    }

    #[test]
    fn what_runs_alone_takes_all_room() {
        let batches = batches(&[true, false]);
        let queue = Queue::new(&batches, 3);
        let (_, alone) = queue.next().unwrap();
        assert_eq!(queue.lock().free, 0);
        drop(alone);
        assert!(queue.next().is_some());
    }

    #[test]
    fn every_batch_runs_once_even_with_room_for_one() {
        let batches = batches(&[true, false, false, true, false]);
        for room in 1..4 {
            let (queue, ran) = (Queue::new(&batches, room), AtomicUsize::new(0));
            thread::scope(|scope| {
                for _ in 0..room {
                    scope.spawn(|| {
                        while let Some((_, _place)) = queue.next() {
                            ran.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
            });
            assert_eq!(ran.into_inner(), batches.len(), "{room}");
        }
    }
}
