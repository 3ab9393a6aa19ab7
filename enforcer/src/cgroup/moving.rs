//! Moves the processes of a pod from one of its cgroups into another.

use std::os::fd::OwnedFd;

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
    process::{Pid, PidfdFlags},
};

use super::{CgroupDir, Error, score::read_pids};
use crate::model::CgroupPath;

/// How often the list is reread: a child forked while its parent is moved is in the next one.
const ROUNDS: usize = 16;

/// How many processes are moved between two reads of the list, which bounds the open files.
const BATCH: usize = 64;

/// Why processes of a pod's former cgroup were not moved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MoveError {
    /// A cgroup could not be opened or read.
    #[error(transparent)]
    Cgroup(#[from] Error),
    /// A process in the container manages cgroups below it, and would lose them.
    #[error(
        "the processes of {from} are not moved to {to}, as they are in cgroups of their own below it: until they \
         end they are limited, scored and ranked where they are"
    )]
    Nested {
        /// Where they stay.
        from: CgroupPath,
        /// Where they should be.
        to: CgroupPath,
    },
    /// Some were not moved.
    #[error(
        "{left} processes of {from} are not moved to {to}{}: until they end they are limited, scored and ranked where they are",
        .why.as_ref().map_or_else(String::new, |why| format!(" ({why})"))
    )]
    Left {
        /// Where they stay.
        from: CgroupPath,
        /// Where they should be.
        to: CgroupPath,
        /// How many were moved.
        moved: usize,
        /// How many stay.
        left: usize,
        /// The kernel's error for one of them; `None` if they fork faster than they are moved, or are outside this PID
        /// namespace.
        why: Option<std::io::Error>,
    },
}

/// Moves every process of `from` into `to`, each with all of its threads; returns how many.
///
/// The list is reread until none is left, as a process may fork while it is moved. Memory stays charged where it was
/// allocated (cgroup v2 moves no charges). Process 1 and this one are never moved.
///
/// The kernel takes a pid, not a handle. So right before each write the listed process is checked to be alive: then no
/// other process has its pid.
pub(super) fn move_processes(
    root: &CgroupDir,
    from: &CgroupPath,
    to: &CgroupPath,
) -> Result<usize, MoveError> {
    let source = match root.open(from) {
        Ok(source) => source,
        Err(error) if error.is_gone() => return Ok(0),
        Err(error) => return Err(error.into()),
    };
    if holds_nested(&source)? {
        return Err(MoveError::Nested { from: from.clone(), to: to.clone() });
    }
    let procs = root.open(to)?.open_write("cgroup.procs")?;
    let (mut moved, mut why) = (0, None);
    for _ in 0..ROUNDS {
        let pids = list(&source)?;
        let before = moved;
        for batch in pids.chunks(BATCH) {
            moved += move_batch(&source, &procs, batch, &mut why)?;
        }
        if moved == before {
            break;
        }
    }
    let left = list(&source)?.len();
    match source.is_populated() {
        Ok(true) => Err(MoveError::Left { from: from.clone(), to: to.clone(), moved, left, why }),
        Ok(false) => Ok(moved),
        Err(error) if error.is_gone() => Ok(moved),
        Err(error) => Err(error.into()),
    }
}

/// Moves those of a batch that are still listed; returns how many.
fn move_batch(
    source: &CgroupDir,
    procs: &OwnedFd,
    batch: &[u32],
    why: &mut Option<std::io::Error>,
) -> Result<usize, Error> {
    let own = std::process::id();
    let open = |pid: &u32| {
        let raw = Pid::from_raw(i32::try_from(*pid).ok()?)?;
        Some((*pid, rustix::process::pidfd_open(raw, PidfdFlags::empty()).ok()?))
    };
    let handles: Vec<(u32, OwnedFd)> =
        batch.iter().filter(|pid| ![0, 1, own].contains(pid)).filter_map(open).collect();
    let still = list(source)?;
    let mut moved = 0;
    for (pid, handle) in handles.iter().filter(|(pid, _)| still.contains(pid)) {
        if has_ended(handle) {
            continue;
        }
        match rustix::io::retry_on_intr(|| rustix::io::write(procs, pid.to_string().as_bytes())) {
            Ok(_) => moved += 1,
            Err(Errno::SRCH) => {}
            Err(errno) => *why = Some(errno.into()),
        }
    }
    Ok(moved)
}

