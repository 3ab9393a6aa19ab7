//! Arithmetic over resource lists, resource by resource.

use crate::model::{Quantity, Requirements, ResourceList, ResourceName};

/// The amount of a resource; zero if the list does not name it.
pub(super) fn get(list: &ResourceList, name: &str) -> Quantity {
    list.get(name).copied().unwrap_or_default()
}

/// Adds every entry of `other`; a name that only `other` has is inserted.
pub(super) fn add(list: &mut ResourceList, other: &ResourceList) {
    for (name, &quantity) in other {
        list.update(name.clone(), |sum| sum.copied().unwrap_or_default().saturating_add(quantity));
    }
}

/// Takes the larger of both, name by name; a name that only `other` has is inserted.
pub(super) fn max(list: &mut ResourceList, other: &ResourceList) {
    for (name, &quantity) in other {
        list.update(name.clone(), |largest| largest.map_or(quantity, |largest| quantity.max(*largest)));
    }
}

/// Whether the pod level supports this resource (upstream `IsSupportedPodLevelResource`, KEP-2837).
pub(super) fn is_pod_level(name: &ResourceName) -> bool {
    let name = name.as_str();
    name == ResourceName::CPU || name == ResourceName::MEMORY || name.starts_with("hugepages-")
}

/// Whether requests or limits name a resource that the pod level supports (upstream `IsPodLevelResourcesSet`).
pub(super) fn has_pod_level(resources: Option<&Requirements>) -> bool {
    resources.is_some_and(|set| set.requests.keys().chain(set.limits.keys()).any(is_pod_level))
}
