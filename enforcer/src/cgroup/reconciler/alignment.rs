//! Scores that follow the ranking instead of the plan.
use std::collections::{BTreeMap, BTreeSet};

use super::Reconciler;
use crate::{
    cgroup::{FileChange, KeptFile, Permit, Reason, Report, Sweep, Written},
    model::CgroupPath,
};

impl Reconciler {
    /// Gives these containers other scores than the plan's from now on, and all others the plan's.
    ///
    /// Only containers whose score changes are looked at. Where the kubelet owns the cgroups, all of these are, as
    /// nothing else gives new processes there their score.
    pub fn align(&mut self, aligned: BTreeMap<CgroupPath, i16>, permit: &Permit) -> Report {
        let before = self.desired.scores.clone();
        self.desired.align(&aligned);
        self.aligned = aligned;
        let mut report = Report::default();
        let scores = std::mem::take(&mut self.desired.scores);
        let is_looked_at = |path: &CgroupPath, score: &i16| {
            before.get(path) != Some(score) || (self.is_audit && self.aligned.contains_key(path))
        };
        for (path, score) in scores.iter().filter(|(path, score)| is_looked_at(path, score)) {
            if self.refused.contains(path) {
                continue;
            }
            let sweep = self.keeper.sweep(&self.root, path, *score, permit);
            self.seen.note_scores(path, &sweep);
            report.written.extend(written(path, &sweep, Reason::Ranked));
            report.scores.absorb(sweep);
        }
        self.desired.scores = scores;
        report
    }

    /// Gives processes back the scores that they had before an earlier daemon gave them others and was killed: those of
    /// these containers and of the planned ones. Beside a kubelet nothing else does. Call it before scores are given.
    pub fn undo_scores(&mut self, mut containers: BTreeSet<CgroupPath>, permit: &Permit) -> Report {
        containers.extend(self.desired.scores.keys().cloned());
        let mut report = Report::default();
        for path in &containers {
            if self.refused.contains(path) {
                continue;
            }
            let sweep = self.keeper.undo(&self.root, path, permit);
            self.seen.note_scores(path, &sweep);
            report.written.extend(written(path, &sweep, Reason::Interrupted));
            report.scores.absorb(sweep);
        }
        report
    }
}

/// What is reported of a container whose processes got other scores: the first of them.
fn written(path: &CgroupPath, sweep: &Sweep, reason: Reason) -> Option<Written> {
    let first = sweep.changed.first()?;
    let (old, new) = (Some(first.old.to_string()), first.new.to_string());
    Some(Written { path: path.clone(), reason, change: FileChange { file: KeptFile::Score, old, new } })
}
