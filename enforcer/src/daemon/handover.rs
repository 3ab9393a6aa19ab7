//! Resources that only one daemon at a time may hold, taken from a predecessor that is still ending.
//!
//! After its SIGKILL a daemon holds its locks until the kernel has closed all of its files: detaching the eBPF programs
//! takes most of a second. The files opened first are released last (`task_work_run` takes the newest first), so a
//! daemon that gets the lock that its predecessor took first finds everything else free.

use std::{
    io,
    os::unix::fs::MetadataExt as _,
    path::Path,
    time::{Duration, Instant},
};

use procfs::{Current as _, LockType};

/// How long a start waits for its predecessor to end.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// The pause between attempts.
const BETWEEN: Duration = Duration::from_millis(5);

/// The reason that something cannot be taken.
pub(super) trait Refusal {
    /// Whether another process, which may be about to end, holds it.
    fn is_held(&self) -> bool;
    /// Describes that process.
    fn holder(&self) -> String;
}

/// Repeats `attempt` while another process holds the resource, for `patience` at most; then returns the last error.
pub(super) async fn take<T, E: Refusal>(
    patience: Duration,
    mut attempt: impl AsyncFnMut() -> Result<T, E>,
) -> Result<T, E> {
    let begin = Instant::now();
    let mut is_waiting = false;
    loop {
        let error = match attempt().await {
            Ok(taken) => {
                if is_waiting {
                    let waited_ms = begin.elapsed().as_millis();
                    tracing::info!(waited_ms, "the predecessor has ended");
                }
                return Ok(taken);
            }
            Err(error) => error,
        };
        if !error.is_held() || begin.elapsed() >= patience {
            return Err(error);
        }
        if !std::mem::replace(&mut is_waiting, true) {
            tracing::info!("waiting for the predecessor to end: {}", error.holder());
        }
        tokio::time::sleep(BETWEEN).await;
    }
}

/// The message that a process did not end in time.
pub(super) fn not_ended(refusal: &impl Refusal) -> String {
    format!("{} has not ended within {} s", refusal.holder(), TIMEOUT.as_secs())
}

/// Describes the process that holds a file's lock. Only for messages: it may have ended by now.
pub(super) fn holder(path: &Path) -> String {
    match find_holder(path) {
        Ok(Some(pid)) => format!("process {pid}"),
        Ok(None) => String::from("a process that /proc/locks does not show here"),
        Err(error) => format!("an unknown process (cannot read /proc/locks: {error})"),
    }
}

fn find_holder(path: &Path) -> io::Result<Option<i32>> {
    let file = path.metadata()?;
    let (major, minor) = (rustix::fs::major(file.dev()), rustix::fs::minor(file.dev()));
    let locks = procfs::Locks::current().map_err(io::Error::other)?;
    let mut of_file = locks.0.into_iter().filter(|lock| {
        lock.lock_type == LockType::FLock
            && (lock.devmaj, lock.devmin, lock.inode) == (major, minor, file.ino())
    });
    Ok(of_file.next().and_then(|lock| lock.pid))
}

#[cfg(test)]
mod tests {
    use std::{fs::File, path::PathBuf};

    use rustix::fs::{FlockOperation, flock};

    use super::*;

    #[derive(Debug)]
    struct Held(PathBuf);

    impl Refusal for Held {
        fn is_held(&self) -> bool {
            true
        }

        fn holder(&self) -> String {
            holder(&self.0)
        }
    }

    fn lock(path: &Path) -> Result<File, Held> {
        let file = File::open(path).unwrap();
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(file),
            Err(_) => Err(Held(path.to_owned())),
        }
    }

    #[tokio::test]
    async fn a_lock_is_taken_as_soon_as_its_holder_lets_go() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut first = Some(lock(file.path()).unwrap());
        let mut attempts = 0;
        let taken = take(TIMEOUT, async || {
            attempts += 1;
            if attempts == 3 {
                first = None;
            }
            lock(file.path())
        });
        assert!(taken.await.is_ok());
        assert_eq!(attempts, 3);
    }

    #[tokio::test]
    async fn it_is_refused_when_its_holder_stays_and_the_holder_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let _first = lock(file.path()).unwrap();
        let held = take(Duration::from_millis(20), async || lock(file.path())).await.unwrap_err();
        assert_eq!(held.holder(), format!("process {}", std::process::id()));
        let nobodys = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(find_holder(nobodys.path()).unwrap(), None);
    }
}
