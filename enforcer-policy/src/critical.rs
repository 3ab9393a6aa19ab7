//! Which pods are never evicted, and which may be preempted: `pkg/kubelet/types/pod_update.go`.

use crate::model::Pod;

/// Pods of this priority or above are critical (upstream `scheduling.SystemCriticalPriority`).
pub const CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// The kubelet's annotation of a pod's source: `api`, else the pod is static.
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";

/// The annotation of the API server's mirror of a static pod.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

/// The priority class of pods that the node itself needs.
const NODE_CRITICAL_CLASS: &str = "system-node-critical";

/// Whether the pod is critical: a kubelet's static pod, a mirror of one, or of a system priority (upstream
/// `IsCriticalPod`).
#[must_use]
pub fn is_critical(pod: &Pod) -> bool {
    pod.priority() >= CRITICAL_PRIORITY || is_static(pod) || is_mirror(pod)
}

/// Whether the kubelet created the pod from a manifest of its own (upstream `IsStaticPod`).
#[must_use]
pub fn is_static(pod: &Pod) -> bool {
    pod.annotations.get(CONFIG_SOURCE).is_some_and(|source| source != "api")
}

/// Whether the pod is the API server's mirror of a static one (upstream `IsMirrorPod`).
#[must_use]
pub fn is_mirror(pod: &Pod) -> bool {
    pod.annotations.contains_key(CONFIG_MIRROR)
}

/// Whether `other` may be preempted for `preemptor` (upstream `Preemptable`): a critical pod preempts others, and
/// between two with a priority, the higher one preempts the lower.
#[must_use]
pub fn may_preempt(preemptor: &Pod, other: &Pod) -> bool {
    (is_critical(preemptor) && !is_critical(other))
        || preemptor.priority.zip(other.priority).is_some_and(|(own, others)| own > others)
}

/// Whether the node itself needs the pod (upstream `IsNodeCriticalPod`).
#[must_use]
pub fn is_node_critical(pod: &Pod) -> bool {
    is_critical(pod) && pod.priority_class_name.as_deref() == Some(NODE_CRITICAL_CLASS)
}

#[cfg(test)]
mod tests;
