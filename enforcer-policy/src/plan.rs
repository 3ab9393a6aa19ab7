//! The desired state of a node: every cgroup with its values, every container with its score.

mod pinned;
mod placed;

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use crate::model::{
    CgroupPath, CgroupValues, Common, Container, ContainerKind, Knowledge, Node, OwnerReference, Placement,
    Pod, PodName, PodUid, QosClass, ResourceList, ResourceName, Unnamed,
};

use crate::{
    ReservedCgroup, Settings,
    admission::{self, Admission},
    allocatable,
    cpus::Assignments,
    critical, effective,
    message::Requests,
    name, oom_score, preference, qos,
    values::{self, Requested},
};

/// A cgroup with the values for its files.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CgroupPlan {
    /// Its path.
    pub path: CgroupPath,
    /// Its values; cgroups of equal values share them.
    pub values: Common<CgroupValues>,
}

/// The desired state of the whole node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Plan {
    /// kubepods.
    pub node: CgroupPlan,
    /// The cgroups of the classes Burstable and BestEffort; Guaranteed pods are directly below kubepods.
    pub qos: Vec<(QosClass, CgroupPlan)>,
    /// Every pod, in the order given, whether it is admitted or not.
    pub pods: Vec<Arc<PodPlan>>,
    /// The system's own cgroups that are limited to their reservation. They are never created, and never removed.
    pub reserved: Vec<CgroupPlan>,
    /// Who has which CPUs, for what is left of other pods; `None` if no container is kept to any.
    pub cpus: Option<Arc<Assignments>>,
}

impl Plan {
    /// Shares the pods that `before` has alike, so that both plans, and whoever keeps one of their pods, hold each once. The
    /// other pods share the values of a cgroup with any that has the same.
    pub fn share_with(&mut self, before: &Self) {
        let known: BTreeMap<&PodUid, &Arc<PodPlan>> = before.pods.iter().map(|pod| (&pod.uid, pod)).collect();
        let mut values = HashSet::new();
        let mut others = Vec::new();
        for pod in &mut self.pods {
            if let Some(same) = known.get(&pod.uid).filter(|known| **known == pod) {
                *pod = Arc::clone(same);
                values.extend(same.cgroups().map(|cgroup| cgroup.values.clone()));
            } else {
                others.push(Arc::make_mut(pod));
            }
        }
        for pod in others {
            pod.share_values(&mut values);
        }
        if self.cpus == before.cpus {
            self.cpus.clone_from(&before.cpus);
        }
    }
}

/// The desired state of one pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PodPlan {
    /// Namespace and name.
    pub name: PodName,
    /// Its uid.
    pub uid: PodUid,
    /// Its class.
    pub qos_class: QosClass,
    /// Its priority.
    pub priority: i32,
    /// Its priority in the eviction ranking ([`preference`](super::preference)).
    pub eviction_priority: i32,
    /// Whether it is critical, and so never evicted.
    pub critical: bool,
    /// The effective requests.
    pub requests: ResourceList,
    /// The effective limits.
    pub limits: ResourceList,
    /// The separate requests of the pod and its containers: messages name those that use more.
    pub requested: Arc<Requests>,
    /// The memory request that ranking compares usage with, in bytes (upstream `GetResourceRequestQuantity`).
    pub ranking_request_bytes: u64,
    /// The grace period that it requests, in seconds.
    pub termination_grace_period_seconds: u64,
    /// Its controller, which creates another pod when this one is gone; `None` if it has none, or if that is not known.
    pub controller: Option<Arc<OwnerReference>>,
    /// Its cgroup.
    pub cgroup: CgroupPlan,
    /// Whether another process creates and removes its cgroup.
    pub adopted: bool,
    /// The cgroup of all pods, which has their limit; an adopted cgroup may be outside of it.
    pub kubepods: CgroupPath,
    /// Its containers, init containers first.
    pub containers: Vec<ContainerPlan>,
    /// Whether it may run. A pod that may not is computed in full, but gets no cgroup, and counts in no sum.
    pub admission: Admission,
    /// How much is known of it, if another made its cgroups; `None` if they are enforcer's.
    pub placed: Option<Knowledge>,
    /// Those of its containers that no name leads to; `None` if there are none.
    pub unnamed: Option<Arc<Unnamed>>,
}

