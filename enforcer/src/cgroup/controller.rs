//! Which kernel controllers pods need, and which of them brings each file.

use std::{collections::BTreeSet, fmt};

use crate::model::CgroupFile;

/// The controllers that limit pods: those that the kubelet enables, and `io`, without which memory limits do not
/// throttle writers (`Documentation/admin-guide/cgroup-v2.rst`, "Writeback").
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Controller {
    /// `cpu`.
    Cpu,
    /// `cpuset`.
    Cpuset,
    /// `io`.
    Io,
    /// `memory`.
    Memory,
    /// `hugetlb`.
    Hugetlb,
    /// `pids`.
    Pids,
}

impl Controller {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Cpu, Self::Cpuset, Self::Io, Self::Memory, Self::Hugetlb, Self::Pids];

    /// The kernel's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cpuset => "cpuset",
            Self::Io => "io",
            Self::Memory => "memory",
            Self::Hugetlb => "hugetlb",
            Self::Pids => "pids",
        }
    }

    /// The controller of a file.
    #[must_use]
    pub fn of_file(file: CgroupFile) -> Self {
        match file {
            CgroupFile::CpuMax | CgroupFile::CpuWeight => Self::Cpu,
            CgroupFile::CpusetCpus => Self::Cpuset,
            CgroupFile::HugetlbMax { .. } => Self::Hugetlb,
            CgroupFile::MemoryHigh
            | CgroupFile::MemoryLow
            | CgroupFile::MemoryMax
            | CgroupFile::MemoryMin
            | CgroupFile::MemoryOomGroup
            | CgroupFile::MemorySwapMax => Self::Memory,
            CgroupFile::PidsMax => Self::Pids,
        }
    }

    /// The controllers that `cgroup.controllers` or `cgroup.subtree_control` lists; others are left out.
    #[must_use]
    pub fn parse_list(text: &str) -> BTreeSet<Self> {
        let listed: BTreeSet<&str> = text.split_ascii_whitespace().collect();
        Self::ALL.into_iter().filter(|controller| listed.contains(controller.name())).collect()
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_foreign_controllers_left_out() {
        let list = Controller::parse_list("cpuset cpu io memory hugetlb pids rdma misc\n");
        assert_eq!(list, Controller::ALL.into_iter().collect());
        assert_eq!(Controller::parse_list("\n"), BTreeSet::new());
    }
}
