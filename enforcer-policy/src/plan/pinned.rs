//! The CPUs that containers are kept to, and the quota of those that have some of their own.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    Settings,
    cpus::{Assignments, CpuSet},
    model::{CgroupPath, CgroupValues, Limit},
    values,
};

use super::{Plan, PodPlan};

impl Plan {
    /// Keeps each container to its own CPUs, or to those that all others share.
    ///
    /// A container that has CPUs of its own gets no quota, nor does its pod (`DisableCPUQuotaWithExclusiveCPUs`, by default
    /// since 1.33). The cgroups above hold no CPUs: they allow those of the machine.
    pub fn pin(&mut self, assignments: &Assignments, settings: &Settings) {
        self.cpus = Some(Arc::new(assignments.clone()));
        let shared = Arc::new(assignments.default_cpu_set.clone());
        for pod in &mut self.pods {
            Arc::make_mut(pod).pin(assignments, &shared, settings);
        }
    }
}

impl PodPlan {
    fn pin(&mut self, assignments: &Assignments, shared: &Arc<CpuSet>, settings: &Settings) {
        // By its own name of a static pod, a kubelet has CPUs for another uid than the API server's.
        if self.placed.is_some() && self.critical && !assignments.entries.contains_key(&self.uid) {
            return;
        }
        // Containers that share an adopted cgroup share what one of them has of its own.
        let mut own: BTreeMap<CgroupPath, CpuSet> = BTreeMap::new();
        for container in &self.containers {
            if let Some(cpus) = assignments.get(&self.uid, &container.name) {
                let all = own.entry(container.cgroup.path.clone()).or_default();
                *all = all.union(cpus);
            }
        }
        if !own.is_empty() {
            without_quota(&mut self.cgroup.values, settings);
        }
        let own: BTreeMap<CgroupPath, Arc<CpuSet>> =
            own.into_iter().map(|(path, cpus)| (path, Arc::new(cpus))).collect();
        let paths: BTreeSet<&CgroupPath> =
            self.containers.iter().map(|container| &container.cgroup.path).collect();
        if paths.contains(&self.cgroup.path) {
            self.cgroup.values.cpuset_cpus = Some(own.get(&self.cgroup.path).unwrap_or(shared).clone());
        }
        // A name in parentheses stands for containers that are not known one by one.
        for container in self.containers.iter_mut().filter(|container| !container.name.starts_with('(')) {
            let cpus = own.get(&container.cgroup.path);
            if cpus.is_some() {
                without_quota(&mut container.cgroup.values, settings);
            }
            container.cgroup.values.cpuset_cpus = Some(cpus.unwrap_or(shared).clone());
        }
    }
}

fn without_quota(values: &mut CgroupValues, settings: &Settings) {
    if values.cpu_max.is_some_and(|max| max.quota_us != Limit::Max) {
        values.cpu_max = values::period(settings);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{CpuMax, PodUid},
        plan,
        sample::{app, node, pod},
    };

    #[test]
    fn who_has_cpus_of_its_own_has_no_quota_and_the_others_share_the_rest() {
        let whole = [("cpu", "2"), ("memory", "1Gi")];
        let part = [("cpu", "500m"), ("memory", "1Gi")];
        let pods = [
            pod("own", vec![app("a", &whole, &whole), app("b", &part, &part)]),
            pod("other", vec![app("a", &part, &[("cpu", "1")])]),
        ];
        let mut settings = Settings::default();
        let mut own = Assignments { default_cpu_set: "0-1,4".parse().unwrap(), ..Assignments::default() };
        let uid = PodUid::new("uid-own").unwrap();
        own.entries.entry(uid).or_default().insert(String::from("a"), "2-3".parse().unwrap());
        let shown = |settings: &Settings| {
            let mut plan = plan(&node(), settings, &pods);
            plan.pin(&own, settings);
            assert_eq!(plan.node.values.cpuset_cpus, None);
            assert_eq!(plan.cpus.as_deref(), Some(&own), "for pods that are not in the plan");
            let shown = |values: &CgroupValues| {
                let cpus = values.cpuset_cpus.as_ref().map(ToString::to_string).unwrap_or_default();
                (cpus, values.cpu_max.as_ref().map(ToString::to_string).unwrap_or_default())
            };
            let of_pod = |pod: &Arc<PodPlan>| {
                let containers = pod.containers.iter().map(|container| shown(&container.cgroup.values));
                std::iter::once(shown(&pod.cgroup.values)).chain(containers).collect::<Vec<_>>()
            };
            plan.pods.iter().flat_map(of_pod).collect::<Vec<_>>()
        };
        let expected = |quotas: [&str; 5]| {
            let cpus = ["", "2-3", "0-1,4", "", "0-1,4"];
            cpus.map(str::to_owned).into_iter().zip(quotas.map(str::to_owned)).collect::<Vec<_>>()
        };
        assert_eq!(shown(&settings), expected(["", "", "50000 100000", "100000 100000", "100000 100000"]));
        settings.cpu_cfs_quota_period_us = 50_000;
        assert_ne!(settings.cpu_cfs_quota_period_us, CpuMax::DEFAULT_PERIOD_US);
        assert_eq!(
            shown(&settings),
            expected(["max 50000", "max 50000", "25000 50000", "50000 50000", "50000 50000"])
        );
    }

    #[test]
    fn containers_that_share_an_adopted_cgroup_share_their_cpus() {
        let whole = [("cpu", "1"), ("memory", "1Gi")];
        let pods = [pod("own", vec![app("a", &whole, &whole), app("b", &whole, &whole)])];
        let mut plan = plan(&node(), &Settings::default(), &pods);
        let at = CgroupPath::parse("/x").unwrap();
        let adopted = Arc::make_mut(&mut plan.pods[0]);
        adopted.cgroup.path = at.clone();
        for container in &mut adopted.containers {
            container.cgroup.path = at.clone();
        }
        let mut own = Assignments { default_cpu_set: "0".parse().unwrap(), ..Assignments::default() };
        let containers = own.entries.entry(PodUid::new("uid-own").unwrap()).or_default();
        containers.insert(String::from("a"), "2".parse().unwrap());
        containers.insert(String::from("b"), "3".parse().unwrap());
        plan.pin(&own, &Settings::default());
        let cgroups = plan.pods[0].containers.iter().map(|container| &container.cgroup);
        for cgroup in cgroups.chain([&plan.pods[0].cgroup]) {
            assert_eq!(cgroup.values.cpuset_cpus.as_ref().unwrap().to_string(), "2-3");
        }
    }
}
