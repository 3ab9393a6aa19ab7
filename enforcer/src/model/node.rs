use super::ResourceList;

/// What the node has, as far as policy needs it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Node {
    /// CPUs in thousandths.
    pub cpu_milli: u64,
    /// `MemTotal` in bytes.
    pub memory_bytes: u64,
    /// `SwapTotal` in bytes.
    pub swap_bytes: u64,
    /// How many pods it may run.
    pub pods: u64,
    /// The largest number of tasks: min(`pid_max`, `threads-max`); none where it is not known.
    pub max_pids: Option<u64>,
    /// The memory page's size in bytes.
    pub page_bytes: u64,
    /// Whether the kernel accounts swap by cgroup, so that `memory.swap.max` is there.
    pub swap_controller: bool,
    /// Everything else it has (hugepages, ephemeral storage, extended resources), by name.
    pub other: ResourceList,
}
