//! One look at the planned cgroups: observe, compare, judge, apply, and record the results.

use std::collections::{BTreeMap, BTreeSet};

use super::{Desired, Known, Reconciler, going, runtime::RUNTIME};
use crate::{
    cgroup::{
        Diff, Drift, DriftAction, Error, Failure, Fate, KeptFile, Mark, Moved, Origin, Outcome, Permit,
        Problem, Reason, Report, Snapshot, Step, Withheld, Write, apply, audit,
        desired::{ORPHANED, Target},
        diff, observe,
    },
    model::{CgroupFile, CgroupId, CgroupPath, Common, OwnerLevel},
    policy::CgroupPlan,
};

/// The ids of the existing cgroups.
type Ids = BTreeMap<CgroupPath, CgroupId>;

impl Reconciler {
    /// Looks at the planned cgroups, or at those among `only`, and makes them as planned.
    pub(super) fn pass(
        &mut self,
        only: Option<&BTreeSet<CgroupPath>>,
        permit: Option<&Permit>,
        report: &mut Report,
    ) {
        let desired = std::mem::take(&mut self.desired);
        self.pass_over(&desired, only, permit, report);
        self.desired = desired;
    }

    fn pass_over(
        &mut self,
        desired: &Desired,
        only: Option<&BTreeSet<CgroupPath>>,
        permit: Option<&Permit>,
        report: &mut Report,
    ) {
        let now = (self.clock)();
        let withheld_before = report.withheld.len();
        let is_looked_at = |path: &CgroupPath| only.is_none_or(|only| only.contains(path));
        let targets: Vec<&Target> =
            desired.targets.iter().filter(|(path, _)| is_looked_at(path)).map(|(_, target)| target).collect();
        let plans: Vec<&CgroupPlan> = targets.iter().map(|target| &target.plan).collect();
        self.lowering.begin_look();
        let throttled = self.throttled.all();
        let (snapshot, errors) = observe(&self.root, &plans, &self.ledger, self.page);
        self.note_errors(only, errors, report);
        let mut ids: Ids =
            snapshot.cgroups.iter().map(|(path, observed)| (path.clone(), observed.id)).collect();
        for target in &targets {
            if let Some(observed) = snapshot.cgroups.get(&target.plan.path) {
                let level = target.owner.as_ref().map(|owner| &owner.level);
                // Only we make a pod's cgroup there.
                let is_pods = level.is_some_and(|level| level.pod().is_some());
                let is_ours = is_pods && (target.named_by.is_none() || target.is_going());
                self.ledger.meet(observed.id, level, is_ours, observed.mark.as_deref().cloned());
            }
        }
        let (plans, outside) = self.present(&targets, &mut ids, only.is_none(), report);
        let Diff { mut steps, mut withheld, mut missing } =
            diff(&plans, &outside, &snapshot, &self.ledger, self.page);
        going::leave_other_files(desired, &mut steps, &mut missing);
        let spared = if permit.is_some() {
            self.spare(desired, &ids, (&mut steps, &mut withheld), report)
        } else {
            BTreeSet::new()
        };
        let mut steps = self.driver.arrange(steps);
        let moves = self.moves(desired, only, &ids, &steps, permit.is_none());
        steps.extend(moves);
        if only.is_none() {
            self.seen.missing.clone_from(&missing);
            self.failing.retain(&steps);
            self.arrival.retain(&ids);
        }
        report.missing.extend(missing);
        report.withheld.extend(withheld);
        let unwritten: BTreeSet<(CgroupPath, CgroupFile)>;
        if let Some(permit) = permit {
            steps.retain(|step| !self.failing.holds_back(step, now));
            let (steps, held_back) = self.judge(steps, desired, (&ids, &throttled), report);
            let mut marks = self.marks(&steps, desired, &ids, &snapshot);
            if only.is_none() {
                self.note_outside(desired, &ids, &mut marks);
            }
            let (outcomes, unmarked) =
                apply(&self.root, self.driver.as_ref(), steps, &marks, &mut self.making, self.page, permit);
            self.note_unmarked(&unmarked);
            self.take_in(outcomes, desired, &mut ids, unmarked.is_empty(), report);
            self.score_moved(desired, permit, report);
            let looked_at = |path: &CgroupPath| is_looked_at(path);
            // Two that hold the same file down would each restore what the other wrote. And a value that is written
            // back later needs no room before.
            let is_free = |withheld: &&Withheld| {
                let Withheld { write, usage_bytes: _ } = withheld;
                ids.get(&write.path).is_none_or(|id| {
                    !self.throttled.holds(*id) && !self.drift.waits(*id, write.file().into(), now)
                })
            };
            let withheld = report.withheld.get(withheld_before..).unwrap_or_default();
            let lowered: Vec<_> = withheld.iter().filter(is_free).cloned().collect();
            report
                .abandoned
                .extend(self.lowering.advance(&self.root, &lowered, looked_at, self.page, now, permit));
            unwritten = open_files(report.failed.iter().map(|failure| &failure.step), &report.withheld)
                .chain(held_back)
                .chain(spared)
                .collect();
        } else {
            let mut left = Vec::new();
            if self.is_audit {
                (steps, left) = self.judge(steps, desired, (&ids, &throttled), report);
            }
            report.planned.extend(steps);
            unwritten = open_files(report.planned.iter(), &report.withheld).chain(left).collect();
        }
        self.note_found(&plans, &ids, &unwritten, report);
        self.learn(desired, only, &ids);
    }

