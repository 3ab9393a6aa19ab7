use std::collections::{BTreeMap, BTreeSet};

use crate::{
    model::{CgroupPath, Owner, OwnerLevel, PodUid},
    policy::{CgroupPlan, Plan, PodPlan},
};

/// A plan in the form that the reconciler works with: by cgroup.
#[derive(Clone, Debug, Default)]
pub(super) struct Desired {
    /// The cgroups that are to hold values.
    pub(super) targets: BTreeMap<CgroupPath, Target>,
    /// The scores of the containers' processes.
    pub(super) scores: BTreeMap<CgroupPath, i16>,
    /// The cgroups of pods that are in the plan but retired, such as evicted ones: to be removed once they are empty.
    pub(super) retired: BTreeMap<CgroupPath, Owner>,
}

/// A cgroup that is to hold values.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) plan: CgroupPlan,
    /// Whose it is; none of a pod, class or node for the system's own.
    pub(super) owner: Option<Owner>,
    /// What names it, if somebody else makes and removes it.
    pub(super) named_by: Option<&'static str>,
}

/// What names the cgroups that are held to a reservation.
const RESERVED: &str = "systemReservedCgroup or kubeReservedCgroup";

impl Desired {
    pub(super) fn new(plan: &Plan, retired: &BTreeSet<&PodUid>) -> Self {
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
            }
        }
        for cgroup in &plan.reserved {
            let target = Target { plan: cgroup.clone(), owner: None, named_by: Some(RESERVED) };
            desired.targets.insert(cgroup.path.clone(), target);
        }
        // A pod that took over a retired one's cgroup keeps it.
        desired.retired.retain(|path, _| !desired.targets.contains_key(path));
        desired
    }

    /// The cgroups that are written to, and neither made nor removed.
    pub(super) fn outside(&self) -> impl Iterator<Item = &CgroupPath> {
        self.targets.iter().filter(|(_, target)| target.named_by.is_some()).map(|(path, _)| path)
    }

    fn add(&mut self, plan: &CgroupPlan, level: OwnerLevel) {
        let target = Target { plan: plan.clone(), owner: Some(owner(plan, level)), named_by: None };
        self.targets.insert(plan.path.clone(), target);
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
