//! What an operator chooses of the rules, as far as pure functions need it.

mod check;

use crate::model::{CgroupPath, ResourceList};

use crate::{
    cpus::{CpuOptions, CpuSet},
    engine::BreakerSettings,
    threshold::{Signal, Threshold, ThresholdValue},
};

pub use self::check::SettingsError;

/// An administrator's settings for the plan and for eviction.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `cgroupRoot`: the parent cgroup of kubepods.
    pub cgroup_root: CgroupPath,
    /// `cgroupDriver`: how cgroups are named.
    pub cgroup_driver: CgroupDriver,
    /// `cpuWeightFormula`.
    pub cpu_weight_formula: CpuWeightFormula,
    /// `cpuCFSQuota`: whether cpu limits are enforced.
    pub cpu_cfs_quota: bool,
    /// `cpuCFSQuotaPeriod` in microseconds, 1,000 to 1,000,000.
    pub cpu_cfs_quota_period_us: u64,
    /// `podPidsLimit`: the most tasks of a pod; `None` is no limit.
    pub pod_pids_limit: Option<u64>,
    /// `singleProcessOOMKill`: whether the kernel kills only one process of a container, not all.
    pub single_process_oom_kill: bool,
    /// `systemReserved`.
    pub system_reserved: ResourceList,
    /// `kubeReserved`.
    pub kube_reserved: ResourceList,
    /// `kubeReservedPolicy`.
    pub kube_reserved_policy: KubeReservedPolicy,
    /// `cpuManagerPolicy`.
    pub cpu_manager_policy: CpuManagerPolicy,
    /// `cpuManagerPolicyOptions`.
    pub cpu_manager_options: CpuOptions,
    /// `reservedSystemCPUs`: the CPUs that no container gets as its own. If it has any, their number is the reserved cpu.
    pub reserved_system_cpus: CpuSet,
    /// Whether `enforceNodeAllocatable` names `pods`: kubepods is then limited to unreserved resources.
    pub enforce_pods: bool,
    /// `systemReservedCgroup`, if `enforceNodeAllocatable` names it.
    pub system_reserved_cgroup: Option<ReservedCgroup>,
    /// `kubeReservedCgroup`, if `enforceNodeAllocatable` names it.
    pub kube_reserved_cgroup: Option<ReservedCgroup>,
    /// `memoryThrottlingFactor`, above 0 and at most 1: where `memory.high` lies between request and limit; `None`
    /// writes no `memory.high` (KEP-2570).
    pub memory_throttling_factor: Option<f64>,
    /// `memoryReservationPolicy`.
    pub memory_reservation_policy: MemoryReservationPolicy,
    /// `memoryProtection`.
    pub memory_protection: MemoryProtection,
    /// `memorySwap.swapBehavior`.
    pub swap_behavior: SwapBehavior,
    /// `evictionPriorityCeiling`: the limit up to which pods may raise their priority in the eviction ranking above
    /// their own; with `None` they may only lower it.
    pub eviction_priority_ceiling: Option<i32>,
    /// `evictionHard`, `evictionSoft` and related fields.
    pub eviction: EvictionSettings,
}

/// How cgroups are named (`pkg/kubelet/cm/cgroup_manager_linux.go`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum CgroupDriver {
    /// Plain directories.
    #[default]
    Cgroupfs,
    /// systemd's slices and scopes.
    Systemd,
}

/// A cgroup of the system's own that is limited to its reservation.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ReservedCgroup {
    /// Its path. It must exist already.
    pub path: CgroupPath,
    /// Which of the reserved resources apply.
    pub scope: ReservedScope,
}

/// Which reserved resources a cgroup of the system's own is limited to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReservedScope {
    /// All of them: `system-reserved`, `kube-reserved`.
    All,
    /// Cpu only: `system-reserved-compressible`, `kube-reserved-compressible`.
    Compressible,
}

/// Whether containers get CPUs of their own.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum CpuManagerPolicy {
    /// None does.
    #[default]
    None,
    /// Containers of Guaranteed pods that request whole CPUs do.
    Static,
}

/// What is reserved of resources that `kubeReserved` does not name.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum KubeReservedPolicy {
    /// Nothing.
    #[default]
    None,
    /// CPU and memory by the node's capacity, as Google Kubernetes Engine does.
    Auto,
}

