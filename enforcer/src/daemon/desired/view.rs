//! The roster as it is reported.
use std::collections::BTreeMap;

use super::{Desired, placing::Placing};
use crate::{
    model::{CgroupPath, Common, Knowledge, PodUid, QosClass, ResourceName},
    policy::{
        self, PodPlan,
        admission::{Rejection, under_conditions},
        threshold::NodeCondition,
    },
    serve::{ContainerView, ControllerView, PodState, PodView, View},
    source::{Entry, State},
};

impl Desired {
    /// The roster as it is reported.
    pub(in crate::daemon) fn view(&self) -> &View {
        &self.view
    }

    /// The path of kubepods, whether it exists or not.
    pub(in crate::daemon) fn kubepods(&self) -> &CgroupPath {
        &self.pods.plan().node.path
    }

    /// Updates the view.
    pub(super) fn renew_view(&mut self) {
        let id_of = |path: &CgroupPath| self.existing.planned(path).map(|id| id.0);
        let before: BTreeMap<&PodUid, &Common<PodView>> =
            self.view.pods.iter().map(|pod| (&pod.uid, pod)).collect();
        let mut pods: Vec<Common<PodView>> = Vec::with_capacity(self.pods.plan().pods.len());
        for plan in &self.pods.plan().pods {
            let Some(entry) = self.pods.roster().get(&plan.uid) else { continue };
            let stands = || {
                let of_container = |path| policy::name::is_scope(path) || id_of(path).is_some();
                // A kubelet's pod has none for a container that has ended.
                id_of(&plan.cgroup.path).is_some()
                    && (plan.placed.is_some()
                        || plan.containers.iter().all(|container| of_container(&container.cgroup.path)))
            };
            let state = match &entry.state {
                State::Waiting { .. } | State::Preempted => PodState::Rejected,
                State::Active(_) if entry.may_start() && stands() => PodState::Active,
                State::Active(_) => PodState::Pending,
                State::Evicted => PodState::Evicted,
                State::Leaving => PodState::Removed,
            };
            let mut view = pod_view(plan, state, self.reason(entry), entry, id_of);
            for container in view.containers.iter_mut().filter(|container| container.cgroup_id.is_none()) {
                if let Some((path, id)) = self.existing.former_scope(&plan.uid, &container.name) {
                    (container.cgroup, container.cgroup_id) = (path.clone(), Some(id.0));
                }
            }
            if let Some(placing) = &self.placing {
                placing.identify(&plan.uid, &mut view);
            }
            if let (Some(placing), Some(Knowledge::Spec { origin, .. })) = (&self.placing, plan.placed) {
                view.spec = Some(placing.spec_view(origin));
            }
            if let Some(band) = self.aligning.band(&plan.uid) {
                for container in &mut view.containers {
                    container.oom_score_adj = band.hold(container.oom_score_adj);
                }
            }
            // The view that was handed out holds it too.
            let known = before.get(&plan.uid).copied().filter(|known| ***known == view);
            pods.push(known.map_or_else(|| Common::from(view), Common::clone));
        }
        self.view.pods = pods;
        self.view.specs = self.placing.as_ref().map(Placing::specs_view);
    }

    /// Shows a pod as evicted, and leaves the rest of the view unchanged.
    pub(super) fn show_evicted(&mut self, uid: &PodUid) {
        let reason = self.pods.roster().get(uid).and_then(|entry| self.reason(entry));
        if let Some(pod) = self.view.pods.iter_mut().find(|pod| pod.uid == *uid) {
            (pod.state, pod.reason) = (PodState::Evicted, reason);
        }
    }

    /// The reason that a pod's state is not what its source wants, for a person.
    fn reason(&self, entry: &Entry) -> Option<String> {
        let reported = |rejection: &Rejection| format!("{}: {}", rejection.reason(), rejection.message());
        match &entry.state {
            State::Waiting { rejection } => rejection.as_ref().map(reported),
            State::Preempted => Some(format!(
                "{}; it stays so until its manifest changes or goes",
                reported(&Rejection::Preempted)
            )),
            State::Evicted => {
                Some(String::from("`enforcer events --type eviction.decided` shows why this pod was chosen"))
            }
            State::Active(active) if !active.awaits.is_empty() => {
                let name = |uid: &PodUid| self.pods.roster().get(uid).map(|entry| entry.pod.name.to_string());
                let names: Vec<_> = active.awaits.iter().filter_map(name).collect();
                Some(format!("it starts when the pods that make way for it are gone: {}", names.join(", ")))
            }
            State::Active(active) => active
                .held_back
                .as_ref()
                .and_then(|held_back| held_back.rejection.as_ref())
                .map(|rejection| format!("its changed manifest is not in force: {}", reported(rejection))),
            State::Leaving => None,
        }
    }
}

fn pod_view(
    plan: &PodPlan,
    state: PodState,
    reason: Option<String>,
    entry: &Entry,
    id_of: impl Fn(&CgroupPath) -> Option<u64>,
) -> PodView {
    PodView {
        namespace: plan.name.namespace.clone(),
        name: plan.name.name.clone(),
        uid: plan.uid.clone(),
        qos_class: QosClass::as_str(plan.qos_class).into(),
        priority: plan.priority,
        critical: plan.critical,
        request_bytes: plan.ranking_request_bytes,
        limit_bytes: plan.limits.get(ResourceName::MEMORY).map(|limit| limit.units()),
        state,
        reason,
        starts_under_memory_pressure: under_conditions(&entry.pod, &[NodeCondition::MemoryPressure]).is_ok(),
        spec: None,
        labels: entry.pod.labels.clone(),
        controller: entry.pod.controller().cloned().map(ControllerView::from),
        cgroup: plan.cgroup.path.clone(),
        sandbox: None,
        containers: plan
            .containers
            .iter()
            .map(|container| ContainerView {
                name: container.name.clone(),
                kind: container.kind.as_str().into(),
                attempt: None,
                oom_score_adj: container.oom_score_adj,
                cgroup: container.cgroup.path.clone(),
                cgroup_id: id_of(&container.cgroup.path),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        daemon::desired::pod_set::PodSet,
        model::{OwnerReference, Pod},
        policy::Settings,
        sample,
        source::{Health, Snapshot, SourceName},
    };

    #[test]
    fn a_pods_view_has_the_texts_of_its_plan_and_no_own() {
        let owner = Arc::new(OwnerReference { is_controller: true, ..OwnerReference::default() });
        let pod = Pod { owners: vec![owner], ..sample::pod("web", &["a", "b"]) };
        let mut pods = PodSet::new(sample::node(), Settings::default());
        let snapshot = Snapshot { pods: vec![Arc::new(pod)], health: Health::Up, read_ms: Some(1) };
        pods.take(SourceName::STATIC, snapshot);
        pods.replan();
        let plan = &pods.plan().pods[0];
        let entry = pods.roster().get(&plan.uid).unwrap();
        let view = pod_view(plan, PodState::Active, None, entry, |_| None);
        let same = |own: &str, plans: &str| std::ptr::eq(own, plans);
        assert!(same(view.uid.as_str(), plan.uid.as_str()));
        assert!(same(view.cgroup.as_str(), plan.cgroup.path.as_str()));
        let (own, plans) = (view.controller.as_deref().unwrap(), entry.pod.controller().unwrap());
        assert!(std::ptr::eq(own, Arc::as_ptr(plans)));
        assert_eq!(view.containers.len(), 2);
        for (container, plan) in view.containers.iter().zip(&plan.containers) {
            assert!(same(container.cgroup.as_str(), plan.cgroup.path.as_str()));
        }
    }
}
