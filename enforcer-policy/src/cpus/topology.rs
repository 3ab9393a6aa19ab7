//! Which logical CPUs share a core, a socket and a NUMA node.

use std::collections::BTreeMap;

use super::set::{CpuSet, MAX_CPU};

/// A logical CPU: a hardware thread, as the kernel numbers and schedules it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LogicalCpu {
    /// Its number, at most [`MAX_CPU`].
    pub cpu: u16,
    /// Its core. [`Topology::new`] takes the kernel's `topology/core_id`, which counts anew in every socket; a
    /// [`Topology`] returns the core's lowest CPU number, which is unique on the machine, as the kubelet does
    /// (`getUniqueCoreID`).
    pub core: u32,
    /// Its socket: `topology/physical_package_id`.
    pub socket: u32,
    /// Its NUMA node.
    pub numa_node: u32,
}

/// The online CPUs of a machine and what they share.
///
/// CPUs share a core if they have the same core id, socket and NUMA node: some kernels count core ids anew in every die
/// of a socket, and no core spans two NUMA nodes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Topology {
    online: CpuSet,
    cpus: BTreeMap<u16, LogicalCpu>,
    cores: Groups,
    sockets: Groups,
    numa_nodes: Groups,
}

/// CPUs by the number of what they share.
pub(super) type Groups = BTreeMap<u32, CpuSet>;

/// Why CPUs do not make up a machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum TopologyError {
    /// There is none.
    #[error("no CPU is online")]
    Empty,
    /// A number is there twice.
    #[error("CPU {cpu} is there twice")]
    Duplicate {
        /// The number.
        cpu: u16,
    },
    /// A number is above [`MAX_CPU`].
    #[error("CPU {cpu} is above {MAX_CPU}, the highest number of a CPU")]
    TooLarge {
        /// The number.
        cpu: u16,
    },
}

impl Topology {
    /// The machine that has those CPUs, all of which are online, in any order.
    pub fn new(cpus: impl IntoIterator<Item = LogicalCpu>) -> Result<Self, TopologyError> {
        let mut given = BTreeMap::new();
        for cpu in cpus {
            if cpu.cpu > MAX_CPU {
                return Err(TopologyError::TooLarge { cpu: cpu.cpu });
            }
            if given.insert(cpu.cpu, cpu).is_some() {
                return Err(TopologyError::Duplicate { cpu: cpu.cpu });
            }
        }
        if given.is_empty() {
            return Err(TopologyError::Empty);
        }
        let mut machine = Self {
            online: given.keys().copied().collect(),
            cpus: BTreeMap::new(),
            cores: Groups::new(),
            sockets: Groups::new(),
            numa_nodes: Groups::new(),
        };
        // In ascending order, so that the first CPU of a core is its lowest.
        let mut lowest = BTreeMap::new();
        for (number, cpu) in given {
            let core = *lowest.entry((cpu.socket, cpu.numa_node, cpu.core)).or_insert(u32::from(number));
            machine.cores.entry(core).or_default().insert(number);
            machine.sockets.entry(cpu.socket).or_default().insert(number);
            machine.numa_nodes.entry(cpu.numa_node).or_default().insert(number);
            machine.cpus.insert(number, LogicalCpu { core, ..cpu });
        }
        Ok(machine)
    }

    /// The online CPUs.
    #[must_use]
    pub fn cpus(&self) -> &CpuSet {
        &self.online
    }

    /// A CPU, with its core by the core's lowest CPU number; `None` if it is offline or does not exist.
    #[must_use]
    pub fn get(&self, cpu: u16) -> Option<&LogicalCpu> {
        self.cpus.get(&cpu)
    }

    /// The cores by their lowest CPU number, each with its online CPUs.
    #[must_use]
    pub fn cores(&self) -> &BTreeMap<u32, CpuSet> {
        &self.cores
    }

    /// The sockets, each with its online CPUs.
    #[must_use]
    pub fn sockets(&self) -> &BTreeMap<u32, CpuSet> {
        &self.sockets
    }

    /// The NUMA nodes that have CPUs, each with its online CPUs.
    #[must_use]
    pub fn numa_nodes(&self) -> &BTreeMap<u32, CpuSet> {
        &self.numa_nodes
    }

    /// The most online threads that a core has; 1 without SMT.
    ///
    /// The kubelet divides the number of CPUs by that of cores (`CPUsPerCore`), which is wrong where only some cores
    /// have two threads.
    #[must_use]
    pub fn threads_per_core(&self) -> u32 {
        let most = self.cores.values().map(CpuSet::len).max();
        most.and_then(|most| u32::try_from(most).ok()).unwrap_or(1)
    }
}
