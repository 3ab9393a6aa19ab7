//! Keeps a few descriptors back, so that a daemon that has no more still answers.

use std::{
    fs::File,
    io,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use rustix::io::Errno;

/// The descriptors that an emergency connection needs: its own, and those of the files that are opened to answer it.
const SHARE: usize = 4;

/// Descriptors that are held in reserve for when no others are left (`EMFILE`, `ENFILE`): a client that asks what is
/// wrong must get an answer then too.
#[derive(Debug)]
pub(super) struct Spare {
    held: Vec<OwnedFd>,
    /// How many are missing from the reserve.
    missing: Arc<AtomicUsize>,
}

/// Descriptors that one connection may use. They return to the reserve after it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    missing: Arc<AtomicUsize>,
}

impl Spare {
    /// Reserves descriptors for that many connections at once, as far as they are available.
    pub(super) fn new(connections: usize) -> Self {
        let most = connections * SHARE;
        let mut spare = Self { held: Vec::with_capacity(most), missing: Arc::new(AtomicUsize::new(most)) };
        spare.settle();
        spare
    }

    /// Reserves released descriptors again.
    pub(super) fn settle(&mut self) {
        while self.missing.load(Ordering::Acquire) > 0 {
            let Some(descriptor) = self.another() else { return };
            self.held.push(descriptor);
            self.missing.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn another(&self) -> Option<OwnedFd> {
        match self.held.first() {
            Some(held) => held.try_clone().ok(),
            None => File::open("/dev/null").ok().map(OwnedFd::from),
        }
    }

    /// Releases the descriptors for one connection. Returns `None` if the reserve does not hold enough.
    pub(super) fn share(&mut self) -> Option<Share> {
        let rest = self.held.len().checked_sub(SHARE)?;
        self.held.truncate(rest);
        Some(Share { missing: Arc::clone(&self.missing) })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.missing.fetch_add(SHARE, Ordering::AcqRel);
    }
}

/// How long to wait after a failed `accept`.
const NO_PEER: Duration = Duration::from_millis(100);

/// How a listener handles a failed `accept`.
#[derive(Debug)]
pub(super) struct Shortage {
    spare: Spare,
    /// The descriptors for the next connection.
    share: Option<Share>,
    /// Whether it was logged since the last accepted connection.
    is_logged: bool,
}

impl Shortage {
    /// Reserves descriptors for that many connections at once.
    pub(super) fn new(connections: usize) -> Self {
        Self { spare: Spare::new(connections), share: None, is_logged: false }
    }

    /// Reserves released descriptors again.
    pub(super) fn settle(&mut self) {
        // The share for the next connection stays free until that comes, or fails even with it.
        self.spare.settle();
    }

    /// Waits before the next attempt, unless that gets descriptors from the reserve.
    pub(super) async fn wait(&mut self, place: &str, error: &io::Error) {
        let had_share = self.share.take().is_some();
        if is_exhausted(error) && !had_share {
            self.share = self.spare.share();
        }
        if !std::mem::replace(&mut self.is_logged, true) {
            tracing::warn!(%error, "cannot accept ordinary connections on {place}");
        }
        if self.share.is_none() {
            tokio::time::sleep(NO_PEER).await;
        }
    }

    /// A connection was accepted. It keeps the share until its end.
    pub(super) fn admitted(&mut self) -> Option<Share> {
        if self.share.is_none() {
            self.is_logged = false;
        }
        self.share.take()
    }
}

/// Whether the error means that no more descriptors can be opened.
pub(super) fn is_exhausted(error: &io::Error) -> bool {
    let exhausted = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|errno| exhausted.contains(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_let_go_of_is_held_again_when_it_is_not_used_any_more() {
        let mut spare = Spare::new(2);
        assert_eq!(spare.held.len(), 2 * SHARE);
        let (first, second) = (spare.share(), spare.share());
        assert!(first.is_some() && second.is_some() && spare.share().is_none());
        spare.settle();
        assert_eq!(spare.held.len(), 0, "they are used");
        drop(first);
        spare.settle();
        assert_eq!(spare.held.len(), SHARE);
        drop(second);
        spare.settle();
        assert_eq!(spare.held.len(), 2 * SHARE);
    }

    #[test]
    fn no_descriptor_is_known_by_its_error() {
        assert!(is_exhausted(&Errno::MFILE.into()) && is_exhausted(&Errno::NFILE.into()));
        assert!(!is_exhausted(&Errno::CONNABORTED.into()) && !is_exhausted(&io::Error::other("x")));
    }
}
