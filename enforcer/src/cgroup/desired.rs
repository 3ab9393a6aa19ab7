use std::collections::{BTreeMap, BTreeSet};

use super::Error;
use crate::{
    model::{CgroupPath, Owner, OwnerLevel, PodUid},
    policy::{CgroupPlan, Plan, PodPlan, admission::Rejection, name},
};

/// A plan in the form that the reconciler works with: by cgroup.
#[derive(Debug, Default)]
pub(super) struct Desired {
    /// The cgroups that are to hold values.
    pub(super) targets: BTreeMap<CgroupPath, Target>,
    /// The scores of the containers' processes.
    pub(super) scores: BTreeMap<CgroupPath, i16>,
    /// Those of them that the plan has another score for: the plan's.
    pub(super) planned: BTreeMap<CgroupPath, i16>,
    /// The containers' cgroups, by their pod's; of pods that are not adopted, and by each cgroup that a pod had formerly.
    pub(super) containers: BTreeMap<CgroupPath, Vec<CgroupPath>>,
    /// The containers whose score the processes of a former cgroup have, by that cgroup.
    pub(super) follows: BTreeMap<CgroupPath, CgroupPath>,
    /// Where the processes of former cgroups are to be moved to.
    pub(super) moves: BTreeMap<CgroupPath, CgroupPath>,
    /// Why cgroups are not adopted.
    pub(super) refused: Vec<Error>,
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
    /// Whether it comes with its first process, and nothing is amiss while it is not there.
    pub(super) is_awaited: bool,
}

impl Target {
    /// Whether it is a cgroup that its pod had by an earlier plan, and that still counts as the pod's.
    pub(super) fn is_former(&self) -> bool {
        self.named_by == Some(FORMER)
    }

    /// Whether it is somebody else's to make and to remove.
    pub(super) fn is_outside(&self) -> bool {
        self.named_by.is_some() && !self.is_former()
    }
}

/// What names the cgroups that pods had by an earlier plan.
pub(super) const FORMER: &str = "an earlier plan of its pod";

/// Whose the pods' cgroups are when the plan is carried out: what a pod names to adopt may be another's, or kubepods, and
/// is then none of its own.
#[must_use]
pub fn holders(plan: &Plan, retired: &BTreeSet<&PodUid>) -> BTreeMap<CgroupPath, PodUid> {
    let targets = Desired::new(plan, retired).targets.into_iter();
    targets.filter_map(|(path, target)| Some((path, target.owner?.level.uid()?.clone()))).collect()
}

