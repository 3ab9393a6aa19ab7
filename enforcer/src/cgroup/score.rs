//! Keeps `oom_score_adj` of containers' processes as planned, by sweeps over their cgroups.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::OsString,
    hash::{BuildHasher as _, RandomState},
    io,
    path::Path,
};

use rustix::io::Errno;

use super::{
    CgroupDir, Error, Permit,
    process::{Processes, is_gone},
    score_record,
};
use crate::model::CgroupPath;

mod suspect;
mod undoing;

pub(super) use self::suspect::is_within;
pub use self::suspect::{Correction, ScoreSuspect};

/// How many processes are looked at between two reads of the list, which bounds the open files.
const BATCH: usize = 64;

/// How often a list is reread because the last look changed something.
const ROUNDS: usize = 4;

/// How many cgroups below one container are searched, at most.
const MAX_NESTED: usize = 4096;

/// After this many sweeps an unchanged list of processes is looked at nevertheless: another process may have written a
/// score.
const FULL_SWEEP_EVERY: u32 = 30;

/// Keeps `oom_score_adj` of every process of a container at the planned value.
///
/// A child inherits its parent's score, so once the first process of a container has it, a sweep finds nothing to do.
/// Each process is opened once (`/proc/<pid>` as a directory) and then accessed through that handle only. Before a
/// write the cgroup's list is read again: if it still holds the pid, the handle belongs either to that very process or
/// to a dead one, whose files fail with `ESRCH`. So a process that merely reuses a pid never gets the score.
#[derive(Debug)]
pub struct ScoreKeeper {
    processes: Processes,
    hasher: RandomState,
    seen: HashMap<CgroupPath, Seen>,
    /// The former score of the first process of each container that was given another one.
    originals: HashMap<CgroupPath, i16>,
    /// The processes that keep a score written by another process: the start time of each, by its id.
    left: HashMap<CgroupPath, BTreeMap<u32, u64>>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    pids_hash: u64,
    score: i16,
    sweeps: u32,
}

/// A score that was changed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ScoreChange {
    /// The container's cgroup.
    pub path: CgroupPath,
    /// The process, by its id in our own PID namespace.
    pub pid: u32,
    /// The score that it had.
    pub old: i16,
    /// The score that it has now.
    pub new: i16,
}

/// What a sweep did.
#[derive(Debug, Default)]
pub struct Sweep {
    /// The scores that were changed.
    pub changed: Vec<ScoreChange>,
    /// How many processes keep a score that we may not lower: that needs `CAP_SYS_RESOURCE`.
    pub refused: usize,
    /// How many listed processes belong to a PID namespace that we cannot see.
    pub invisible: usize,
    /// Cgroups and processes that could not be read or written for other reasons.
    pub errors: Vec<ScoreError>,
}

