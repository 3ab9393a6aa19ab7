//! Whose a cgroup is: what kernel events about its id are reported under.

use std::sync::Arc;

use super::{CgroupPath, PodName, PodUid, QosClass};

/// The owner of a cgroup: what a cgroup id resolves to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Owner {
    /// The cgroup's path.
    pub path: CgroupPath,
    /// Its level in the hierarchy.
    pub level: OwnerLevel,
}

/// The levels of the hierarchy under kubepods.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum OwnerLevel {
    /// kubepods itself.
    Node,
    /// The cgroup of a QoS class.
    Qos(QosClass),
    /// A pod's cgroup.
    Pod {
        /// The pod; shared by the owners of one pod.
        pod: Arc<PodName>,
        /// Its uid.
        uid: PodUid,
    },
    /// A container's cgroup.
    Container {
        /// The container's pod.
        pod: Arc<PodName>,
        /// That pod's uid.
        uid: PodUid,
        /// The container's name.
        container: String,
    },
}

impl OwnerLevel {
    /// The pod, if the cgroup is a pod's or a container's.
    #[must_use]
    pub fn pod(&self) -> Option<&PodName> {
        self.shared_pod().map(AsRef::as_ref)
    }

    /// The same, to be shared.
    #[must_use]
    pub fn shared_pod(&self) -> Option<&Arc<PodName>> {
        match self {
            Self::Node | Self::Qos(_) => None,
            Self::Pod { pod, .. } | Self::Container { pod, .. } => Some(pod),
        }
    }

    /// The pod's uid, if the cgroup is a pod's or a container's.
    #[must_use]
    pub fn uid(&self) -> Option<&PodUid> {
        match self {
            Self::Node | Self::Qos(_) => None,
            Self::Pod { uid, .. } | Self::Container { uid, .. } => Some(uid),
        }
    }

    /// The container, if the cgroup is a container's.
    #[must_use]
    pub fn container(&self) -> Option<&str> {
        match self {
            Self::Node | Self::Qos(_) | Self::Pod { .. } => None,
            Self::Container { container, .. } => Some(container),
        }
    }
}
