//! The values of cgroup files at each level: `pkg/kubelet/cm/helpers_linux.go`, `qos_container_manager_linux.go`,
//! `node_container_manager_linux.go`, and `pkg/kubelet/kuberuntime/kuberuntime_container_linux.go`.
//!
//! A file that would hold the kernel's default is left out.

use std::collections::BTreeMap;

use crate::model::{Container, Node, Pod, QosClass, Quantity, ResourceList, ResourceName};

use super::{
    CpuWeightFormula, FileName, Settings, SwapBehavior, allocatable, cpu, critical, effective, hugepages,
    lists, qos, threshold,
};

/// Values by file.
pub type Files = BTreeMap<FileName, String>;

const CPU_WEIGHT: FileName = FileName::Borrowed("cpu.weight");
const CPU_MAX: FileName = FileName::Borrowed("cpu.max");
const MEMORY_MAX: FileName = FileName::Borrowed("memory.max");
const MEMORY_OOM_GROUP: FileName = FileName::Borrowed("memory.oom.group");
const MEMORY_SWAP_MAX: FileName = FileName::Borrowed("memory.swap.max");
const PIDS_MAX: FileName = FileName::Borrowed("pids.max");

/// kubepods: what the node leaves to pods (upstream `getCgroupConfig`). A limit of 0 is none there.
#[must_use]
pub fn node(node: &Node, settings: &Settings) -> Files {
    let left = allocatable::enforced(node, settings);
    let mut files = Files::new();
    files.insert(CPU_WEIGHT, cpu::weight_linear(cpu::shares(milli(&left, ResourceName::CPU))).to_string());
    for (file, amount) in
        [(MEMORY_MAX, units(&left, ResourceName::MEMORY)), (PIDS_MAX, units(&left, allocatable::PID))]
    {
        if amount > 0 {
            files.insert(file, amount.to_string());
        }
    }
    insert_hugetlb(&mut files, hugepages::by_page_bytes(&left));
    files
}

/// A class's cgroup, with what its pods request of the cpu together, in thousandths (upstream `setCPUCgroupConfig`).
/// Nothing else is limited there.
#[must_use]
pub fn qos(requested_cpu_milli: u64) -> Files {
    Files::from([(CPU_WEIGHT, cpu::weight_linear(cpu::shares(requested_cpu_milli)).to_string())])
}

/// A pod's cgroup (upstream `ResourceConfigForPod`).
///
/// A Burstable pod is limited only if each of its containers is. Huge pages are limited to what is requested, and to
/// none of the sizes that the node has and the pod does not request.
#[must_use]
pub fn pod(pod: &Pod, node: &Node, settings: &Settings) -> Files {
    let requests = effective::requests(pod);
    let limits = effective::limits(pod);
    let class = qos::class(pod);
    let (cpu_limited, memory_limited) = match class {
        QosClass::Guaranteed => (true, true),
        QosClass::Burstable => {
            (effective::is_limited(pod, ResourceName::CPU), effective::is_limited(pod, ResourceName::MEMORY))
        }
        QosClass::BestEffort => (false, false),
    };
    let cpu_shares = match class {
        QosClass::Guaranteed | QosClass::Burstable => cpu::shares(milli(&requests, ResourceName::CPU)),
        QosClass::BestEffort => cpu::SHARES_MIN,
    };

    let mut files = Files::from([(CPU_WEIGHT, cpu::weight_linear(cpu_shares).to_string())]);
    if cpu_limited {
        insert_quota(&mut files, milli(&limits, ResourceName::CPU), settings);
    }
    if memory_limited {
        insert_memory_max(&mut files, units(&limits, ResourceName::MEMORY));
    }
    if let Some(pids) = settings.pod_pids_limit {
        files.insert(PIDS_MAX, pids.to_string());
    }
    let mut huge = sizes_of(node);
    huge.extend(hugepages::by_page_bytes(&requests));
    insert_hugetlb(&mut files, huge);
    files
}

