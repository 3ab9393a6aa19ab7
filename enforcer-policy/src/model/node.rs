//! What the machine offers to pods, as input to the plan.

use super::ResourceList;

/// The node's resources, as far as policy needs them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Node {
    /// CPUs in thousandths.
    pub cpu_milli: u64,
    /// `MemTotal` in bytes.
    pub memory_bytes: u64,
    /// `SwapTotal` in bytes.
    pub swap_bytes: u64,
    /// The maximum number of pods.
    pub pods: u64,
    /// The largest number of tasks: min(`pid_max`, `threads-max`); `None` if unknown.
    pub max_pids: Option<u64>,
    /// The memory page's size in bytes.
    pub page_bytes: u64,
    /// Whether the kernel accounts swap per cgroup, so that `memory.swap.max` exists.
    pub swap_controller: bool,
    /// All other resources (hugepages, ephemeral storage, extended resources), by name.
    pub other: ResourceList,
}

impl Node {
    /// The kubelet's default of `maxPods`.
    pub const MAX_PODS: u64 = 110;

    /// A node with that much of both, pages of 4 KiB, and neither swap nor other resources.
    #[must_use]
    pub fn new(cpu_milli: u64, memory_bytes: u64) -> Self {
        Self {
            cpu_milli,
            memory_bytes,
            swap_bytes: 0,
            pods: Self::MAX_PODS,
            max_pids: None,
            page_bytes: 4096,
            swap_controller: false,
            other: ResourceList::new(),
        }
    }
}
