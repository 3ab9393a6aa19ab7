use std::collections::{BTreeMap, BTreeSet};

use super::UnitName;
use crate::{
    model::{CgroupPath, Owner, OwnerLevel, PodUid},
    policy::{CgroupPlan, Plan, PodPlan},
};

/// A plan in the form that the reconciler works with: by cgroup.
#[derive(Debug, Default)]
pub(super) struct Desired<'plan> {
    /// The cgroups that are to exist, with their files.
    pub(super) plans: Vec<&'plan CgroupPlan>,
    /// Of these, the ones that are written to and never made: the system's own.
    pub(super) reserved: BTreeSet<&'plan CgroupPath>,
    /// Of these, the ones that come with their first process and are never made: containers' scopes.
    pub(super) awaited: BTreeSet<&'plan CgroupPath>,
    /// Whose they are.
    pub(super) owners: BTreeMap<CgroupPath, Owner>,
    /// The scores of the containers' processes.
    pub(super) scores: BTreeMap<CgroupPath, i16>,
    /// The cgroups of pods that are in the plan but retired, such as evicted ones: to be removed once they are empty.
    pub(super) retired: BTreeMap<CgroupPath, Owner>,
}

impl<'plan> Desired<'plan> {
    pub(super) fn new(plan: &'plan Plan, retired: &BTreeSet<&PodUid>) -> Self {
        let mut desired = Self::default();
        desired.add(&plan.node, OwnerLevel::Node);
        for (class, cgroup) in &plan.qos {
            desired.add(cgroup, OwnerLevel::Qos(*class));
        }
        for pod in &plan.pods {
            if retired.contains(&pod.uid) {
                desired
                    .retired
                    .extend(owners(pod).map(|(cgroup, level)| (cgroup.path.clone(), owner(cgroup, level))));
                continue;
            }
            for (cgroup, level) in owners(pod) {
                desired.add(cgroup, level);
            }
            for container in &pod.containers {
                desired.scores.insert(container.cgroup.path.clone(), container.oom_score_adj);
                if UnitName::is_scope(&container.cgroup.path) {
                    desired.awaited.insert(&container.cgroup.path);
                }
            }
        }
        for cgroup in &plan.reserved {
            desired.plans.push(cgroup);
            desired.reserved.insert(&cgroup.path);
        }
        // A pod that took over a retired one's cgroup keeps it.
        desired.retired.retain(|path, _| !desired.owners.contains_key(path));
        desired
    }

    fn add(&mut self, plan: &'plan CgroupPlan, level: OwnerLevel) {
        self.plans.push(plan);
        self.owners.insert(plan.path.clone(), owner(plan, level));
    }
}

fn owner(plan: &CgroupPlan, level: OwnerLevel) -> Owner {
    Owner { path: plan.path.clone(), level }
}

/// The pod's cgroup and its containers'.
fn owners(pod: &PodPlan) -> impl Iterator<Item = (&CgroupPlan, OwnerLevel)> {
    let own = OwnerLevel::Pod { pod: pod.name.clone(), uid: pod.uid.clone() };
    let containers = pod.containers.iter().map(|container| {
        let level = OwnerLevel::Container {
            pod: pod.name.clone(),
            uid: pod.uid.clone(),
            container: container.name.clone(),
        };
        (&container.cgroup, level)
    });
    std::iter::once((&pod.cgroup, own)).chain(containers)
}
