//! The cgroups that a pod had by an earlier plan, while they hold something of it.
//!
//! A manifest that moves a pod elsewhere makes new cgroups. The processes in the old ones are still the pod's: they are
//! moved into the new ones. Where that is impossible, the old ones have the pod's values and their processes the pod's
//! scores, until they are empty.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{Desired, Known, Reconciler};
use crate::{
    cgroup::{
        Permit, Removal, Step,
        desired::{FORMER, Target},
        observe::usage_bytes,
        units::UnitName,
    },
    model::{CgroupFile, CgroupId, CgroupPath, CgroupValue, CgroupValues, Common, Owner, OwnerLevel, PodUid},
    policy::{CgroupPlan, Plan},
};

/// Less memory than this does not keep a former cgroup: kernel structures of moved processes, and charges that are
/// batched per CPU.
const RESIDUE_BYTES: u64 = 4 << 20;

/// How often a former cgroup is looked at: no event reports that its memory is freed.
const LOOK: Duration = Duration::from_secs(10);

/// The cgroups of a pod in the plan.
#[derive(Debug, Default)]
struct Present {
    pod: Option<CgroupPath>,
    containers: BTreeMap<String, CgroupPath>,
}

impl Present {
    /// The cgroup that has the pod's values; that of an adopted pod may be known as its container's.
    fn pod(&self) -> Option<&CgroupPath> {
        self.pod.as_ref().or_else(|| self.containers.values().next())
    }

    /// The only container's; `None` if there are several.
    fn only(&self) -> Option<&CgroupPath> {
        (self.containers.len() == 1).then(|| self.containers.values().next()).flatten()
    }
}

impl Reconciler {
    /// Moves the processes of these pods' former cgroups from now on: the eviction code knows both places of each.
    pub fn set_movable(&mut self, former: BTreeSet<CgroupPath>) {
        self.movable = former;
    }

    /// Looks for former cgroups below these too at the first look: the parents of pods' cgroups under another driver.
    pub fn set_former_parents(&mut self, parents: Vec<CgroupPath>) {
        self.former_parents = parents;
    }

    /// Finds at the first look what an earlier start made and the plan does not name. Call it before `recall`.
    pub(super) fn recall_former(&mut self, plan: &Plan) {
        if self.recalled.is_some() || self.is_audit {
            return;
        }
        let qos = plan.qos.iter().map(|(_, cgroup)| &cgroup.path);
        let parents = std::iter::once(&plan.node.path).chain(qos).chain(&self.former_parents);
        let parents: Vec<CgroupPath> = parents.chain(self.desired.containers.keys()).cloned().collect();
        for parent in parents {
            for path in self.unknown_children(&parent).unwrap_or_default() {
                if !self.desired.targets.contains_key(&path) {
                    self.recognise(&path);
                }
            }
        }
    }

    /// Takes the existing former cgroups of planned pods into the desired state.
    ///
    /// A container keeps its values and its score by its name. One whose name no container has any longer counts as the
    /// pod's only one, or else keeps its current values; its score is the highest of its pod's. Its processes are not
    /// moved, as a rename is not guessed.
    pub(super) fn keep_former(&mut self) {
        if self.is_audit {
            return;
        }
        let present = present(&self.desired);
        let is_former = |path: &CgroupPath, known: &Known| {
            !known.is_outside
                && known.owner.level.uid().is_some_and(|uid| present.contains_key(uid))
                && !self.desired.targets.contains_key(path)
        };
        let former: Vec<(CgroupPath, Arc<Owner>)> = self
            .standing
            .iter()
            .filter(|(path, known)| is_former(path, known))
            .map(|(path, known)| (path.clone(), Arc::clone(&known.owner)))
            .collect();
        for (path, owner) in former {
            let Some(present) = owner.level.uid().and_then(|uid| present.get(uid)) else { continue };
            let values = if let Some(container) = owner.level.container() {
                self.follow(&path, container, present)
            } else {
                let containers: BTreeSet<_> = present.containers.values().cloned().collect();
                self.desired.containers.insert(path.clone(), containers.into_iter().collect());
                present.pod().and_then(|pod| self.planned_values(pod))
            };
            let values = values.unwrap_or_else(|| self.held_values(&path).into());
            let plan = CgroupPlan { path: path.clone(), values };
            let target = Target { plan, owner: Some(owner), named_by: Some(FORMER), is_awaited: true };
            self.desired.targets.insert(path, target);
        }
    }

    /// Decides whose score a container's former cgroup gets, and whether its processes are moved. Returns the values
    /// that it is to have; `None` keeps the current ones.
    fn follow(
        &mut self,
        path: &CgroupPath,
        container: &str,
        present: &Present,
    ) -> Option<Common<CgroupValues>> {
        let heir = present.containers.get(container);
        let score = |container: &&CgroupPath| self.desired.scores.get(*container).copied();
        let followed = heir.or_else(|| present.containers.values().max_by_key(score));
        if let Some(followed) = followed.cloned()
            && let Some(score) = score(&&followed)
        {
            self.desired.scores.insert(path.clone(), score);
            self.desired.follows.insert(path.clone(), followed);
        }
        if let Some(heir) = heir
            && self.desired.targets.get(heir).is_some_and(|target| target.named_by.is_none())
            // Only systemd may move processes of its units, and it moves none.
            && [path, heir].iter().all(|path| UnitName::of(path).is_none())
        {
            self.desired.moves.insert(path.clone(), heir.clone());
        }
        heir.or_else(|| present.only()).and_then(|container| self.planned_values(container))
    }

    fn planned_values(&self, path: &CgroupPath) -> Option<Common<CgroupValues>> {
        Some(self.desired.targets.get(path)?.plan.values.clone())
    }