    /// The cgroups without missing ones that others make, and without those that must not be adopted; and the foreign
    /// ones.
    fn present<'desired>(
        &mut self,
        targets: &[&'desired Target],
        ids: &mut Ids,
        is_whole: bool,
        report: &mut Report,
    ) -> (Vec<&'desired CgroupPlan>, BTreeSet<&'desired CgroupPath>) {
        let (mut plans, mut outside) = (Vec::new(), BTreeSet::new());
        for target in targets.iter().copied() {
            let Target { plan, named_by, is_awaited, .. } = target;
            if *is_awaited && !ids.contains_key(&plan.path) {
                continue;
            }
            if let Some(named_by) = *named_by {
                if !ids.contains_key(&plan.path) {
                    // One that exists but cannot be read was reported already.
                    if self.is_gone(&plan.path) {
                        let error = Error::NotThere { path: plan.path.to_string(), named_by };
                        self.seen.errors.insert(plan.path.to_string(), error.to_string());
                        report.errors.push(error);
                    }
                    continue;
                }
                if target.owner.is_some()
                    && named_by != RUNTIME
                    && !target.is_former()
                    && !target.is_going()
                    && !self.may_adopt(&plan.path, named_by, is_whole, report)
                {
                    // Not ours, so not known either.
                    ids.remove(&plan.path);
                    continue;
                }
                outside.insert(&plan.path);
            }
            plans.push(plan);
        }
        (plans, outside)
    }

    /// Whether a cgroup that a pod names may be adopted: it is checked at its adoption, and at every whole look.
    fn may_adopt(
        &mut self,
        path: &CgroupPath,
        named_by: &'static str,
        is_whole: bool,
        report: &mut Report,
    ) -> bool {
        let is_taken = self.standing.get(path).is_some_and(|known| !known.is_retired);
        if is_taken && !is_whole {
            return true;
        }
        self.refused.insert(path.clone());
        let error = match self.root.open(path).and_then(|dir| self.guard.forbidden(&dir, Origin::Adopted)) {
            Ok(None) => {
                self.refused.remove(path);
                return true;
            }
            Ok(Some(why)) => Error::Forbidden { path: path.to_string(), named_by, why: why.to_string() },
            Err(error) if error.is_gone() => return false,
            Err(error) => error,
        };
        self.seen.errors.insert(path.to_string(), crate::chain(&error));
        report.errors.push(error);
        false
    }

