//! Measures `pid.available`: how many tasks the machine can still start.

use std::{os::fd::OwnedFd, path::Path};

use rustix::fs::{Mode, OFlags};

use super::{
    snapshot::{Missing, ReadResult},
    text,
};

/// The longest of the three files is `/proc/loadavg`, with about 30 bytes.
const BUFFER_BYTES: usize = 128;

/// Open files with the machine's number of tasks and its limit: three system calls a reading, a few microseconds, and
/// no allocation.
///
/// Measured as the kubelet's `pid.available` (`pkg/kubelet/stats/pidlimit/pidlimit_linux.go`): the limit is the smaller
/// of `pid_max` and `threads-max`, and the number is that of scheduling entities in `/proc/loadavg`, threads included.
#[derive(Debug)]
pub struct Tasks {
    bounds: [Option<OwnedFd>; 2],
    load: OwnedFd,
}

/// Tasks at one moment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TaskCount {
    /// Number of tasks.
    pub running: u64,
    /// Limit of tasks.
    pub most: u64,
}

impl Tasks {
    /// Opens the files below `proc`, usually `/proc`.
    pub fn open(proc: &Path) -> ReadResult<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let open = |name: &str| rustix::fs::open(proc.join(name), flags, Mode::empty());
        let bound = |name: &str| match open(name) {
            Ok(fd) => Ok(Some(fd)),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(errno) => Err(Missing::Failed(errno.raw_os_error())),
        };
        let load = open("loadavg").map_err(|errno| match errno {
            rustix::io::Errno::NOENT => Missing::Absent,
            errno => Missing::Failed(errno.raw_os_error()),
        })?;
        Ok(Self { bounds: [bound("sys/kernel/pid_max")?, bound("sys/kernel/threads-max")?], load })
    }

    /// From open files: one in the format of `/proc/loadavg`, and one with the limit of tasks.
    #[must_use]
    pub(crate) fn of(load: OwnedFd, most: OwnedFd) -> Self {
        Self { bounds: [Some(most), None], load }
    }

    /// Reads again.
    pub fn read(&self) -> ReadResult<TaskCount> {
        let mut buffer = [0; BUFFER_BYTES];
        let mut most: Option<u64> = None;
        for bound in self.bounds.iter().flatten() {
            let bound = text::number(text::read_into(bound, &mut buffer)?).ok_or(Missing::Malformed)?;
            most = Some(most.map_or(bound, |most| most.min(bound)));
        }
        let running = running(text::read_into(&self.load, &mut buffer)?).ok_or(Missing::Malformed)?;
        Ok(TaskCount { running, most: most.ok_or(Missing::Absent)? })
    }
}

/// The number after the slash in the fourth field: `0.20 0.18 0.12 1/80 11206`.
fn running(load: &[u8]) -> Option<u64> {
    let field = load.split(u8::is_ascii_whitespace).nth(3)?;
    let slash = field.iter().position(|byte| *byte == b'/')?;
    text::number(field.get(slash + 1..)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn proc(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("sys/kernel")).unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    fn count(files: &[(&str, &str)]) -> ReadResult<TaskCount> {
        Tasks::open(proc(files).path())?.read()
    }

    const LOAD: (&str, &str) = ("loadavg", "0.20 0.18 0.12 1/80 11206\n");

    #[test]
    fn the_smaller_bound_holds_and_threads_are_counted() {
        let both = [("sys/kernel/pid_max", "32768\n"), ("sys/kernel/threads-max", "15000\n"), LOAD];
        assert_eq!(count(&both), Ok(TaskCount { running: 80, most: 15_000 }));
        let other = [("sys/kernel/pid_max", "999\n"), ("sys/kernel/threads-max", "15000\n"), LOAD];
        assert_eq!(count(&other), Ok(TaskCount { running: 80, most: 999 }));
        assert_eq!(count(&both[1..]), Ok(TaskCount { running: 80, most: 15_000 }));
    }

    #[test]
    fn what_is_missing_or_malformed_is_no_count() {
        let pid_max = ("sys/kernel/pid_max", "32768\n");
        assert_eq!(count(&[LOAD]), Err(Missing::Absent));
        assert_eq!(count(&[pid_max]), Err(Missing::Absent));
        assert_eq!(count(&[("sys/kernel/pid_max", "many\n"), LOAD]), Err(Missing::Malformed));
        for load in ["", "0.20 0.18 0.12\n", "0.20 0.18 0.12 180 11206\n", "0.20 0.18 0.12 1/x 11206\n"] {
            assert_eq!(count(&[pid_max, ("loadavg", load)]), Err(Missing::Malformed), "{load}");
        }
    }

    #[test]
    fn this_machine_has_as_many_tasks_as_this_test_at_least() {
        let TaskCount { running, most } = Tasks::open(Path::new("/proc")).unwrap().read().unwrap();
        assert!((2..=most).contains(&running), "{running} of {most}");
    }
}
