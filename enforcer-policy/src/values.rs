//! The values of cgroup files at each level: `pkg/kubelet/cm/helpers_linux.go`, `qos_container_manager_linux.go`,
//! `node_container_manager_linux.go`, and `pkg/kubelet/kuberuntime/kuberuntime_container_linux.go`.
//!
//! A file that would hold the kernel's default is left out.

mod container;
mod node;
mod pod;
mod protection;

use std::collections::BTreeMap;

use crate::model::{CpuMax, Limit, Node, ResourceList, SmallMap};

use super::{CgroupDriver, Settings, cpu, hugepages, lists};

pub use self::{
    container::{ContainerValues, container},
    node::{Requested, node, qos, reserved},
    pod::pod,
};

/// `cpu.max` for a limit in thousandths of a cpu, or without a limit for 0; the period is set in any case.
fn quota(cpu_limit_milli: u64, settings: &Settings) -> Option<CpuMax> {
    let period_us = settings.cpu_cfs_quota_period_us;
    let Some(quota_us) = cpu::quota_us(cpu_limit_milli, period_us) else {
        return period(settings);
    };
    let quota_us = match settings.cgroup_driver {
        CgroupDriver::Cgroupfs => quota_us,
        CgroupDriver::Systemd => cpu::quota_of_systemd_us(quota_us, period_us),
    };
    Some(CpuMax { quota_us: Limit::Amount(quota_us), period_us })
}

/// `cpu.max` without a limit, if the period is not the kernel's default.
pub(crate) fn period(settings: &Settings) -> Option<CpuMax> {
    let period_us = settings.cpu_cfs_quota_period_us;
    (period_us != CpuMax::DEFAULT_PERIOD_US).then_some(CpuMax { quota_us: Limit::Max, period_us })
}

/// An amount; 0 means no limit, or no protection.
fn amount(amount: u64) -> Option<Limit> {
    (amount > 0).then_some(Limit::Amount(amount))
}

fn hugetlb(limits: BTreeMap<u64, u64>) -> SmallMap<u64, Limit> {
    limits.into_iter().map(|(page_bytes, limit)| (page_bytes, Limit::Amount(limit))).collect()
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