impl PodPlan {
    /// An admitted pod of class BestEffort without containers, whose cgroup gets no values. Every cgroup counts as within
    /// kubepods.
    #[must_use]
    pub fn new(name: PodName, uid: PodUid, cgroup: CgroupPath) -> Self {
        Self {
            name,
            uid,
            qos_class: QosClass::BestEffort,
            priority: 0,
            eviction_priority: 0,
            critical: false,
            requests: ResourceList::new(),
            limits: ResourceList::new(),
            requested: Arc::default(),
            ranking_request_bytes: 0,
            termination_grace_period_seconds: 30,
            controller: None,
            cgroup: CgroupPlan { path: cgroup, values: Common::default() },
            adopted: false,
            kubepods: CgroupPath::root(),
            containers: Vec::new(),
            admission: Admission::plain(),
            placed: None,
            unnamed: None,
        }
    }

    /// Its cgroup and those of its containers.
    fn cgroups(&self) -> impl Iterator<Item = &CgroupPlan> {
        std::iter::once(&self.cgroup).chain(self.containers.iter().map(|container| &container.cgroup))
    }

    /// Replaces the values of its cgroups by equal ones that are known, and adds the others to those.
    fn share_values(&mut self, known: &mut HashSet<Common<CgroupValues>>) {
        let containers = self.containers.iter_mut().map(|container| &mut container.cgroup);
        for cgroup in std::iter::once(&mut self.cgroup).chain(containers) {
            match known.get(&cgroup.values) {
                Some(same) => cgroup.values.clone_from(same),
                None => drop(known.insert(cgroup.values.clone())),
            }
        }
    }

    /// Whether memory that it uses counts towards the limit of all pods. If each container adopts a cgroup elsewhere, the
    /// pod's own is empty.
    #[must_use]
    pub fn is_in_kubepods(&self) -> bool {
        let is_within = |path: &CgroupPath| path.below(&self.kubepods).is_some();
        let own = is_within(&self.cgroup.path);
        let counts = |of: &ContainerPlan| if of.adopted { is_within(&of.cgroup.path) } else { own };
        if self.containers.is_empty() { own } else { self.containers.iter().any(counts) }
    }
}

/// The desired state of one container.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ContainerPlan {
    /// Its name.
    pub name: String,
    /// Which kind of container it is.
    pub kind: ContainerKind,
    /// The `oom_score_adj` of every process in it, -1000 to 1000.
    pub oom_score_adj: i16,
    /// Its cgroup.
    pub cgroup: CgroupPlan,
    /// Whether another process creates and removes its cgroup.
    pub adopted: bool,
}

/// Computes the desired state of the node for these pods, which are admitted in their order.
///
/// It only computes: nothing is written. The caller must make names and uids unique first.
#[must_use]
pub fn plan(node: &Node, settings: &Settings, pods: &[Pod]) -> Plan {
    let admissions = admission::admit_all(node, settings, &[], pods);
    plan_decided(node, settings, &pods.iter().zip(admissions).collect::<Vec<_>>())
}

/// [`plan`] for pods whose admission is decided already.
#[must_use]
pub fn plan_decided(node: &Node, settings: &Settings, pods: &[(&Pod, Admission)]) -> Plan {
    plan_placed(node, settings, pods, &BTreeMap::new())
}

/// [`plan_decided`] where another made the cgroups of some pods: `placements` has them, by the uid in the cgroup's name.
///
/// The containers of a pod of which only names are known are those that have a cgroup. With such a pod, the sums for
/// kubepods and the classes are unknown, and no values are planned for them.
#[must_use]
pub fn plan_placed(
    node: &Node,
    settings: &Settings,
    pods: &[(&Pod, Admission)],
    placements: &BTreeMap<PodUid, Placement>,
) -> Plan {
    let driver = settings.cgroup_driver;
    let kubepods = name::kubepods(&settings.cgroup_root, driver);
    let uids = name::cgroup_uids(pods.iter().map(|(pod, _)| *pod));
    let pods: Vec<Arc<PodPlan>> = pods
        .iter()
        .zip(&uids)
        .map(|((pod, admission), uid)| {
            let planned = plan_pod(node, settings, &kubepods, (pod, uid), admission.clone());
            Arc::new(match placements.get(uid) {
                Some(placement) => placed::place(planned, placement),
                None => planned,
            })
        })
        .collect();
    let has_spec = |placement: &Placement| matches!(placement.knowledge, Knowledge::Spec { .. });
    let are_sums_known = placements.values().all(has_spec);
    let requested = |classes: &[QosClass]| {
        let counts = |pod: &&Arc<PodPlan>| pod.admission.is_admitted() && classes.contains(&pod.qos_class);
        Requested::sum(pods.iter().filter(counts).map(|pod| &pod.requests))
    };
    let burstable = requested(&[QosClass::Burstable]);
    let protected = requested(&[QosClass::Guaranteed, QosClass::Burstable]);
    let known = |values: CgroupValues| if are_sums_known { values.into() } else { Common::default() };
    let qos_cgroup = |class, requested| {
        let values = known(values::qos(settings, requested));
        (class, CgroupPlan { path: name::qos(&kubepods, class, driver), values })
    };
    let qos = vec![
        qos_cgroup(QosClass::Burstable, burstable),
        // Regardless of requests, the class has the lowest weight.
        qos_cgroup(QosClass::BestEffort, Requested::default()),
    ];
    let kube_reserved = allocatable::kube_reserved(&allocatable::capacity(node), settings);
    let node = CgroupPlan { path: kubepods, values: known(values::node(node, settings, protected)) };
    Plan { node, qos, pods, reserved: plan_reserved(&kube_reserved, settings), cpus: None }
}

