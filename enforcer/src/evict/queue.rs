//! A bounded queue to a helper thread that its sender never waits on.
//!
//! The receiver sleeps on an eventfd and not in the channel, so that sending takes no lock and allocates nothing.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, TryRecvError, TrySendError},
    },
};

use rustix::event::EventfdFlags;

#[derive(Debug)]
struct Bell {
    fd: OwnedFd,
    senders: AtomicUsize,
}

impl Bell {
    fn ring(&self) {
        // It can only fail when the counter is full, and then the receiver is about to wake anyway.
        let _rung = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }
}

#[derive(Debug)]
pub(super) struct Sender<T> {
    channel: mpsc::SyncSender<T>,
    bell: Arc<Bell>,
}

#[derive(Debug)]
pub(super) struct Receiver<T> {
    channel: mpsc::Receiver<T>,
    bell: Arc<Bell>,
}

pub(super) fn queue<T>(capacity: usize) -> io::Result<(Sender<T>, Receiver<T>)> {
    let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
    let bell = Arc::new(Bell { fd, senders: AtomicUsize::new(1) });
    let (sender, receiver) = mpsc::sync_channel(capacity);
    Ok((Sender { channel: sender, bell: Arc::clone(&bell) }, Receiver { channel: receiver, bell }))
}

impl<T> Sender<T> {
    /// Sends, or gives back what does not fit.
    pub(super) fn offer(&self, value: T) -> Result<(), T> {
        match self.channel.try_send(value) {
            Ok(()) => {
                self.bell.ring();
                Ok(())
            }
            Err(TrySendError::Full(value) | TrySendError::Disconnected(value)) => Err(value),
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.bell.senders.fetch_add(1, Ordering::AcqRel);
        Self { channel: self.channel.clone(), bell: Arc::clone(&self.bell) }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.bell.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.bell.ring();
        }
    }
}

impl<T> Receiver<T> {
    /// Waits for the next value; none once every sender is gone and everything was taken.
    pub(super) fn next(&self) -> Option<T> {
        loop {
            // Read before the queue is: what was sent before the closing is then seen below.
            let closed = self.bell.senders.load(Ordering::Acquire) == 0;
            match self.channel.try_recv() {
                Ok(value) => return Some(value),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) if closed => return None,
                Err(TryRecvError::Empty) => {}
            }
            let mut count = [0_u8; 8];
            match rustix::io::retry_on_intr(|| rustix::io::read(&self.bell.fd, &mut count)) {
                Ok(_) => {}
                Err(error) => {
                    tracing::error!(%error, "a helper's queue cannot be waited on");
                    return None;
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
}
