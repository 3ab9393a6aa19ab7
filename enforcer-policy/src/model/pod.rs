//! Pods and their containers in the one form that sources deliver and rules read.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Adoption, Labels, OwnerReference, PodName, PodUid, QosClass, Requirements, ResourceList, Toleration,
};

/// A pod as a source delivers it: checked, and with the API server's defaults applied.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pod {
    /// Namespace and name.
    pub name: PodName,
    /// The unique id, which is part of its cgroup's name.
    pub uid: PodUid,
    /// `spec.priority`, or that of a system class; `None` if the manifest has neither. This counts as 0 wherever pods
    /// are ordered ([`Self::priority()`]) but never preempts by its number.
    pub priority: Option<i32>,
    /// `spec.priorityClassName`.
    pub priority_class_name: Option<String>,
    /// `spec.tolerations`.
    pub tolerations: Vec<Toleration>,
    /// `metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
    /// `spec.terminationGracePeriodSeconds`; 30 if the manifest has none.
    pub termination_grace_period_seconds: u64,
    /// `spec.overhead`.
    pub overhead: ResourceList,
    /// `spec.resources`: the pod-level resources (KEP-2837); `None` if the manifest has none.
    pub resources: Option<Requirements>,
    /// Init containers and sidecars in the order of `spec.initContainers`, then the app containers in the order of
    /// `spec.containers`.
    pub containers: Vec<Container>,
    /// The existing cgroups that it uses; `None` if it gets its own. Only a source that the node's operator writes may
    /// set this: it can have limits written to any cgroup.
    pub adopts: Option<Adoption>,
    /// `status.qosClass` as the API server stored it, which takes precedence; `None` if the manifest has no status.
    pub stored_qos_class: Option<QosClass>,
    /// `metadata.labels`, for reports; none of a manifest's pod.
    pub labels: Labels,
    /// `metadata.ownerReferences`; none of a manifest's pod.
    pub owners: Vec<Arc<OwnerReference>>,
}

impl Pod {
    /// A pod with those containers, and for everything else what the API server sets where a manifest says nothing.
    #[must_use]
    pub fn new(name: PodName, uid: PodUid, containers: Vec<Container>) -> Self {
        Self {
            name,
            uid,
            priority: None,
            priority_class_name: None,
            tolerations: Vec::new(),
            annotations: BTreeMap::new(),
            termination_grace_period_seconds: 30,
            overhead: ResourceList::new(),
            resources: None,
            containers,
            adopts: None,
            stored_qos_class: None,
            labels: Labels::default(),
            owners: Vec::new(),
        }
    }

    /// The priority for ordering: 0 if it has none.
    #[must_use]
    pub fn priority(&self) -> i32 {
        self.priority.unwrap_or_default()
    }

    /// The controller, which creates another pod when this one is gone; `None` if it has none.
    #[must_use]
    pub fn controller(&self) -> Option<&Arc<OwnerReference>> {
        self.owners.iter().find(|owner| owner.is_controller)
    }

    /// The kind of a container of that name that runs in the pod. What the spec does not name is ephemeral, unless a name in
    /// parentheses stands for containers that are not kept one by one: then its kind is not known.
    #[must_use]
    pub fn kind_of(&self, name: &str) -> Option<ContainerKind> {
        let own = self.containers.iter().find(|container| container.name == name);
        let is_whole = || self.containers.iter().all(|container| !container.name.starts_with('('));
        own.map(|container| container.kind).or_else(|| is_whole().then_some(ContainerKind::Ephemeral))
    }

    /// The containers of `spec.containers`.
    pub fn app_containers(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().filter(|container| container.kind == ContainerKind::App)
    }

    /// The containers of `spec.initContainers`, sidecars among them, in order.
    pub fn init_containers(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().filter(|container| container.kind != ContainerKind::App)
    }
}

/// One container of a pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Container {
    /// Its name, a DNS label, unique in its pod.
    pub name: String,
    /// Which kind of container it is.
    pub kind: ContainerKind,
    /// Its own requests and limits.
    pub resources: Requirements,
}

impl Container {
    /// An app container.
    #[must_use]
    pub fn app(name: &str, resources: Requirements) -> Self {
        Self { name: name.to_owned(), kind: ContainerKind::App, resources }
    }
}

/// The kinds of container.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ContainerKind {
    /// In `spec.containers`.
    App,
    /// In `spec.initContainers`; ends before the app containers start.
    Init,
    /// In `spec.initContainers` with `restartPolicy: Always`; runs as long as the pod (KEP-753).
    Sidecar,
    /// In `spec.ephemeralContainers`: added to a running pod, such as by `kubectl debug`. It requests nothing.
    Ephemeral,
}

/// Which of the containers of its name in a pod one is; what is not known is `None`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Instance {
    /// Its kind.
    pub kind: Option<ContainerKind>,
    /// How often the container was made before.
    pub attempt: Option<u32>,
}

impl ContainerKind {
    /// Its name in events and answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::App => "app",
            Self::Init => "init",
            Self::Sidecar => "sidecar",
            Self::Ephemeral => "ephemeral",
        }
    }
}