/// The system's own cgroups. If both reservations name the same one, the kubelet's applies, which the kubelet also
/// writes last (`enforceNodeAllocatableCgroups` in `pkg/kubelet/cm/node_container_manager_linux.go`).
fn plan_reserved(kube_reserved: &ResourceList, settings: &Settings) -> Vec<CgroupPlan> {
    let reservations = [
        (&settings.system_reserved_cgroup, &settings.system_reserved),
        (&settings.kube_reserved_cgroup, kube_reserved),
    ];
    let mut plans: Vec<CgroupPlan> = Vec::new();
    for (cgroup, amounts) in reservations {
        let Some(ReservedCgroup { path, scope }) = cgroup else { continue };
        let path = name::given(path, settings.cgroup_driver);
        let values = values::reserved(amounts, *scope, settings);
        match plans.iter_mut().find(|plan| plan.path == path) {
            Some(plan) => plan.values.extend(values.iter()),
            None => plans.push(CgroupPlan { path, values: values.into() }),
        }
    }
    plans
}

fn plan_pod(
    node: &Node,
    settings: &Settings,
    kubepods: &CgroupPath,
    (pod, cgroup_uid): (&Pod, &PodUid),
    admission: Admission,
) -> PodPlan {
    let driver = settings.cgroup_driver;
    let qos_class = qos::class(pod);
    let path = name::pod(kubepods, qos_class, cgroup_uid, driver);
    let scores = oom_score::Scores::of(pod, node.memory_bytes);
    let container_values = values::ContainerValues::of(pod, node, settings);
    let pods_own = pod.adopts.as_ref().and_then(|adopts| adopts.pod.clone());
    let (path, is_adopted) = (pods_own.clone().unwrap_or(path), pods_own.is_some());
    let adopted = |container: &Container| pod.adopts.as_ref()?.container(&container.name);
    let mut values = Common::from(values::pod(pod, node, settings));
    let containers = pod
        .containers
        .iter()
        .map(|container| ContainerPlan {
            name: container.name.clone(),
            kind: container.kind,
            oom_score_adj: scores.score(container),
            cgroup: CgroupPlan {
                path: adopted(container)
                    .cloned()
                    .unwrap_or_else(|| name::container(&path, cgroup_uid, &container.name, driver)),
                values: container_values.values(container).into(),
            },
            adopted: adopted(container).is_some(),
        })
        .map(|container| share(container, &path, pod.containers.len() == 1, &mut values))
        .collect();
    PodPlan {
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        qos_class,
        priority: pod.priority(),
        eviction_priority: preference::eviction_priority(pod, settings.eviction_priority_ceiling),
        critical: critical::is_critical(pod),
        requests: effective::requests(pod),
        limits: effective::limits(pod),
        requested: Arc::new(Requests::of(pod)),
        ranking_request_bytes: effective::ranking_request(pod, ResourceName::MEMORY).units(),
        termination_grace_period_seconds: pod.termination_grace_period_seconds,
        controller: pod.controller().cloned(),
        cgroup: CgroupPlan { path, values },
        adopted: is_adopted,
        kubepods: kubepods.clone(),
        containers,
        admission,
        placed: None,
        unnamed: None,
    }
}

/// A container that shares its pod's cgroup has the pod's values; an only container adds those that the pod does not
/// set.
fn share(
    container: ContainerPlan,
    pod: &CgroupPath,
    is_only: bool,
    values: &mut Common<CgroupValues>,
) -> ContainerPlan {
    if container.cgroup.path != *pod {
        return container;
    }
    if is_only {
        let pods_own = std::mem::take(values);
        values.extend(container.cgroup.values.iter().chain(pods_own.iter()));
    }
    let cgroup = CgroupPlan { path: container.cgroup.path, values: values.clone() };
    ContainerPlan { cgroup, ..container }
}

#[cfg(test)]
mod tests;
