//! Scores that follow the ranking instead of the plan.
use std::collections::BTreeMap;

use super::Reconciler;
use crate::{
    cgroup::{FileChange, KeptFile, Permit, Reason, Report, Written},
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
            if let Some(first) = sweep.changed.first() {
                let (old, new) = (Some(first.old.to_string()), score.to_string());
                report.written.push(Written {
                    path: path.clone(),
                    reason: Reason::Ranked,
                    change: FileChange { file: KeptFile::Score, old, new },
                });
            }
            report.scores.absorb(sweep);
        }
        self.desired.scores = scores;
        report
    }
}
