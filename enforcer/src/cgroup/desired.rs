use std::collections::{BTreeMap, BTreeSet};

use super::Error;
use crate::{
    model::{CgroupPath, Owner, OwnerLevel, PodUid},
    policy::{CgroupPlan, Plan, PodPlan, admission::Rejection, name},
};

/// A plan by cgroup, as the reconciler works with it.
#[derive(Debug, Default)]
pub(super) struct Desired {
    /// The cgroups that are to hold values.
    pub(super) targets: BTreeMap<CgroupPath, Target>,
    /// The scores of the containers' processes.
    pub(super) scores: BTreeMap<CgroupPath, i16>,
    /// The plan's score of those that have another one in `scores`.
    pub(super) planned: BTreeMap<CgroupPath, i16>,
    /// The containers' cgroups by their pod's, without adopted pods; also by each former cgroup of a pod.
    pub(super) containers: BTreeMap<CgroupPath, Vec<CgroupPath>>,
    /// The container whose score the processes of a former cgroup get, by that cgroup.
    pub(super) follows: BTreeMap<CgroupPath, CgroupPath>,
    /// Where the processes of former cgroups are moved to.
    pub(super) moves: BTreeMap<CgroupPath, CgroupPath>,
    /// Why cgroups are not adopted.
    pub(super) refused: Vec<Error>,
    /// The cgroups of planned but retired pods, such as evicted ones: removed once they are empty.
    pub(super) retired: BTreeMap<CgroupPath, Owner>,
}

/// A cgroup that is to hold values.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) plan: CgroupPlan,
    /// Its owner; `None` for the system's own cgroups, which belong to no pod, class or node.
    pub(super) owner: Option<Owner>,
    /// What names it, if others make and remove it.
    pub(super) named_by: Option<&'static str>,
    /// Whether its first process brings it, so that its absence is no problem.
    pub(super) is_awaited: bool,
}

impl Target {
    /// Whether its pod had it by an earlier plan, and it still counts as the pod's.
    pub(super) fn is_former(&self) -> bool {
        self.named_by == Some(FORMER)
    }

    /// Whether others make and remove it.
    pub(super) fn is_outside(&self) -> bool {
        self.named_by.is_some() && !self.is_former()
    }
}

/// What names the cgroups that pods had by an earlier plan.
pub(super) const FORMER: &str = "an earlier plan of its pod";

/// The pod that owns each pod cgroup once the plan is carried out. A cgroup that a pod asks to adopt may be another
/// pod's, or kubepods, and is then not its own.
#[must_use]
pub fn holders(plan: &Plan, retired: &BTreeSet<&PodUid>) -> BTreeMap<CgroupPath, PodUid> {
    let targets = Desired::new(plan, retired).targets.into_iter();
    targets.filter_map(|(path, target)| Some((path, target.owner?.level.uid()?.clone()))).collect()
}

/// What names the cgroups that pods adopt.
const ANNOTATION: &str = "an annotation of a pod";
/// What names the cgroups that a reservation limits.
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
            if !pod.adopted && pod.placed.is_none() {
                let paths = containers().map(|container| container.cgroup.path.clone());
                desired.containers.insert(pod.cgroup.path.clone(), paths.collect());
            }
            for container in containers().filter(|_| pod.are_scores_known()) {
                desired.scores.insert(container.cgroup.path.clone(), container.oom_score_adj);
            }
            if pod.placed.is_some() {
                desired.await_all(pod);
            }
        }
        for cgroup in &plan.reserved {
            let target =
                Target { plan: cgroup.clone(), owner: None, named_by: Some(RESERVED), is_awaited: false };
            desired.targets.insert(cgroup.path.clone(), target);
        }
        for pod in &plan.pods {
            // An evicted pod keeps its values: others may start processes in its cgroup again.
            let is_evicted = pod.admission.rejection() == Some(&Rejection::Evicted);
            if is_evicted || !retired.contains(&pod.uid) {
                desired.adopt(pod);
            }
        }
        // A pod that took over a retired pod's cgroup keeps it.
        desired.retired.retain(|path, _| !desired.targets.contains_key(path));
        desired
    }

    /// Gives these containers these scores instead of the plan's, and all others the plan's.
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

    /// The cgroups that are written to, but neither made nor removed.
    pub(super) fn outside(&self) -> impl Iterator<Item = &CgroupPath> {
        self.targets.iter().filter(|(_, target)| target.is_outside()).map(|(path, _)| path)
    }

    /// Adopts the cgroups that a pod names, unless they are or hold planned ones, or lie within another pod's.
    fn adopt(&mut self, pod: &PodPlan) {
        let mut taken: BTreeSet<&CgroupPath> = BTreeSet::new();
        for (cgroup, level, _) in cgroups(pod).filter(|(_, _, adopted)| *adopted) {
            let path = &cgroup.path;
            let others = self.targets.keys().filter(|target| !taken.contains(target));
            let below = format!("{}/", path.as_str().trim_end_matches('/'));
            let is_or_holds =
                others.into_iter().find(|target| *target == path || target.as_str().starts_with(&below));
            // A kill of the other pod kills this one too, and its memory counts as the other's.
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
        // Of containers that share a cgroup the last one counts: app containers come last.
        for container in pod.containers.iter().filter(|container| taken.contains(&container.cgroup.path)) {
            self.scores.insert(container.cgroup.path.clone(), container.oom_score_adj);
        }
    }

    /// The kubelet makes and removes this pod's cgroups, so a missing one is no fault.
    fn await_all(&mut self, pod: &PodPlan) {
        for (cgroup, ..) in cgroups(pod) {
            if let Some(target) = self.targets.get_mut(&cgroup.path) {
                target.is_awaited = true;
            }
        }
    }

    fn add(&mut self, plan: &CgroupPlan, level: OwnerLevel) {
        // systemd does not make a scope without a process.
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
