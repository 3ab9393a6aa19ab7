//! Wakes one thread from another by an eventfd. Waking takes no lock and does not allocate.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec},
    io::Errno,
};

/// Wakes the thread that waits for it, now or at its next wait.
#[derive(Debug)]
pub(crate) struct Waker(OwnedFd);

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(crate) fn wake(&self) {
        // It can only fail if the counter is full, and then the other thread is about to wake anyway.
        let _woken = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Waits until it is woken, at most that long. It may return early.
    pub(crate) fn wait(&self, at_most: Option<Duration>) -> rustix::io::Result<()> {
        self.wait_beside(None::<&OwnedFd>, at_most)
    }

    /// The same, or until there is something to read from `other`.
    pub(crate) fn wait_beside(
        &self,
        other: Option<&impl AsFd>,
        at_most: Option<Duration>,
    ) -> rustix::io::Result<()> {
        // A duration that the kernel does not accept is too long to matter: wait without a limit.
        let timeout = at_most.and_then(|time| Timespec::try_from(time).ok());
        let own = PollFd::new(&self.0, PollFlags::IN);
        let polled = match other {
            Some(other) => {
                rustix::event::poll(&mut [own, PollFd::new(other, PollFlags::IN)], timeout.as_ref())
            }
            None => rustix::event::poll(&mut [own], timeout.as_ref()),
        };
        match polled {
            Ok(0) | Err(Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(errno) => return Err(errno),
        }
        match rustix::io::read(&self.0, &mut [0_u8; 8]) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn it_wakes_once_and_not_before_its_time() {
        let waker = Waker::new().unwrap();
        waker.wake();
        waker.wake();
        waker.wait(None).unwrap();
        let start = Instant::now();
        waker.wait(Some(Duration::from_millis(20))).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(20));
    }
}
