use serde::{Deserialize, Serialize};

use super::Common;
use crate::{
    model::Labels,
    policy::{pressure::Conditions, threshold::NodeCondition},
};

/// The roster: the answer to `GET /v1/pods`, updated after every change.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    /// The mode in force: `observe`, `dry-run` or `enforce`.
    pub mode: String,
    /// Whether the node is under memory pressure.
    pub memory_pressure: bool,
    /// The node's conditions, by their Kubernetes names. Under any but `MemoryPressure` only critical pods start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<String>,
    /// Every known pod.
    pub pods: Vec<Common<PodView>>,
}

impl View {
    /// Sets the shown conditions.
    pub fn set_conditions(&mut self, conditions: Conditions) {
        self.memory_pressure = conditions.has(NodeCondition::MemoryPressure);
        self.conditions = conditions.iter().map(|condition| condition.as_str().to_owned()).collect();
    }
}

/// A pod in the roster.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodView {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its QoS class.
    pub qos_class: String,
    /// Its priority.
    pub priority: i32,
    /// Whether it is critical and so never evicted. An older daemon omits this field and the next two.
    #[serde(default)]
    pub critical: bool,
    /// The memory request that ranking compares its usage with, in bytes.
    #[serde(default)]
    pub request_bytes: u64,
    /// Its effective memory limit in bytes; `None` means no limit.
    #[serde(default)]
    pub limit_bytes: Option<u64>,
    /// Its state.
    pub state: PodState,
    /// Why it is not active, as text.
    pub reason: Option<String>,
    /// Whether it may start processes even while the node is under memory pressure.
    pub starts_under_memory_pressure: bool,
    /// Where its spec is from; `None` if only its cgroups and names are known, or if it is a manifest's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<SpecView>,
    /// Its labels, of a kubelet's pod with a spec.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Its controller, which creates another pod when this one is gone; `None` if it has none, or if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<ControllerView>,
    /// Its cgroup's path below the mount point.
    pub cgroup: String,
    /// The id of a kubelet's pod's sandbox, as the container runtime has it; `None` if it is not known, or has no cgroup in
    /// the pod's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Its containers.
    pub containers: Vec<ContainerView>,
}

/// A pod's controller.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ControllerView {
    /// Its kind, such as `ReplicaSet`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// Where the spec of a kubelet's pod is from.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SpecView {
    /// The source that gave it.
    pub source: String,
    /// `live`: a source gave it since this daemon's start. `disk`: an earlier daemon kept it, and no source has given it
    /// since.
    pub provenance: String,
    /// When specs were read last, in milliseconds since 1970.
    pub read_ms: u64,
}

/// The state of a pod.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum PodState {
    /// Its cgroups do not exist yet.
    Pending,
    /// It may run.
    Active,
    /// It was evicted, and stays so until its manifest changes or is removed.
    Evicted,
    /// It was not admitted.
    Rejected,
    /// Its manifest is gone; the pod goes with its last process.
    Removed,
}

/// A container in the roster.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerView {
    /// Its name.
    pub name: String,
    /// `app`, `init`, `sidecar` or `ephemeral`; `app` also where a kubelet's pod has no spec that says it.
    pub kind: String,
    /// How often a kubelet's container was made before, as the container runtime says; `None` if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The `oom_score_adj` of its processes.
    pub oom_score_adj: i16,
    /// Its cgroup's path below the mount point.
    pub cgroup: String,
    /// That cgroup's id; `None` while it does not exist.
    pub cgroup_id: Option<u64>,
}
