//! The plan as JSON and YAML. Its shape is part of the public contract.

use serde::{Serialize, Serializer, ser::SerializeMap as _};

use super::cpus::{ContainerCpus, NodeCpus};
use crate::{
    model::{CgroupValues, Node, ResourceList, ResourceName},
    policy::{CgroupPlan, KubeReservedPolicy, Plan, PodPlan, Settings, admission::Admission, allocatable},
    source::Wrong,
};

/// Everything that is computed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Document {
    pub(super) node: NodeDocument,
    pub(super) qos_cgroups: Vec<QosCgroup>,
    pub(super) pods: Vec<PodDocument>,
    pub(super) errors: Vec<ErrorDocument>,
    /// What is odd with the manifests, and costs no pod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) warnings: Vec<ErrorDocument>,
    /// Beside a kubelet, the values of a daemon here that follow from the kubelet's, and where they are from.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) beside_kubelet: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeDocument {
    pub(super) capacity: Amounts,
    /// `systemReserved` and `kubeReserved` together.
    #[serde(skip_serializing_if = "Amounts::is_empty")]
    pub(super) reserved: Amounts,
    /// The hard eviction thresholds that pods cannot request. Without a reservation they are what lies between the other two.
    #[serde(skip_serializing_if = "Amounts::is_empty")]
    pub(super) hard_thresholds: Amounts,
    pub(super) allocatable: Amounts,
    /// What `kubeReservedPolicy: auto` reserves, with what `kubeReserved` names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kube_reserved: Option<Amounts>,
    pub(super) cgroup: Cgroup,
    /// The system's own cgroups that are limited to their reservations.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) reserved_cgroups: Vec<Cgroup>,
    /// With `cpuManagerPolicy: static`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpus: Option<NodeCpus>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct QosCgroup {
    pub(super) qos_class: &'static str,
    #[serde(flatten)]
    pub(super) cgroup: Cgroup,
}

#[derive(Debug, Serialize)]
pub(super) struct Cgroup {
    pub(super) path: String,
    #[serde(rename = "files", serialize_with = "as_text")]
    pub(super) values: CgroupValues,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodDocument {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) qos_class: &'static str,
    pub(super) priority: i32,
    pub(super) critical: bool,
    pub(super) requests: Amounts,
    pub(super) limits: Amounts,
    pub(super) cgroup: Cgroup,
    pub(super) containers: Vec<ContainerDocument>,
    pub(super) admission: AdmissionDocument,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ContainerDocument {
    pub(super) name: String,
    pub(super) kind: &'static str,
    pub(super) oom_score_adj: i16,
    pub(super) cgroup: Cgroup,
    /// With `cpuManagerPolicy: static`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpus: Option<ContainerCpus>,
}

#[derive(Debug, Serialize)]
pub(super) struct AdmissionDocument {
    pub(super) admitted: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) preempt: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct ErrorDocument {
    pub(super) source: String,
    pub(super) message: String,
}

/// Amounts by key, in order: cpu in thousandths, all else in base units.
#[derive(Debug)]
pub(super) struct Amounts(pub(super) Vec<(String, u64)>);

impl Serialize for Amounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, amount) in &self.0 {
            map.serialize_entry(key, amount)?;
        }
        map.end()
    }
}

impl Amounts {
    /// Cpu and memory first, under names with their units; then the others under their own names.
    fn of(list: &ResourceList) -> Self {
        let cpu = list.get(ResourceName::CPU).map(|cpu| (String::from("cpuMilli"), cpu.milli()));
        let memory =
            list.get(ResourceName::MEMORY).map(|memory| (String::from("memoryBytes"), memory.units()));
        let others = list
            .iter()
            .filter(|(name, _)| !matches!(name.as_str(), ResourceName::CPU | ResourceName::MEMORY))
            .map(|(name, amount)| (name.to_string(), amount.units()));
        Self(cpu.into_iter().chain(memory).chain(others).collect())
    }

