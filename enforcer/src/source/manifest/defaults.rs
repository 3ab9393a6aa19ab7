//! The API server's defaults for requests and limits: `SetDefaults_Pod` in `pkg/apis/core/v1/defaults.go`.

use crate::{
    model::{Pod, ResourceList, ResourceName},
    policy::effective,
};

const HUGEPAGES: &str = "hugepages-";

/// Fills in what the API server does before it stores a pod: a container's missing request is its limit; pod-level
/// resources, if any, complete each other (KEP-2837).
pub(super) fn apply(pod: &mut Pod) {
    for container in &mut pod.containers {
        let resources = &mut container.resources;
        fill(&mut resources.requests, &resources.limits, |_| true);
    }
    let container_limits = effective::container_limits(pod);
    let container_requests = effective::container_requests(pod);
    let Some(resources) = &mut pod.resources else { return };
    if resources.requests.is_empty() && resources.limits.is_empty() {
        return;
    }
    // `defaultHugePagePodLimits`: what the containers may use together.
    fill(&mut resources.limits, &container_limits, is_huge);
    // `defaultPodRequests`: what the containers request together, and else the pod's limit. Huge pages cannot be
    // overcommitted, so their request is always the limit.
    if !resources.limits.is_empty() {
        fill(&mut resources.requests, &container_requests, |name| {
            matches!(name.as_str(), ResourceName::CPU | ResourceName::MEMORY)
        });
        fill(&mut resources.requests, &resources.limits, |name| {
            matches!(name.as_str(), ResourceName::CPU | ResourceName::MEMORY) || is_huge(name)
        });
    }
}

fn fill(list: &mut ResourceList, from: &ResourceList, takes: impl Fn(&ResourceName) -> bool) {
    for (name, &quantity) in from {
        if takes(name) {
            list.update(name.clone(), |known| known.copied().unwrap_or(quantity));
        }
    }
}

fn is_huge(name: &ResourceName) -> bool {
    name.as_str().starts_with(HUGEPAGES)
}