/// Whether requested memory is protected from reclaim (KEP-2570).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum MemoryReservationPolicy {
    /// No protection.
    #[default]
    None,
    /// Guaranteed pods get `memory.min`, Burstable ones `memory.low`.
    TieredReservation,
}

/// How much of the requested memory is protected from reclaim, whatever a kubelet does.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum MemoryProtection {
    /// As [`MemoryReservationPolicy`] says.
    #[default]
    Kubelet,
    /// `memory.min` is the request, of every pod and container that has one.
    Request,
}

/// The eviction settings.
#[derive(Clone, Debug, PartialEq)]
pub struct EvictionSettings {
    /// Every threshold: the hard ones, the soft ones, then those of `allocatableMemory.available`, which follow from
    /// the hard ones of `memory.available` if pods are limited to node allocatable.
    pub thresholds: Vec<Threshold>,
    /// `evictionPressureTransitionPeriod` in milliseconds: how long a node condition outlasts its threshold.
    pub pressure_transition_period_ms: u64,
    /// `evictionMaxPodGracePeriod` in seconds: the longest grace period in a soft eviction.
    pub max_pod_grace_period_seconds: u64,
    /// `evictWithinRequest`: whether pods within their request may be evicted, after all others. The kubelet does so.
    pub evict_within_request: bool,
    /// `breaker`: when killing stops.
    pub breaker: BreakerSettings,
}

impl EvictionSettings {
    /// The hard threshold of a signal.
    #[must_use]
    pub fn hard(&self, signal: Signal) -> Option<&Threshold> {
        self.thresholds.iter().find(|threshold| threshold.signal == signal && threshold.is_hard())
    }
}

impl Default for EvictionSettings {
    /// The kubelet's defaults on Linux (`pkg/kubelet/apis/config/v1beta1/defaults_linux.go`), including those of
    /// `allocatableMemory.available` that `enforceNodeAllocatable: [pods]` adds.
    fn default() -> Self {
        const MEMORY: ThresholdValue = ThresholdValue::Amount(100 << 20);
        let thresholds = [
            (Signal::MemoryAvailable, MEMORY),
            (Signal::NodefsAvailable, ThresholdValue::Share(0.1)),
            (Signal::NodefsInodesFree, ThresholdValue::Share(0.05)),
            (Signal::ImagefsAvailable, ThresholdValue::Share(0.15)),
            (Signal::ImagefsInodesFree, ThresholdValue::Share(0.05)),
            (Signal::AllocatableMemoryAvailable, MEMORY),
        ];
        Self {
            thresholds: thresholds.map(|(signal, value)| Threshold::hard(signal, value)).into(),
            pressure_transition_period_ms: 300_000,
            max_pod_grace_period_seconds: 0,
            evict_within_request: true,
            breaker: BreakerSettings::default(),
        }
    }
}

/// Whether containers may swap (KEP-2400).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum SwapBehavior {
    /// No container may swap.
    #[default]
    NoSwap,
    /// Containers of Burstable pods may, in proportion to their memory request.
    LimitedSwap,
}

/// How a cpu request is converted to a `cpu.weight`.
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
            cgroup_driver: CgroupDriver::Cgroupfs,
            cpu_weight_formula: CpuWeightFormula::Kubelet,
            cpu_cfs_quota: true,
            cpu_cfs_quota_period_us: 100_000,
            pod_pids_limit: None,
            single_process_oom_kill: false,
            system_reserved: ResourceList::new(),
            kube_reserved: ResourceList::new(),
            kube_reserved_policy: KubeReservedPolicy::None,
            cpu_manager_policy: CpuManagerPolicy::None,
            cpu_manager_options: CpuOptions::default(),
            reserved_system_cpus: CpuSet::new(),
            enforce_pods: true,
            system_reserved_cgroup: None,
            kube_reserved_cgroup: None,
            memory_throttling_factor: None,
            memory_reservation_policy: MemoryReservationPolicy::None,
            memory_protection: MemoryProtection::Kubelet,
            swap_behavior: SwapBehavior::NoSwap,
            eviction_priority_ceiling: None,
            eviction: EvictionSettings::default(),
        }
    }
}
