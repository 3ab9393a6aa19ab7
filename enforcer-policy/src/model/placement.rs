use std::collections::BTreeMap;

use super::CgroupPath;

/// The cgroups that a kubelet and its container runtime made for a pod, which another process creates, limits and
/// removes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Placement {
    /// The pod's.
    pub pod: CgroupPath,
    /// Those of its containers that exist, by the container's name.
    pub containers: BTreeMap<String, CgroupPath>,
    /// How much is known of the pod.
    pub knowledge: Knowledge,
}

/// How much is known of a pod that another made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Knowledge {
    /// Its spec.
    Spec {
        /// Whether it may be evicted: it has not ended, and each of its cgroups is the sandbox's or a named container's, so
        /// that none is missed.
        is_settled: bool,
        /// Whether a source has the pod now, and has given the spec since this process began; otherwise an earlier process
        /// kept it, or the source no longer has the pod.
        is_live: bool,
        /// Whether its deletion was requested, so that it ends by itself.
        is_terminating: bool,
    },
    /// Only its cgroups and names: neither requests nor limits, priority nor grace period.
    Names {
        /// Whether it may be evicted all the same, if its class is BestEffort: it is known for long enough that no source
        /// will bring its spec in a moment.
        is_settled: bool,
    },
}