/// Why a score could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScoreError {
    /// The container's processes could not be listed.
    #[error(transparent)]
    Cgroup(#[from] Error),
    /// A file of a process could not be accessed.
    #[error("cannot set the oom_score_adj of process {pid} to {score}")]
    Process {
        /// The process.
        pid: u32,
        /// The score that it should have.
        score: i16,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
}

impl Sweep {
    /// Adds another sweep's results.
    pub fn absorb(&mut self, other: Self) {
        let Self { changed, refused, invisible, errors } = other;
        self.changed.extend(changed);
        self.refused += refused;
        self.invisible += invisible;
        self.errors.extend(errors);
    }
}

impl ScoreKeeper {
    /// Works on the process file system mounted at `proc`, usually `/proc`.
    pub fn new(proc: &Path) -> io::Result<Self> {
        Ok(Self {
            processes: Processes::open(proc)?,
            hasher: RandomState::new(),
            seen: HashMap::new(),
            left: HashMap::new(),
            originals: HashMap::new(),
        })
    }

    /// Sets every process in the cgroup `path` and below it to `score`.
    ///
    /// A list of processes that has not changed since the last sweep is skipped, except every 30th time.
    pub fn sweep(&mut self, root: &CgroupDir, path: &CgroupPath, score: i16, permit: &Permit) -> Sweep {
        let mut sweep = Sweep::default();
        // A process may fork between the listing and the write: its child then has the old score, and is in the next
        // list. A child forked after the write inherits the new one.
        for _ in 0..ROUNDS {
            let changed_before = sweep.changed.len();
            if let Err(error) = self.round(root, path, score, permit, &mut sweep) {
                self.seen.remove(path);
                if !error.is_gone() {
                    sweep.errors.push(error.into());
                }
                break;
            }
            if sweep.changed.len() == changed_before || !sweep.errors.is_empty() {
                break;
            }
        }
        if let Some(first) = sweep.changed.first() {
            self.originals.entry(path.clone()).or_insert(first.old);
        }
        sweep
    }

    /// The score that a container's first process had before it got the planned one; `None` if it had that already.
    #[must_use]
    pub fn original(&self, path: &CgroupPath) -> Option<i16> {
        self.originals.get(path).copied()
    }

    fn round(
        &mut self,
        root: &CgroupDir,
        path: &CgroupPath,
        score: i16,
        permit: &Permit,
        sweep: &mut Sweep,
    ) -> Result<(), Error> {
        let lists = lists(root, path)?;
        let pids_hash = self.hasher.hash_one(lists.iter().map(|(_, pids)| pids).collect::<Vec<_>>());
        if let Some(seen) = self.seen.get_mut(path)
            && seen.pids_hash == pids_hash
            && seen.score == score
            && seen.sweeps < FULL_SWEEP_EVERY
        {
            seen.sweeps += 1;
            return Ok(());
        }
        // Only the last round's list counts.
        (sweep.refused, sweep.invisible) = (0, 0);
        let mut left = BTreeMap::new();
        // The container's own cgroup is the first.
        let Some((own, _)) = lists.first() else { return Ok(()) };
        for (dir, pids) in &lists {
            sweep.invisible += pids.iter().filter(|pid| **pid == 0).count();
            for batch in pids.chunks(BATCH) {
                left.extend(self.sweep_batch((own, dir), batch, path, score, permit, sweep));
            }
        }
        if left.is_empty() {
            self.left.remove(path);
        } else {
            self.left.insert(path.clone(), left);
        }
        if sweep.errors.is_empty() {
            self.seen.insert(path.clone(), Seen { pids_hash, score, sweeps: 0 });
        } else {
            self.seen.remove(path);
        }
        Ok(())
    }

    /// Makes the next sweep of that container look at every process.
    pub fn forget(&mut self, path: &CgroupPath) {
        self.seen.remove(path);
    }

    /// Forgets everything about cgroups that are not in `scores`.
    pub fn retain(&mut self, scores: &BTreeMap<CgroupPath, i16>) {
        self.seen.retain(|path, _| scores.contains_key(path));
        self.originals.retain(|path, _| scores.contains_key(path));
        self.left.retain(|path, _| scores.contains_key(path));
    }

    /// Sets the scores of some processes in a container's own cgroup or one below it; returns those that are left alone.
    fn sweep_batch(
        &self,
        (own, dir): (&CgroupDir, &CgroupDir),
        pids: &[u32],
        path: &CgroupPath,
        score: i16,
        _permit: &Permit,
        sweep: &mut Sweep,
    ) -> BTreeMap<u32, u64> {
        let before = self.left.get(path);
        let mut left = BTreeMap::new();
        let mut wrong = Vec::new();
        for pid in pids.iter().copied().filter(|pid| *pid != 0) {
            match self.processes.get(pid).and_then(|process| Ok((process.score()?, process))) {
                Ok((old, process)) if old != score => match before.and_then(|left| left.get(&pid)).copied() {
                    Some(start) if process.start_ticks() == Ok(start) => drop(left.insert(pid, start)),
                    Some(_) | None => wrong.push((pid, old, process)),
                },
                Ok(_) => {}
                Err(errno) if is_gone(errno) => {}
                Err(errno) => {
                    sweep.errors.push(ScoreError::Process { pid, score, source: errno.into() });
                }
            }
        }
        if wrong.is_empty() {
            return left;
        }
        let still = match dir.processes() {
            Ok(pids) => pids,
            Err(error) if error.is_gone() => return left,
            Err(error) => {
                sweep.errors.push(error.into());
                return left;
            }
        };
        wrong.retain(|(pid, _, _)| still.binary_search(pid).is_ok());
        if let Some((_, before, _)) = wrong.first() {
            score_record::note(own, *before, score);
        }
        for (pid, old, process) in wrong {
            match process.set_score(score) {
                Ok(()) => sweep.changed.push(ScoreChange { path: path.clone(), pid, old, new: score }),
                Err(errno) if is_gone(errno) => {}
                Err(Errno::ACCESS | Errno::PERM) => sweep.refused += 1,
                Err(errno) => {
                    sweep.errors.push(ScoreError::Process { pid, score, source: errno.into() });
                }
            }
        }
        left
    }
}

/// The lists of processes of a cgroup and of every cgroup below it, in a stable order.
pub(super) fn lists(root: &CgroupDir, path: &CgroupPath) -> Result<Vec<(CgroupDir, Vec<u32>)>, Error> {
    let dir = root.open(path)?;
    // Each name with the place of the list above it: below that one's handle, no path becomes too long.
    let mut waiting: Vec<(usize, OsString)> = nested(&dir)?.into_iter().map(|name| (0, name)).collect();
    let pids = read_pids(&dir)?;
    let mut lists = vec![(dir, pids)];
    while let Some((above, name)) = waiting.pop() {
        if lists.len() >= MAX_NESTED {
            break;
        }
        let Some((above, _)) = lists.get(above) else { continue };
        let dir = match above.open_below(&name) {
            Ok(dir) => dir,
            Err(error) if error.is_gone() => continue,
            Err(error) => return Err(error),
        };
        match nested(&dir).and_then(|below| Ok((below, read_pids(&dir)?))) {
            Ok((below, pids)) => {
                waiting.extend(below.into_iter().map(|name| (lists.len(), name)));
                lists.push((dir, pids));
            }
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(lists)
}

/// The names of the cgroups directly below; where there are none, as usual, `cgroup.stat` avoids listing the directory.
fn nested(dir: &CgroupDir) -> Result<Vec<OsString>, Error> {
    match dir.read("cgroup.stat") {
        Ok(stat) if stat.lines().any(|line| line.trim_ascii_end() == "nr_descendants 0") => {
            return Ok(Vec::new());
        }
        Ok(_) => {}
        Err(error) if error.is_gone() => {}
        Err(error) => return Err(error),
    }
    dir.children()
}

/// The processes of a cgroup. A threaded one has no list (`EOPNOTSUPP`): its processes are listed in the domain above
/// it.
pub(super) fn read_pids(dir: &CgroupDir) -> Result<Vec<u32>, Error> {
    match dir.processes() {
        Err(error) if error.is_unsupported() => Ok(Vec::new()),
        pids => pids,
    }
}

#[cfg(test)]
mod tests;
