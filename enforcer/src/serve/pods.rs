//! `GET /v1/pods`: what the daemon shows of every pod, to verbs and other programs.

use std::{
    borrow::Cow,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{
    model::{CgroupPath, Common, ContainerId, Labels, OwnerReference, PodUid},
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
    /// Whether the node is under `DiskPressure` by its kubelet's account at the API server: then the kubelet starts critical
    /// pods alone. `None` without a kubelet, or if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_pressure: Option<bool>,
    /// The source of the specs of a kubelet's pods; `None` without a kubelet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub specs: Option<SpecsView>,
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

/// A pod in the roster. What its plan has too is in common with that: there may be hundreds.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodView {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: PodUid,
    /// Its QoS class.
    pub qos_class: Cow<'static, str>,
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
    pub cgroup: CgroupPath,
    /// The id of a kubelet's pod's sandbox, as the container runtime has it; `None` if it is not known, or has no cgroup in
    /// the pod's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<ContainerId>,
    /// Its containers.
    pub containers: Vec<ContainerView>,
}

/// A pod's controller: its kind, name and uid.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ControllerView(Arc<OwnerReference>);

impl From<Arc<OwnerReference>> for ControllerView {
    fn from(owner: Arc<OwnerReference>) -> Self {
        Self(owner)
    }
}

impl Deref for ControllerView {
    type Target = OwnerReference;

    fn deref(&self) -> &OwnerReference {
        &self.0
    }
}

/// How a controller is written.
#[derive(Deserialize, Serialize)]
struct WrittenController<'a> {
    kind: Cow<'a, str>,
    name: Cow<'a, str>,
    uid: Cow<'a, str>,
}

impl Serialize for ControllerView {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let OwnerReference { kind, name, uid, is_controller: _ } = &**self;
        WrittenController { kind: kind.into(), name: name.into(), uid: uid.into() }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ControllerView {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let WrittenController { kind, name, uid } = WrittenController::deserialize(deserializer)?;
        let (kind, name, uid) = (kind.into_owned(), name.into_owned(), uid.into_owned());
        Ok(Self(Arc::new(OwnerReference { kind, name, uid, is_controller: true })))
    }
}

/// Where the spec of a kubelet's pod is from.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SpecView {
    /// The source that gave it.
    pub source: String,
    /// `live`: that source answers, and has the pod. `stale`: it no longer does. `disk`: an earlier daemon kept it, and no
    /// source has given it since.
    pub provenance: String,
    /// When it was read last, in milliseconds since 1970.
    pub read_ms: ReadTime,
}

/// Which source gives the specs of a kubelet's pods.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SpecsView {
    /// The source that answers; `None` while none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// When something was read last, in milliseconds since 1970. Clones share it, so that a source that is read every few seconds
/// changes no view: what is handed out has the time at which it is written.
#[derive(Clone, Debug, Default)]
pub struct ReadTime(Arc<AtomicU64>);

impl ReadTime {
    /// That time.
    #[must_use]
    pub fn at(ms: u64) -> Self {
        Self(Arc::new(AtomicU64::new(ms)))
    }

    /// Sets it, for all clones.
    pub fn set(&self, ms: u64) {
        self.0.store(ms, Ordering::Relaxed);
    }

    /// It.
    #[must_use]
    pub fn ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Eq for ReadTime {}

impl PartialEq for ReadTime {
    fn eq(&self, other: &Self) -> bool {
        self.ms() == other.ms()
    }
}

impl Serialize for ReadTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.ms().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ReadTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u64::deserialize(deserializer).map(Self::at)
    }
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
    pub kind: Cow<'static, str>,
    /// How often a kubelet's container was made before, as the container runtime says; `None` if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The `oom_score_adj` of its processes.
    pub oom_score_adj: i16,
    /// Its cgroup's path below the mount point.
    pub cgroup: CgroupPath,
    /// That cgroup's id; `None` while it does not exist.
    pub cgroup_id: Option<u64>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_view_has_the_time_at_which_it_is_written() {
        let read = ReadTime::at(5);
        let spec = SpecView { source: "kubelet".into(), provenance: "live".into(), read_ms: read.clone() };
        let handed_out = spec.clone();
        read.set(7);
        let written = serde_json::to_value(&handed_out).unwrap();
        assert_eq!(written, json!({"source": "kubelet", "provenance": "live", "readMs": 7}));
        assert_eq!(serde_json::from_value::<SpecView>(written).unwrap(), spec);
    }

    /// Other programs read it.
    const POD: &str = concat!(
        r#"{"namespace":"shop","name":"web","uid":"6c1a4e95-6bb6-11e6-bc26-28d2444e470d","#,
        r#""qosClass":"Burstable","priority":0,"critical":false,"requestBytes":1,"limitBytes":null,"#,
        r#""state":"active","reason":null,"#,
        r#""startsUnderMemoryPressure":true,"controller":{"kind":"ReplicaSet","name":"web-1","uid":"r/1"},"#,
        r#""cgroup":"/kubepods/burstable/pod1","#,
        r#""sandbox":"0f9a0f9a0f9a0f9a0f9a0f9a0f9a0f9a0f9a0f9a0f9a0f9a0f9a0f9a0f9a0f9a","#,
        r#""containers":[{"name":"app","kind":"app","oomScoreAdj":988,"#,
        r#""cgroup":"/kubepods/burstable/pod1/app","cgroupId":7}]}"#
    );

    #[test]
    fn a_pods_ids_and_paths_are_texts() {
        let pod: PodView = serde_json::from_str(POD).unwrap();
        assert_eq!(pod.cgroup, CgroupPath::parse("/kubepods/burstable/pod1").unwrap());
        let controller = pod.controller.as_deref().unwrap();
        assert_eq!((controller.name.as_str(), controller.is_controller), ("web-1", true));
        assert_eq!(serde_json::to_string(&pod).unwrap(), POD);
    }

    #[test]
    fn an_answer_with_what_is_no_path_or_id_is_an_error_that_says_it() {
        for (key, wrong) in [("cgroup", "/a/../b"), ("uid", "a/b"), ("sandbox", "0f9a")] {
            let mut pod: serde_json::Value = serde_json::from_str(POD).unwrap();
            pod[key] = json!(wrong);
            let error = serde_json::from_value::<PodView>(pod).unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong:?}, expected a ")), "{error}");
        }
    }
}
