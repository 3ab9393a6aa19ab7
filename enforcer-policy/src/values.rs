//! The values of cgroup files at each level: `pkg/kubelet/cm/helpers_linux.go`, `qos_container_manager_linux.go`,
//! `node_container_manager_linux.go`, and `pkg/kubelet/kuberuntime/kuberuntime_container_linux.go`.
//!
//! A file that would hold the kernel's default is left out.

mod container;
mod node;
mod pod;
mod protection;

use std::collections::BTreeMap;

use crate::model::{Node, ResourceList};

use super::{CgroupDriver, FileName, Settings, cpu, hugepages, lists};

pub use self::{
    container::{ContainerValues, container},
    node::{Requested, node, qos, reserved},
    pod::pod,
};

/// Values by file.
pub type Files = BTreeMap<FileName, String>;

const CPU_WEIGHT: FileName = FileName::Borrowed("cpu.weight");
const CPU_MAX: FileName = FileName::Borrowed("cpu.max");
const MEMORY_MIN: FileName = FileName::Borrowed("memory.min");
const MEMORY_LOW: FileName = FileName::Borrowed("memory.low");
const MEMORY_HIGH: FileName = FileName::Borrowed("memory.high");
const MEMORY_MAX: FileName = FileName::Borrowed("memory.max");
const MEMORY_OOM_GROUP: FileName = FileName::Borrowed("memory.oom.group");
const MEMORY_SWAP_MAX: FileName = FileName::Borrowed("memory.swap.max");
const PIDS_MAX: FileName = FileName::Borrowed("pids.max");

/// The period that the kernel gives a new cgroup, in microseconds (`default_cfs_period` in kernel/sched/core.c).
const DEFAULT_PERIOD_US: u64 = 100_000;

/// Sets a limit in thousandths of a cpu, or no limit for 0; the period is set in any case.
fn insert_quota(files: &mut Files, cpu_limit_milli: u64, settings: &Settings) {
    let period_us = settings.cpu_cfs_quota_period_us;
    let Some(quota_us) = cpu::quota_us(cpu_limit_milli, period_us) else {
        return insert_period(files, settings);
    };
    let quota_us = match settings.cgroup_driver {
        CgroupDriver::Cgroupfs => quota_us,
        CgroupDriver::Systemd => cpu::quota_of_systemd_us(quota_us, period_us),
    };
    files.insert(CPU_MAX, format!("{quota_us} {period_us}"));
}

/// Sets the period without a limit.
fn insert_period(files: &mut Files, settings: &Settings) {
    let period_us = settings.cpu_cfs_quota_period_us;
    if period_us != DEFAULT_PERIOD_US {
        files.insert(CPU_MAX, format!("max {period_us}"));
    }
}

/// Inserts an amount; 0 means no limit, or no protection.
fn insert_amount(files: &mut Files, file: FileName, amount: u64) {
    if amount > 0 {
        files.insert(file, amount.to_string());
    }
}

fn insert_hugetlb(files: &mut Files, limits: BTreeMap<u64, u64>) {
    files.extend(
        limits.into_iter().map(|(page_bytes, limit)| (hugepages::file(page_bytes), limit.to_string())),
    );
}

/// An amount of 0 for each size of huge page that the node has.
fn no_huge_pages(node: &Node) -> BTreeMap<u64, u64> {
    hugepages::by_page_bytes(&node.other).into_keys().map(|page_bytes| (page_bytes, 0)).collect()
}

fn milli(list: &ResourceList, name: &str) -> u64 {
    lists::get(list, name).milli()
}

fn units(list: &ResourceList, name: &str) -> u64 {
    lists::get(list, name).units()
}

#[cfg(test)]
mod tests;
