//! The cgroups that a container runtime made below a pod's.

use std::{collections::BTreeSet, sync::Arc};

use super::Reconciler;
use crate::{
    cgroup::{CgroupDir, desired::Target, report::Problem},
    model::{CgroupPath, Owner},
};

/// What names such a cgroup.
pub(super) const RUNTIME: &str = "a container runtime";

impl Reconciler {
    /// Adds to the desired state the cgroups below these pods, or below all, that no plan names: a runtime made them
    /// for the pod's container. Returns the new ones.
    ///
    /// If the pod has one container, the cgroup is that container's. If it has several, nothing says which: the pod's
    /// own values limit the cgroup, and a problem asks for the annotation that names it.
    pub(super) fn adopt_runtimes(&mut self, only: Option<&BTreeSet<CgroupPath>>) -> BTreeSet<CgroupPath> {
        let pods: Vec<CgroupPath> = self
            .desired
            .containers
            .keys()
            .filter(|pod| only.is_none_or(|only| only.contains(*pod)))
            .cloned()
            .collect();
        let mut new = BTreeSet::new();
        for pod in pods {
            self.seen.unnamed.retain(|path, _| path.parent().as_ref() != Some(&pod));
            let Ok(dir) = self.root.open(&pod) else { continue };
            if only.is_none() && self.holds_planned_alone(&dir, &pod) {
                continue;
            }
            let Ok(names) = dir.children() else { continue };
            // What a container runtime makes has text for a name.
            for path in names.iter().filter_map(|name| pod.child(name.to_str()?).ok()) {
                if self.desired.targets.contains_key(&path) {
                    continue;
                }
                if let Some((target, score)) = self.runtime_target(&pod, &path) {
                    self.desired.targets.insert(path.clone(), target);
                    self.desired.scores.insert(path.clone(), score);
                    new.insert(path);
                } else {
                    let problem = unnamed(&pod, &path);
                    self.seen.unnamed.insert(path, problem);
                }
            }
        }
        new
    }

    /// Whether all cgroups directly below a pod's are planned ones.
    fn holds_planned_alone(&self, dir: &CgroupDir, pod: &CgroupPath) -> bool {
        let planned = self.desired.containers.get(pod).into_iter().flatten();
        let known = planned.filter(|path| path.parent().as_ref() == Some(pod));
        let known = known.filter_map(|path| Some((path.names().last()?, Some(self.standing.get(path)?.id))));
        dir.count_only(known).is_some()
    }

    fn runtime_target(&self, pod: &CgroupPath, path: &CgroupPath) -> Option<(Target, i16)> {
        let [only] = &self.desired.containers.get(pod)?[..] else { return None };
        let planned = self.desired.targets.get(only)?;
        let score = *self.desired.scores.get(only)?;
        let mut plan = planned.plan.clone();
        plan.path = path.clone();
        let level = planned.owner.as_ref()?.level.clone();
        let owner = Some(Arc::new(Owner { path: path.clone(), level }));
        Some((Target { plan, owner, named_by: Some(RUNTIME), is_awaited: true }, score))
    }

    /// The cgroups directly below pods' that no plan names, whether assigned to a container or not.
    pub(super) fn made_by_runtimes(&self) -> BTreeSet<CgroupPath> {
        let taken = self.desired.targets.iter().filter(|(_, target)| target.named_by == Some(RUNTIME));
        taken.map(|(path, _)| path).chain(self.seen.unnamed.keys()).cloned().collect()
    }

    /// Forgets the runtimes' cgroups that are gone.
    pub(super) fn drop_gone_runtimes(&mut self) {
        let gone: Vec<CgroupPath> = self
            .desired
            .targets
            .iter()
            .filter(|(path, target)| target.named_by == Some(RUNTIME) && self.is_gone(path))
            .map(|(path, _)| path.clone())
            .collect();
        for path in gone {
            self.desired.targets.remove(&path);
            self.desired.scores.remove(&path);
            self.remove(&path);
        }
    }
}

fn unnamed(pod: &CgroupPath, path: &CgroupPath) -> Problem {
    Problem {
        what: "stranger",
        place: path.to_string(),
        message: format!(
            "cgroup {path} is in a pod of several containers, and nothing says which one it is: the pod's values hold it, \
             its processes keep their score; name it in the pod's annotations, with enforcer.dev/cgroup: {pod} and \
             cgroup.enforcer.dev/<container>: {path}"
        ),
    }
}