/// What names the cgroups that pods adopt.
const ANNOTATION: &str = "an annotation of a pod";
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
            let own = cgroups(pod).filter(|(_, _, adopted)| !adopted);
            if retired.contains(&pod.uid) {
                desired
                    .retired
                    .extend(own.map(|(cgroup, level, _)| (cgroup.path.clone(), owner(cgroup, level))));
                continue;
            }
            for (cgroup, level, _) in own {
                desired.add(cgroup, level);
            }
            let containers = || pod.containers.iter().filter(|container| !container.adopted);
            if !pod.adopted {
                let paths = containers().map(|container| container.cgroup.path.clone());
                desired.containers.insert(pod.cgroup.path.clone(), paths.collect());
            }
            for container in containers() {
                desired.scores.insert(container.cgroup.path.clone(), container.oom_score_adj);
            }
        }
        for cgroup in &plan.reserved {
            let target =
                Target { plan: cgroup.clone(), owner: None, named_by: Some(RESERVED), is_awaited: false };
            desired.targets.insert(cgroup.path.clone(), target);
        }
        for pod in &plan.pods {
            // An evicted one keeps its values: somebody else may start processes in its cgroup again.
            let is_evicted = pod.admission.rejection() == Some(&Rejection::Evicted);
            if is_evicted || !retired.contains(&pod.uid) {
                desired.adopt(pod);
            }
        }
        // A pod that took over a retired one's cgroup keeps it.
        desired.retired.retain(|path, _| !desired.targets.contains_key(path));
        desired
    }

    /// Gives containers these scores instead of the plan's, and the plan's to all others.
    pub(super) fn align(&mut self, aligned: &BTreeMap<CgroupPath, i16>) {
        self.scores.append(&mut self.planned);
        for (path, score) in aligned {
            if let Some(planned) = self.scores.get_mut(path)
                && planned != score
            {
                self.planned.insert(path.clone(), std::mem::replace(planned, *score));
            }
        }
        for (former, container) in &self.follows {
            if let Some(score) = self.scores.get(container) {
                self.scores.insert(former.clone(), *score);
            }
        }
    }

    /// The cgroups that are written to, and neither made nor removed.
    pub(super) fn outside(&self) -> impl Iterator<Item = &CgroupPath> {
        self.targets.iter().filter(|(_, target)| target.is_outside()).map(|(path, _)| path)
    }

    /// Takes over the cgroups that a pod names, as far as they are nobody's yet, and within nobody's.
    fn adopt(&mut self, pod: &PodPlan) {
        let mut taken: BTreeSet<&CgroupPath> = BTreeSet::new();
        for (cgroup, level, _) in cgroups(pod).filter(|(_, _, adopted)| *adopted) {
            let path = &cgroup.path;
            let others = self.targets.keys().filter(|target| !taken.contains(target));
            let below = format!("{}/", path.as_str().trim_end_matches('/'));
            let is_or_holds =
                others.into_iter().find(|target| *target == path || target.as_str().starts_with(&below));
            // Whoever kills the other's kills this one too, and counts its memory as the other's.
            let is_within = |(target, of): &(&CgroupPath, &Target)| {
                let uid = of.owner.as_ref().and_then(|owner| owner.level.uid());
                let rest = path.as_str().strip_prefix(target.as_str());
                uid.is_some_and(|uid| *uid != pod.uid) && rest.is_some_and(|rest| rest.starts_with('/'))
            };
            let why = is_or_holds
                .map(|target| format!("it is or holds {target}, which is planned already"))
                .or_else(|| {
                    let (target, _) = self.targets.iter().rfind(is_within)?;
                    Some(format!("it is within {target}, which is another pod's"))
                });
            if let Some(why) = why {
                let error = Error::Forbidden { path: path.to_string(), named_by: ANNOTATION, why };
                self.refused.push(error);
                continue;
            }
            let target = Target {
                plan: cgroup.clone(),
                owner: Some(owner(cgroup, level)),
                named_by: Some(ANNOTATION),
                is_awaited: false,
            };
            self.targets.insert(path.clone(), target);
            taken.insert(path);
        }
        // Of those that share a cgroup the last counts: app containers stand last.
        for container in pod.containers.iter().filter(|container| taken.contains(&container.cgroup.path)) {
            self.scores.insert(container.cgroup.path.clone(), container.oom_score_adj);
        }
    }

    fn add(&mut self, plan: &CgroupPlan, level: OwnerLevel) {
        // systemd makes no scope without a process.
        let is_awaited = name::is_scope(&plan.path);
        let target =
            Target { plan: plan.clone(), owner: Some(owner(plan, level)), named_by: None, is_awaited };
        self.targets.insert(plan.path.clone(), target);
    }
}

fn owner(plan: &CgroupPlan, level: OwnerLevel) -> Owner {
    Owner { path: plan.path.clone(), level }
}

/// The pod's cgroup and its containers', and whether each is adopted.
fn cgroups(pod: &PodPlan) -> impl Iterator<Item = (&CgroupPlan, OwnerLevel, bool)> {
    let own = OwnerLevel::Pod { pod: pod.name.clone(), uid: pod.uid.clone() };
    let containers = pod.containers.iter().map(|container| {
        let level = OwnerLevel::Container {
            pod: pod.name.clone(),
            uid: pod.uid.clone(),
            container: container.name.clone(),
        };
        (&container.cgroup, level, container.adopted)
    });
    std::iter::once((&pod.cgroup, own, pod.adopted)).chain(containers)
}
