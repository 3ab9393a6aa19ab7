use super::{CgroupPath, PodName, PodUid, QosClass};

/// Whose cgroup it is: what a cgroup id resolves to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Owner {
    /// The cgroup's path.
    pub path: CgroupPath,
    /// Which level of the hierarchy it is.
    pub level: OwnerLevel,
}

/// The levels of the hierarchy under kubepods.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum OwnerLevel {
    /// kubepods itself.
    Node,
    /// The cgroup of a QoS class.
    Qos(QosClass),
    /// A pod's.
    Pod {
        /// The pod.
        pod: PodName,
        /// Its uid.
        uid: PodUid,
    },
    /// A container's.
    Container {
        /// The container's pod.
        pod: PodName,
        /// That pod's uid.
        uid: PodUid,
        /// The container's name.
        container: String,
    },
}

impl OwnerLevel {
    /// The pod it belongs to, if it is a pod's or a container's.
    #[must_use]
    pub fn pod(&self) -> Option<&PodName> {
        match self {
            Self::Node | Self::Qos(_) => None,
            Self::Pod { pod, .. } | Self::Container { pod, .. } => Some(pod),
        }
    }

    /// The uid of the pod that it belongs to, if it is a pod's or a container's.
    #[must_use]
    pub fn uid(&self) -> Option<&PodUid> {
        match self {
            Self::Node | Self::Qos(_) => None,
            Self::Pod { uid, .. } | Self::Container { uid, .. } => Some(uid),
        }
    }

    /// The container, if it is a container's.
    #[must_use]
    pub fn container(&self) -> Option<&str> {
        match self {
            Self::Node | Self::Qos(_) | Self::Pod { .. } => None,
            Self::Container { container, .. } => Some(container),
        }
    }
}
