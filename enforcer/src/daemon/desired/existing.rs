//! The pods' cgroups that exist, as the last work on them left them.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    cgroup,
    model::{CgroupId, CgroupPath, OwnerLevel, PodUid},
    policy::{self, ContainerPlan, Plan, PodPlan, admission::Rejection},
};

/// The pod that owns each cgroup once the plan is carried out.
pub(super) type Holders = BTreeMap<CgroupPath, PodUid>;

/// The pods' cgroups that exist.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Existing {
    /// The planned ones.
    pub(super) planned: BTreeMap<CgroupPath, CgroupId>,
    /// Those that are removed once they hold no process.
    pub(super) going: BTreeMap<CgroupPath, Going>,
}

/// A cgroup that is removed once it holds no process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Going {
    pub(super) id: CgroupId,
    pub(super) level: OwnerLevel,
}

/// The pod that owns each cgroup once that plan is carried out and these pods are gone.
pub(super) fn holders<'a>(plan: &Plan, retired: impl IntoIterator<Item = &'a PodUid>) -> Holders {
    cgroup::holders(plan, &retired.into_iter().collect())
}

/// Returns the plan without adopted cgroups that another pod holds; `None` if that is the pod's own cgroup. Ending the
/// pod must not end another with it.
pub(super) fn as_held(plan: &PodPlan, holders: &Holders) -> Option<PodPlan> {
    let is_held = |path: &CgroupPath| holders.get(path) == Some(&plan.uid);
    let may = |adopted: bool, path: &CgroupPath| !adopted || is_held(path);
    let mut held = may(plan.adopted, &plan.cgroup.path).then(|| plan.clone())?;
    held.containers.retain(|container| may(container.adopted, &container.cgroup.path));
    Some(held)
}

impl Existing {
    /// The planned cgroup at that path, if it exists.
    pub(super) fn planned(&self, path: &CgroupPath) -> Option<CgroupId> {
        self.planned.get(path).copied()
    }

    /// The planned cgroup at that path, if it exists and is this pod's.
    pub(super) fn held(&self, uid: &PodUid, path: &CgroupPath, holders: &Holders) -> Option<CgroupId> {
        self.planned(path).filter(|_| holders.get(path) == Some(uid))
    }

    /// The pod's own cgroup, if it is removed once it holds no process, and is not another pod's meanwhile.
    fn going(&self, plan: &PodPlan, holders: &Holders) -> Option<CgroupId> {
        let path = &plan.cgroup.path;
        let is_own = !plan.adopted && holders.get(path).is_none_or(|holder| *holder == plan.uid);
        self.going.get(path).map(|going| going.id).filter(|_| is_own)
    }

