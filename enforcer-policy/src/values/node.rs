//! What is written above the pods: kubepods, the QoS classes, the system's reservations.

use crate::model::{CgroupValues, Node, QosClass, ResourceList, ResourceName};

use super::{
    super::{ReservedScope, Settings, allocatable, cpu, hugepages},
    amount, hugetlb, milli, protection, units,
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
pub fn node(node: &Node, settings: &Settings, requested: Requested) -> CgroupValues {
    let left = allocatable::enforced(node, settings);
    CgroupValues { memory_min: protection::whole(requested.memory_bytes, settings), ..amounts(&left) }
}

/// The Burstable or BestEffort class's cgroup, with the sum of its pods' requests, which is always 0 for BestEffort
/// (upstream `setCPUCgroupConfig`, `setMemoryQoS`). Nothing else is limited there.
#[must_use]
pub fn qos(settings: &Settings, requested: Requested) -> CgroupValues {
    let mut values =
        CgroupValues { cpu_weight: Some(weight(requested.cpu_milli)), ..CgroupValues::default() };
    protection::reserve(&mut values, QosClass::Burstable, requested.memory_bytes, settings);
    values
}

/// A cgroup of the system's own, with the resources in `systemReserved` or `kubeReserved` (upstream `getCgroupConfig`):
/// no file for a resource that is not reserved. Its memory may be protected up to its limit (KEP-2570).
#[must_use]
pub fn reserved(reserved: &ResourceList, scope: ReservedScope, settings: &Settings) -> CgroupValues {
    match scope {
        ReservedScope::Compressible => {
            CgroupValues { cpu_weight: listed_weight(reserved), ..CgroupValues::default() }
        }
        ReservedScope::All => CgroupValues {
            memory_min: protection::whole(units(reserved, ResourceName::MEMORY), settings),
            ..amounts(reserved)
        },
    }
}

/// The values for the resources in the list.
fn amounts(list: &ResourceList) -> CgroupValues {
    CgroupValues {
        cpu_weight: listed_weight(list),
        hugetlb_max: hugetlb(hugepages::by_page_bytes(list)),
        memory_max: amount(units(list, ResourceName::MEMORY)),
        pids_max: amount(units(list, allocatable::PID)),
        ..CgroupValues::default()
    }
}

/// The weight for the cpu in the list, if there is any.
fn listed_weight(list: &ResourceList) -> Option<u64> {
    list.get(ResourceName::CPU).map(|cpu| weight(cpu.milli()))
}

fn weight(cpu_milli: u64) -> u64 {
    cpu::weight_linear(cpu::shares(cpu_milli))
}
