//! Pods whose cgroups another made.

use std::sync::Arc;

use crate::{
    model::{CgroupPath, Common, ContainerKind, Knowledge, Placement, QosClass, ResourceList},
    oom_score,
};

use super::{CgroupPlan, ContainerPlan, PodPlan};

impl PodPlan {
    /// Whether enough is known of it to evict it. What is not known of a pod's requests and priority may be what spares
    /// it; a pod of class `BestEffort` has no requests.
    #[must_use]
    pub fn is_known_enough(&self) -> bool {
        match self.placed {
            None => true,
            Some(Knowledge::Spec { is_settled, origin: _, is_terminating: _ }) => is_settled,
            Some(Knowledge::Names { is_settled }) => is_settled && self.qos_class == QosClass::BestEffort,
        }
    }

    /// Whether its deletion was requested by others, or it has ended but for its last processes, so that it ends by itself.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        matches!(self.placed, Some(Knowledge::Spec { is_terminating: true, .. }))
    }

    /// Whether its containers' scores are known: those of class Burstable follow from requests, and pods that the node
    /// needs have a Guaranteed pod's, whatever their class.
    #[must_use]
    pub fn are_scores_known(&self) -> bool {
        !matches!(self.placed, Some(Knowledge::Names { .. })) || self.qos_class == QosClass::Guaranteed
    }
}

/// The plan of a pod whose cgroups another made.
pub(super) fn place(mut plan: PodPlan, placement: &Placement) -> PodPlan {
    let Placement { pod, containers, unnamed, knowledge } = placement;
    plan.cgroup.path = pod.clone();
    plan.unnamed.clone_from(unnamed);
    plan.placed = Some(*knowledge);
    match knowledge {
        Knowledge::Spec { .. } => {
            let mut others = containers.clone();
            for container in &mut plan.containers {
                if let Some(path) = others.remove(&container.name) {
                    container.cgroup.path = path;
                }
            }
            // A name in parentheses stands for containers that are not kept one by one. Otherwise what the spec does not
            // name is ephemeral: it has no requests, and the pod's class.
            let is_whole = plan.containers.iter().all(|container| !container.name.starts_with('('));
            let kind = if is_whole { ContainerKind::Ephemeral } else { ContainerKind::App };
            let score = score(plan.qos_class);
            plan.containers.extend(others.iter().map(|container| named(container, kind, score)));
        }
        Knowledge::Names { .. } => {
            plan.cgroup.values = Common::default();
            let score = score(plan.qos_class);
            plan.containers =
                containers.iter().map(|container| named(container, ContainerKind::App, score)).collect();
            // In messages, a container without a request uses more than that.
            let requests = containers.keys().map(|name| (name.clone(), ResourceList::new()));
            Arc::make_mut(&mut plan.requested).containers = requests.collect();
        }
    }
    plan
}

/// The score of a class's containers; of Burstable ones the highest.
fn score(class: QosClass) -> i16 {
    match class {
        QosClass::Guaranteed => oom_score::GUARANTEED,
        QosClass::Burstable => oom_score::BURSTABLE_MAX,
        QosClass::BestEffort => oom_score::BEST_EFFORT,
    }
}

