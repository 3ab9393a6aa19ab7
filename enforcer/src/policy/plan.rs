use std::collections::BTreeMap;

use crate::model::{CgroupPath, ContainerKind, PodName, PodUid, QosClass, ResourceList};

/// A cgroup file's name, such as `memory.max`; hugetlb's names carry the page size.
pub type FileName = std::borrow::Cow<'static, str>;

/// A cgroup and the values that its files are to hold, exactly as they are to be written.
///
/// A file that is absent keeps the kernel's default.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CgroupPlan {
    /// Where it is.
    pub path: CgroupPath,
    /// The values by file.
    pub files: BTreeMap<FileName, String>,
}

/// The desired state of the whole node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Plan {
    /// kubepods.
    pub node: CgroupPlan,
    /// The cgroups of the classes Burstable and BestEffort; Guaranteed pods stand below kubepods itself.
    pub qos: Vec<(QosClass, CgroupPlan)>,
    /// Every pod, in the order given.
    pub pods: Vec<PodPlan>,
}

/// The desired state of one pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PodPlan {
    /// Namespace and name.
    pub name: PodName,
    /// Its uid.
    pub uid: PodUid,
    /// Its class.
    pub qos_class: QosClass,
    /// Its priority.
    pub priority: i32,
    /// Whether it is critical, and so never evicted.
    pub critical: bool,
    /// The effective requests.
    pub requests: ResourceList,
    /// The effective limits.
    pub limits: ResourceList,
    /// The memory request that ranking compares usage with, in bytes (upstream `GetResourceRequestQuantity`).
    pub ranking_request_bytes: u64,
    /// Its cgroup.
    pub cgroup: CgroupPlan,
    /// Its containers, init containers first.
    pub containers: Vec<ContainerPlan>,
}

/// The desired state of one container.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ContainerPlan {
    /// Its name.
    pub name: String,
    /// Which kind of container it is.
    pub kind: ContainerKind,
    /// The score of every process in it, -1000 to 1000.
    pub oom_score_adj: i16,
    /// Its cgroup.
    pub cgroup: CgroupPlan,
}
