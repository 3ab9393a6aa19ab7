//! A pod as Kubernetes has it, cut to what is used here, and what it is in the model.

mod amounts;
mod sums;

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

pub(super) use self::amounts::Amounts;
use self::{
    amounts::{allocate, keep_what_decides, read_list},
    sums::{OTHER_SIDECARS, OTHERS, sum_up, sum_up_init},
};
use super::metadata::{Annotations, Metadata};
use crate::{
    helper::{is_id, is_name, plain},
    model::{Container, ContainerKind, Labels, Pod, PodName, PodUid, QosClass, Requirements},
    policy::critical::CONFIG_SOURCE,
};

/// The grace period of a pod that has none.
const TERMINATION_GRACE_PERIOD_SECONDS: u64 = 30;

/// The reason of an eviction (`pkg/kubelet/eviction`, `Reason`).
const EVICTED: &str = "Evicted";

/// The condition of a pod that something ends (`DisruptionTarget` of the core API).
pub const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// The reason of that condition if enforcer has marked the pod as failed. A kubelet writes `TerminationByKubelet`.
pub const DISRUPTED_BY_ENFORCER: &str = "TerminationByEnforcer";

/// A pod with Kubernetes' names, in the shape of its JSON. All else is skipped.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiPod {
    /// `metadata`.
    #[serde(deserialize_with = "nullable")]
    pub metadata: Metadata,
    /// `spec`.
    #[serde(deserialize_with = "nullable")]
    pub spec: Spec,
    /// `status`.
    #[serde(deserialize_with = "nullable")]
    pub status: Status,
}

/// `spec` of a pod.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// The priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// The name of the priority's class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// The grace period in seconds; 30 without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub termination_grace_period_seconds: Option<i64>,
    /// What the pod takes besides its containers.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "BTreeMap::is_empty")]
    pub overhead: Amounts,
    /// The pod-level resources.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// The init containers and sidecars.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub init_containers: Vec<ApiContainer>,
    /// The app containers.
    #[serde(deserialize_with = "nullable")]
    pub containers: Vec<ApiContainer>,
}

/// Requests and limits.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Resources {
    /// The requests.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: Amounts,
    /// The limits.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: Amounts,
}

/// A container in a pod's spec.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiContainer {
    /// Its name.
    pub name: String,
    /// Its requests and limits.
    #[serde(deserialize_with = "nullable")]
    pub resources: Resources,
    /// `Always` makes an init container a sidecar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<String>,
}

/// `status` of a pod.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Why it has ended, in a word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The QoS class as it was stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos_class: Option<String>,
    /// The conditions; of a pod that has ended only the one by which enforcer marks a pod that it has evicted.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<PodCondition>,
    /// The resources that the kubelet has allocated to the pod as a whole.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "BTreeMap::is_empty")]
    pub allocated_resources: Amounts,
    /// The init containers' states.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub init_container_statuses: Vec<ContainerStatus>,
    /// The app containers' states.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub container_statuses: Vec<ContainerStatus>,
}

/// A condition of a pod.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct PodCondition {
    /// What it says.
    #[serde(rename = "type")]
    pub kind: String,
    /// Why, in a word.
    #[serde(deserialize_with = "nullable")]
    pub reason: String,
}

/// A container's state.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Its name.
    pub name: String,
    /// The requests that the kubelet has allocated to it, which a resize changes before the container.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "BTreeMap::is_empty")]
    pub allocated_resources: Amounts,
}

/// Why a pod of a source cannot be used. Its cgroup is known all the same.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidPod {
    /// A uid, a namespace or a name is not one.
    #[error("its {field} is not valid")]
    Word {
        /// The field.
        field: &'static str,
    },
    /// A quantity is not one.
    #[error("{resource} is not a quantity")]
    Quantity {
        /// The resource, of which the first characters are shown.
        resource: String,
    },
    /// It has no container.
    #[error("it has no containers")]
    NoContainers,
}