/// Whether the process is dead: then its handle is readable.
fn has_ended(handle: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(handle, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(rustix::event::poll(&mut polled, Some(&at_once)), Ok(0))
}

/// The processes of a cgroup; empty if it is gone.
fn list(dir: &CgroupDir) -> Result<Vec<u32>, Error> {
    match read_pids(dir) {
        Ok(pids) => Ok(pids),
        Err(error) if error.is_gone() => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Whether cgroups below this one hold processes.
fn holds_nested(dir: &CgroupDir) -> Result<bool, Error> {
    for name in dir.children()? {
        match dir.open_below(&name).and_then(|child| child.is_populated()) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            // A cgroup that is removed meanwhile holds nothing.
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        process::{Child, Command},
    };

    use super::*;

    fn path(text: &str) -> CgroupPath {
        CgroupPath::parse(text).unwrap()
    }

    /// A container's former and present cgroup.
    fn tree(procs: &str) -> (tempfile::TempDir, CgroupDir) {
        let temp = tempfile::tempdir().unwrap();
        for name in ["from", "to"] {
            fs::create_dir(temp.path().join(name)).unwrap();
            fs::write(temp.path().join(name).join("cgroup.procs"), "").unwrap();
        }
        fs::write(temp.path().join("from/cgroup.procs"), procs).unwrap();
        fs::write(temp.path().join("from/cgroup.events"), "populated 1\n").unwrap();
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        (temp, root)
    }

    struct Running(Child);

    impl Drop for Running {
        fn drop(&mut self) {
            // It may have ended already.
            drop(self.0.kill());
            drop(self.0.wait());
        }
    }

    fn moved(temp: &tempfile::TempDir) -> String {
        fs::read_to_string(temp.path().join("to/cgroup.procs")).unwrap()
    }

    #[test]
    fn only_a_process_that_lives_is_moved_and_never_init_or_this_one() {
        let process = Running(Command::new("sleep").arg("1000").spawn().unwrap());
        let (own, gone) = (std::process::id(), 4_194_305);
        let (temp, root) = tree(&format!("1\n{own}\n{gone}\n0\n"));
        let error = move_processes(&root, &path("/from"), &path("/to")).unwrap_err();
        assert!(matches!(&error, MoveError::Left { moved: 0, left: 4, why: None, .. }), "{error}");
        assert_eq!(moved(&temp), "");
        fs::write(temp.path().join("from/cgroup.procs"), format!("{}\n", process.0.id())).unwrap();
        // No kernel takes it off the list here.
        let error = move_processes(&root, &path("/from"), &path("/to")).unwrap_err();
        assert!(matches!(&error, MoveError::Left { moved: ROUNDS, left: 1, .. }), "{error}");
        assert_eq!(moved(&temp), process.0.id().to_string().repeat(ROUNDS));
    }

    #[test]
    fn a_container_that_has_cgroups_of_its_own_stays_whole() {
        let process = Running(Command::new("sleep").arg("1000").spawn().unwrap());
        let (temp, root) = tree(&format!("{}\n", process.0.id()));
        fs::create_dir(temp.path().join("from/inner")).unwrap();
        fs::write(temp.path().join("from/inner/cgroup.events"), "populated 1\n").unwrap();
        let error = move_processes(&root, &path("/from"), &path("/to")).unwrap_err();
        assert!(matches!(&error, MoveError::Nested { .. }), "{error}");
        assert_eq!(moved(&temp), "");
        assert_eq!(move_processes(&root, &path("/gone"), &path("/to")).unwrap(), 0);
    }
}
