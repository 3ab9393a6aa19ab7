//! The node's resources for pods: `pkg/kubelet/cm/node_container_manager_linux.go`, `nodestatus/setters.go`.

mod auto;

use crate::model::{Node, Quantity, ResourceList, ResourceName};

use super::{KubeReservedPolicy, Settings, hugepages, lists, threshold::Signal};

/// The name of tasks in `systemReserved` and `kubeReserved`.
pub const PID: &str = "pid";

/// The resource that each pod takes one of.
pub const PODS: &str = "pods";

/// More is reserved than the node has.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "systemReserved and kubeReserved take {reserved} of {resource} together with the eviction threshold, but the node has {capacity}: reserve less"
)]
pub struct Overreserved {
    /// The resource.
    pub resource: ResourceName,
    /// The amount reserved.
    pub reserved: Quantity,
    /// The node's capacity.
    pub capacity: Quantity,
}

/// The maximum number of pods: `maxPods`, but no more than `podsPerCore` per cpu if that is not 0 (upstream
/// `MachineInfo`).
#[must_use]
pub fn pods(cpu_milli: u64, pods_per_core: u64, max_pods: u64) -> u64 {
    match pods_per_core {
        0 => max_pods,
        per_core => (cpu_milli / 1000).saturating_mul(per_core).min(max_pods),
    }
}

/// The node's capacity by resource name; tasks as `pid`.
#[must_use]
pub fn capacity(node: &Node) -> ResourceList {
    let mut capacity = node.other.clone();
    capacity.insert(ResourceName::new(ResourceName::CPU), Quantity::from_milli(node.cpu_milli));
    capacity.insert(ResourceName::new(ResourceName::MEMORY), Quantity::from_units(node.memory_bytes));
    capacity.insert(ResourceName::new(PODS), Quantity::from_units(node.pods));
    if let Some(pids) = node.max_pids {
        capacity.insert(ResourceName::new(PID), Quantity::from_units(pids));
    }
    capacity
}

/// The limit of kubepods: capacity minus reservations, if `enforceNodeAllocatable` names `pods`, else the whole
/// capacity. The eviction threshold is not subtracted, so that eviction comes before this limit.
#[must_use]
pub fn enforced(node: &Node, settings: &Settings) -> ResourceList {
    let capacity = capacity(node);
    if settings.enforce_pods { unreserved(&capacity, settings) } else { capacity }
}

/// A capacity minus its reservations, enforced or not (upstream `getNodeAllocatableAbsoluteImpl`).
#[must_use]
pub fn unreserved(capacity: &ResourceList, settings: &Settings) -> ResourceList {
    left(capacity, &reserved(capacity, settings))
}

/// What pods may request: capacity minus reservations and the hard eviction thresholds of memory and of the node's file
/// system, whether enforced or not; huge pages are subtracted from memory (upstream `MachineInfo`).
#[must_use]
pub fn requestable(node: &Node, settings: &Settings) -> ResourceList {
    let capacity = capacity(node);
    let mut allocatable = left(&capacity, &reservation(&capacity, settings));
    let huge = Quantity::from_units(hugepages::total_bytes(&capacity));
    if let Some(memory) = allocatable.get_mut(ResourceName::MEMORY) {
        *memory = memory.saturating_sub(huge).max(Quantity::ZERO);
    }
    allocatable
}

/// Checks that no more is reserved than the node has; of resources that it lacks, any amount may be (upstream
/// `validateNodeAllocatable`).
pub fn validate(node: &Node, settings: &Settings) -> Result<(), Vec<Overreserved>> {
    let beyond = overreserved(&capacity(node), settings);
    if beyond.is_empty() { Ok(()) } else { Err(beyond) }
}

/// The resources of which more is reserved than this capacity.
#[must_use]
pub fn overreserved(capacity: &ResourceList, settings: &Settings) -> Vec<Overreserved> {
    let reservation = reservation(capacity, settings);
    capacity
        .iter()
        .map(|(resource, &capacity)| {
            let reserved = lists::get(&reservation, resource.as_str());
            Overreserved { resource: resource.clone(), reserved, capacity }
        })
        // With a negative capacity, nothing may be reserved either.
        .filter(|entry| entry.reserved > entry.capacity.max(Quantity::ZERO))
        .collect()
}

/// The hard thresholds that pods cannot request, by resource (upstream `hardEvictionReservation`).
const KEPT: [(Signal, &str); 2] = [
    (Signal::MemoryAvailable, ResourceName::MEMORY),
    (Signal::NodefsAvailable, ResourceName::EPHEMERAL_STORAGE),
];

/// The amounts that pods cannot request (upstream `GetNodeAllocatableReservation`). A threshold of a resource that the
/// node lacks reserves nothing.
#[must_use]
pub fn reservation(capacity: &ResourceList, settings: &Settings) -> ResourceList {
    let mut reservation = reserved(capacity, settings);
    lists::add(&mut reservation, &hard_thresholds(capacity, settings));
    reservation
}

/// The hard eviction thresholds that pods cannot request, on a node of this capacity.
#[must_use]
pub fn hard_thresholds(capacity: &ResourceList, settings: &Settings) -> ResourceList {
    let amount = |(signal, name): (Signal, &str)| {
        let has = capacity.get(name)?.units();
        let threshold = settings.eviction.hard(signal)?;
        Some((ResourceName::new(name), Quantity::from_units(threshold.value.amount(has))))
    };
    KEPT.into_iter().filter_map(amount).collect()
}

/// `systemReserved` and `kubeReserved` together, on a node of this capacity.
#[must_use]
pub fn reserved(capacity: &ResourceList, settings: &Settings) -> ResourceList {
    let mut reserved = settings.system_reserved.clone();
    if !settings.reserved_system_cpus.is_empty() {
        // Instead of the cpu of both reservations (`run` in `cmd/kubelet/app/server.go`).
        let cpus = u64::try_from(settings.reserved_system_cpus.len()).unwrap_or(u64::MAX);
        reserved.insert(ResourceName::new(ResourceName::CPU), Quantity::from_units(cpus));
    }
    lists::add(&mut reserved, &kube_reserved(capacity, settings));
    reserved
}

/// What is reserved for Kubernetes' own daemons on a node of this capacity: `kubeReserved`, and of resources that it does
/// not name what `kubeReservedPolicy` computes.
#[must_use]
pub fn kube_reserved(capacity: &ResourceList, settings: &Settings) -> ResourceList {
    let mut reserved = match settings.kube_reserved_policy {
        KubeReservedPolicy::None => ResourceList::new(),
        KubeReservedPolicy::Auto => auto::reserved(capacity),
    };
    reserved.extend(settings.kube_reserved.clone());
    if !settings.reserved_system_cpus.is_empty() {
        reserved.remove(ResourceName::CPU);
    }
    reserved
}

fn left(capacity: &ResourceList, taken: &ResourceList) -> ResourceList {
    capacity
        .iter()
        .map(|(name, &has)| {
            let left = has.saturating_sub(lists::get(taken, name.as_str())).max(Quantity::ZERO);
            (name.clone(), left)
        })
        .collect()
}

#[cfg(test)]
mod tests;