/// A container of which only the name is known.
fn named((name, path): (&String, &CgroupPath), kind: ContainerKind, oom_score_adj: i16) -> ContainerPlan {
    ContainerPlan {
        name: name.clone(),
        kind,
        oom_score_adj,
        cgroup: CgroupPlan { path: path.clone(), values: Common::default() },
        adopted: false,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{
        Settings,
        admission::Admission,
        model::{Freshness, Pod, SpecOrigin},
        plan::{Plan, plan_placed},
        sample::{app, node, pod},
    };

    const POD: &str = "/kubepods.slice/kubepods-podx.slice";
    const LIVE: SpecOrigin = SpecOrigin { source: "podsAPI", freshness: Freshness::Live };
    const APP: &str = "/kubepods.slice/kubepods-podx.slice/cri-containerd-0.scope";

    fn path(text: &str) -> CgroupPath {
        CgroupPath::parse(text).unwrap()
    }

    fn planned(pod: &Pod, knowledge: Knowledge) -> Plan {
        let containers = [(String::from("app"), path(APP))].into();
        let placement = Placement { pod: path(POD), containers, unnamed: None, knowledge };
        let placements = BTreeMap::from([(pod.uid.clone(), placement)]);
        plan_placed(&node(), &Settings::default(), &[(pod, Admission::plain())], &placements)
    }

    #[test]
    fn a_pod_with_a_spec_has_its_values_where_another_put_it() {
        let pod = pod("p", vec![app("app", &[("memory", "1Gi")], &[]), app("not-started", &[], &[])]);
        let placed =
            &planned(&pod, Knowledge::Spec { is_settled: true, origin: LIVE, is_terminating: false }).pods[0];
        let own = &crate::plan(&node(), &Settings::default(), std::slice::from_ref(&pod)).pods[0];
        assert_eq!((&placed.cgroup.path, &placed.containers[0].cgroup.path), (&path(POD), &path(APP)));
        assert_eq!(placed.cgroup.values, own.cgroup.values);
        assert_eq!(placed.containers[0].oom_score_adj, own.containers[0].oom_score_adj);
        assert_eq!(placed.containers.len(), 2);
        assert!(placed.is_known_enough() && placed.are_scores_known());
    }

    #[test]
    fn a_container_that_the_spec_does_not_name_is_part_of_the_pod() {
        let pod = pod("p", vec![app("main", &[("memory", "1Gi")], &[])]);
        let placed =
            &planned(&pod, Knowledge::Spec { is_settled: false, origin: LIVE, is_terminating: false }).pods
                [0];
        let containers: Vec<_> =
            placed.containers.iter().map(|own| (own.name.as_str(), own.cgroup.path.as_str())).collect();
        assert_eq!(containers[1], ("app", APP));
        assert_eq!(placed.containers[1].kind, ContainerKind::Ephemeral);
        assert!(placed.containers[1].cgroup.values == Common::default());
        assert!(!placed.is_known_enough());
    }

    #[test]
    fn a_container_beyond_those_that_are_kept_is_not_called_ephemeral() {
        let pod = pod("p", vec![app("(others)", &[], &[])]);
        assert_eq!(pod.kind_of("app"), None);
        let placed =
            &planned(&pod, Knowledge::Spec { is_settled: true, origin: LIVE, is_terminating: false }).pods[0];
        assert_eq!(placed.containers[1].kind, ContainerKind::App);
    }

    #[test]
    fn a_pod_of_which_only_names_are_known_gets_no_values() {
        let mut pod = pod("p", Vec::new());
        for (class, is_settled, is_known_enough) in [
            (QosClass::BestEffort, true, true),
            (QosClass::BestEffort, false, false),
            (QosClass::Burstable, true, false),
            (QosClass::Guaranteed, true, false),
        ] {
            pod.stored_qos_class = Some(class);
            let plan = planned(&pod, Knowledge::Names { is_settled });
            let placed = &plan.pods[0];
            assert_eq!(placed.is_known_enough(), is_known_enough, "{class:?}");
            assert_eq!(placed.are_scores_known(), class == QosClass::Guaranteed, "{class:?}");
            let containers: Vec<_> =
                placed.containers.iter().map(|own| (own.name.as_str(), own.cgroup.path.as_str())).collect();
            assert_eq!(containers, [("app", APP)]);
            assert_eq!(placed.requested.containers, [(String::from("app"), ResourceList::new())]);
            let of_classes = plan.qos.iter().map(|(_, cgroup)| cgroup);
            let cgroups = of_classes.chain([&plan.node, &placed.cgroup, &placed.containers[0].cgroup]);
            assert!(cgroups.into_iter().all(|cgroup| cgroup.values == Common::default()));
        }
    }
}
