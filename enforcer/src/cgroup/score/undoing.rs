//! Gives processes back the scores that they had before an earlier daemon gave them others.

use rustix::io::Errno;

use super::{BATCH, MAX_NESTED, ROUNDS, ScoreChange, ScoreError, ScoreKeeper, Sweep, lists};
use crate::{
    cgroup::{
        CgroupDir, Error, Permit, ScoreRecord,
        process::{Process, is_gone},
    },
    model::CgroupPath,
};

impl ScoreKeeper {
    /// Gives each process in the cgroup `path` and below it that still has a score from the cgroup's record the one
    /// from before, and removes the record once no such process is left. A score that another has written since stays.
    ///
    /// The record is an attribute of that very cgroup: another one at the same path does not have it.
    pub fn undo(&mut self, root: &CgroupDir, path: &CgroupPath, permit: &Permit) -> Sweep {
        let mut sweep = Sweep::default();
        if let Err(error) = self.undo_recorded(root, path, permit, &mut sweep)
            && !error.is_gone()
        {
            sweep.errors.push(error.into());
        }
        self.forget(path);
        sweep
    }

    fn undo_recorded(
        &self,
        root: &CgroupDir,
        path: &CgroupPath,
        permit: &Permit,
        sweep: &mut Sweep,
    ) -> Result<(), Error> {
        let own = root.open(path)?;
        let Some(record) = own.score_record()? else { return Ok(()) };
        if self.undo_as(root, &own, &record, permit, sweep)? {
            own.forget_scores()?;
        }
        Ok(())
    }

    /// The same by that record. Returns whether all processes were looked at, and none is left with a score from it.
    pub(super) fn undo_as(
        &self,
        root: &CgroupDir,
        own: &CgroupDir,
        record: &ScoreRecord,
        permit: &Permit,
        sweep: &mut Sweep,
    ) -> Result<bool, Error> {
        // A process may fork between the listing and the write, as in any other sweep.
        for _ in 0..ROUNDS {
            let lists = lists(root, own.path())?;
            if lists.first().is_none_or(|(dir, _)| dir.id() != own.id()) {
                // Another cgroup is at that path by now: this one is gone, with its record.
                return Ok(false);
            }
            let changed_before = sweep.changed.len();
            // Only the last round's list counts.
            (sweep.refused, sweep.invisible) = (0, 0);
            for (dir, pids) in &lists {
                sweep.invisible += pids.iter().filter(|pid| **pid == 0).count();
                for batch in pids.chunks(BATCH) {
                    self.undo_batch((own, dir), batch, record, permit, sweep);
                }
            }
            if !sweep.errors.is_empty() {
                return Ok(false);
            }
            if sweep.changed.len() == changed_before {
                return Ok(sweep.refused == 0 && sweep.invisible == 0 && lists.len() < MAX_NESTED);
            }
        }
        Ok(false)
    }

    /// Undoes the scores of some processes in a container's own cgroup or one below it.
    fn undo_batch(
        &self,
        (own, dir): (&CgroupDir, &CgroupDir),
        pids: &[u32],
        record: &ScoreRecord,
        _permit: &Permit,
        sweep: &mut Sweep,
    ) {
        let mut given: Vec<(u32, i16, i16, Process)> = Vec::new();
        for pid in pids.iter().copied().filter(|pid| *pid != 0) {
            match self.processes.get(pid).and_then(|process| Ok((process.score()?, process))) {
                Ok((old, process)) => {
                    given.extend(record.undone(old).map(|before| (pid, old, before, process)));
                }
                Err(errno) if is_gone(errno) => {}
                Err(errno) => {
                    let (score, source) = (record.before, errno.into());
                    sweep.errors.push(ScoreError::Process { pid, score, source });
                }
            }
        }
        if given.is_empty() {
            return;
        }
        // The handle of one that is still listed is that very process's, or a dead one's.
        let still = match dir.processes() {
            Ok(pids) => pids,
            Err(error) if error.is_gone() => return,
            Err(error) => return sweep.errors.push(error.into()),
        };
        given.retain(|(pid, ..)| still.binary_search(pid).is_ok());
        for (pid, old, new, process) in given {
            match replace(&process, old, new) {
                Ok(true) => sweep.changed.push(ScoreChange { path: own.path().clone(), pid, old, new }),
                Ok(false) => {}
                Err(errno) if is_gone(errno) => {}
                Err(Errno::ACCESS | Errno::PERM) => sweep.refused += 1,
                Err(errno) => {
                    sweep.errors.push(ScoreError::Process { pid, score: new, source: errno.into() });
                }
            }
        }
    }
}

/// Writes the score `new` if the process still has `old`. Returns whether it had.
fn replace(process: &Process, old: i16, new: i16) -> rustix::io::Result<bool> {
    let is_same = process.score()? == old;
    if is_same {
        process.set_score(new)?;
    }
    Ok(is_same)
}
