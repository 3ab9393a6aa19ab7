//! Corrects one process that eBPF reported with a wrong score, without a sweep.

use rustix::io::Errno;

use super::{ScoreChange, ScoreError, ScoreKeeper};
use crate::{
    cgroup::{
        CgroupDir, Permit,
        process::{Process, is_gone, ns, ticks},
        score_record,
    },
    model::CgroupPath,
    policy::oom_score,
};

/// A process that was seen with a wrong score a moment ago.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ScoreSuspect {
    /// Its id in our own PID namespace.
    pub pid: u32,
    /// When it started, in nanoseconds of `CLOCK_BOOTTIME`.
    pub start_ns: Option<u64>,
}

/// The result for a suspect.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Correction {
    /// It now has its container's score.
    Set {
        /// What was changed.
        change: ScoreChange,
        /// Whether it is the very process that was seen, and not one that reused its id.
        is_same: bool,
    },
    /// There is nothing to do: it has the right score by now, is gone, or is in another cgroup.
    Settled,
    /// Lowering its score needs `CAP_SYS_RESOURCE`.
    Refused,
    /// Its cgroup cannot be seen from our cgroup namespace: its container has to be swept.
    Hidden,
}

impl ScoreKeeper {
    /// Sets one process to its container's score, if it is in the cgroup `path` or below.
    ///
    /// It is checked through the handle that is written through, so that no process elsewhere ever gets the score. A
    /// process in the container that reused the id has to have the same score; only the change is another process's
    /// then.
    pub fn correct(
        &mut self,
        root: &CgroupDir,
        path: &CgroupPath,
        suspect: ScoreSuspect,
        score: i16,
        _permit: &Permit,
    ) -> Result<Correction, ScoreError> {
        match self.try_correct(root, path, suspect, score) {
            Ok(correction) => {
                if let Correction::Set { change, is_same: _ } = &correction {
                    self.originals.entry(path.clone()).or_insert(change.old);
                }
                Ok(correction)
            }
            Err(errno) if is_gone(errno) => Ok(Correction::Settled),
            Err(Errno::ACCESS | Errno::PERM) => Ok(Correction::Refused),
            Err(errno) => Err(ScoreError::Process { pid: suspect.pid, score, source: errno.into() }),
        }
    }

    fn try_correct(
        &self,
        root: &CgroupDir,
        path: &CgroupPath,
        suspect: ScoreSuspect,
        score: i16,
    ) -> rustix::io::Result<Correction> {
        let (process, old) = match self.find(root, path, suspect, score)? {
            Ok(found) => found,
            Err(settled) => return Ok(settled),
        };
        let start_ticks = process.start_ticks()?;
        // A cgroup that is gone needs no record.
        if let Ok(dir) = root.open(path) {
            score_record::note(&dir, old, score);
        }
        process.set_score(score)?;
        let is_same = suspect.start_ns.is_none_or(|start_ns| ticks(start_ns) == start_ticks);
        let change = ScoreChange { path: path.clone(), pid: suspect.pid, old, new: score };
        Ok(Correction::Set { change, is_same })
    }

    /// The score of the very process that was seen, if it is not its container's; else what to do instead.
    pub(in crate::cgroup) fn check(
        &self,
        root: &CgroupDir,
        path: &CgroupPath,
        suspect: ScoreSuspect,
        score: i16,
    ) -> Result<Result<i16, Correction>, ScoreError> {
        let found = self.find(root, path, suspect, score).and_then(|found| match found {
            Ok((process, old)) => {
                let start_ticks = process.start_ticks()?;
                let is_same = suspect.start_ns.is_none_or(|start_ns| ticks(start_ns) == start_ticks);
                // Another process has its id by now: the one that was seen is gone.
                Ok(if is_same { Ok(old) } else { Err(Correction::Settled) })
            }
            Err(settled) => Ok(Err(settled)),
        });
        match found {
            Ok(found) => Ok(found),
            Err(errno) if is_gone(errno) => Ok(Err(Correction::Settled)),
            Err(errno) => Err(ScoreError::Process { pid: suspect.pid, score, source: errno.into() }),
        }
    }

    /// The process and its score, if the score is wrong and the process is in the container; else what to do instead.
    fn find(
        &self,
        root: &CgroupDir,
        path: &CgroupPath,
        suspect: ScoreSuspect,
        score: i16,
    ) -> rustix::io::Result<Result<(Process, i16), Correction>> {
        let process = self.processes.get(suspect.pid)?;
        let old = process.score()?;
        // A runtime may have put a sandbox into a cgroup that counts as a container's.
        let is_sandbox = || self.processes.is_sandbox(root, path, (suspect.pid, &process));
        if old == score || old == oom_score::SANDBOX && is_sandbox() {
            return Ok(Err(Correction::Settled));
        }
        Ok(match process.cgroup()? {
            Some(cgroup) if cgroup.starts_with("/..") => Err(Correction::Hidden),
            Some(cgroup) if is_within(&cgroup, path) => Ok((process, old)),
            Some(_) | None => Err(Correction::Settled),
        })
    }

