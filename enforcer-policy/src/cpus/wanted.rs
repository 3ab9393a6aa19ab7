//! Who gets CPUs of its own: `guaranteedCPUs` in `policy_static.go`.

use crate::{
    lists,
    model::{Container, ContainerKind, Pod, PodUid, QosClass, ResourceName},
};

/// A container that gets CPUs of its own.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Wanted {
    /// Its pod.
    pub pod: PodUid,
    /// Its name.
    pub container: String,
    /// How many.
    pub cpus: u32,
}

/// How many CPUs of its own a container gets; `None` if it runs in the shared pool.
///
/// It gets them if the pod is Guaranteed and the container requests a whole number of CPUs, at least 1: app containers
/// and sidecars.
///
/// - Init containers get none. In the kubelet they do, and the app containers of the pod may use them afterwards, but
///   what these do not use is lost to the node until the pod ends.
/// - A pod with pod-level resources gets none, as in Kubernetes 1.32 to 1.37 without the feature gate
///   `PodLevelResourceManagers`, which is off by default.
#[must_use]
pub fn wanted_cpus(pod: &Pod, container: &Container, qos: QosClass) -> Option<u32> {
    let is_of_kind = matches!(container.kind, ContainerKind::App | ContainerKind::Sidecar);
    if qos != QosClass::Guaranteed || !is_of_kind || lists::has_pod_level(pod.resources.as_ref()) {
        return None;
    }
    let request = lists::get(&container.resources.requests, ResourceName::CPU);
    let whole = request.units();
    let is_whole = whole.checked_mul(1_000) == Some(request.milli());
    // No machine has as many as the type holds: the request is refused for want of CPUs, whatever it is.
    (is_whole && whole >= 1).then(|| u32::try_from(whole).unwrap_or(u32::MAX))
}

/// The containers of a pod that get CPUs of their own, in the order in which they start.
#[must_use]
pub fn wanted(pod: &Pod, qos: QosClass) -> Vec<Wanted> {
    let of = |container: &Container| {
        let cpus = wanted_cpus(pod, container, qos)?;
        Some(Wanted { pod: pod.uid.clone(), container: container.name.clone(), cpus })
    };
    pod.containers.iter().filter_map(of).collect()
}
