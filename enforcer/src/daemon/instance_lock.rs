//! Ensures that one daemon at a time evicts on a machine, whatever its directories are.
//!
//! Two daemons would both answer the same shortage, and two pods would die for it. What they share is the kernel's
//! cgroup hierarchy, so the lock is on a file of its root. It is `memory.reclaim`, which only root can open: a file
//! that every user can open can be locked by every user. It is never written to. As a file of the kernel it is the same
//! in every mount namespace, and its lock is released when the process ends, however it does. In a cgroup namespace of
//! its own a daemon sees another root, and only the pods below it.

use std::{
    fs::{File, OpenOptions},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::FlockOperation;

use super::{
    emit,
    handover::{self, Refusal},
};
use crate::{cgroup, config::Mode, journal::Journal};

/// The file whose lock is the claim.
pub(super) const FILE: &str = "memory.reclaim";

/// Another process holds the claim.
#[derive(Debug, thiserror::Error)]
#[error(
    "another enforcer evicts on this machine: {holder} holds the lock on {}, and has not ended within {} s; stop it, or \
     let this one have mode: dry-run",
    .path.display(),
    handover::TIMEOUT.as_secs()
)]
pub(super) struct Held {
    path: PathBuf,
    holder: String,
}

impl Held {
    /// Describes the process that holds it.
    pub(super) fn holder(&self) -> &str {
        &self.holder
    }
}

impl Refusal for Locked {
    fn is_held(&self) -> bool {
        true
    }

    fn holder(&self) -> String {
        handover::holder(&self.0)
    }
}

/// Another process holds the lock of that file.
#[derive(Debug)]
struct Locked(PathBuf);

/// The claim to evict here. Dropping it releases the claim.
#[derive(Debug)]
pub(super) struct InstanceLock {
    /// `None` if this daemon does not evict; an error if the file cannot be locked.
    lock: Option<Result<File, io::Error>>,
}

impl InstanceLock {
    /// Claims this machine in mode `enforce`, and waits for a predecessor to end; the other modes need no claim.
    pub(super) async fn take(mode: Mode) -> Result<Self, Held> {
        Self::take_within(handover::TIMEOUT, mode).await
    }

    /// The same, and waits for at most `patience`.
    pub(super) async fn take_within(patience: Duration, mode: Mode) -> Result<Self, Held> {
        let path = match mode {
            Mode::Observe | Mode::DryRun => return Ok(Self { lock: None }),
            Mode::Enforce => Path::new(cgroup::MOUNT).join(FILE),
        };
        match handover::take(patience, async || lock(&path)).await {
            Ok(lock) => Ok(Self { lock: Some(lock) }),
            Err(locked) => Err(Held { holder: locked.holder(), path }),
        }
    }

    /// Claims this machine in any mode, if the file can be locked at once: until this is dropped no daemon evicts here.
    pub(super) fn try_take() -> Option<Self> {
        let locked = lock(&Path::new(cgroup::MOUNT).join(FILE));
        locked.ok()?.ok().map(|file| Self { lock: Some(Ok(file)) })
    }

    /// Reports if the file cannot be locked.
    pub(super) fn emit(&self, journal: &Journal) {
        if let Some(Err(error)) = &self.lock {
            let message = format!(
                "a second daemon that evicts on this machine would not be noticed: cannot lock {}/{FILE}: {error}",
                cgroup::MOUNT
            );
            emit::degraded(journal, "claim", &message);
        }
    }
}

/// Locks the file; the inner error is the reason that it cannot be locked.
fn lock(path: &Path) -> Result<Result<File, io::Error>, Locked> {
    let locked = OpenOptions::new().write(true).open(path).and_then(|file| {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(file)
    });
    match locked {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(Locked(path.to_owned())),
        other => Ok(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_has_it_and_the_next_when_that_one_has_ended() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let first = lock(file.path()).unwrap().unwrap();
        let locked = lock(file.path()).unwrap_err();
        let shown = Held { holder: locked.holder(), path: file.path().to_owned() }.to_string();
        assert!(shown.contains(&format!("process {}", std::process::id())), "{shown}");
        drop(first);
        assert!(lock(file.path()).unwrap().is_ok());
    }

    #[test]
    fn memory_that_cannot_be_locked_is_reported_and_the_rest_works() {
        let journal = Journal::new("n", "b");
        let missing = lock(Path::new("/no/such/file")).unwrap();
        InstanceLock { lock: Some(missing) }.emit(&journal);
        assert_eq!(journal.range().newest, 1);
    }

    #[tokio::test]
    async fn who_only_reports_claims_nothing() {
        for mode in [Mode::Observe, Mode::DryRun] {
            assert!(InstanceLock::take(mode).await.unwrap().lock.is_none());
        }
    }
}