    /// Decides about each file that another process wrote, and leaves out writes that must wait. Also returns the files
    /// that are left alone.
    fn judge(
        &mut self,
        steps: Vec<Step>,
        desired: &Desired,
        (ids, throttled): (&Ids, &BTreeSet<CgroupId>),
        report: &mut Report,
    ) -> (Vec<Step>, Vec<(CgroupPath, CgroupFile)>) {
        let now = (self.clock)();
        let mut left = Vec::new();
        let mut kept = Vec::with_capacity(steps.len());
        for step in steps {
            let Step::Write(write) = &step else {
                kept.push(step);
                continue;
            };
            // A throttle may have begun or ended since the look.
            let is_throttled = |id: &CgroupId| throttled.contains(id) || self.throttled.holds(*id);
            let is_held = write.file() == CgroupFile::MemoryHigh
                && (self.lowering.holds(&write.path) || ids.get(&write.path).is_some_and(is_throttled));
            let level = || desired.targets.get(&write.path)?.owner.as_ref().map(|owner| &owner.level);
            let is_alike = |old| audit::is_as_planned(&write.value, old, level());
            if self.is_audit && write.old.as_ref().is_some_and(is_alike) {
                if let Some(id) = ids.get(&write.path) {
                    self.drift.settled(*id, write.file().into());
                }
                left.push((write.path.clone(), write.file()));
                continue;
            }
            let drifted = (write.reason == Reason::Drifted || self.is_audit) && !is_held;
            let (id, found) = (ids.get(&write.path), write.old.as_ref());
            let action = match (id, found) {
                (Some(id), Some(found)) if drifted => {
                    let rounds = self.driver.rounds(write.file());
                    let file = KeptFile::from(write.file());
                    let (planned, found) = (write.value.to_string(), found.to_string());
                    let place = (&write.path, *id, file);
                    let (action, is_reported) = self.drift.judge(place, (&planned, &found), rounds, now);
                    if is_reported {
                        report.drifted.push(Drift {
                            path: write.path.clone(),
                            cgroup: *id,
                            file,
                            planned,
                            found,
                            action,
                            author: self.drift.author(*id, file),
                        });
                    }
                    action
                }
                _ => DriftAction::Restored,
            };
            if is_held || action != DriftAction::Restored {
                left.push((write.path.clone(), write.file()));
            } else {
                kept.push(step);
            }
        }
        (kept, left)
    }

