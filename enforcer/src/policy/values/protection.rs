//! What memory QoS adds (KEP-2570): reserved memory that is not reclaimed, and a brake before the limit.

use crate::model::{Container, Node, QosClass, ResourceName};

use super::{
    super::{MemoryReservationPolicy, Settings, allocatable},
    Files, MEMORY_HIGH, MEMORY_LOW, MEMORY_MIN, insert_amount, units,
};

/// What a pod or a container requests is protected: for good if the pod is Guaranteed, else as far as can be.
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

/// `memory.high` of a container: as far from its request towards its limit, or towards what the node leaves to pods
/// if it has none, as `memoryThrottlingFactor` says, in whole pages (upstream `generateLinuxContainerResources`).
///
/// None where that is not above the request, and none where the request is the limit; a container with neither has
/// one (Kubernetes 1.37).
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
