use serde::{Deserialize, Serialize};

use crate::policy::{pressure::Conditions, threshold::NodeCondition};

/// The roster as it is told, renewed after every change.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    /// `observe`, `dry-run` or `enforce`, as it is in force.
    pub mode: String,
    /// Whether the node is under memory pressure.
    pub memory_pressure: bool,
    /// The node's conditions, as Kubernetes names them: under any but `MemoryPressure` only critical pods start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<String>,
    /// Every pod that is known.
    pub pods: Vec<PodView>,
}

impl View {
    /// Has these conditions shown from now on.
    pub fn set_conditions(&mut self, conditions: Conditions) {
        self.memory_pressure = conditions.has(NodeCondition::MemoryPressure);
        self.conditions = conditions.iter().map(|condition| condition.as_str().to_owned()).collect();
    }
}

/// A pod as it is told.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodView {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its class.
    pub qos_class: String,
    /// Its priority.
    pub priority: i32,
    /// Whether it is critical, and so never evicted. This and the two that follow are absent where an older daemon tells.
    #[serde(default)]
    pub critical: bool,
    /// The memory request that ranking compares its usage with, in bytes.
    #[serde(default)]
    pub request_bytes: u64,
    /// Its effective memory limit in bytes; none is no limit.
    #[serde(default)]
    pub limit_bytes: Option<u64>,
    /// What has become of it.
    pub state: PodState,
    /// Why it is not active, for a person.
    pub reason: Option<String>,
    /// Whether it starts processes even while the node is under memory pressure.
    pub starts_under_memory_pressure: bool,
    /// Its cgroup's path below the mount point.
    pub cgroup: String,
    /// Its containers.
    pub containers: Vec<ContainerView>,
}

/// What has become of a pod.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum PodState {
    /// Its cgroups do not stand yet.
    Pending,
    /// It may run.
    Active,
    /// It was evicted, and stays so until its manifest changes or goes.
    Evicted,
    /// It was not admitted.
    Rejected,
    /// Its manifest is gone; it goes when its last process does.
    Removed,
}

/// A container as it is told.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerView {
    /// Its name.
    pub name: String,
    /// `app`, `init` or `sidecar`.
    pub kind: String,
    /// The score of its processes.
    pub oom_score_adj: i16,
    /// Its cgroup's path below the mount point.
    pub cgroup: String,
    /// That cgroup's id; none while it does not stand.
    pub cgroup_id: Option<u64>,
}
