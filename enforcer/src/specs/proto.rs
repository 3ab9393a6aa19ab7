//! The messages of the kubelet's Pods API (`kubernetes/kubelet`, `pkg/apis/pods/v1alpha1/api.proto`) and of a pod in them
//! (`kubernetes/api`, `core/v1/generated.proto`), cut to what is used. What else is sent is skipped.

use std::collections::BTreeMap;

use prost::{DecodeError, Message};

use super::{
    metadata::{self, ApiOwner},
    pod::{self, Amounts, ApiPod},
};
use crate::{helper::is_id, policy::critical::CONFIG_SOURCE};

/// The services that may be there, by the version of their package.
pub(super) const SERVICES: [&str; 3] = ["v1alpha1.Pods", "v1beta1.Pods", "v1.Pods"];

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchPodsRequest {}

/// A change of one pod.
#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchPodsEvent {
    #[prost(int32, tag = "1")]
    pub(super) kind: i32,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) pod: Vec<u8>,
}

/// The pod is new, or was there before the call.
pub(super) const ADDED: i32 = 1;
/// It has changed.
pub(super) const MODIFIED: i32 = 2;
/// It is gone.
pub(super) const DELETED: i32 = 3;
/// Everything that was there before the call was sent.
pub(super) const INITIAL_SYNC_COMPLETE: i32 = 4;

#[derive(Clone, PartialEq, Message)]
struct Pod {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    spec: Option<PodSpec>,
    #[prost(message, optional, tag = "3")]
    status: Option<PodStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct ObjectMeta {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(string, tag = "5")]
    uid: String,
    #[prost(message, optional, tag = "9")]
    deletion_timestamp: Option<Time>,
    #[prost(message, repeated, tag = "11")]
    labels: Vec<Entry>,
    #[prost(message, repeated, tag = "12")]
    annotations: Vec<Entry>,
    #[prost(message, repeated, tag = "13")]
    owner_references: Vec<OwnerReference>,
}

/// A moment; only whether there is one is used.
#[derive(Clone, PartialEq, Message)]
struct Time {}

/// One entry of the map of labels or annotations. A tenant can give it bytes that are no text, which must not hide the pod.
#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// Its words may be no text either: the API server checks only that there are any.
#[derive(Clone, PartialEq, Message)]
struct OwnerReference {
    #[prost(bytes = "vec", tag = "1")]
    kind: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    name: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    uid: Vec<u8>,
    #[prost(bool, optional, tag = "6")]
    controller: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
struct PodSpec {
    #[prost(message, repeated, tag = "2")]
    containers: Vec<Container>,
    #[prost(int64, optional, tag = "4")]
    termination_grace_period_seconds: Option<i64>,
    #[prost(message, repeated, tag = "20")]
    init_containers: Vec<Container>,
    #[prost(string, optional, tag = "24")]
    priority_class_name: Option<String>,
    #[prost(int32, optional, tag = "25")]
    priority: Option<i32>,
    #[prost(btree_map = "string, message", tag = "32")]
    overhead: BTreeMap<String, Quantity>,
    #[prost(message, optional, tag = "40")]
    resources: Option<ResourceRequirements>,
}

#[derive(Clone, PartialEq, Message)]
struct Container {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "8")]
    resources: Option<ResourceRequirements>,
    #[prost(string, optional, tag = "24")]
    restart_policy: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceRequirements {
    #[prost(btree_map = "string, message", tag = "1")]
    limits: BTreeMap<String, Quantity>,
    #[prost(btree_map = "string, message", tag = "2")]
    requests: BTreeMap<String, Quantity>,
}

#[derive(Clone, PartialEq, Message)]
struct Quantity {
    #[prost(string, tag = "1")]
    string: String,
}

#[derive(Clone, PartialEq, Message)]
struct PodStatus {
    #[prost(string, optional, tag = "1")]
    phase: Option<String>,
    #[prost(message, repeated, tag = "2")]
    conditions: Vec<PodCondition>,
    #[prost(string, optional, tag = "3")]
    message: Option<String>,
    #[prost(string, optional, tag = "4")]
    reason: Option<String>,
    #[prost(message, repeated, tag = "8")]
    container_statuses: Vec<ContainerStatus>,
    #[prost(string, optional, tag = "9")]
    qos_class: Option<String>,
    #[prost(message, repeated, tag = "10")]
    init_container_statuses: Vec<ContainerStatus>,
    #[prost(btree_map = "string, message", tag = "19")]
    allocated_resources: BTreeMap<String, Quantity>,
}

