//! Memory QoS (KEP-2570): reserved memory that is not reclaimed, and throttling before the limit.

use crate::model::{CgroupValues, Container, Limit, Node, QosClass, ResourceName};

use super::{
    super::{MemoryProtection, MemoryReservationPolicy, Settings, allocatable},
    amount, units,
};

/// How the kernel keeps memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Protection {
    /// `memory.min`: it is not reclaimed at all; the OOM killer runs instead.
    Absolute,
    /// `memory.low`: it is reclaimed if nothing else can be.
    AsFarAsPossible,
}

/// How requested memory of a class's pods is protected, if it is.
fn of(class: QosClass, settings: &Settings) -> Option<Protection> {
    match (settings.memory_protection, settings.memory_reservation_policy, class) {
        (MemoryProtection::Request, _, _)
        | (MemoryProtection::Kubelet, MemoryReservationPolicy::TieredReservation, QosClass::Guaranteed) => {
            Some(Protection::Absolute)
        }
        (
            MemoryProtection::Kubelet,
            MemoryReservationPolicy::TieredReservation,
            QosClass::Burstable | QosClass::BestEffort,
        ) => Some(Protection::AsFarAsPossible),
        (MemoryProtection::Kubelet, MemoryReservationPolicy::None, _) => None,
    }
}

/// Protects the request of a pod or container, or the sum of a class's requests.
pub(super) fn reserve(values: &mut CgroupValues, class: QosClass, request_bytes: u64, settings: &Settings) {
    match of(class, settings) {
        Some(Protection::Absolute) => values.memory_min = amount(request_bytes),
        Some(Protection::AsFarAsPossible) => values.memory_low = amount(request_bytes),
        None => {}
    }
}

/// The protection of a cgroup that belongs to no class: what is requested or reserved there, if anything is protected.
pub(super) fn whole(bytes: u64, settings: &Settings) -> Option<Limit> {
    of(QosClass::Guaranteed, settings).and_then(|_| amount(bytes))
}

/// `memory.high` of a container: `memoryThrottlingFactor` of the way from its request to its limit, or without a limit
/// to the node's allocatable memory, in whole pages (upstream `generateLinuxContainerResources`).
///
/// Not set if it would not be above the request, or if the request equals the limit; set if a container has neither
/// (Kubernetes 1.37).
pub(super) fn memory_high(container: &Container, node: &Node, settings: &Settings) -> Option<Limit> {
    let factor = settings.memory_throttling_factor?;
    let request_bytes = units(&container.resources.requests, ResourceName::MEMORY);
    let limit_bytes = units(&container.resources.limits, ResourceName::MEMORY);
    if request_bytes > 0 && request_bytes == limit_bytes {
        return None;
    }
    let base_bytes = match limit_bytes {
        0 => units(&allocatable::unreserved(&allocatable::capacity(node), settings), ResourceName::MEMORY),
        limit_bytes => limit_bytes,
    };
    let high_bytes = between(request_bytes, base_bytes, factor);
    let page_bytes = node.page_bytes.max(1);
    let high_bytes = high_bytes - high_bytes % page_bytes;
    if high_bytes > request_bytes { amount(high_bytes) } else { None }
}

/// `low + (high - low) * factor`, rounded down.
fn between(low: u64, high: u64, factor: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "the kubelet's own arithmetic; the cast stops at the type's ends"
    )]
    let between = (low as f64 + (high as f64 - low as f64) * factor) as u64;
    between
}
