//! Pods as their sources report them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Word;

/// Pod and container of a process or cgroup, where it belongs to one.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Place {
    /// The pod's namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The pod's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The pod's uid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// The container's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The kind of a kubelet's container, `app`, `init`, `sidecar` or `ephemeral`; absent where it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_kind: Option<Word>,
    /// How often a kubelet's container was made before, as the container runtime says; absent where it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The cgroup's path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
}

/// The payload of `pod.added`, `pod.changed` and `pod.removed`.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodReported {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The source that reported it: `static`.
    pub source: Word,
    /// Its priority.
    pub priority: i32,
    /// Its QoS class; null while it is not in force.
    pub qos_class: Option<Word>,
    /// Its class before the change; only in `pod.changed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_qos_class: Option<Word>,
    /// Whether it is critical; null while it is not in force.
    pub critical: Option<bool>,
    /// Its effective requests in base units, cpu as `cpuMilli` and memory as `memoryBytes`; null while it is not in force.
    pub requests: Option<BTreeMap<String, i64>>,
    /// Its effective limits, likewise.
    pub limits: Option<BTreeMap<String, i64>>,
    /// Its containers.
    pub containers: Vec<Container>,
}

/// A container of a pod.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// Its name.
    pub name: String,
    /// `app`, `init`, `sidecar` or `ephemeral`.
    pub kind: Word,
}

/// The payload of `pod.rejected`: about a pod, or about a manifest.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRejected {
    /// The pod's namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The pod's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The pod's uid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// The source: `static`.
    pub source: Word,
    /// The kubelet's reason; absent if the manifest is invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Word>,
    /// The kubelet's message, or file, line and field of what is invalid.
    pub message: String,
    /// Whether it would be rejected if enforcer enforced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
}
