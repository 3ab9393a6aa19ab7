//! Effective requests and limits of a whole pod: `staging/src/k8s.io/component-helpers/resource/helpers.go`.

use crate::model::{Container, ContainerKind, Pod, Quantity, Requirements, ResourceList};

use super::lists;

/// The pod's effective requests (upstream `PodRequests`).
///
/// App containers run together; sidecars run beside them and beside the init containers after them; init containers run
/// one at a time. Pod-level requests replace the sum resource by resource, then overhead is added.
#[must_use]
pub fn requests(pod: &Pod) -> ResourceList {
    let mut requests = container_requests(pod);
    replace(&mut requests, pod.resources.as_ref().map(|set| &set.requests));
    lists::add(&mut requests, &pod.overhead);
    requests
}

/// The pod's effective limits (upstream `PodLimits`): like [`requests`], but overhead raises only limited resources.
#[must_use]
pub fn limits(pod: &Pod) -> ResourceList {
    let mut limits = container_limits(pod);
    replace(&mut limits, pod.resources.as_ref().map(|set| &set.limits));
    for (name, &overhead) in &pod.overhead {
        if let Some(limit) = limits.get_mut(name).filter(|limit| !limit.is_zero()) {
            *limit = limit.saturating_add(overhead);
        }
    }
    limits
}

/// The containers' requests, without the pod level and overhead (upstream `AggregateContainerRequests`).
#[must_use]
pub fn container_requests(pod: &Pod) -> ResourceList {
    aggregate(&pod.containers, |resources| &resources.requests, |_| {})
}

/// The containers' limits, without the pod level and overhead (upstream `AggregateContainerLimits`).
#[must_use]
pub fn container_limits(pod: &Pod) -> ResourceList {
    aggregate(&pod.containers, |resources| &resources.limits, |_| {})
}

/// The request that eviction ranking and preemption compare usage with (upstream `GetResourceRequestQuantity`).
///
/// It differs from [`requests`]: as soon as the pod level names any resource that it supports, in requests or limits,
/// the containers' requests no longer count, for any resource; and overhead is added only to amounts above zero.
#[must_use]
pub fn ranking_request(pod: &Pod, name: &str) -> Quantity {
    lists::get(&ranking_requests(pod), name)
}

/// [`ranking_request`] for every resource.
#[must_use]
pub fn ranking_requests(pod: &Pod) -> ResourceList {
    let mut requests = match &pod.resources {
        Some(set) if lists::has_pod_level(Some(set)) => {
            let taken = set.requests.iter().filter(|(name, _)| lists::is_pod_level(name));
            taken.map(|(name, &quantity)| (name.clone(), quantity)).collect()
        }
        Some(_) | None => container_requests(pod),
    };
    for (name, &overhead) in &pod.overhead {
        if let Some(request) = requests.get_mut(name).filter(|request| !request.is_zero()) {
            *request = request.saturating_add(overhead);
        }
    }
    requests
}

/// Whether every container has its own limit of that resource, by the kubelet's rules (`ResourceConfigForPod` in
/// `pkg/kubelet/cm/helpers_linux.go`).
///
/// An init container also counts as limited if a sidecar before it is, because the limits are added up there. With a
/// pod-level limit the question is moot.
#[must_use]
pub fn is_limited(pod: &Pod, name: &str) -> bool {
    let at_pod_level = pod.resources.as_ref().is_some_and(|set| !lists::get(&set.limits, name).is_zero());
    let mut every_one = true;
    aggregate(
        &pod.containers,
        |resources| &resources.limits,
        |limits| every_one &= !lists::get(limits, name).is_zero(),
    );
    at_pod_level || every_one
}

/// Adds up one side of the containers' resources, and passes to `seen` what each container needs while it runs: app
/// containers their own, init containers and sidecars also those of the sidecars before them.
fn aggregate<'pod>(
    containers: &'pod [Container],
    side: impl Fn(&'pod Requirements) -> &'pod ResourceList,
    mut seen: impl FnMut(&ResourceList),
) -> ResourceList {
    let mut together = ResourceList::new();
    let mut sidecars = ResourceList::new();
    let mut init = ResourceList::new();
    for container in containers {
        let own = side(&container.resources);
        match container.kind {
            ContainerKind::App | ContainerKind::Ephemeral => {
                lists::add(&mut together, own);
                seen(own);
            }
            ContainerKind::Sidecar => {
                lists::add(&mut together, own);
                lists::add(&mut sidecars, own);
                // While it starts, it needs its own and those before it: never more than `together`.
                seen(&sidecars);
            }
            ContainerKind::Init => {
                let mut starting = own.clone();
                lists::add(&mut starting, &sidecars);
                lists::max(&mut init, &starting);
                seen(&starting);
            }
        }
    }
    lists::max(&mut together, &init);
    together
}

fn replace(list: &mut ResourceList, pod_level: Option<&ResourceList>) {
    for (name, &quantity) in pod_level.into_iter().flatten() {
        if lists::is_pod_level(name) {
            list.insert(name.clone(), quantity);
        }
    }
}
