//! What the daemon and the kube process say to each other.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    helper::{is_id, is_name, plain},
    specs::ApiServerFeed,
};

/// The longest wait that a server may ask for, in milliseconds.
const MOST_AFTER_MS: u64 = 300_000;

/// The longest version of an API group.
const MOST_VERSION_BYTES: usize = 128;

/// A pod, and no other that has its name later.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct PodRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// What is asked of the API server.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Call {
    /// Gets the group and version in which pods are evicted.
    Discover,
    /// Keeps the connection open, or opens it.
    Ping,
    /// Gets the pod of that name.
    Look(PodRef),
    /// Evicts the pod.
    #[serde(rename_all = "camelCase")]
    Evict {
        /// The pod.
        pod: PodRef,
        /// The group and version of the eviction, as discovered.
        group_version: String,
        /// The grace period of its containers, in seconds.
        grace_seconds: u64,
    },
    /// Deletes the pod, whatever its disruption budget.
    #[serde(rename_all = "camelCase")]
    Delete {
        /// The pod.
        pod: PodRef,
        /// The grace period of its containers, in seconds.
        grace_seconds: u64,
    },
    /// Marks the pod as failed and evicted, as a kubelet does.
    Status {
        /// The pod.
        pod: PodRef,
        /// Why, in the kubelet's words.
        message: String,
    },
    /// Creates an Event.
    Report(Box<Report>),
    /// Counts another occurrence of an Event.
    #[serde(rename_all = "camelCase")]
    Repeat {
        /// The Event's namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// How often it has happened.
        count: u32,
        /// When it happened last, in milliseconds since 1970.
        time_ms: i64,
    },
    /// Gets whether the node is under disk pressure.
    DiskPressure {
        /// The node.
        node: String,
    },
    /// Sets enforcer's own condition of the node, or removes it.
    Condition {
        /// The node.
        node: String,
        /// Whether memory is short; `None` removes the condition.
        status: Option<ConditionStatus>,
    },
    /// Sets enforcer's own taint of the node, or removes it. Other taints stay.
    Taint {
        /// The node.
        node: String,
        /// What it does; `None` removes it.
        effect: Option<TaintEffect>,
    },
}

/// The status of a condition.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not hold.
    False,
}

/// What a taint does with pods that do not tolerate it and are not yet on the node.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum TaintEffect {
    /// The scheduler prefers other nodes.
    PreferNoSchedule,
    /// The scheduler uses other nodes.
    NoSchedule,
}

impl TaintEffect {
    /// Its name in Kubernetes and in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoSchedule => "NoSchedule",
        }
    }
}

/// An Event of Kubernetes (`events.k8s.io/v1`), as `kubectl describe` shows it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Its own name, which is the same if it is sent again.
    pub name: String,
    /// What it is about.
    pub about: About,
    /// The node.
    pub node: String,
    /// A word of upper and lower case, such as `Evicted`.
    pub reason: String,
    /// What was done, such as `Evict`.
    pub action: String,
    /// Whether the Event's type is `Warning`; otherwise it is `Normal`.
    pub is_warning: bool,
    /// Text for people, cut after 1,024 bytes.
    pub note: String,
    /// Further facts.
    pub annotations: BTreeMap<String, String>,
    /// When it was, in milliseconds since 1970.
    pub time_ms: i64,
}

/// What an Event is about.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum About {
    /// A pod, or one of its containers.
    Pod(PodRef, Option<ContainerRef>),
    /// The node.
    Node,
}

/// A container in a pod's spec.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerRef {
    /// Its name.
    pub name: String,
    /// Which of the spec's lists it is in.
    pub list: ContainerList,
}

/// A list of containers in a pod's spec.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ContainerList {
    /// The app containers, and those of which the kind is not known.
    Containers,
    /// The init containers and sidecars.
    InitContainers,
    /// The ephemeral containers.
    EphemeralContainers,
}

impl ContainerList {
    /// The list of containers of that kind, as an event has it.
    #[must_use]
    pub fn of(kind: Option<&str>) -> Self {
        match kind {
            Some("init" | "sidecar") => Self::InitContainers,
            Some("ephemeral") => Self::EphemeralContainers,
            Some(_) | None => Self::Containers,
        }
    }

    /// Its field in the pod's spec.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Containers => "containers",
            Self::InitContainers => "initContainers",
            Self::EphemeralContainers => "ephemeralContainers",
        }
    }
}

impl About {
    /// The namespace of the Event: that of the pod, and `kube-system` for the node. Older API servers take no Event about an
    /// object without a namespace anywhere else (`pkg/apis/core/validation/events.go`).
    #[must_use]
    pub fn namespace(&self) -> &str {
        match self {
            Self::Pod(pod, _) => &pod.namespace,
            Self::Node => "kube-system",
        }
    }
}

/// Whose questions do not wait for those of the other.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Lane {
    /// What changes pods.
    Evictions,
    /// What looks at them, and soft evictions: both may wait.
    Looks,
    /// Events, and what is of the node.
    Events,
}