#[derive(Clone, PartialEq, Message)]
struct PodCondition {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "5")]
    reason: String,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerStatus {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(btree_map = "string, message", tag = "10")]
    allocated_resources: BTreeMap<String, Quantity>,
}

/// A pod of which only the uid is read: what is wrong may be anywhere else.
#[derive(Clone, PartialEq, Message)]
struct OnlyUid {
    #[prost(message, optional, tag = "1")]
    metadata: Option<OnlyUidMeta>,
}

#[derive(Clone, PartialEq, Message)]
struct OnlyUidMeta {
    #[prost(string, tag = "5")]
    uid: String,
}

/// The uid of a pod that cannot be read, if that can be.
pub(super) fn uid(bytes: &[u8]) -> Option<String> {
    let metadata = OnlyUid::decode(bytes).ok()?.metadata?;
    Some(metadata.uid).filter(|uid| is_id(uid))
}

/// Reads a pod.
pub(super) fn pod(bytes: &[u8]) -> Result<ApiPod, DecodeError> {
    let Pod { metadata, spec, status } = Pod::decode(bytes)?;
    let ObjectMeta {
        name,
        namespace,
        uid,
        deletion_timestamp,
        labels,
        annotations,
        owner_references: owners,
    } = metadata.unwrap_or_default();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let labels = labels.iter().filter_map(|Entry { key, value }| {
        Some((std::str::from_utf8(key).ok()?, std::str::from_utf8(value).ok()?))
    });
    let labels = labels.collect();
    let mut owner_references = metadata::Owners::default();
    for OwnerReference { kind, name, uid, controller } in owners {
        owner_references.add(ApiOwner { kind: text(kind), name: text(name), uid: text(uid), controller });
    }
    let source = annotations.into_iter().find(|entry| entry.key == CONFIG_SOURCE.as_bytes());
    let source = source.map(|entry| text(entry.value));
    let annotations = metadata::Annotations { source, ..metadata::Annotations::default() };
    let spec = spec.unwrap_or_default();
    let status = status.unwrap_or_default();
    Ok(ApiPod {
        metadata: metadata::Metadata {
            name,
            namespace,
            uid,
            is_terminating: deletion_timestamp.is_some(),
            labels,
            owner_references,
            annotations,
        },
        spec: pod::Spec {
            priority: spec.priority,
            priority_class_name: spec.priority_class_name,
            termination_grace_period_seconds: spec.termination_grace_period_seconds,
            overhead: amounts(spec.overhead),
            resources: spec.resources.map(resources),
            init_containers: spec.init_containers.into_iter().map(container).collect(),
            containers: spec.containers.into_iter().map(container).collect(),
        },
        status: pod::Status {
            phase: status.phase,
            reason: status.reason,
            message: status.message,
            qos_class: status.qos_class,
            conditions: status.conditions.into_iter().map(condition).collect(),
            allocated_resources: amounts(status.allocated_resources),
            init_container_statuses: status.init_container_statuses.into_iter().map(of_container).collect(),
            container_statuses: status.container_statuses.into_iter().map(of_container).collect(),
        },
    })
}

fn container(container: Container) -> pod::ApiContainer {
    let Container { name, resources: of, restart_policy } = container;
    pod::ApiContainer { name, resources: of.map(resources).unwrap_or_default(), restart_policy }
}

fn condition(PodCondition { kind, reason }: PodCondition) -> pod::PodCondition {
    pod::PodCondition { kind, reason }
}

fn of_container(status: ContainerStatus) -> pod::ContainerStatus {
    let ContainerStatus { name, allocated_resources } = status;
    pod::ContainerStatus { name, allocated_resources: amounts(allocated_resources) }
}

fn resources(resources: ResourceRequirements) -> pod::Resources {
    let ResourceRequirements { limits, requests } = resources;
    pod::Resources { requests: amounts(requests), limits: amounts(limits) }
}

