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

/// What a connection takes that is let in by descriptors held back: its own, and those of the files that are opened to
/// answer it.
const SHARE: usize = 4;

/// Descriptors that are held back for when there are no others (`EMFILE`, `ENFILE`): who asks what is wrong must be answered
/// then too.
#[derive(Debug)]
pub(super) struct Spare {
    held: Vec<OwnedFd>,
    /// How many are to be held again.
    owed: Arc<AtomicUsize>,
}

/// Descriptors that somebody may use meanwhile. They are held back again after it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    owed: Arc<AtomicUsize>,
}

impl Spare {
    /// Holds back as many as that many connections take at once, as far as there are so many.
    pub(super) fn new(connections: usize) -> Self {
        let most = connections * SHARE;
        let mut spare = Self { held: Vec::with_capacity(most), owed: Arc::new(AtomicUsize::new(most)) };
        spare.settle();
        spare
    }

    /// Holds back again what is used no longer.
    pub(super) fn settle(&mut self) {
        while self.owed.load(Ordering::Acquire) > 0 {
            let Some(descriptor) = self.another() else { return };
            self.held.push(descriptor);
            self.owed.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn another(&self) -> Option<OwnedFd> {
        match self.held.first() {
            Some(held) => held.try_clone().ok(),
            None => File::open("/dev/null").ok().map(OwnedFd::from),
        }
    }

    /// Lets go of what one connection takes; none where that is not held.
    pub(super) fn share(&mut self) -> Option<Share> {
        let rest = self.held.len().checked_sub(SHARE)?;
        self.held.truncate(rest);
        Some(Share { owed: Arc::clone(&self.owed) })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.owed.fetch_add(SHARE, Ordering::AcqRel);
    }
}

/// How long nobody is let in after the kernel refused to.
const NO_PEER: Duration = Duration::from_millis(100);

/// What a listener does where the kernel lets nobody in.
#[derive(Debug)]
pub(super) struct Shortage {
    spare: Spare,
    /// What the next connection is let in by.
    share: Option<Share>,
    /// Whether it was logged since the last connection was let in.
    is_logged: bool,
}

impl Shortage {
    /// With descriptors for that many connections at once held back.
    pub(super) fn new(connections: usize) -> Self {
        Self { spare: Spare::new(connections), share: None, is_logged: false }
    }

    /// Holds back again what is used no longer.
    pub(super) fn settle(&mut self) {
        // What the next connection is let in by stays free until that is there, or could not be let in with it.
        self.spare.settle();
    }

    /// Waits before the next attempt, unless that has descriptors which were held back.
    pub(super) async fn wait(&mut self, place: &str, error: &io::Error) {
        let had_share = self.share.take().is_some();
        if is_exhausted(error) && !had_share {
            self.share = self.spare.share();
        }
        if !std::mem::replace(&mut self.is_logged, true) {
            tracing::warn!(%error, "no ordinary connection can be let in on {place}");
        }
        if self.share.is_none() {
            tokio::time::sleep(NO_PEER).await;
        }
    }

    /// A connection was let in: it keeps this until its end.
    pub(super) fn admitted(&mut self) -> Option<Share> {
        if self.share.is_none() {
            self.is_logged = false;
        }
        self.share.take()
    }
}

/// Whether it says that no further descriptor may be opened.
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
