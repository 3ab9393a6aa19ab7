//! Arithmetic over resource lists, resource by resource.

use crate::model::{Quantity, Requirements, ResourceList, ResourceName};

/// What the list says of a resource; zero where it says nothing.
pub(super) fn get(list: &ResourceList, name: &str) -> Quantity {
    list.get(name).copied().unwrap_or_default()
}

/// Adds every entry of `other`; a name that only `other` has is taken over.
pub(super) fn add(list: &mut ResourceList, other: &ResourceList) {
    for (name, &quantity) in other {
        list.entry(name.clone()).and_modify(|sum| *sum = sum.saturating_add(quantity)).or_insert(quantity);
    }
}

/// Takes the larger of both, name by name; a name that only `other` has is taken over.
pub(super) fn max(list: &mut ResourceList, other: &ResourceList) {
    for (name, &quantity) in other {
        list.entry(name.clone()).and_modify(|largest| *largest = quantity.max(*largest)).or_insert(quantity);
    }
}

/// Whether the pod level takes this resource (upstream `IsSupportedPodLevelResource`, KEP-2837).
pub(super) fn is_pod_level(name: &ResourceName) -> bool {
    let name = name.as_str();
    name == ResourceName::CPU || name == ResourceName::MEMORY || name.starts_with("hugepages-")
}

/// Whether requests or limits name a resource that the pod level takes (upstream `IsPodLevelResourcesSet`).
pub(super) fn has_pod_level(resources: Option<&Requirements>) -> bool {
    resources.is_some_and(|set| set.requests.keys().chain(set.limits.keys()).any(is_pod_level))
}
