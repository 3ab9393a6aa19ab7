//! What the kernel reports about single processes and files: corrected at once, without a look at everything.
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use super::Reconciler;
use crate::{
    cgroup::{
        Author, Correction, Drift, DriftAction, FileChange, KeptFile, Permit, Reason, Report, ScoreError,
        ScoreSuspect, Sweep, Write, Written, drift::ROUNDS,
    },
    model::{CgroupId, CgroupPath},
};

/// A process that was seen with a score other than its container's.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ScoreSeen {
    /// The container's cgroup.
    pub container: CgroupId,
    /// The process; `None` if it has no id in our PID namespace, and its whole container has to be looked at.
    pub suspect: Option<ScoreSuspect>,
    /// Whether some process wrote the score; otherwise the process is new in the container.
    pub is_written: bool,
}

/// What is to be guarded.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Guarded {
    /// The score of each container's processes.
    pub scores: BTreeMap<CgroupId, i16>,
    /// The cgroups whose files are kept as planned, with their paths.
    pub files: BTreeMap<CgroupId, CgroupPath>,
    /// The cgroups directly below pods' that no plan names: a runtime made them, for containers and for sandboxes.
    pub made_by_runtimes: BTreeSet<CgroupPath>,
}

impl Reconciler {
    /// The existing cgroups whose files and processes are to be kept as planned.
    #[must_use]
    pub fn guarded(&self) -> Guarded {
        let mut guarded = Guarded { made_by_runtimes: self.made_by_runtimes(), ..Guarded::default() };
        for path in self.desired.targets.keys() {
            let Some(id) = self.id(path) else { continue };
            guarded.files.insert(id, path.clone());
            if let Some(score) = self.desired.scores.get(path) {
                guarded.scores.insert(id, *score);
            }
        }
        guarded
    }

    /// Looks at processes that were just seen with a wrong score.
    ///
    /// A new process gets its container's score. A score that some process wrote is corrected at once or later, like
    /// any value that others write: at once three times within a minute for a container. Sweeps wait as well.
    pub fn put_right(&mut self, seen: &[ScoreSeen], permit: &Permit) -> Report {
        let mut report = Report::default();
        let mut swept = BTreeSet::new();
        for ScoreSeen { container, suspect, is_written } in seen.iter().copied() {
            let Some((path, score)) = self.planned_score(container) else { continue };
            let Some(suspect) = suspect else {
                if swept.insert(container) {
                    self.sweep_container(&path, score, permit, &mut report);
                }
                continue;
            };
            let outcome = if is_written {
                self.judge_score((container, &path), suspect, score, permit, &mut report)
            } else if self.keeper.leaves(&path, suspect) {
                // It executed another program, and still has the score that another process wrote.
                Ok(Correction::Settled)
            } else {
                self.keeper.correct(&self.root, &path, suspect, score, permit)
            };
            match outcome {
                Ok(Correction::Set { change, is_same: _ }) => report.scores.changed.push(change),
                Ok(Correction::Settled) => {}
                Ok(Correction::Refused) => {
                    report.scores.refused += 1;
                    self.note_scores(&path, &Sweep { refused: 1, ..Sweep::default() });
                }
                Ok(Correction::Hidden) => {
                    if swept.insert(container) {
                        self.sweep_container(&path, score, permit, &mut report);
                    }
                }
                Err(error) => {
                    let sweep = Sweep { errors: vec![error], ..Sweep::default() };
                    self.note_scores(&path, &sweep);
                    report.scores.absorb(sweep);
                }
            }
        }
        report
    }

    /// Looks at all processes of containers and all files of cgroups about which events were lost.
    pub fn look_over(
        &mut self,
        containers: &BTreeSet<CgroupId>,
        files: &BTreeSet<CgroupPath>,
        permit: Option<&Permit>,
    ) -> Report {
        let mut report = Report::default();
        if !files.is_empty() {
            self.pass(Some(files), permit, &mut report);
        }
        if let Some(permit) = permit {
            for container in containers {
                if let Some((path, score)) = self.planned_score(*container) {
                    self.wrote(*container, KeptFile::Score, None);
                    self.keeper.forget(&path);
                    self.sweep_container(&path, score, permit, &mut report);
                }
            }
        }
        report
    }

