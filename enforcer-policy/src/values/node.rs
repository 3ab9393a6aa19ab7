use crate::model::{Node, ResourceList, ResourceName};

use super::{
    super::{MemoryReservationPolicy, ReservedScope, Settings, allocatable, cpu, hugepages},
    CPU_WEIGHT, Files, MEMORY_LOW, MEMORY_MAX, MEMORY_MIN, PIDS_MAX, insert_amount, insert_hugetlb, milli,
    units,
};

/// The sum of pods' requests.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Requested {
    /// Cpu, in thousandths.
    pub cpu_milli: u64,
    /// Memory, in bytes.
    pub memory_bytes: u64,
}

impl Requested {
    /// Adds up the effective requests of pods.
    #[must_use]
    pub fn sum<'pod>(requests: impl IntoIterator<Item = &'pod ResourceList>) -> Self {
        requests.into_iter().fold(Self::default(), |sum, list| Self {
            cpu_milli: sum.cpu_milli.saturating_add(milli(list, ResourceName::CPU)),
            memory_bytes: sum.memory_bytes.saturating_add(units(list, ResourceName::MEMORY)),
        })
    }
}

/// kubepods: the node's resources for pods (upstream `getCgroupConfig`). The memory that Guaranteed and Burstable pods
/// request together may be protected (upstream `setMemoryQoS`). A limit of 0 means no limit there.
#[must_use]
pub fn node(node: &Node, settings: &Settings, requested: Requested) -> Files {
    let left = allocatable::enforced(node, settings);
    let mut files = amounts(&left);
    if settings.memory_reservation_policy == MemoryReservationPolicy::TieredReservation {
        insert_amount(&mut files, MEMORY_MIN, requested.memory_bytes);
    }
    files
}

/// The Burstable or BestEffort class's cgroup, with the sum of its pods' requests, which is always 0 for BestEffort
/// (upstream `setCPUCgroupConfig`, `setMemoryQoS`). Nothing else is limited there.
#[must_use]
pub fn qos(settings: &Settings, requested: Requested) -> Files {
    let mut files = weight(requested.cpu_milli);
    if settings.memory_reservation_policy == MemoryReservationPolicy::TieredReservation {
        insert_amount(&mut files, MEMORY_LOW, requested.memory_bytes);
    }
    files
}

/// A cgroup of the system's own, with the resources in `systemReserved` or `kubeReserved` (upstream `getCgroupConfig`):
/// no file for a resource that is not reserved. Its memory may be protected up to its limit (KEP-2570).
#[must_use]
pub fn reserved(reserved: &ResourceList, scope: ReservedScope, settings: &Settings) -> Files {
    match scope {
        ReservedScope::Compressible => {
            reserved.get(ResourceName::CPU).map(|cpu| weight(cpu.milli())).unwrap_or_default()
        }
        ReservedScope::All => {
            let mut files = amounts(reserved);
            if settings.memory_reservation_policy == MemoryReservationPolicy::TieredReservation {
                insert_amount(&mut files, MEMORY_MIN, units(reserved, ResourceName::MEMORY));
            }
            files
        }
    }
}

/// The values for the resources in the list.
fn amounts(list: &ResourceList) -> Files {
    let mut files = list.get(ResourceName::CPU).map(|cpu| weight(cpu.milli())).unwrap_or_default();
    insert_amount(&mut files, MEMORY_MAX, units(list, ResourceName::MEMORY));
    insert_amount(&mut files, PIDS_MAX, units(list, allocatable::PID));
    insert_hugetlb(&mut files, hugepages::by_page_bytes(list));
    files
}

fn weight(cpu_milli: u64) -> Files {
    Files::from([(CPU_WEIGHT, cpu::weight_linear(cpu::shares(cpu_milli)).to_string())])
}
