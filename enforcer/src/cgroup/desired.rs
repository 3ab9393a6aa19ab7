//! Turns the plan around: from pods to cgroups, with adopted ones assigned to one pod each.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

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
    pub(super) retired: BTreeMap<CgroupPath, Arc<Owner>>,
}

/// A cgroup that is to hold values.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) plan: CgroupPlan,
    /// Its owner; `None` for the system's own cgroups, which belong to no pod, class or node.
    pub(super) owner: Option<Arc<Owner>>,
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

    /// Whether it is a container's that is to be gone, and only its CPUs are kept.
    pub(super) fn is_going(&self) -> bool {
        self.named_by == Some(GOING)
    }

    /// Whether nothing names it any longer.
    pub(super) fn is_orphaned(&self) -> bool {
        self.named_by == Some(ORPHANED)
    }

    /// Whether a kubelet of the same driver and root writes to it too: kubepods, a class's cgroup, or a reservation's.
    pub(super) fn is_shared(&self) -> bool {
        match self.owner.as_ref().map(|owner| &owner.level) {
            Some(OwnerLevel::Node | OwnerLevel::Qos(_)) => true,
            Some(OwnerLevel::Pod { .. } | OwnerLevel::Container { .. }) => false,
            None => self.named_by == Some(RESERVED),
        }
    }

    /// The uid of its pod, if it is one's.
    fn uid(&self) -> Option<&PodUid> {
        self.owner.as_ref()?.level.uid()
    }

    /// Whether others make and remove it.
    pub(super) fn is_outside(&self) -> bool {
        self.named_by.is_some() && !self.is_former() && !self.is_going()
    }
}

/// What names the cgroups that pods had by an earlier plan.
pub(super) const FORMER: &str = "an earlier plan of its pod";
/// What names the cgroups of containers that are to be gone.
pub(super) const GOING: &str = "a pod that is to be gone";
/// What names the cgroups whose former values are to be restored.
pub(super) const ORPHANED: &str = "an earlier plan";

/// The pod that owns each pod cgroup once the plan is carried out. A cgroup that a pod asks to adopt may be another
/// pod's, or kubepods, and is then not its own.
#[must_use]
pub fn holders(plan: &Plan, retired: &BTreeSet<&PodUid>) -> BTreeMap<CgroupPath, PodUid> {
    // By the rules of `Desired`, without its values: this is asked for after each change, for every pod.
    let nobodys = std::iter::once(&plan.node).chain(plan.qos.iter().map(|(_, cgroup)| cgroup));
    let mut taken: Taken = nobodys.map(|cgroup| (cgroup.path.clone(), None)).collect();
    for pod in plan.pods.iter().filter(|pod| !retired.contains(&pod.uid)) {
        let own = paths(pod).filter(|(_, adopted)| !adopted);
        taken.extend(own.map(|(path, _)| (path.clone(), Some(pod.uid.clone()))));
    }
    taken.extend(plan.reserved.iter().map(|cgroup| (cgroup.path.clone(), None)));
    for pod in plan.pods.iter().filter(|pod| keeps_adopted(pod, retired)) {
        let mut own: BTreeSet<&CgroupPath> = BTreeSet::new();
        for (path, _) in paths(pod).filter(|(_, adopted)| *adopted) {
            if why_not(&taken, Option::as_ref, &own, pod, path).is_none() {
                taken.insert(path.clone(), Some(pod.uid.clone()));
                own.insert(path);
            }
        }
    }
    taken.into_iter().filter_map(|(path, uid)| Some((path, uid?))).collect()
}

/// The planned cgroups, each with the uid of its pod, if it is one's.
type Taken = BTreeMap<CgroupPath, Option<PodUid>>;

/// Whether the cgroups that a pod adopts are its own. An evicted pod keeps its values: others may start processes in its
/// cgroup again.
fn keeps_adopted(pod: &PodPlan, retired: &BTreeSet<&PodUid>) -> bool {
    pod.admission.rejection() == Some(&Rejection::Evicted) || !retired.contains(&pod.uid)
}