    /// The node's capacity, including swap and pods.
    fn capacity(node: &Node) -> Self {
        let own = [
            ("cpuMilli", node.cpu_milli),
            ("memoryBytes", node.memory_bytes),
            ("swapBytes", node.swap_bytes),
            ("pods", node.pods),
        ];
        let own = own.into_iter().map(|(key, amount)| (key.to_owned(), amount));
        Self(own.chain(Self::of(&node.other).0).collect())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn get(&self, key: &str) -> Option<u64> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, amount)| *amount)
    }
}

impl From<&Wrong> for ErrorDocument {
    fn from(Wrong { source, message }: &Wrong) -> Self {
        Self { source: source.clone(), message: message.clone() }
    }
}

impl Document {
    pub(super) fn new(
        node: &Node,
        settings: &Settings,
        plan: &Plan,
        errors: &[Wrong],
        warnings: &[Wrong],
    ) -> Self {
        let capacity = allocatable::capacity(node);
        let mut allocatable = allocatable::requestable(node, settings);
        // The maximum of pods and tasks belongs to the capacity.
        allocatable.remove(allocatable::PODS);
        allocatable.remove(allocatable::PID);
        let reserved = Amounts::of(&allocatable::reserved(&capacity, settings));
        let hard_thresholds = allocatable::hard_thresholds(&capacity, settings);
        let hard_thresholds =
            if reserved.is_empty() { Amounts(Vec::new()) } else { Amounts::of(&hard_thresholds) };
        Self {
            node: NodeDocument {
                capacity: Amounts::capacity(node),
                reserved,
                hard_thresholds,
                allocatable: Amounts::of(&allocatable),
                kube_reserved: (settings.kube_reserved_policy == KubeReservedPolicy::Auto)
                    .then(|| Amounts::of(&allocatable::kube_reserved(&capacity, settings))),
                cgroup: cgroup(&plan.node),
                reserved_cgroups: plan.reserved.iter().map(cgroup).collect(),
                cpus: None,
            },
            qos_cgroups: plan
                .qos
                .iter()
                .map(|(class, plan)| QosCgroup { qos_class: class.as_str(), cgroup: cgroup(plan) })
                .collect(),
            pods: plan.pods.iter().map(|planned| pod(planned)).collect(),
            errors: errors.iter().map(ErrorDocument::from).collect(),
            warnings: warnings.iter().map(ErrorDocument::from).collect(),
            beside_kubelet: Vec::new(),
        }
    }
}

fn cgroup(plan: &CgroupPlan) -> Cgroup {
    Cgroup { path: plan.path.to_string(), values: CgroupValues::clone(&plan.values) }
}

/// Values by the names of their files.
fn as_text<S: Serializer>(values: &CgroupValues, serializer: S) -> Result<S::Ok, S::Error> {
    values.to_text().serialize(serializer)
}

fn pod(plan: &PodPlan) -> PodDocument {
    PodDocument {
        namespace: plan.name.namespace.clone(),
        name: plan.name.name.clone(),
        uid: plan.uid.to_string(),
        qos_class: plan.qos_class.as_str(),
        priority: plan.priority,
        critical: plan.critical,
        requests: Amounts::of(&plan.requests),
        limits: Amounts::of(&plan.limits),
        cgroup: cgroup(&plan.cgroup),
        containers: plan
            .containers
            .iter()
            .map(|container| ContainerDocument {
                name: container.name.clone(),
                kind: container.kind.as_str(),
                oom_score_adj: container.oom_score_adj,
                cgroup: cgroup(&container.cgroup),
                cpus: None,
            })
            .collect(),
        admission: admission(&plan.admission),
    }
}

fn admission(admission: &Admission) -> AdmissionDocument {
    match admission {
        Admission::Admitted { preempt } => AdmissionDocument {
            admitted: true,
            preempt: preempt.iter().map(ToString::to_string).collect(),
            reason: None,
            message: None,
        },
        Admission::Rejected(rejection) => AdmissionDocument {
            admitted: false,
            preempt: Vec::new(),
            reason: Some(rejection.reason().into_owned()),
            message: Some(rejection.message()),
        },
    }
}