    /// The former cgroups of a pod that exist, and contain no other pod meanwhile.
    fn former(&self, plan: &PodPlan, holders: &Holders) -> Vec<(CgroupPath, CgroupId)> {
        let is_within = |inner: &CgroupPath, outer: &CgroupPath| {
            let rest = inner.as_str().strip_prefix(outer.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let is_others = |path: &CgroupPath| {
            holders.iter().any(|(held, holder)| *holder != plan.uid && is_within(held, path))
        };
        let is_former = |(path, going): &(&CgroupPath, &Going)| match &going.level {
            OwnerLevel::Pod { uid, .. } => *uid == plan.uid && **path != plan.cgroup.path && !is_others(path),
            OwnerLevel::Node | OwnerLevel::Qos(_) | OwnerLevel::Container { .. } => false,
        };
        let former = self.going.iter().filter(is_former);
        former.map(|(path, going)| (path.clone(), going.id)).collect()
    }

    /// Where a pod is opened: the id of its own cgroup, and its former ones. If its new cgroup does not exist or is not
    /// available, all of the pod is in the former one, which then takes its place in the plan.
    pub(super) fn place(
        &self,
        plan: &mut Arc<PodPlan>,
        holders: &Holders,
    ) -> (Option<CgroupId>, Vec<(CgroupPath, CgroupId)>) {
        let mut former = self.former(plan, holders);
        let own = self.held(&plan.uid, &plan.cgroup.path, holders).or_else(|| self.going(plan, holders));
        if own.is_some() || former.is_empty() {
            return (own, former);
        }
        let (path, id) = former.remove(0);
        let PodPlan { uid, cgroup, adopted, containers, .. } = Arc::make_mut(plan);
        (cgroup.path, *adopted) = (path, false);
        containers.retain(|container| self.held(uid, &container.cgroup.path, holders).is_some());
        (Some(id), former)
    }

    /// The plan by which a pod may be evicted, if it may. `retired`: the pods that are to leave.
    pub(super) fn evicted_by(
        &self,
        plan: &Arc<PodPlan>,
        retired: &[PodUid],
        holders: &Holders,
    ) -> Option<Arc<PodPlan>> {
        let is_evicted = plan.admission.rejection() == Some(&Rejection::Evicted);
        let stands = || self.going(plan, holders).is_some() || !self.former(plan, holders).is_empty();
        if !retired.contains(&plan.uid) || (plan.adopted && is_evicted) || stands() {
            return Some(Arc::clone(plan));
        }
        // Its own cgroup is gone, but its containers' adopted cgroups exist.
        let stands = |container: &&ContainerPlan| {
            container.adopted && self.held(&plan.uid, &container.cgroup.path, holders).is_some()
        };
        let elsewhere = plan.containers.iter().find(stands).filter(|_| is_evicted)?;
        Some(Arc::new(PodPlan { cgroup: elsewhere.cgroup.clone(), adopted: true, ..PodPlan::clone(plan) }))
    }

    /// The scope that a container still has in its pod's former slice: a unit name is unique on the machine, so until
    /// that scope ends there is no other, and new processes of the container go there.
    pub(super) fn former_scope(&self, uid: &PodUid, container: &str) -> Option<(&CgroupPath, CgroupId)> {
        let mut going = self.going.iter().filter(|(path, _)| policy::name::is_scope(path));
        let is_it = |level: &OwnerLevel| level.uid() == Some(uid) && level.container() == Some(container);
        going.find(|(_, going)| is_it(&going.level)).map(|(path, going)| (path, going.id))
    }

    /// The planned cgroup of each pod that is not to leave.
    pub(super) fn running(&self, plan: &Plan, retired: &[PodUid]) -> BTreeMap<PodUid, CgroupId> {
        let running = plan.pods.iter().filter(|pod| !retired.contains(&pod.uid));
        running.filter_map(|pod| Some((pod.uid.clone(), self.planned(&pod.cgroup.path)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::Pod,
        policy::{Plan, Settings, admission::Admission, plan_decided},
        sample,
    };

    fn planned(pods: &[Pod]) -> Plan {
        let decided: Vec<_> = pods.iter().map(|pod| (pod, Admission::plain())).collect();
        plan_decided(&sample::node(), &Settings::default(), &decided)
    }

    /// The containers with which the last of these pods may be ended; none if it may not.
    fn ended_with(pods: &[Pod]) -> Option<Vec<String>> {
        let plan = planned(pods);
        let held = as_held(plan.pods.last()?, &holders(&plan, []))?;
        Some(held.containers.into_iter().map(|container| container.name).collect())
    }

    #[test]
    fn no_pod_is_ended_with_a_cgroup_that_is_not_its_own() {
        let other = sample::pod("other", &["a"]);
        let of_other = planned(std::slice::from_ref(&other)).pods.remove(0);
        let (pods_cgroup, containers_cgroup) =
            (of_other.cgroup.path.as_str(), of_other.containers[0].cgroup.path.as_str());
        let within = format!("{containers_cgroup}/inner");
        for others in ["/kubepods", "/kubepods/besteffort", pods_cgroup, containers_cgroup, &within] {
            let with = |thief: Pod| ended_with(&[other.clone(), thief]);
            assert_eq!(with(sample::adopting("thief", Some(others), &[])), None, "{others}");
            let containers = [("a", others), ("b", "/system.slice/b.service")];
            assert_eq!(with(sample::adopting("thief", None, &containers)).unwrap(), ["b"], "{others}");
        }
        assert_eq!(ended_with(&[sample::adopting("p", Some("/x"), &[("a", "/x/y")])]).unwrap(), ["a", "b"]);
        assert_eq!(ended_with(&[other, sample::pod("p", &["c"])]).unwrap(), ["c"]);
    }

    const OLD: &str = "/kubepods/old";

    /// A pod, its plan, and a former cgroup of it that still holds processes.
    fn moved() -> (Plan, Existing) {
        let plan = planned(&[sample::pod("web", &["a"])]);
        let uid = plan.pods[0].uid.clone();
        let level = OwnerLevel::Pod { pod: plan.pods[0].name.clone().into(), uid };
        let going = [(CgroupPath::parse(OLD).unwrap(), Going { id: CgroupId(9), level })].into();
        (plan, Existing { planned: BTreeMap::new(), going })
    }

    #[test]
    fn a_pod_is_in_its_former_cgroup_until_it_has_its_own() {
        let (plan, mut existing) = moved();
        let holders = holders(&plan, []);
        let mut placed = Arc::clone(&plan.pods[0]);
        assert_eq!(existing.place(&mut placed, &holders), (Some(CgroupId(9)), vec![]));
        assert_eq!((placed.cgroup.path.as_str(), placed.containers.len()), (OLD, 0));

        existing.planned.insert(plan.pods[0].cgroup.path.clone(), CgroupId(7));
        let mut placed = Arc::clone(&plan.pods[0]);
        let former = vec![(CgroupPath::parse(OLD).unwrap(), CgroupId(9))];
        assert_eq!(existing.place(&mut placed, &holders), (Some(CgroupId(7)), former));
        assert_eq!(placed, plan.pods[0]);
    }

    #[test]
    fn a_former_cgroup_that_contains_another_pod_is_not_the_pods() {
        let (mut plan, existing) = moved();
        let other = planned(&[sample::adopting("other", Some("/kubepods/old/inner"), &[])]);
        plan.pods.extend(other.pods);
        let mut placed = Arc::clone(&plan.pods[0]);
        assert_eq!(existing.place(&mut placed, &holders(&plan, [])), (None, vec![]));
    }

    #[test]
    fn a_pod_that_leaves_may_be_evicted_as_long_as_a_cgroup_of_it_exists() {
        let (plan, existing) = moved();
        let pod = &plan.pods[0];
        let retired = [pod.uid.clone()];
        let holders = holders(&plan, &retired);
        assert!(existing.evicted_by(pod, &retired, &holders).is_some());
        assert!(Existing::default().evicted_by(pod, &retired, &holders).is_none());
        assert!(Existing::default().evicted_by(pod, &[], &holders).is_some());
    }

    #[test]
    fn pods_that_leave_or_have_no_cgroup_do_not_run() {
        let plan = planned(&[sample::pod("a", &["a"]), sample::pod("b", &["a"]), sample::pod("c", &["a"])]);
        let planned = plan.pods[..2].iter().map(|pod| (pod.cgroup.path.clone(), CgroupId(1))).collect();
        let existing = Existing { planned, going: BTreeMap::new() };
        let running = existing.running(&plan, std::slice::from_ref(&plan.pods[0].uid));
        assert_eq!(running.into_keys().collect::<Vec<_>>(), [plan.pods[1].uid.clone()]);
    }
}
