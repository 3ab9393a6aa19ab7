//! A bounded queue to a helper thread, on which the sender never waits.
//!
//! The receiver sleeps on an eventfd and not in the channel, so that sending takes no lock and allocates nothing.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{self, TryRecvError, TrySendError},
    },
    time::Instant,
};

use crate::waker::Waker;

/// The queue's waker, the number of its senders, and the number of queued values.
#[derive(Debug)]
struct Line {
    waker: Waker,
    senders: AtomicUsize,
    waiting: AtomicU64,
}

/// Reads the length of a queue, even after the queue has ended.
#[derive(Clone, Debug)]
pub(super) struct Depth(Arc<Line>);

impl Depth {
    /// The current length.
    pub(super) fn waiting(&self) -> u64 {
        self.0.waiting.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
pub(super) struct Sender<T> {
    channel: mpsc::SyncSender<T>,
    line: Arc<Line>,
}

#[derive(Debug)]
pub(super) struct Receiver<T> {
    channel: mpsc::Receiver<T>,
    line: Arc<Line>,
}

pub(super) fn queue<T>(capacity: usize) -> io::Result<(Sender<T>, Receiver<T>)> {
    let line =
        Arc::new(Line { waker: Waker::new()?, senders: AtomicUsize::new(1), waiting: AtomicU64::new(0) });
    let (sender, receiver) = mpsc::sync_channel(capacity);
    Ok((Sender { channel: sender, line: Arc::clone(&line) }, Receiver { channel: receiver, line }))
}

impl<T> Sender<T> {
    /// Sends a value, or returns it if the queue is full.
    pub(super) fn offer(&self, value: T) -> Result<(), T> {
        self.put(value)?;
        self.wake();
        Ok(())
    }

    /// The same, but does not [wake](Self::wake) the receiver: a woken thread may take the caller's CPU.
    pub(super) fn put(&self, value: T) -> Result<(), T> {
        // Counted before it can be taken, as taking it decrements the count.
        self.line.waiting.fetch_add(1, Ordering::Relaxed);
        self.channel.try_send(value).map_err(|error| {
            self.line.waiting.fetch_sub(1, Ordering::Relaxed);
            match error {
                TrySendError::Full(value) | TrySendError::Disconnected(value) => value,
            }
        })
    }

    /// Wakes the receiver.
    pub(super) fn wake(&self) {
        self.line.waker.wake();
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.line.senders.fetch_add(1, Ordering::AcqRel);
        Self { channel: self.channel.clone(), line: Arc::clone(&self.line) }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.line.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.line.waker.wake();
        }
    }
}

/// The result of waiting.
#[derive(Debug)]
pub(super) enum Next<T> {
    /// A value was sent.
    Value(T),
    /// The time passed, and nothing was sent.
    Late,
    /// Every sender is gone and everything was taken.
    End,
}

impl<T> Receiver<T> {
    /// Waits for the next value; `None` once every sender is gone and everything was taken.
    pub(super) fn next(&self) -> Option<T> {
        loop {
            match self.next_until(None) {
                Next::Value(value) => return Some(value),
                Next::Late => {}
                Next::End => return None,
            }
        }
    }

    /// A handle to read the queue's length.
    pub(super) fn depth(&self) -> Depth {
        Depth(Arc::clone(&self.line))
    }

    fn take(&self) -> Result<T, TryRecvError> {
        self.channel.try_recv().inspect(|_| {
            self.line.waiting.fetch_sub(1, Ordering::Relaxed);
        })
    }

    /// Waits for the next value, at most until `until`.
    pub(super) fn next_until(&self, until: Option<Instant>) -> Next<T> {
        loop {
            // Read before the queue, so that a value sent before the last sender closed is seen below.
            let closed = self.line.senders.load(Ordering::Acquire) == 0;
            match self.take() {
                Ok(value) => return Next::Value(value),
                Err(TryRecvError::Disconnected) => return Next::End,
                Err(TryRecvError::Empty) if closed => return Next::End,
                Err(TryRecvError::Empty) => {}
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Next::Late;
            }
            match self.line.waker.wait(left) {
                Ok(()) => {}
                Err(error) => {
                    tracing::error!(%error, "cannot wait on a helper's queue");
                    return Next::End;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_was_taken_arrives_and_then_the_end() {
        let (sender, receiver) = queue(1000).unwrap();
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            while let Some(value) = receiver.next() {
                all.push(value);
            }
            all
        });
        for value in 0..1000 {
            sender.offer(value).unwrap();
        }
        drop(sender);
        assert_eq!(reader.join().unwrap(), (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn it_ends_with_the_last_of_its_senders() {
        let (sender, receiver) = queue(4).unwrap();
        let other = sender.clone();
        let reader = std::thread::spawn(move || std::iter::from_fn(|| receiver.next()).collect::<Vec<_>>());
        drop(sender);
        other.offer(7).unwrap();
        drop(other);
        assert_eq!(reader.join().unwrap(), [7]);
    }

    #[test]
    fn what_does_not_fit_comes_back() {
        let (sender, receiver) = queue(1).unwrap();
        assert_eq!(sender.offer(1), Ok(()));
        assert_eq!(sender.offer(2), Err(2));
        assert_eq!(receiver.next(), Some(1));
        assert_eq!(sender.offer(3), Ok(()));
        drop(receiver);
        assert_eq!(sender.offer(4), Err(4));
    }

    #[test]
    fn what_waits_is_counted_and_what_found_no_room_is_not() {
        let (sender, receiver) = queue(2).unwrap();
        let depth = receiver.depth();
        assert_eq!(depth.waiting(), 0);
        assert_eq!([1, 2, 3].map(|value| sender.offer(value)), [Ok(()), Ok(()), Err(3)]);
        assert_eq!(depth.waiting(), 2);
        assert_eq!(receiver.next(), Some(1));
        assert_eq!(depth.waiting(), 1);
        assert_eq!(receiver.next(), Some(2));
        assert_eq!(depth.waiting(), 0);
    }
}