/// What changes a pod at the API server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Action {
    /// The eviction subresource, which respects disruption budgets.
    Evict,
    /// A deletion.
    Delete,
    /// The status: phase Failed, reason Evicted. The object stays.
    Status,
}

impl Action {
    /// Its name in events and the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Evict => "evict",
            Self::Delete => "delete",
            Self::Status => "status",
        }
    }
}

/// A pod as the API server has it.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FoundPod {
    /// Its uid.
    pub uid: String,
    /// Whether it is to be deleted.
    pub is_terminating: bool,
    /// Whether its phase is Succeeded or Failed.
    pub has_ended: bool,
    /// The kind of its controller.
    pub controller: Option<String>,
    /// Whether it mirrors a static pod of the kubelet.
    pub is_mirror: bool,
}

/// What the API server answers.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// The group and version of evictions; `None`: it has none.
    Discovered(Option<String>),
    /// The same as it was answered before over this connection: nothing was asked now.
    Known(String),
    /// The pod of that name.
    Found(FoundPod),
    /// Whether the node is under disk pressure; `None` if nobody knows, as when its kubelet is silent.
    DiskPressure(Option<bool>),
    /// It is not there: the pod, or what was to be done with it.
    Missing,
    /// It has done what was asked.
    #[serde(rename_all = "camelCase")]
    Done {
        /// When the request was sent, since the machine was started, in milliseconds.
        sent_boot_ms: u64,
    },
    /// The pod has another uid, or has just changed.
    Conflict,
    /// A disruption budget does not allow it.
    #[serde(rename_all = "camelCase")]
    Budget {
        /// Why, in the server's words.
        words: String,
        /// For how long it asks to wait, in milliseconds.
        after_ms: Option<u64>,
    },
    /// The server refuses the request.
    #[serde(rename_all = "camelCase")]
    Refused {
        /// The status of its answer.
        status: u16,
        /// Why, in its words.
        words: String,
        /// How long to wait before the next request, in milliseconds.
        after_ms: Option<u64>,
    },
    /// There is no answer, for that reason.
    Failed(String),
    /// The request was sent twice, as the first was not answered; this came of it.
    Resent(Box<Self>),
}

/// The head of a question's frame, which has no body.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Ask {
    pub(super) lane: Lane,
    pub(super) access: ApiServerFeed,
    pub(super) call: Call,
    pub(super) timeout_ms: u64,
}

impl Call {
    /// Whether the call only reads, so that it is safe to repeat.
    pub(super) const fn changes_nothing(&self) -> bool {
        matches!(self, Self::Discover | Self::Ping | Self::Look(_) | Self::DiskPressure { .. })
    }
}

impl FoundPod {
    /// Whether it is that pod, and nothing was done with it yet.
    pub(super) fn is_as_it_was(&self, pod: &PodRef) -> bool {
        self.uid == pod.uid && !self.is_terminating && !self.has_ended && !self.is_mirror
    }
}

impl PodRef {
    /// Whether its names can stand in a path, and its uid in a precondition.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        is_plain(&self.namespace) && is_plain(&self.name) && is_id(&self.uid)
    }
}

/// Whether a text can be the name of an object, and stand in a path.
pub(super) fn is_plain(text: &str) -> bool {
    is_name(text)
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte))
}

impl Outcome {
    /// What came of a request, and how often it was sent again.
    pub(super) fn counted(self) -> (Self, u32) {
        match self {
            Self::Resent(outcome) => (*outcome, 1),
            once => (once, 0),
        }
    }

    /// The answer as the daemon takes it: the process is not trusted. The error says why there is none.
    pub(super) fn taken(self) -> Result<Self, String> {
        match self {
            Self::Failed(why) => Err(plain(&why)),
            Self::Resent(outcome) => Ok(Self::Resent(Box::new(match *outcome {
                Self::Failed(why) => Self::Failed(plain(&why)),
                Self::Resent(_) => return Err(String::from("the kube process counts a request twice")),
                other => other.taken()?,
            }))),
            Self::Discovered(Some(version)) | Self::Known(version) if version.len() > MOST_VERSION_BYTES => {
                Err(String::from("the kube process sends no version"))
            }
            Self::Found(found) if !is_id(&found.uid) => Err(String::from("the kube process sends no uid")),
            Self::Found(found) => {
                let controller = found.controller.as_deref().map(plain);
                Ok(Self::Found(FoundPod { controller, ..found }))
            }
            Self::Budget { words, after_ms } => Ok(Self::Budget {
                words: plain(&words),
                after_ms: after_ms.map(|after_ms| after_ms.min(MOST_AFTER_MS)),
            }),
            Self::Refused { status, words, after_ms } => Ok(Self::Refused {
                status,
                words: plain(&words),
                after_ms: after_ms.map(|after_ms| after_ms.min(MOST_AFTER_MS)),
            }),
            other => Ok(other),
        }
    }
}
