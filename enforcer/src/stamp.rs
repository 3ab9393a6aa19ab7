//! Tells whether a file is the same as when it was read.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::Stat;

/// A file that changed less than this before it was read may change again within the same tick of the file system's
/// clock, so it is read again the next time.
const SETTLED: Duration = Duration::from_secs(2);

/// Shows whether a file is the same as before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    /// In bytes.
    pub(crate) size: i64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    /// That of a file with this status.
    pub(crate) fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size,
            modified: (stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or_default()),
            changed: (stat.st_ctime, i64::try_from(stat.st_ctime_nsec).unwrap_or_default()),
        }
    }

    /// Whether a change after the file was read at `now` would show.
    pub(crate) fn is_settled(self, now: SystemTime) -> bool {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let changed = Duration::from_secs(u64::try_from(self.changed.0).unwrap_or_default());
        // A file from the future is never settled.
        now.checked_sub(changed).is_some_and(|age| age >= SETTLED)
    }
}
