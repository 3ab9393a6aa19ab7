use crate::model::{CgroupPath, ResourceList};

/// What an administrator may decide about the plan.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Settings {
    /// `cgroupRoot`: the cgroup that kubepods stands in.
    pub cgroup_root: CgroupPath,
    /// `cpuWeightFormula`.
    pub cpu_weight_formula: CpuWeightFormula,
    /// `cpuCFSQuota`: whether cpu limits are enforced.
    pub cpu_cfs_quota: bool,
    /// `cpuCFSQuotaPeriod` in microseconds, 1,000 to 1,000,000.
    pub cpu_cfs_quota_period_us: u64,
    /// `podPidsLimit`: the most tasks that a pod may have; none is no limit.
    pub pod_pids_limit: Option<u64>,
    /// `singleProcessOOMKill`: whether the kernel kills one process of a container only, not all.
    pub single_process_oom_kill: bool,
    /// `systemReserved`.
    pub system_reserved: ResourceList,
    /// `kubeReserved`.
    pub kube_reserved: ResourceList,
    /// Whether `enforceNodeAllocatable` names `pods`: kubepods is then limited to what is not reserved.
    pub enforce_pods: bool,
    /// `memorySwap.swapBehavior`.
    pub swap_behavior: SwapBehavior,
}

/// Whether containers may swap (KEP-2400).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum SwapBehavior {
    /// None may.
    #[default]
    NoSwap,
    /// Containers of Burstable pods may, in proportion to their memory request.
    LimitedSwap,
}

/// How a cpu request becomes a `cpu.weight`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CpuWeightFormula {
    /// Node, QoS and pod levels linear, containers quadratic, as the kubelet and current runtimes do.
    Kubelet,
    /// Linear at every level.
    Linear,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            cgroup_root: CgroupPath::root(),
            cpu_weight_formula: CpuWeightFormula::Kubelet,
            cpu_cfs_quota: true,
            cpu_cfs_quota_period_us: 100_000,
            pod_pids_limit: None,
            single_process_oom_kill: false,
            system_reserved: ResourceList::new(),
            kube_reserved: ResourceList::new(),
            enforce_pods: true,
            swap_behavior: SwapBehavior::NoSwap,
        }
    }
}