/// Why a pod does not adopt the cgroup at that path; `None` if it does. `planned` are all cgroups, of which the pod has
/// adopted `own` already.
fn why_not<T>(
    planned: &BTreeMap<CgroupPath, T>,
    uid_of: impl Fn(&T) -> Option<&PodUid>,
    own: &BTreeSet<&CgroupPath>,
    pod: &PodPlan,
    path: &CgroupPath,
) -> Option<String> {
    let below = format!("{}/", path.as_str().trim_end_matches('/'));
    let mut others = planned.keys().filter(|other| !own.contains(other));
    if let Some(other) = others.find(|other| *other == path || other.as_str().starts_with(&below)) {
        return Some(format!("it is or holds {other}, which is planned already"));
    }
    // A kill of the other pod kills this one too, and its memory counts as the other's.
    let is_within = |(other, of): &(&CgroupPath, &T)| {
        let rest = path.as_str().strip_prefix(other.as_str());
        uid_of(of).is_some_and(|uid| *uid != pod.uid) && rest.is_some_and(|rest| rest.starts_with('/'))
    };
    let (other, _) = planned.iter().rfind(is_within)?;
    Some(format!("it is within {other}, which is another pod's"))
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
            if keeps_adopted(pod, retired) {
                desired.adopt(pod);
            }
        }
        // A pod that took over a retired pod's cgroup keeps it.
        desired.retired.retain(|path, _| !desired.targets.contains_key(path));
        desired
    }

    /// Makes the large maps [small](pack).
    pub(super) fn pack(&mut self) {
        pack(&mut self.targets);
        pack(&mut self.scores);
        pack(&mut self.containers);
    }

    /// Takes the owners that are the same as before from there: the index and the existing cgroups hold those already.
    pub(super) fn share_with(&mut self, before: &Self) {
        let known = |path: &CgroupPath| before.targets.get(path)?.owner.as_ref();
        for (path, target) in &mut self.targets {
            if let Some((own, known)) = target.owner.as_mut().zip(known(path))
                && own == known
            {
                *own = Arc::clone(known);
            }
        }
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
            if let Some(why) = why_not(&self.targets, Target::uid, &taken, pod, path) {
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

/// Makes a map anew: one that was filled in the order of its keys holds half-empty nodes.
pub(super) fn pack<K: Ord, V>(map: &mut BTreeMap<K, V>) {
    *map = std::mem::take(map).into_iter().collect();
}

fn owner(plan: &CgroupPlan, level: OwnerLevel) -> Arc<Owner> {
    Arc::new(Owner { path: plan.path.clone(), level })
}

/// The paths of the pod's cgroup and of its containers', and whether each is adopted.
fn paths(pod: &PodPlan) -> impl Iterator<Item = (&CgroupPath, bool)> {
    let containers = pod.containers.iter().map(|container| (&container.cgroup.path, container.adopted));
    std::iter::once((&pod.cgroup.path, pod.adopted)).chain(containers)
}

/// The pod's cgroup and its containers', and whether each is adopted.
fn cgroups(pod: &PodPlan) -> impl Iterator<Item = (&CgroupPlan, OwnerLevel, bool)> {
    let name = Arc::new(pod.name.clone());
    let own = OwnerLevel::Pod { pod: Arc::clone(&name), uid: pod.uid.clone() };
    let containers = pod.containers.iter().map(move |container| {
        let level = OwnerLevel::Container {
            pod: Arc::clone(&name),
            uid: pod.uid.clone(),
            container: container.name.clone(),
        };
        (&container.cgroup, level, container.adopted)
    });
    std::iter::once((&pod.cgroup, own, pod.adopted)).chain(containers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        policy::{Settings, admission::Admission, plan_decided},
        sample,
    };

    #[test]
    fn holders_are_those_of_the_desired_state() {
        let bare = sample::pod("plain", &["a", "b"]);
        let plain_path = plan_decided(&sample::node(), &Settings::default(), &[(&bare, Admission::plain())])
            .pods[0]
            .cgroup
            .path
            .to_string();
        let within = format!("{plain_path}/x");
        let pods = [
            bare,
            sample::adopting("out", Some("/x"), &[("a", "/x/y")]),
            sample::adopting("node", Some("/kubepods"), &[]),
            sample::adopting("thief", None, &[("a", &within), ("b", "/system.slice/b.service")]),
            sample::adopting("late", Some("/system.slice"), &[]),
            sample::adopting("inner", Some("/x/y/z"), &[]),
        ];
        for retired in 0..=pods.len() {
            for rejection in [None, Some(Rejection::Evicted)] {
                let decided = pods.iter().enumerate().map(|(place, pod)| {
                    let is_rejected = place == retired && rejection.is_some();
                    let admission = rejection.clone().filter(|_| is_rejected).map(Admission::Rejected);
                    (pod, admission.unwrap_or_else(Admission::plain))
                });
                let decided: Vec<_> = decided.collect();
                let plan = plan_decided(&sample::node(), &Settings::default(), &decided);
                let retired = plan.pods.get(retired).map(|plan| &plan.uid).into_iter().collect();
                let targets = Desired::new(&plan, &retired).targets.into_iter();
                let of_targets: BTreeMap<_, _> =
                    targets.filter_map(|(path, target)| Some((path, target.uid()?.clone()))).collect();
                assert_eq!(holders(&plan, &retired), of_targets, "{retired:?} {rejection:?}");
                assert!(of_targets.len() > 3);
            }
        }
    }
}