    /// Leaves a process with the score that another process wrote, until it has the right one or is gone. At most 1,024
    /// of a container are left; any more are swept as usual.
    pub fn leave(&mut self, path: &CgroupPath, suspect: ScoreSuspect) {
        const MAX_LEFT: usize = 1024;
        let Ok(start_ticks) = self.processes.get(suspect.pid).and_then(|process| process.start_ticks())
        else {
            return;
        };
        if suspect.start_ns.is_some_and(|start_ns| ticks(start_ns) != start_ticks) {
            return;
        }
        let left = self.left.entry(path.clone()).or_default();
        if left.len() < MAX_LEFT {
            left.insert(suspect.pid, start_ticks);
        }
    }

    /// Takes the processes of a container that were left with a score that another process wrote.
    pub fn take_left(&mut self, path: &CgroupPath) -> Vec<ScoreSuspect> {
        self.seen.remove(path);
        let left = self.left.remove(path).unwrap_or_default();
        let suspect = |(pid, start_ticks)| ScoreSuspect { pid, start_ns: Some(ns(start_ticks)) };
        left.into_iter().map(suspect).collect()
    }

    /// Whether the process is left with a score that another process wrote.
    #[must_use]
    pub fn leaves(&self, path: &CgroupPath, suspect: ScoreSuspect) -> bool {
        let start = self.left.get(path).and_then(|left| left.get(&suspect.pid));
        start.is_some_and(|start| suspect.start_ns.is_none_or(|start_ns| ticks(start_ns) == *start))
    }

    /// Whether any process of the container is left with a score that another process wrote.
    #[must_use]
    pub fn leaves_any(&self, path: &CgroupPath) -> bool {
        self.left.contains_key(path)
    }
}

/// Whether the cgroup of a process, as given in /proc, is `path` or below.
pub(in crate::cgroup) fn is_within(cgroup: &str, path: &CgroupPath) -> bool {
    path.is_root()
        || cgroup.strip_prefix(path.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::cgroup::{
        sandbox::tests::{CONTAINER, SANDBOX, Scene},
        score::tests::Sleeper,
    };

    fn own_cgroup() -> Option<CgroupPath> {
        let text = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        text.lines().find_map(|line| line.strip_prefix("0::")).and_then(|path| CgroupPath::parse(path).ok())
    }

    #[test]
    fn only_a_process_of_the_container_gets_its_score() {
        let Some(path) = own_cgroup() else { return };
        let sleeper = Sleeper::start();
        let suspect = ScoreSuspect { pid: sleeper.id(), start_ns: None };
        let mut keeper = ScoreKeeper::new(Path::new("/proc")).unwrap();
        let permit = Permit::for_enforce_mode();
        // The cgroup that this test runs in gets no record.
        let empty = tempfile::tempdir().unwrap();
        let root = CgroupDir::unchecked(empty.path()).unwrap();
        let elsewhere = CgroupPath::parse("/no/such/container").unwrap();
        let old: i16 = sleeper.score().parse().unwrap();
        assert_eq!(keeper.correct(&root, &elsewhere, suspect, 777, &permit).unwrap(), Correction::Settled);
        assert_eq!(sleeper.score(), old.to_string());
        let change = ScoreChange { path: path.clone(), pid: sleeper.id(), old, new: 777 };
        let set = keeper.correct(&root, &path, suspect, 777, &permit).unwrap();
        assert_eq!(set, Correction::Set { change, is_same: true });
        assert_eq!(sleeper.score(), "777");
        assert_eq!(keeper.correct(&root, &path, suspect, 777, &permit).unwrap(), Correction::Settled);
        let other = ScoreSuspect { start_ns: Some(1), ..suspect };
        let set = keeper.correct(&root, &path, other, 778, &permit).unwrap();
        assert!(matches!(set, Correction::Set { is_same: false, .. }), "{set:?}");
    }

    #[test]
    fn the_score_of_a_sandbox_stays_and_its_name_keeps_no_other() {
        let scene = Scene::new();
        let keeper = ScoreKeeper::new(&scene.proc()).unwrap();
        let check = |pid: u32| {
            scene.set_score(pid, oom_score::SANDBOX);
            let suspect = ScoreSuspect { pid, start_ns: None };
            keeper.check(&scene.root(), &Scene::path(pid), suspect, 900).unwrap()
        };
        assert_eq!(check(SANDBOX), Err(Correction::Settled));
        assert_eq!(check(CONTAINER), Ok(oom_score::SANDBOX));
    }

    #[test]
    fn the_dead_are_settled() {
        let sleeper = Sleeper::start();
        let suspect = ScoreSuspect { pid: sleeper.id(), start_ns: None };
        drop(sleeper);
        let mut keeper = ScoreKeeper::new(Path::new("/proc")).unwrap();
        let empty = tempfile::tempdir().unwrap();
        let root = CgroupDir::unchecked(empty.path()).unwrap();
        let (path, permit) = (CgroupPath::root(), Permit::for_enforce_mode());
        let correction = keeper.correct(&root, &path, suspect, 5, &permit);
        assert_eq!(correction.unwrap(), Correction::Settled);
    }

    #[test]
    fn a_neighbour_whose_name_begins_alike_is_elsewhere() {
        let path = CgroupPath::parse("/pod/app").unwrap();
        assert!(is_within("/pod/app", &path) && is_within("/pod/app/inner", &path));
        assert!(!is_within("/pod/app2", &path) && !is_within("/pod", &path));
    }
}
