//! Memory QoS (KEP-2570): reserved memory that is not reclaimed, and throttling before the limit.

use crate::model::{Container, Node, QosClass, ResourceName};

use super::{
    super::{MemoryReservationPolicy, Settings, allocatable},
    Files, MEMORY_HIGH, MEMORY_LOW, MEMORY_MIN, insert_amount, units,
};

/// Protects the request of a pod or container: absolutely if the pod is Guaranteed, else as far as possible.
pub(super) fn insert_reservation(
    files: &mut Files,
    class: QosClass,
    request_bytes: u64,
    settings: &Settings,
) {
    match (settings.memory_reservation_policy, class) {
        (MemoryReservationPolicy::TieredReservation, QosClass::Guaranteed) => {
            insert_amount(files, MEMORY_MIN, request_bytes);
        }
        (MemoryReservationPolicy::TieredReservation, QosClass::Burstable | QosClass::BestEffort) => {
            insert_amount(files, MEMORY_LOW, request_bytes);
        }
        (MemoryReservationPolicy::None, _) => {}
    }
}

/// `memory.high` of a container: `memoryThrottlingFactor` of the way from its request to its limit, or without a limit
/// to the node's allocatable memory, in whole pages (upstream `generateLinuxContainerResources`).
///
/// Not set if it would not be above the request, or if the request equals the limit; set if a container has neither
/// (Kubernetes 1.37).
pub(super) fn insert_brake(files: &mut Files, container: &Container, node: &Node, settings: &Settings) {
    let Some(factor) = settings.memory_throttling_factor else { return };
    let request_bytes = units(&container.resources.requests, ResourceName::MEMORY);
    let limit_bytes = units(&container.resources.limits, ResourceName::MEMORY);
    if request_bytes > 0 && request_bytes == limit_bytes {
        return;
    }
    let base_bytes = match limit_bytes {
        0 => units(&allocatable::unreserved(&allocatable::capacity(node), settings), ResourceName::MEMORY),
        limit_bytes => limit_bytes,
    };
    let high_bytes = between(request_bytes, base_bytes, factor);
    let page_bytes = node.page_bytes.max(1);
    let high_bytes = high_bytes - high_bytes % page_bytes;
    if high_bytes > request_bytes {
        insert_amount(files, MEMORY_HIGH, high_bytes);
    }
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