/// Go writes `null` for what is empty.
pub(super) fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl ApiPod {
    /// Whether its phase is Succeeded or Failed.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"))
    }

    /// Whether a kubelet says of it that it was evicted. A pod that is not admitted because the node is short has the same
    /// reason, but did not run before.
    #[must_use]
    pub fn is_evicted(&self) -> bool {
        self.status.phase.as_deref() == Some("Failed") && self.status.reason.as_deref() == Some(EVICTED)
    }

    /// Whether enforcer wrote that it was evicted, by the condition that goes with it in the same request.
    #[must_use]
    pub fn is_marked_by_enforcer(&self) -> bool {
        self.status.conditions.iter().any(PodCondition::is_of_enforcer)
    }

    /// Whether its phase is Running.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.status.phase.as_deref() == Some("Running")
    }

    /// Leaves out what does not decide: other resources, containers beyond [some](sums::MOST_CONTAINERS), whose requests are kept as a
    /// sum, and most of a pod that has ended: its processes may still run, so that what decides whether and how it is evicted
    /// is kept. Its requests are not: the scheduler has given them to others. The requests of other pods are those that are
    /// allocated from then on.
    pub(super) fn cut(&mut self) {
        if self.has_ended() {
            let Self { metadata, spec, status } = self;
            metadata.labels = Labels::default();
            metadata.owner_references.keep_controller();
            *spec = Spec {
                priority: spec.priority,
                // A longer one is no name, and is not taken later either.
                priority_class_name: spec.priority_class_name.take().filter(|name| is_name(name)),
                termination_grace_period_seconds: spec.termination_grace_period_seconds,
                containers: vec![ApiContainer { name: OTHERS.to_owned(), ..ApiContainer::default() }],
                ..Spec::default()
            };
            let reason = status.reason.take().filter(|reason| reason == EVICTED);
            let message = status.message.take().filter(|_| reason.is_some()).map(|message| plain(&message));
            let mut conditions = std::mem::take(&mut status.conditions);
            conditions.retain(|condition| reason.is_some() && condition.is_of_enforcer());
            conditions.truncate(1);
            *status = Status { phase: status.phase.take(), reason, message, conditions, ..Status::default() };
            return;
        }
        let Self { metadata: _, spec, status } = self;
        (status.reason, status.message, status.conditions) = (None, None, Vec::new());
        for (containers, statuses) in [
            (&mut spec.init_containers, std::mem::take(&mut status.init_container_statuses)),
            (&mut spec.containers, std::mem::take(&mut status.container_statuses)),
        ] {
            let mut allocated: BTreeMap<String, Amounts> =
                statuses.into_iter().map(|status| (status.name, status.allocated_resources)).collect();
            for container in containers {
                container.resources.requests.extend(allocated.remove(&container.name).unwrap_or_default());
            }
        }
        let of_pod = spec.resources.iter_mut().flat_map(Resources::amounts);
        let of_containers = spec.init_containers.iter_mut().chain(&mut spec.containers);
        let of_containers = of_containers.flat_map(|container| container.resources.amounts());
        let of_whole = [&mut spec.overhead, &mut status.allocated_resources];
        of_pod.chain(of_containers).chain(of_whole).for_each(keep_what_decides);
        sum_up_init(&mut spec.init_containers);
        sum_up(&mut spec.containers);
    }

    /// The pod in the model. Requests are those that the kubelet has allocated.
    ///
    /// Annotations but the kubelet's own are left out. Fails if a name, the uid or a quantity is not valid.
    pub fn to_pod(&self) -> Result<Pod, InvalidPod> {
        let Self { metadata, spec, status } = self;
        let Metadata { name, namespace, uid, is_terminating: _, labels, owner_references, annotations } =
            metadata;
        let word = |field, is_valid| if is_valid { Ok(()) } else { Err(InvalidPod::Word { field }) };
        word("namespace", is_name(namespace))?;
        word("name", is_name(name))?;
        word("uid", is_id(uid))?;
        let uid = PodUid::new(uid).ok_or(InvalidPod::Word { field: "uid" })?;
        if spec.containers.is_empty() {
            return Err(InvalidPod::NoContainers);
        }
        let init = spec.init_containers.iter().map(|container| {
            let kind = match container.restart_policy.as_deref() {
                Some("Always") => ContainerKind::Sidecar,
                _ => ContainerKind::Init,
            };
            container.read(kind, &status.init_container_statuses)
        });
        let app = spec.containers.iter();
        let app = app.map(|container| container.read(ContainerKind::App, &status.container_statuses));
        let containers = init.chain(app).collect::<Result<Vec<_>, _>>()?;
        let mut resources = spec.resources.as_ref().map(Resources::read).transpose()?;
        if let Some(resources) = &mut resources {
            allocate(&mut resources.requests, &status.allocated_resources)?;
        }
        let grace = spec.termination_grace_period_seconds;
        let source = metadata_source(annotations);
        Ok(Pod {
            annotations: source.map(|source| (CONFIG_SOURCE.to_owned(), source)).into_iter().collect(),
            priority: spec.priority,
            priority_class_name: spec.priority_class_name.clone().filter(|name| is_name(name)),
            // The API server turns a negative value into 1.
            termination_grace_period_seconds: grace
                .map_or(TERMINATION_GRACE_PERIOD_SECONDS, |seconds| u64::try_from(seconds).unwrap_or(1)),
            overhead: read_list(&spec.overhead)?,
            resources,
            stored_qos_class: status.qos_class.as_deref().and_then(QosClass::from_name),
            labels: labels.clone(),
            owners: owner_references.read(),
            ..Pod::new(PodName { namespace: namespace.clone(), name: name.clone() }, uid, containers)
        })
    }
}