    /// The current values of the files that were written in a cgroup.
    fn held_values(&self, path: &CgroupPath) -> CgroupValues {
        let Ok(dir) = self.root.open(path) else { return CgroupValues::default() };
        let id = dir.id();
        let mark = if self.ledger.knows(id) { None } else { dir.mark().ok().flatten() };
        let marked = mark.iter().flat_map(|mark| mark.files.keys().copied());
        let held = |file: CgroupFile| -> Option<CgroupValue> {
            self.ledger.value(id, file).or_else(|| file.parse(&dir.read(&file.name()).ok()?))
        };
        self.ledger.files(id).chain(marked).filter_map(held).collect()
    }

    /// The steps that move processes out of former cgroups, as far as these hold any and may be emptied now.
    pub(super) fn moves(
        &self,
        desired: &Desired,
        only: Option<&BTreeSet<CgroupPath>>,
        ids: &BTreeMap<CgroupPath, CgroupId>,
        steps: &[Step],
        is_dry: bool,
    ) -> Vec<Step> {
        let is_looked_at = |from: &CgroupPath| only.is_none_or(|only| only.contains(from));
        let is_movable = |from: &CgroupPath| from.parent().is_some_and(|pod| self.movable.contains(&pod));
        let stands = |to: &CgroupPath| {
            ids.contains_key(to) || steps.iter().any(|step| matches!(step, Step::Create(path) if path == to))
        };
        let holds_some = |from: &CgroupPath| {
            let known = self.standing.get(from).map(|known| known.id);
            let dir = self.root.open(from).ok().filter(|dir| Some(dir.id()) == known);
            dir.is_some_and(|dir| dir.is_populated().unwrap_or(false))
        };
        let moves = desired.moves.iter().filter(|(from, to)| {
            is_looked_at(from) && (is_dry || is_movable(from)) && stands(to) && holds_some(from)
        });
        moves.map(|(from, to)| Step::Move { from: from.clone(), to: to.clone() }).collect()
    }

    /// The former cgroups among those whose population changed, and those that take their processes.
    pub(super) fn moved_by(&self, populated: &BTreeSet<CgroupPath>) -> Vec<CgroupPath> {
        let moves = populated.iter().filter_map(|path| self.desired.moves.get_key_value(path));
        moves.flat_map(|(from, to)| [from.clone(), to.clone()]).collect()
    }

    /// Whether former cgroups exist.
    pub(super) fn has_former(&self) -> bool {
        self.desired
            .targets
            .iter()
            .any(|(path, target)| target.is_former() && self.standing.get(path).is_some())
    }

    /// Sets when to look at former cgroups again.
    pub(super) fn plan_look_at_former(&mut self) {
        self.former_due = self.has_former().then(|| (self.clock)() + LOOK);
    }

    pub(super) fn former_due(&self) -> Option<Instant> {
        self.former_due
    }

    /// Removes a retired cgroup, unless it still holds something.
    pub(super) fn remove_retired(
        &self,
        path: &CgroupPath,
        known: &Known,
        permit: Option<&Permit>,
    ) -> Result<Removal, crate::cgroup::Error> {
        let Some(permit) = permit.filter(|_| known.is_removable()) else { return Ok(Removal::Populated) };
        if self.driver.removes(path) {
            let is_kept = self.is_charged(path, known)?;
            return if is_kept {
                Ok(Removal::Populated)
            } else {
                self.driver.remove(&self.root, path, permit)
            };
        }
        // Its maker removes it.
        match self.root.open(path).and_then(|dir| dir.is_populated()) {
            Ok(false) => Ok(Removal::Gone),
            Ok(true) => Ok(Removal::Populated),
            Err(error) if error.is_gone() => Ok(Removal::Gone),
            Err(error) => Err(error),
        }
    }

    /// Whether a pod that now runs elsewhere is still charged for memory in its former cgroup: moved processes leave
    /// their charges behind. Once the cgroup is removed, no pod is charged for them.
    pub(super) fn is_charged(&self, path: &CgroupPath, known: &Known) -> Result<bool, crate::cgroup::Error> {
        let OwnerLevel::Pod { uid, .. } = &known.owner.level else { return Ok(false) };
        if !self.desired.targets.get(path).is_some_and(Target::is_former) {
            return Ok(false);
        }
        let bytes = match self.root.open(path).and_then(|dir| usage_bytes(&dir)) {
            Ok(bytes) => bytes.unwrap_or(0),
            Err(error) if error.is_gone() => 0,
            Err(error) => return Err(error),
        };
        let is_own = |known: &&Known| !known.is_retired && known.owner.level.uid() == Some(uid);
        let runs = || {
            let mut present = self.standing.iter().filter(|(_, known)| is_own(known));
            present.any(|(path, _)| self.root.open(path).is_ok_and(|dir| dir.is_populated().unwrap_or(false)))
        };
        Ok(bytes > RESIDUE_BYTES && runs())
    }
}

/// The cgroups of the plan's pods.
fn present(desired: &Desired) -> BTreeMap<PodUid, Present> {
    let mut pods: BTreeMap<PodUid, Present> = BTreeMap::new();
    for (path, target) in &desired.targets {
        let level = target.owner.as_ref().map(|owner| &owner.level);
        let Some((level, uid)) = level.and_then(|level| Some((level, level.uid()?))) else { continue };
        let present = pods.entry(uid.clone()).or_default();
        match level.container() {
            Some(container) => drop(present.containers.insert(container.to_owned(), path.clone())),
            None => present.pod = Some(path.clone()),
        }
    }
    pods
}