fn amounts(quantities: BTreeMap<String, Quantity>) -> Amounts {
    quantities.into_iter().map(|(name, quantity)| (name, quantity.string)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_pod_is_read_as_from_json() {
        let memory =
            |text: &str| BTreeMap::from([(String::from("memory"), Quantity { string: text.into() })]);
        let entry = |key: &str, value: &[u8]| Entry { key: key.into(), value: value.into() };
        let sent = Pod {
            metadata: Some(ObjectMeta {
                name: "web".into(),
                namespace: "shop".into(),
                uid: "u".into(),
                deletion_timestamp: Some(Time {}),
                labels: vec![entry("tier", b"web"), entry("x", b"\xff")],
                annotations: vec![entry("x", b"\xff"), entry(CONFIG_SOURCE, b"api")],
                owner_references: vec![OwnerReference {
                    kind: b"ReplicaSet".to_vec(),
                    name: b"\xff".to_vec(),
                    uid: b"u-o".to_vec(),
                    controller: Some(true),
                }],
            }),
            spec: Some(PodSpec {
                containers: vec![Container {
                    name: "app".into(),
                    resources: Some(ResourceRequirements { limits: memory("2Gi"), requests: memory("1Gi") }),
                    restart_policy: None,
                }],
                termination_grace_period_seconds: Some(5),
                init_containers: vec![Container {
                    name: "mesh".into(),
                    resources: None,
                    restart_policy: Some("Always".into()),
                }],
                priority_class_name: Some("important".into()),
                priority: Some(7),
                overhead: memory("8Mi"),
                resources: Some(ResourceRequirements { limits: memory("3Gi"), requests: BTreeMap::new() }),
            }),
            status: Some(PodStatus {
                phase: Some("Running".into()),
                conditions: vec![PodCondition { kind: "Ready".into(), reason: "InAnotherWord".into() }],
                message: Some("in words".into()),
                reason: Some("InAWord".into()),
                container_statuses: vec![ContainerStatus {
                    name: "app".into(),
                    allocated_resources: memory("512Mi"),
                }],
                qos_class: Some("Burstable".into()),
                init_container_statuses: Vec::new(),
                allocated_resources: BTreeMap::new(),
            }),
        };
        let expected: ApiPod = serde_json::from_value(serde_json::json!({
            "metadata": {
                "name": "web", "namespace": "shop", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"tier": "web"},
                "annotations": {"kubernetes.io/config.source": "api"},
                "ownerReferences": [{"kind": "ReplicaSet", "name": "(invalid)", "uid": "u-o", "controller": true}],
            },
            "spec": {
                "priority": 7, "priorityClassName": "important", "terminationGracePeriodSeconds": 5,
                "overhead": {"memory": "8Mi"}, "resources": {"limits": {"memory": "3Gi"}},
                "initContainers": [{"name": "mesh", "restartPolicy": "Always"}],
                "containers": [{"name": "app", "resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}}}],
            },
            "status": {
                "phase": "Running", "qosClass": "Burstable", "reason": "InAWord", "message": "in words",
                "conditions": [{"type": "Ready", "reason": "InAnotherWord"}],
                "containerStatuses": [{"name": "app", "allocatedResources": {"memory": "512Mi"}}],
            },
        }))
        .unwrap();
        assert_eq!(pod(&sent.encode_to_vec()).unwrap(), expected);
    }

    /// A name that is no text anywhere in a pod makes all of it unreadable.
    #[test]
    fn the_uid_of_a_pod_that_cannot_be_read_is() {
        let named = |uid: &str| Pod {
            metadata: Some(ObjectMeta { uid: uid.into(), ..ObjectMeta::default() }),
            ..Pod::default()
        };
        // The field 3, the status, whose field 1, the phase, is no text.
        let broken = |uid: &str| [&named(uid).encode_to_vec()[..], b"\x1a\x03\x0a\x01\xff"].concat();
        assert!(pod(&broken("u")).is_err());
        assert_eq!(uid(&broken("u")), Some(String::from("u")));
        assert_eq!(uid(&broken("../x")), None);
        assert_eq!(uid(b"\xff"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            drop((pod(&bytes), uid(&bytes), WatchPodsEvent::decode(&bytes[..])));
        }
    }
}