    /// Decides about a score that some process wrote, and acts on it.
    fn judge_score(
        &mut self,
        (container, path): (CgroupId, &CgroupPath),
        suspect: ScoreSuspect,
        score: i16,
        permit: &Permit,
        report: &mut Report,
    ) -> Result<Correction, ScoreError> {
        let found = match self.keeper.check(&self.root, path, suspect, score)? {
            Ok(found) => found,
            Err(correction) => return Ok(correction),
        };
        let now = (self.clock)();
        let (planned, text) = (score.to_string(), found.to_string());
        let (action, is_reported) =
            self.drift.judge((path, container, KeptFile::Score), (&planned, &text), ROUNDS, now);
        if is_reported {
            report.drifted.push(Drift {
                path: path.clone(),
                cgroup: container,
                file: KeptFile::Score,
                planned: planned.clone(),
                found: text.clone(),
                action,
                author: self.drift.author(container, KeptFile::Score),
            });
        }
        match action {
            DriftAction::Restored => {}
            DriftAction::Delayed | DriftAction::Reported | DriftAction::Audited | DriftAction::Left => {
                self.keeper.leave(path, suspect);
                return Ok(Correction::Settled);
            }
        }
        let correction = self.keeper.correct(&self.root, path, suspect, score, permit)?;
        if let Correction::Set { .. } = &correction {
            report.written.push(Written {
                path: path.clone(),
                reason: Reason::Drifted,
                change: FileChange { file: KeptFile::Score, old: Some(text), new: planned },
            });
        }
        Ok(correction)
    }

    /// Notes that another process wrote to a file of a cgroup, or the score of a process in it, and which one, if
    /// known.
    pub fn wrote(&mut self, cgroup: CgroupId, file: KeptFile, author: Option<Author>) {
        let now = (self.clock)();
        self.drift.wrote(cgroup, file, author, now);
    }

    /// Writes back the values that others insisted on, if these have stayed for long enough.
    pub fn write_back(&mut self, permit: Option<&Permit>) -> Report {
        let mut report = Report::default();
        let due = self.drift.advance((self.clock)());
        let (scores, files): (Vec<_>, Vec<_>) =
            due.into_iter().partition(|(_, _, file)| *file == KeptFile::Score);
        let paths: BTreeSet<CgroupPath> = files.iter().map(|(path, _, _)| path.clone()).collect();
        if !paths.is_empty() {
            self.pass(Some(&paths), permit, &mut report);
        }
        if let Some(permit) = permit {
            for (_, container, _) in &scores {
                self.write_scores_back(*container, permit, &mut report);
            }
        }
        let now = (self.clock)();
        for (path, cgroup, file) in files.iter().chain(&scores) {
            let is_withheld = |write: &Write| write.path == *path && KeptFile::from(write.file()) == *file;
            // It holds the planned value by now, or is no longer planned.
            if !report.withheld.iter().any(|withheld| is_withheld(&withheld.write)) {
                self.drift.settled_if_overdue(*cgroup, *file, now);
            }
            self.drift.end_hold_if_over(*cgroup, *file, now);
        }
        self.drift.advance(now);
        report
    }

    /// When to call [`write_back`](Self::write_back).
    #[must_use]
    pub fn contest_due(&self) -> Option<Instant> {
        self.drift.due()
    }

    /// Corrects the scores that were left for a while. They are reported as one.
    fn write_scores_back(&mut self, container: CgroupId, permit: &Permit, report: &mut Report) {
        let Some((path, score)) = self.planned_score(container) else { return };
        let mut is_first = true;
        for suspect in self.keeper.take_left(&path) {
            let outcome = if is_first {
                self.judge_score((container, &path), suspect, score, permit, report)
            } else {
                self.keeper.correct(&self.root, &path, suspect, score, permit)
            };
            match outcome {
                Ok(Correction::Set { change, is_same: _ }) => {
                    is_first = false;
                    report.scores.changed.push(change);
                }
                Ok(Correction::Settled | Correction::Refused) => {}
                Ok(Correction::Hidden) => {
                    self.sweep_container(&path, score, permit, report);
                    return;
                }
                Err(error) => {
                    let sweep = Sweep { errors: vec![error], ..Sweep::default() };
                    self.note_scores(&path, &sweep);
                    report.scores.absorb(sweep);
                }
            }
        }
    }

    fn sweep_container(&mut self, path: &CgroupPath, score: i16, permit: &Permit, report: &mut Report) {
        let sweep = self.keeper.sweep(&self.root, path, score, permit);
        self.note_scores(path, &sweep);
        report.scores.absorb(sweep);
    }

    /// The path and score of a planned container.
    fn planned_score(&self, container: CgroupId) -> Option<(CgroupPath, i16)> {
        let owner = self.standing.index().resolve(container)?.owner;
        let known = self.standing.get(&owner.path).filter(|known| known.id == container)?;
        let score = self.desired.scores.get(&known.owner.path)?;
        Some((owner.path.clone(), *score))
    }
}

#[cfg(test)]
mod tests;