impl ApiContainer {
    fn read(&self, kind: ContainerKind, statuses: &[ContainerStatus]) -> Result<Container, InvalidPod> {
        if !is_name(&self.name) && self.name != OTHERS && self.name != OTHER_SIDECARS {
            return Err(InvalidPod::Word { field: "container's name" });
        }
        let mut resources = self.resources.read()?;
        if let Some(status) = statuses.iter().find(|status| status.name == self.name) {
            allocate(&mut resources.requests, &status.allocated_resources)?;
        }
        Ok(Container { name: self.name.clone(), kind, resources })
    }
}

impl PodCondition {
    fn is_of_enforcer(&self) -> bool {
        self.kind == DISRUPTION_TARGET && self.reason == DISRUPTED_BY_ENFORCER
    }
}

impl Resources {
    fn amounts(&mut self) -> [&mut Amounts; 2] {
        [&mut self.requests, &mut self.limits]
    }

    fn read(&self) -> Result<Requirements, InvalidPod> {
        Ok(Requirements { requests: read_list(&self.requests)?, limits: read_list(&self.limits)? })
    }
}

/// Where the kubelet has a static pod from; `None` for a pod of the API server.
fn metadata_source(Annotations { source, .. }: &Annotations) -> Option<String> {
    source.clone().filter(|source| source != "api")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::{ResourceList, ResourceName};

    fn api_pod(value: serde_json::Value) -> ApiPod {
        serde_json::from_value(value).unwrap()
    }

    /// As a kubelet writes one, with what is not read here.
    fn web() -> serde_json::Value {
        json!({
            "metadata": {
                "name": "web", "namespace": "shop", "uid": "6c1a4e95-6bb6-11e6-bc26-28d2444e470d",
                "creationTimestamp": null, "labels": {"app": "web"},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u-c"},
                    {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "u-r", "controller": true},
                ],
                "annotations": {"enforcer.dev/cgroup": "/system.slice/ssh.service", "kubernetes.io/config.source": "file"},
                "managedFields": [{"fieldsV1": {"f:x": {}}}],
            },
            "spec": {
                "priority": 7, "priorityClassName": "important", "terminationGracePeriodSeconds": 5,
                "volumes": null, "nodeName": "n",
                "initContainers": [
                    {"name": "setup", "resources": {}},
                    {"name": "mesh", "restartPolicy": "Always", "resources": {"requests": {"memory": "16Mi"}}},
                ],
                "containers": [
                    {"name": "app", "image": "i", "resources": {"requests": {"memory": "1Gi", "cpu": "500m"}, "limits": {"memory": "2Gi"}}},
                    {"name": "proxy", "resources": {"limits": null}},
                ],
            },
            "status": {
                "phase": "Running", "qosClass": "Burstable",
                "containerStatuses": [{"name": "app", "allocatedResources": {"memory": "512Mi"}, "containerID": "containerd://1"}],
            },
        })
    }

    #[test]
    fn a_pod_has_what_decides_and_nothing_that_a_tenant_may_choose() {
        let pod = api_pod(web()).to_pod().unwrap();
        assert_eq!((pod.name.to_string().as_str(), pod.priority), ("shop/web", Some(7)));
        assert_eq!(
            (pod.termination_grace_period_seconds, pod.stored_qos_class),
            (5, Some(QosClass::Burstable))
        );
        let annotations: Vec<_> =
            pod.annotations.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!((annotations, &pod.adopts), (vec![("kubernetes.io/config.source", "file")], &None));
        assert_eq!(pod.labels.iter().collect::<Vec<_>>(), [("app", "web")]);
        let controller = pod.controller().unwrap();
        assert_eq!(
            (controller.kind.as_str(), controller.name.as_str(), controller.uid.as_str(), pod.owners.len()),
            ("ReplicaSet", "web-1", "u-r", 2)
        );
        let kinds: Vec<_> =
            pod.containers.iter().map(|container| (container.name.as_str(), container.kind)).collect();
        assert_eq!(
            kinds,
            [
                ("setup", ContainerKind::Init),
                ("mesh", ContainerKind::Sidecar),
                ("app", ContainerKind::App),
                ("proxy", ContainerKind::App)
            ]
        );
        let app = &pod.containers[2].resources;
        let amount = |list: &ResourceList, name| list.get(name).map(|quantity| quantity.units());
        assert_eq!(amount(&app.requests, ResourceName::MEMORY), Some(512 << 20), "what is allocated counts");
        assert_eq!(amount(&app.limits, ResourceName::MEMORY), Some(2 << 30));
        assert_eq!(app.requests.get(ResourceName::CPU).map(ToString::to_string), Some(String::from("500m")));
    }

    #[test]
    fn what_the_process_sends_on_is_read_back_the_same() {
        let pod = api_pod(web());
        let sent = serde_json::to_vec(&pod).unwrap();
        assert_eq!(serde_json::from_slice::<ApiPod>(&sent).unwrap(), pod);
        let text = String::from_utf8(sent).unwrap();
        assert!(!text.contains("enforcer.dev") && !text.contains("managedFields"), "{text}");
    }

    #[test]
    fn a_pod_that_cannot_be_one_is_refused() {
        let refused = |pointer: &str, value: serde_json::Value| {
            let mut pod = web();
            *pod.pointer_mut(pointer).unwrap() = value;
            api_pod(pod).to_pod().unwrap_err()
        };
        assert_eq!(refused("/metadata/name", json!("a/b")), InvalidPod::Word { field: "name" });
        assert_eq!(refused("/metadata/uid", json!("../x")), InvalidPod::Word { field: "uid" });
        assert_eq!(refused("/spec/containers", json!(null)), InvalidPod::NoContainers);
        let wrong = InvalidPod::Quantity { resource: String::from("memory") };
        for memory in ["-1", "lots", ""] {
            assert_eq!(refused("/spec/containers/0/resources/limits/memory", json!(memory)), wrong);
        }
    }

    /// Each of these is a way in which a pod's author could have its spec refused, and the pod spared.
    #[test]
    fn a_pod_does_not_escape_by_what_it_asks_for() {
        let mut pod = web();
        let containers = (0..10_000).map(|number| {
            let mut requests: serde_json::Map<_, _> =
                (0..20).map(|other| (format!("example.com/{}{other}", "x".repeat(100)), json!("0"))).collect();
            requests.extend((1..9).map(|zeros| (format!("hugepages-{:0>zeros$}Mi", 2), json!("0"))));
            requests.insert("memory".into(), json!("1Mi"));
            json!({"name": format!("c{number}"), "resources": {"requests": requests, "limits": {"ephemeral-storage": "100E"}}})
        });
        pod["spec"]["containers"] = containers.collect();
        let mut pod = api_pod(pod);
        pod.cut();
        let written = serde_json::to_vec(&pod).unwrap();
        assert!(written.len() < 32 << 10, "{}", written.len());
        let pod = serde_json::from_slice::<ApiPod>(&written).unwrap().to_pod().unwrap();
        let requests = crate::policy::effective::requests(&pod);
        let memory = requests.get(ResourceName::MEMORY).map(|quantity| quantity.units());
        assert_eq!(memory, Some((10_000 + 16) << 20));
    }

    #[test]
    fn a_pod_does_not_escape_by_how_it_writes_an_amount() {
        let zeros = "0".repeat(200_000);
        let written = [
            (format!("{zeros}257Mi"), "257Mi"),
            (format!("+{zeros}1.5{zeros}Gi"), "1536Mi"),
            (format!("0.{zeros}1"), "1n"),
            (format!("1{zeros}"), "9223372036854775807"),
        ];
        for (written, amount) in written {
            let mut pod = web();
            pod["spec"]["containers"][1]["resources"]["limits"] = json!({"memory": written});
            pod["spec"]["containers"][1]["resources"]["requests"] = json!({"memory": written});
            let mut pod = api_pod(pod);
            pod.cut();
            assert!(serde_json::to_vec(&pod).unwrap().len() < 4 << 10);
            let pod = pod.to_pod().unwrap();
            let limit = pod.containers[3].resources.limits.get(ResourceName::MEMORY);
            assert_eq!(limit, Some(&amount.parse().unwrap()), "{amount}");
        }
        let mut pod = web();
        pod["spec"]["containers"][1]["resources"]["limits"] = json!({"memory": "x".repeat(200_000)});
        let mut pod = api_pod(pod);
        pod.cut();
        assert_eq!(pod.to_pod().unwrap_err(), InvalidPod::Quantity { resource: String::from("memory") });
    }

    /// Without its controller a pod would look like one that nothing makes anew.
    #[test]
    fn the_controller_is_kept_among_many_owners_whatever_it_is_called() {
        let owner =
            |number: usize| json!({"kind": "K", "name": format!("o{number}"), "uid": format!("u{number}")});
        let mut owners: Vec<_> = (0..1_000).map(owner).collect();
        owners.push(json!({"kind": "a b", "name": "x".repeat(1_000), "uid": "", "controller": true}));
        owners.push(json!({"kind": "DaemonSet", "name": "late", "uid": "l", "controller": true}));
        let mut pod = web();
        pod["metadata"]["ownerReferences"] = owners.into();
        let pod = api_pod(pod).to_pod().unwrap();
        let controller = pod.controller().unwrap();
        assert_eq!(
            (controller.kind.as_str(), controller.name.as_str(), pod.owners.len()),
            ("(invalid)", "(invalid)", 5)
        );
        for none in [json!(null), json!([])] {
            let mut pod = web();
            (pod["metadata"]["ownerReferences"], pod["metadata"]["labels"]) = (none, json!(null));
            let pod = api_pod(pod).to_pod().unwrap();
            assert!(pod.owners.is_empty() && pod.labels.is_empty());
        }
    }

    #[test]
    fn of_a_pod_that_has_ended_only_that_is_kept() {
        let mut pod = web();
        pod["status"]["phase"] = json!("Succeeded");
        let mut pod = api_pod(pod);
        pod.cut();
        assert!(pod.has_ended());
        assert!(serde_json::to_vec(&pod).unwrap().len() < 600);
        // Its processes may still run.
        let pod = pod.to_pod().unwrap();
        assert_eq!((pod.priority, pod.priority_class_name.as_deref()), (Some(7), Some("important")));
        assert_eq!(pod.termination_grace_period_seconds, 5);
        assert_eq!(pod.controller().map(|controller| controller.name.as_str()), Some("web-1"));
        assert_eq!((pod.owners.len(), pod.labels.is_empty()), (1, true));
        let requests = crate::policy::effective::requests(&pod);
        assert!(requests.get(ResourceName::MEMORY).is_none_or(|memory| memory.units() == 0));
    }

    /// A kubelet that evicts a pod writes the same phase and the same reason.
    #[test]
    fn a_pod_that_enforcer_has_marked_is_known_by_its_condition() {
        let marked = |phase: &str, kind: &str, by: &str| {
            let mut pod = web();
            pod["status"] = json!({
                "phase": phase, "reason": "Evicted",
                "conditions": [{"type": "Ready", "reason": null}, {"type": kind, "status": "True", "reason": by}],
            });
            let mut pod = api_pod(pod);
            pod.cut();
            let sent = serde_json::to_vec(&pod).unwrap();
            let pod = serde_json::from_slice::<ApiPod>(&sent).unwrap();
            (pod.is_marked_by_enforcer(), pod.status.conditions.len())
        };
        assert_eq!(marked("Failed", DISRUPTION_TARGET, DISRUPTED_BY_ENFORCER), (true, 1));
        assert_eq!(marked("Failed", DISRUPTION_TARGET, "TerminationByKubelet"), (false, 0));
        assert_eq!(marked("Failed", "Ready", DISRUPTED_BY_ENFORCER), (false, 0));
        assert_eq!(marked("Running", DISRUPTION_TARGET, DISRUPTED_BY_ENFORCER), (false, 0));
    }

    #[test]
    fn a_pod_has_ended_in_a_terminal_phase() {
        for (phase, has_ended) in
            [("Running", false), ("Pending", false), ("Failed", true), ("Succeeded", true)]
        {
            let mut pod = web();
            pod["status"]["phase"] = json!(phase);
            assert_eq!(api_pod(pod).has_ended(), has_ended, "{phase}");
        }
    }
}