/// A container's cgroup (upstream `generateLinuxContainerResources`).
///
/// What the container does not limit, the pod level limits; a cpu request that is missing is the cpu limit. Huge
/// pages are limited in every size that the node has, to none if nothing is said.
#[must_use]
pub fn container(pod: &Pod, container: &Container, node: &Node, settings: &Settings) -> Files {
    let own = &container.resources;
    let cpu_limit_milli = limit(pod, container, ResourceName::CPU).milli();
    let cpu_request_milli =
        own.requests.get(ResourceName::CPU).map_or(cpu_limit_milli, |request| request.milli());
    let cpu_shares = cpu::shares(cpu_request_milli);
    let weight = match settings.cpu_weight_formula {
        CpuWeightFormula::Kubelet => cpu::weight_quadratic(cpu_shares),
        CpuWeightFormula::Linear => cpu::weight_linear(cpu_shares),
    };

    let mut files = Files::from([(CPU_WEIGHT, weight.to_string())]);
    insert_quota(&mut files, cpu_limit_milli, settings);
    insert_memory_max(&mut files, limit(pod, container, ResourceName::MEMORY).units());
    if !settings.single_process_oom_kill {
        files.insert(MEMORY_OOM_GROUP, String::from("1"));
    }
    if node.swap_controller {
        files.insert(MEMORY_SWAP_MAX, swap_max(pod, container, node, settings).to_string());
    }
    let mut huge = sizes_of(node);
    for list in pod.resources.iter().map(|set| &set.limits).chain([&own.limits]) {
        for (page_bytes, amount) in hugepages::by_page_bytes(list) {
            huge.entry(page_bytes).and_modify(|limit| *limit = amount);
        }
    }
    insert_hugetlb(&mut files, huge);
    files
}

/// How much a container may swap, in bytes (upstream `configureContainerSwapResources`): the part of the node's swap
/// that its request is of the node's memory.
fn swap_max(pod: &Pod, container: &Container, node: &Node, settings: &Settings) -> u64 {
    let request = lists::get(&container.resources.requests, ResourceName::MEMORY);
    let limit = lists::get(&container.resources.limits, ResourceName::MEMORY);
    let may = match settings.swap_behavior {
        SwapBehavior::NoSwap => false,
        SwapBehavior::LimitedSwap => {
            qos::class(pod) == QosClass::Burstable
                && !critical::is_critical(pod)
                && request.is_positive()
                && request != limit
                && request.units() <= node.memory_bytes
        }
    };
    if !may {
        return 0;
    }
    #[expect(clippy::cast_precision_loss, reason = "the kubelet's own arithmetic")]
    let share = request.units() as f64 / node.memory_bytes as f64;
    threshold::scale(node.swap_bytes, share)
}

/// The container's own limit, or if that is zero the pod level's.
fn limit(pod: &Pod, container: &Container, name: &str) -> Quantity {
    let own = lists::get(&container.resources.limits, name);
    match &pod.resources {
        Some(pod_level) if own.is_zero() => lists::get(&pod_level.limits, name),
        Some(_) | None => own,
    }
}

fn sizes_of(node: &Node) -> BTreeMap<u64, u64> {
    hugepages::by_page_bytes(&node.other).into_keys().map(|page_bytes| (page_bytes, 0)).collect()
}

fn insert_quota(files: &mut Files, cpu_limit_milli: u64, settings: &Settings) {
    if !settings.cpu_cfs_quota {
        return;
    }
    let period_us = settings.cpu_cfs_quota_period_us;
    if let Some(quota_us) = cpu::quota_us(cpu_limit_milli, period_us) {
        files.insert(CPU_MAX, format!("{quota_us} {period_us}"));
    }
}

fn insert_memory_max(files: &mut Files, limit_bytes: u64) {
    if limit_bytes > 0 {
        files.insert(MEMORY_MAX, limit_bytes.to_string());
    }
}

fn insert_hugetlb(files: &mut Files, limits: BTreeMap<u64, u64>) {
    files.extend(
        limits.into_iter().map(|(page_bytes, limit)| (hugepages::file(page_bytes), limit.to_string())),
    );
}

fn milli(list: &ResourceList, name: &str) -> u64 {
    lists::get(list, name).milli()
}

fn units(list: &ResourceList, name: &str) -> u64 {
    lists::get(list, name).units()
}
