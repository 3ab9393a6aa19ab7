//! The CPUs of what is left of pods that are to be gone.
//!
//! Processes of a pod that was removed or evicted may run on for as long as they like. As long as they do, they are kept off the
//! CPUs that containers have of their own, like the processes of any other container.

use std::{collections::BTreeMap, sync::Arc};

use super::{Desired, Reconciler};
use crate::{
    cgroup::{
        Missing, Step,
        desired::{GOING, Target},
    },
    model::{CgroupFile, CgroupPath, CgroupValues, Owner, OwnerLevel, PodUid},
    policy::{
        CgroupPlan, Plan,
        cpus::{Assignments, CpuSet},
    },
};

impl Reconciler {
    /// Takes the containers that are to be gone and still run into the desired state, with the CPUs that they may run on. Call
    /// it after everything else is there.
    pub(super) fn keep_off(&mut self, plan: &Plan) {
        if self.is_audit {
            return;
        }
        match &plan.cpus {
            Some(assignments) => self.keep_to(assignments),
            None => self.widen(),
        }
    }

    /// Gives all CPUs back where an earlier start has kept such containers to some of them. What the plan names gets back by
    /// itself what it no longer says.
    fn widen(&mut self) {
        for (path, owner) in self.unplanned() {
            let is_container = matches!(owner.level, OwnerLevel::Container { .. });
            if is_container && self.has_written_cpus(&path) && self.may_run(&path) {
                self.want(path, owner, CgroupValues::default());
            }
        }
    }

    fn has_written_cpus(&self, path: &CgroupPath) -> bool {
        let Ok(dir) = self.root.open(path) else { return false };
        if self.ledger.knows(dir.id()) {
            return self.ledger.files(dir.id()).any(|file| file == CgroupFile::CpusetCpus);
        }
        dir.mark().ok().flatten().is_some_and(|mark| mark.files.contains_key(&CgroupFile::CpusetCpus))
    }

    /// The pods' cgroups that exist and that the plan does not name.
    fn unplanned(&self) -> BTreeMap<CgroupPath, Arc<Owner>> {
        let known = self.standing.iter().filter(|(_, known)| !known.is_outside);
        known
            .map(|(path, known)| (path, &known.owner))
            .chain(&self.desired.retired)
            .filter(|(path, _)| !self.desired.targets.contains_key(path))
            .map(|(path, owner)| (path.clone(), Arc::clone(owner)))
            .collect()
    }

    fn want(&mut self, path: CgroupPath, owner: Arc<Owner>, values: CgroupValues) {
        let plan = CgroupPlan { path: path.clone(), values: values.into() };
        let target = Target { plan, owner: Some(owner), named_by: Some(GOING), is_awaited: true };
        self.desired.targets.insert(path, target);
    }

    fn keep_to(&mut self, assignments: &Assignments) {
        let shared = Arc::new(assignments.default_cpu_set.clone());
        let own_or_shared = |own: Option<CpuSet>| own.map_or_else(|| Arc::clone(&shared), Arc::new);
        for (path, owner) in self.unplanned() {
            let OwnerLevel::Container { uid, container, .. } = &owner.level else { continue };
            if !self.may_run(&path) {
                continue;
            }
            let cpus = own_or_shared(assignments.get(uid, container).cloned());
            let values = CgroupValues { cpuset_cpus: Some(cpus), ..CgroupValues::default() };
            self.want(path, owner, values);
        }
        // A former cgroup that keeps its values does not keep those CPUs.
        for target in self.desired.targets.values_mut().filter(|target| target.is_former()) {
            let level = target.owner.as_ref().map(|owner| &owner.level);
            let Some(OwnerLevel::Container { uid, container, .. }) = level else { continue };
            let may = own(assignments, uid).unwrap_or_default().union(&shared);
            let is_off = |cpus: &Arc<CpuSet>| !cpus.is_empty() && cpus.is_subset(&may);
            if !target.plan.values.cpuset_cpus.as_ref().is_some_and(is_off) {
                let cpus = own_or_shared(assignments.get(uid, container).cloned());
                target.plan.values.cpuset_cpus = Some(cpus);
            }
        }
        // What a runtime made below such a pod gets back its other values, as it is not ours.
        for (path, target) in self.desired.targets.iter_mut().filter(|(_, target)| target.is_orphaned()) {
            let Some(pod) = path.parent().and_then(|pod| self.standing.get(&pod)) else { continue };
            let OwnerLevel::Pod { uid, .. } = &pod.owner.level else { continue };
            if !pod.is_outside {
                target.plan.values.cpuset_cpus = Some(own_or_shared(own(assignments, uid)));
            }
        }
    }

    /// Whether a cgroup exists and may hold processes, as one that cannot be read may. An empty one is about to be removed.
    fn may_run(&self, path: &CgroupPath) -> bool {
        match self.root.open(path) {
            Ok(dir) => dir.is_populated().unwrap_or(true),
            Err(error) => !error.is_gone(),
        }
    }
}

/// All CPUs that a pod's containers have of their own.
fn own(assignments: &Assignments, uid: &PodUid) -> Option<CpuSet> {
    let containers = assignments.entries.get(uid)?;
    containers.values().cloned().reduce(|all, cpus| all.union(&cpus))
}

/// Leaves the files of containers that are to be gone as they are, except for their CPUs.
pub(super) fn leave_other_files(desired: &Desired, steps: &mut Vec<Step>, missing: &mut Vec<Missing>) {
    let is_going = |path: &CgroupPath| desired.targets.get(path).is_some_and(Target::is_going);
    let is_kept = |path: &CgroupPath, file: CgroupFile| file == CgroupFile::CpusetCpus || !is_going(path);
    steps.retain(|step| match step {
        Step::Write(write) => is_kept(&write.path, write.file()),
        Step::Create(_) | Step::Enable { .. } | Step::Move { .. } => true,
    });
    missing.retain(|missing| is_kept(&missing.path, missing.file));
}
