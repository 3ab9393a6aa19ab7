//! What is removed or restored: retired cgroups, what an earlier start left, and everything at the end.
use std::collections::BTreeSet;

use super::{Known, Reconciler};
use crate::{
    cgroup::{Error, Permit, Removal, Report, desired::Target, dir::shown},
    model::{CgroupPath, Common, OwnerLevel},
};

impl Reconciler {
    /// Restores all written values and scores, and removes the cgroups that it made and that are empty, except for what
    /// may be a kubelet's by now. Call it last.
    pub fn release(&mut self, permit: &Permit) -> Report {
        self.look_for_kubelet();
        let mut report = Report::default();
        let scores: Vec<(CgroupPath, i16)> = self
            .desired
            .scores
            .keys()
            .filter(|path| !self.refused.contains(*path))
            .filter_map(|path| Some((path.clone(), self.keeper.original(path)?)))
            .collect();
        for (path, score) in scores {
            self.give_scores_back(&path, score, permit, &mut report);
        }
        self.desired.scores.clear();
        for target in self.desired.targets.values_mut() {
            target.plan.values = Common::default();
        }
        self.desired.moves.clear();
        self.pass(None, Some(permit), &mut report);
        report.errors.extend(self.lowering.restore_stuck());
        let made: Vec<(CgroupPath, Known)> = self
            .standing
            .iter()
            .rev()
            .filter(|(_, known)| {
                !known.is_outside && self.ledger.made(known.id) && !self.is_for_kubelet(known)
            })
            .map(|(path, known)| (path.clone(), known.clone()))
            .collect();
        for (path, known) in made {
            match self.driver.remove(&self.root, &path, permit) {
                Ok(Removal::Gone) => report.removed.extend(self.remove(&path)),
                Ok(Removal::Populated | Removal::Partial) => report.draining.push(known.owner),
                Err(error) => report.errors.push(error),
            }
        }
        report
    }

    /// Removes the retired cgroups that are empty, containers before their pods.
    pub(super) fn retire(&mut self, permit: Option<&Permit>, report: &mut Report) {
        for (path, known) in self.standing.retired() {
            let gone = match self.root.open(&path) {
                Ok(dir) => dir.id() != known.id,
                Err(error) => error.is_gone(),
            };
            let removal = if gone || known.is_outside {
                Ok(Removal::Gone)
            } else {
                self.remove_retired(&path, &known, permit)
            };
            match removal {
                Ok(Removal::Gone) => report.removed.extend(self.remove(&path)),
                Ok(Removal::Populated | Removal::Partial) => report.draining.push(known.owner),
                Err(error) => {
                    report.draining.push(known.owner);
                    self.seen.errors.insert(path.to_string(), crate::chain(&error));
                    report.errors.push(error);
                }
            }
        }
    }

    /// Lists the cgroups beside the pods' that no pod names. One that an earlier start made is no stranger: it is
    /// retired.
    pub(super) fn find_strangers(&mut self, report: &mut Report) {
        // Beside a kubelet all of them are the kubelet's.
        if self.is_audit {
            return;
        }
        let is_above = |target: &&Target| match target.owner.as_ref().map(|owner| &owner.level) {
            Some(OwnerLevel::Node | OwnerLevel::Qos(_)) => true,
            Some(OwnerLevel::Pod { .. } | OwnerLevel::Container { .. }) | None => false,
        };
        let above: Vec<CgroupPath> =
            self.desired.targets.values().filter(is_above).map(|target| target.plan.path.clone()).collect();
        for parent in above {
            match self.unknown_children(&parent) {
                Ok(unknown) => {
                    for path in unknown {
                        if !self.recognise(&path) {
                            report.strangers.push(path);
                        }
                    }
                }
                Err(error) if error.is_gone() => {}
                Err(error) => {
                    self.seen.errors.insert(parent.to_string(), crate::chain(&error));
                    report.errors.push(error);
                }
            }
        }
        self.seen.strangers.clone_from(&report.strangers);
    }

    pub(super) fn unknown_children(&self, path: &CgroupPath) -> Result<Vec<CgroupPath>, Error> {
        let names = self.root.open(path)?.children()?;
        // What has a name that is no text is none of ours, and only shown.
        let paths = names.iter().map(|name| shown(path, name));
        Ok(paths.filter(|path| self.standing.get(path).is_none()).collect())
    }

    /// Recognises a pod's cgroup as made by an earlier start if its mark says so, with the containers below it.
    pub(super) fn recognise(&mut self, path: &CgroupPath) -> bool {
        let Ok(dir) = self.root.open(path) else { return false };
        let Ok(Some(mark)) = dir.mark() else { return false };
        let Some(owner) = mark.owner(path).filter(|_| mark.made) else { return false };
        self.standing
            .know(path, Known { id: dir.id(), owner: owner.into(), is_retired: true, is_outside: false });
        for below in self.unknown_children(path).unwrap_or_default() {
            self.recognise(&below);
        }
        true
    }

    /// Restores the scores of processes in cgroups that are no longer adopted: they live on without us.
    pub(super) fn restore_scores(
        &mut self,
        outside_before: &BTreeSet<CgroupPath>,
        permit: &Permit,
        report: &mut Report,
    ) {
        let left = outside_before.iter().filter(|path| !self.desired.scores.contains_key(path));
        let left: Vec<(&CgroupPath, i16)> =
            left.filter_map(|path| Some((path, self.keeper.original(path)?))).collect();
        for (path, score) in left {
            if !self.refused.contains(path) {
                self.give_scores_back(path, score, permit, report);
            }
        }
    }

    /// Gives a container's processes the score that they had. Nothing is left to be undone of it then.
    fn give_scores_back(&mut self, path: &CgroupPath, score: i16, permit: &Permit, report: &mut Report) {
        let sweep = self.keeper.sweep(&self.root, path, score, permit);
        if sweep.errors.is_empty() && sweep.refused == 0 {
            let forgotten = self.root.open(path).and_then(|dir| dir.forget_scores());
            report.errors.extend(forgotten.err().filter(|error| !error.is_gone()));
        }
        report.scores.absorb(sweep);
    }
}