    /// The marks that the cgroups must have before the steps are carried out.
    fn marks(
        &mut self,
        steps: &[Step],
        desired: &Desired,
        ids: &Ids,
        snapshot: &Snapshot,
    ) -> BTreeMap<CgroupPath, Mark> {
        let mut marks: BTreeMap<CgroupPath, Mark> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Create(path) => {
                    let owner = desired.targets.get(path).and_then(|target| target.owner.as_ref());
                    marks.insert(path.clone(), Mark::new(true, owner.map(|owner| &owner.level)));
                }
                Step::Enable { .. } | Step::Move { .. } => {}
                Step::Write(Write { path, value, reason, .. }) => match ids.get(path) {
                    Some(_) if *reason == Reason::Released => {}
                    Some(id) => {
                        let is_outside = desired.targets.get(path).is_some_and(Target::is_outside);
                        let observed = snapshot.cgroups.get(path).filter(|_| is_outside);
                        let held = observed.and_then(|observed| observed.files.get(&value.file())?.value());
                        self.ledger.claim(*id, value.file(), held);
                    }
                    None => {
                        if let Some(mark) = marks.get_mut(path) {
                            mark.files.insert(value.file(), None);
                        }
                    }
                },
            }
        }
        for (path, id) in ids {
            if let Some(mark) = self.ledger.new_mark(*id) {
                marks.insert(path.clone(), mark.clone());
            }
        }
        marks
    }

    fn take_in(
        &mut self,
        outcomes: Vec<Outcome>,
        desired: &Desired,
        ids: &mut Ids,
        is_marked: bool,
        report: &mut Report,
    ) {
        let now = (self.clock)();
        let mut released: BTreeSet<CgroupPath> = BTreeSet::new();
        for outcome in outcomes {
            report.withheld.extend(outcome.withheld());
            let Outcome { step, fate } = outcome;
            if let Fate::Done(_) | Fate::Moved(_) = fate {
                self.failing.done(&step);
            }
            match (step, fate) {
                (Step::Create(path), Fate::Done(id)) => {
                    let owner = desired.targets.get(&path).and_then(|target| target.owner.clone());
                    self.ledger.make(id, owner.as_ref().map(|owner| &owner.level));
                    report.created.extend(owner);
                    ids.insert(path, id);
                }
                (Step::Enable { path, controllers }, Fate::Done(_)) => {
                    report.enabled.push((path, controllers));
                }
                (Step::Write(write), Fate::Done(id)) => {
                    self.ledger.note_write(id, &write);
                    self.arrival.wrote(id, write.file());
                    if is_marked {
                        self.ledger.marked(id);
                    }
                    if write.reason == Reason::Released {
                        released.insert(write.path.clone());
                    }
                    report.written.push(write.into());
                }
                (Step::Move { from, to }, Fate::Moved(processes)) => {
                    report.moved.push(Moved { from, to, processes });
                }
                (step, Fate::Failed(error)) => {
                    if let (Step::Move { from, to }, Some(processes)) = (&step, error.moved()) {
                        report.moved.push(Moved { from: from.clone(), to: to.clone(), processes });
                    }
                    let repeated = !self.failing.failed(&step, crate::chain(&error), now);
                    report.failed.push(Failure { step, error, repeated });
                }
                // Reported by `outcome.withheld()`, and by the failure that caused it.
                (_, Fate::Withheld { .. } | Fate::Skipped { .. } | Fate::Moved(_))
                | (Step::Move { .. }, Fate::Done(_)) => {}
            }
        }
        for path in released {
            self.shrink_mark(&path, ids.get(&path).copied());
        }
    }

    /// Reduces a cgroup's mark to what it must say, after files were restored or taken over.
    pub(super) fn shrink_mark(&mut self, path: &CgroupPath, id: Option<CgroupId>) {
        let Some((id, Ok(dir))) = id.map(|id| (id, self.root.open(path))) else { return };
        let is_done = match self.ledger.mark(id) {
            Some(mark) if mark.files.is_empty() && mark.outside.is_empty() && !mark.made => {
                dir.unmark().is_ok()
            }
            Some(mark) => dir.set_mark(mark).is_ok(),
            None => false,
        };
        // Otherwise the next start restores the same files once more.
        if is_done {
            self.ledger.marked(id);
        }
    }

    /// Notes the planned values found in force, so that a later plan without them restores the former ones.
    fn note_found(
        &mut self,
        plans: &[&CgroupPlan],
        ids: &Ids,
        unwritten: &BTreeSet<(CgroupPath, CgroupFile)>,
        report: &Report,
    ) {
        let missing: BTreeSet<(&CgroupPath, CgroupFile)> =
            report.missing.iter().map(|missing| (&missing.path, missing.file)).collect();
        let restored: BTreeSet<(&CgroupPath, KeptFile)> =
            report.written.iter().map(|written| (&written.path, written.change.file)).collect();
        for plan in plans {
            let Some(id) = ids.get(&plan.path) else { continue };
            for value in plan.values.iter() {
                let file = value.file();
                let key = (plan.path.clone(), file);
                if unwritten.contains(&key) || missing.contains(&(&plan.path, file)) {
                    continue;
                }
                self.ledger.note(*id, value);
                if !restored.contains(&(&plan.path, file.into())) {
                    self.drift.settled(*id, file.into());
                }
            }
        }
    }

    /// Gives moved processes the scores of their new cgroups.
    fn score_moved(&mut self, desired: &Desired, permit: &Permit, report: &mut Report) {
        let containers: BTreeSet<&CgroupPath> = report.moved.iter().map(|moved| &moved.to).collect();
        for path in containers {
            if let Some(score) = desired.scores.get(path) {
                let sweep = self.keeper.sweep(&self.root, path, *score, permit);
                self.note_scores(path, &sweep);
                report.scores.absorb(sweep);
            }
        }
    }

    /// Updates what is known, and the index, to what exists.
    fn learn(&mut self, desired: &Desired, only: Option<&BTreeSet<CgroupPath>>, ids: &Ids) {
        let is_looked_at = |path: &CgroupPath| only.is_none_or(|only| only.contains(path));
        for (path, target) in desired.targets.iter().filter(|(path, _)| is_looked_at(path)) {
            // What is going is known already, and reported when it is gone.
            if target.is_going() {
                continue;
            }
            let Some(owner) = &target.owner else { continue };
            match ids.get(path) {
                Some(id) => {
                    let (is_retired, is_outside) = (target.is_former(), target.is_outside());
                    self.know(path, Known { id: *id, owner: owner.clone(), is_retired, is_outside });
                }
                None => drop(self.remove(path)),
            }
        }
        if only.is_some() {
            return;
        }
        for (path, owner) in &desired.retired {
            match self.root.open(path) {
                Ok(dir) => self.know(
                    path,
                    Known { id: dir.id(), owner: owner.clone(), is_retired: true, is_outside: false },
                ),
                Err(error) if error.is_gone() => drop(self.remove(path)),
                // It is looked at again at the next reconciliation.
                Err(_) => {}
            }
        }
        self.standing.retire_all_but(|path| {
            let is_wanted =
                |target: &Target| target.owner.is_some() && !target.is_former() && !target.is_going();
            desired.targets.get(path).is_some_and(is_wanted)
        });
    }

    fn know(&mut self, path: &CgroupPath, known: Known) {
        if let Some(replaced) = self.standing.know(path, known) {
            self.forget(replaced.id);
        }
    }

    /// Keeps foreign cgroups that are no longer planned among the desired ones, until their former values are restored.
    pub(super) fn retain_orphans(&mut self, outside_before: &BTreeSet<CgroupPath>) {
        let recalled = self.recalled.iter().flatten().cloned();
        let known: BTreeSet<CgroupPath> = outside_before.iter().cloned().chain(recalled).collect();
        let mut due = BTreeSet::new();
        for path in known {
            let Ok(dir) = self.root.open(&path) else { continue };
            let is_marked = || !self.ledger.knows(dir.id()) && dir.mark().is_ok_and(|mark| mark.is_some());
            if !self.desired.targets.contains_key(&path)
                && (self.ledger.files(dir.id()).next().is_some() || is_marked())
            {
                let plan = CgroupPlan { path: path.clone(), values: Common::default() };
                let target = Target { plan, owner: None, named_by: Some(ORPHANED), is_awaited: true };
                self.desired.targets.insert(path.clone(), target);
                due.insert(path);
            }
        }
        if self.recalled.is_some() {
            self.recalled = Some(due);
        }
    }

    /// Records on kubepods which foreign cgroups are written to, for the next start.
    fn note_outside(&mut self, desired: &Desired, ids: &Ids, marks: &mut BTreeMap<CgroupPath, Mark>) {
        let is_node =
            |target: &&Target| target.owner.as_ref().is_some_and(|owner| owner.level == OwnerLevel::Node);
        let Some(node) = desired.targets.values().find(is_node) else { return };
        let outside: BTreeSet<String> = desired
            .targets
            .values()
            .filter(|target| target.is_outside() && target.named_by != Some(RUNTIME))
            .map(|target| target.plan.path.to_string())
            .collect();
        let path = &node.plan.path;
        match ids.get(path) {
            None => {
                if let Some(mark) = marks.get_mut(path) {
                    mark.outside = outside;
                }
            }
            Some(id) => {
                self.ledger.set_outside(*id, &outside);
                let Some(mark) = self.ledger.new_mark(*id).cloned() else { return };
                // Before anything is written elsewhere.
                if self.root.open(path).and_then(|dir| dir.set_mark(&mark)).is_ok() {
                    self.ledger.marked(*id);
                    marks.remove(path);
                }
            }
        }
    }

    fn note_errors(&mut self, only: Option<&BTreeSet<CgroupPath>>, errors: Vec<Error>, report: &mut Report) {
        match only {
            None => self.seen.errors.clear(),
            Some(only) => self.seen.errors.retain(|path, _| !only.iter().any(|only| only.as_str() == path)),
        }
        for error in &errors {
            self.seen.errors.insert(error.path().to_owned(), crate::chain(error));
        }
        report.errors.extend(errors);
    }

    fn note_unmarked(&mut self, unmarked: &[Error]) {
        if let Some(error) = unmarked.first() {
            self.seen.unmarked = Some(Problem {
                what: "cgroup",
                place: String::from("mark"),
                message: format!(
                    "cannot mark cgroups, so values that are no longer planned stay after a restart: {}",
                    crate::chain(error)
                ),
            });
        }
    }
}

/// The files that were to be written and were not.
fn open_files<'steps>(
    steps: impl Iterator<Item = &'steps Step>,
    withheld: &'steps [Withheld],
) -> impl Iterator<Item = (CgroupPath, CgroupFile)> {
    steps
        .filter_map(|step| match step {
            Step::Write(write) => Some(write),
            Step::Create(_) | Step::Enable { .. } | Step::Move { .. } => None,
        })
        .chain(withheld.iter().map(|withheld| &withheld.write))
        .map(|write| (write.path.clone(), write.file()))
}
