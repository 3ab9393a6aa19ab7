//! The size of this machine, as reported by the kernel.

use std::{fs, path::Path};

use procfs::Current as _;

use super::hugepages;
use crate::{
    cgroup::CgroupDir,
    model::{Node, Quantity, ResourceList, ResourceName},
};

/// The kernel's list of online CPUs.
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Mount point of the file system with the pods' ephemeral storage.
const ROOT: &str = "/";

/// Why the size of the machine is unknown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// A file could not be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: &'static str,
        /// The underlying error.
        #[source]
        source: std::io::Error,
    },
    /// `/proc/meminfo` could not be read.
    #[error("cannot read /proc/meminfo")]
    Meminfo(#[source] procfs::ProcError),
    /// The list of CPUs does not have the kernel's format.
    #[error("{ONLINE}: {list:?} is not a list of CPUs such as 0-3,8")]
    Cpus {
        /// The content of the file.
        list: String,
    },
}

/// Reads the size from /proc and /sys; the administrator sets the most pods.
pub fn node(max_pods: u64) -> Result<Node, NodeError> {
    let meminfo = procfs::Meminfo::current().map_err(NodeError::Meminfo)?;
    let list = fs::read_to_string(ONLINE).map_err(|source| NodeError::Read { path: ONLINE, source })?;
    let cpus =
        online_cpus(list.trim()).ok_or_else(|| NodeError::Cpus { list: list.chars().take(64).collect() })?;
    Ok(Node {
        cpu_milli: cpus.saturating_mul(1_000),
        memory_bytes: meminfo.mem_total,
        swap_bytes: meminfo.swap_total,
        pods: max_pods,
        max_pids: max_pids(),
        page_bytes: page_bytes(),
        swap_controller: has_swap_controller(Path::new(crate::cgroup::MOUNT)),
        other: others()?,
    })
}

/// Huge pages, and the root file system's size as ephemeral storage.
fn others() -> Result<ResourceList, NodeError> {
    let mut others = hugepages::read(Path::new(hugepages::POOLS), has_controller("hugetlb"))
        .map_err(|source| NodeError::Read { path: hugepages::POOLS, source })?;
    let root =
        rustix::fs::statvfs(ROOT).map_err(|errno| NodeError::Read { path: ROOT, source: errno.into() })?;
    let bytes = root.f_blocks.saturating_mul(root.f_frsize);
    others.insert(ResourceName::new(ResourceName::EPHEMERAL_STORAGE), Quantity::from_units(bytes));
    Ok(others)
}

/// The size of a memory page.
#[must_use]
pub fn page_bytes() -> u64 {
    u64::try_from(rustix::param::page_size()).unwrap_or(4_096)
}

fn read(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The kubelet's bound: the smaller of `pid_max` and `threads-max` (`pkg/kubelet/stats/pidlimit`).
fn max_pids() -> Option<u64> {
    ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"].iter().filter_map(|path| read(path)).min()
}

/// Counts a list of CPU ranges such as `0-3,8`.
fn online_cpus(list: &str) -> Option<u64> {
    list.split(',').try_fold(0_u64, |count, range| {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (from, to): (u64, u64) = (from.parse().ok()?, to.parse().ok()?);
        count.checked_add(to.checked_sub(from)?.checked_add(1)?)
    })
}

/// Whether the unified hierarchy has that controller.
fn has_controller(name: &str) -> bool {
    let controllers =
        CgroupDir::mount(Path::new(crate::cgroup::MOUNT)).and_then(|root| root.read("cgroup.controllers"));
    controllers.is_ok_and(|controllers| controllers.split_ascii_whitespace().any(|known| known == name))
}

/// Whether cgroups have `memory.swap.max`.
///
/// The root has none, so another cgroup is checked. If there is none yet, it depends on a kernel built with swap: since
/// 5.8 the unified hierarchy accounts swap then (`mm/memcontrol.c`, `swap_files`).
fn has_swap_controller(mount: &Path) -> bool {
    let asked = || -> Option<bool> {
        let root = CgroupDir::mount(mount).ok()?;
        let child = root.children().ok()?.into_iter().find_map(|name| {
            let child = root.open_below(&name).ok()?;
            child.read("memory.max").is_ok().then_some(child)
        })?;
        Some(child.read("memory.swap.max").is_ok())
    };
    asked().unwrap_or_else(|| Path::new("/proc/swaps").exists())
}

#[cfg(test)]
mod tests {
    use super::online_cpus;

    #[test]
    fn cpu_lists_are_counted() {
        assert_eq!(online_cpus("0-3,8"), Some(5));
        assert_eq!(online_cpus("0"), Some(1));
        for wrong in ["", "3-0", "a", "0-18446744073709551615"] {
            assert_eq!(online_cpus(wrong), None, "{wrong}");
        }
    }
}
