//! The engine's input: samples, usage and outcomes, each with its time, as there is no clock.

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use super::{arming::is_of_pods, back_off::PodKey, hook::HookEnd, settings::Resource};
use crate::{
    model::CgroupId,
    pressure::{Observation, Observations},
    threshold::Signal,
};

/// A pod that could be evicted, as far as its plan shows.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct CandidateFacts {
    /// Its cgroup.
    pub cgroup: CgroupId,
    /// The same pod also when it comes back in another cgroup.
    pub pod: PodKey,
    /// Its priority.
    pub priority: i32,
    /// The memory request that ranking compares usage with, in bytes.
    pub request_bytes: u64,
    /// Critical pods are never evicted.
    pub critical: bool,
    /// Pods that an operator protects are never evicted either.
    pub protected: bool,
    /// The grace period that the pod requests, in nanoseconds: its `terminationGracePeriodSeconds`. Only a soft
    /// eviction grants one.
    pub grace_period_ns: u64,
    /// Whether its deletion was requested, it has ended but for its last processes, or it is being ended for another reason than
    /// a shortage, so that it ends without being evicted.
    pub terminating: bool,
    /// Whether another removes its memory-backed volumes once it is dead: a kubelet, which does so a moment later.
    pub torn_down: bool,
    /// Whether memory that it uses counts towards the pods' own limit, as it is charged within kubepods. What it adopts can
    /// be elsewhere.
    pub in_kubepods: bool,
}

impl CandidateFacts {
    /// Whether memory that its death frees counts for that signal.
    pub(crate) fn counts_for(&self, signal: Signal) -> bool {
        self.in_kubepods || !is_of_pods(signal)
    }
}

/// What a pod's cgroup is charged for.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub struct Usage {
    /// `memory.current`.
    pub current_bytes: u64,
    /// `memory.current` less inactive file pages, not below 0: the kubelet ranks by this.
    pub working_set_bytes: u64,
    /// `anon` of `memory.stat`.
    pub anon_bytes: u64,
    /// `file` of `memory.stat`, shared memory included.
    pub file_bytes: u64,
    /// `shmem` of `memory.stat`.
    pub shmem_bytes: u64,
    /// `file_mapped` of `memory.stat`, mapped shared memory included.
    pub file_mapped_bytes: u64,
    /// `pids.current`; `None` if it was not requested or could not be read. 0 means that the cgroup holds no process:
    /// then nothing comes back from it, and all other fields are 0.
    pub process_count: Option<u64>,
}

impl Usage {
    /// How much the death of the pod's processes frees: their anonymous memory, and the shared memory that they map.
    ///
    /// Files in a tmpfs stay charged until they are removed or their mount goes (kubernetes#128339). Page cache stays
    /// until it is reclaimed, and `MemAvailable` counts most of it as available already. Swapped memory takes up none.
    #[must_use]
    pub fn freed_by_death_bytes(&self) -> u64 {
        self.anon_bytes.saturating_add(self.mapped_shmem_bytes())
    }

    /// An upper bound of the shared memory that the pod's processes map. It goes with them, unless a file in a tmpfs
    /// holds it; the kernel shows neither that, nor how much of the mapped memory is shared memory.
    #[must_use]
    pub fn mapped_shmem_bytes(&self) -> u64 {
        self.shmem_bytes.min(self.file_mapped_bytes)
    }

    /// A lower bound of the shared memory that no process of the pod maps: files in a tmpfs.
    #[must_use]
    pub fn unmapped_shmem_bytes(&self) -> u64 {
        self.shmem_bytes.saturating_sub(self.mapped_shmem_bytes())
    }

    /// The sum of both, for a pod that is charged in more than one cgroup.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            current_bytes: self.current_bytes.saturating_add(other.current_bytes),
            working_set_bytes: self.working_set_bytes.saturating_add(other.working_set_bytes),
            anon_bytes: self.anon_bytes.saturating_add(other.anon_bytes),
            file_bytes: self.file_bytes.saturating_add(other.file_bytes),
            shmem_bytes: self.shmem_bytes.saturating_add(other.shmem_bytes),
            file_mapped_bytes: self.file_mapped_bytes.saturating_add(other.file_mapped_bytes),
            process_count: match (self.process_count, other.process_count) {
                (Some(one), Some(more)) => Some(one.saturating_add(more)),
                (one, more) => one.or(more),
            },
        }
    }
}

/// The result of reading a candidate's usage.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub enum Reading {
    /// It could not be read; as in the kubelet, a pod without stats ranks first.
    Missing,
    /// The cgroup is gone: there is nothing to evict.
    Gone,
    /// The usage.
    Usage(Usage),
    /// Its memory is not counted, as its cgroup has no memory controller: it is not evicted for memory. This is no failure
    /// to read it, after which a pod ranks first.
    Uncounted {
        /// As in [`Usage`].
        process_count: Option<u64>,
    },
}

impl Reading {
    /// The usage, if it was read.
    #[must_use]
    pub fn usage(&self) -> Option<&Usage> {
        match self {
            Self::Usage(usage) => Some(usage),
            Self::Missing | Self::Gone | Self::Uncounted { .. } => None,
        }
    }

    /// The number of its tasks, if it was read.
    #[must_use]
    pub fn process_count(&self) -> Option<u64> {
        match self {
            Self::Usage(usage) => usage.process_count,
            Self::Uncounted { process_count } => *process_count,
            Self::Missing | Self::Gone => None,
        }
    }

    /// How much of a resource the death of its processes frees, as far as is known, in its base unit.
    #[must_use]
    pub fn freed_by_death(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Memory => self.usage().map_or(0, Usage::freed_by_death_bytes),
            Resource::Pids => self.process_count().unwrap_or(0),
        }
    }

    /// Whether the cgroup is known to hold no process.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Gone => true,
            Self::Missing | Self::Usage(_) | Self::Uncounted { .. } => self.process_count() == Some(0),
        }
    }
}

/// How much of a resource there is, in its base unit.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub struct Level {
    /// The amount left.
    pub available: u64,
    /// The total.
    pub capacity: u64,
}

/// The node at one moment.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub struct NodeSample {
    /// When it was read: nanoseconds of `CLOCK_BOOTTIME`.
    pub now_ns: u64,
    /// For how much of that the machine was suspended. Grace periods and the transition period of conditions leave it out,
    /// as in the kubelet: no process ran that could have ended the shortage.
    pub suspended_ns: u64,
    /// `memory.available`, in bytes.
    pub memory: Level,
    /// `allocatableMemory.available`, in bytes; `None` if kubepods has no limit, or it was not read.
    pub allocatable: Option<Level>,
    /// `pid.available`; `None` if it was not read.
    pub pids: Option<Level>,
    /// The current fill rate of the node's memory; 0 if it is not being filled, or the rate is not known yet.
    pub fill_bytes_per_second: u64,
    /// Free pages on the kernel's per-CPU lists, in bytes, while the kernel returns them at the daemon's request;
    /// `MemAvailable` leaves them out. Read while [`Engine::counts_free_lists`](super::Engine::counts_free_lists); 0 if
    /// not read, or if nothing more comes back.
    pub free_lists_bytes: u64,
    /// A lower bound of shared memory and files in tmpfs that no process maps, in bytes: no death frees it.
    pub unmapped_shmem_bytes: u64,
    /// All shared memory and files in tmpfs, in bytes; 0 if that is not known.
    pub shmem_bytes: u64,
}

impl NodeSample {
    /// A sample of memory only, on a machine that was never suspended.
    #[must_use]
    pub fn memory(now_ns: u64, available: u64, capacity: u64) -> Self {
        Self {
            now_ns,
            suspended_ns: 0,
            memory: Level { available, capacity },
            allocatable: None,
            pids: None,
            fill_bytes_per_second: 0,
            free_lists_bytes: 0,
            unmapped_shmem_bytes: 0,
            shmem_bytes: 0,
        }
    }

    /// The same moment on a clock that stands still while the machine is suspended.
    pub(super) fn awake_ns(&self) -> u64 {
        self.now_ns.saturating_sub(self.suspended_ns)
    }

    /// The level of a signal; `None` if it was not read.
    #[must_use]
    pub fn level(&self, signal: Signal) -> Option<Level> {
        match signal {
            Signal::MemoryAvailable => Some(self.memory),
            Signal::AllocatableMemoryAvailable => self.allocatable,
            Signal::PidAvailable => self.pids,
            Signal::NodefsAvailable
            | Signal::NodefsInodesFree
            | Signal::ImagefsAvailable
            | Signal::ImagefsInodesFree
            | Signal::ContainerfsAvailable
            | Signal::ContainerfsInodesFree => None,
        }
    }

    /// The sample as the pressure rules take it.
    pub(super) fn observations(&self) -> Observations {
        let mut observations = Observations::default();
        for signal in Signal::ALL {
            if let Some(Level { available, capacity }) = self.level(signal) {
                // A sample is always current.
                observations.set(signal, Observation { available, capacity, measured_ns: None });
            }
        }
        observations
    }
}

/// Why a candidate was not signalled.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub enum Refusal {
    /// Its cgroup is gone.
    Gone,
    /// Its cgroup holds no process.
    Empty,
    /// The cgroup behind the handle is not the one that was chosen.
    Replaced,
    /// A soft eviction could not be recorded durably, and so did not begin.
    Unrecorded,
    /// SIGTERM must not be sent any more: the victim was spared before, or the shortage had ended.
    Withdrawn,
    /// The API server was asked to evict it, and a disruption budget does not allow that now.
    Budget,
    /// The kernel refused, with this error number (`EOPNOTSUPP` for a threaded cgroup).
    Kernel(i32),
    /// An earlier process chose it, and it has not been among the candidates since.
    Unknown,
}

/// Why a candidate was not throttled.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub enum BrakeRefusal {
    /// Its cgroup is gone.
    Gone,
    /// It has no `memory.high`: the memory controller is not enabled there.
    Absent,
    /// It already has a lower limit, by its manifest or from another process.
    Lower,
    /// It holds a process that must never be throttled, such as this daemon.
    Forbidden,
    /// Its previous value could not be recorded; the throttling would outlive a crash of the daemon.
    Unwritten,
    /// The helper thread has no room for it.
    Busy,
    /// The kernel refused, with this error number.
    Kernel(i32),
}

/// The outcome of a decision. `number` is the decision's.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub enum Outcome {
    /// Every process of the victim was sent SIGTERM.
    Terminated {
        /// The number of its decision.
        number: u64,
        /// When the last process was.
        now_ns: u64,
    },
    /// The API server has accepted to evict it: the kubelet ends it within its grace period. Nothing was signalled here.
    Requested {
        /// The number of its decision.
        number: u64,
        /// When that was known.
        now_ns: u64,
    },
    /// As far as can be found out, no one else ends the victim: no earlier process has had it evicted, or it is
    /// `graceless` and the API server, if it was asked, does not have it ended. Nothing was signalled here.
    Unrequested {
        /// The number of its decision.
        number: u64,
        /// When that was known.
        now_ns: u64,
    },
    /// Every process of the victim was sent SIGKILL.
    Signalled {
        /// The number of its decision.
        number: u64,
        /// When the kernel had accepted it.
        now_ns: u64,
    },
    /// No process was signalled.
    Refused {
        /// The number of its decision.
        number: u64,
        /// When that was known.
        now_ns: u64,
        /// Why it was refused.
        reason: Refusal,
    },
    /// The hook has ended, or was not started.
    HookEnded {
        /// The number of its decision.
        number: u64,
        /// When that was known.
        now_ns: u64,
        /// How it ended.
        end: HookEnd,
    },
    /// How far the victim has died.
    Progress {
        /// The number of its decision.
        number: u64,
        /// When the victim was read.
        now_ns: u64,
        /// Whether it still holds processes.
        populated: bool,
        /// Its `memory.current`; `None` once the cgroup is gone.
        current_bytes: Option<u64>,
        /// Its number of tasks; `None` if that was not requested, or the cgroup is gone.
        process_count: Option<u64>,
    },
    /// A candidate is throttled.
    Contained {
        /// The number of the brake.
        brake: u64,
        /// When `memory.high` had been written; the kernel may have reclaimed during the write.
        now_ns: u64,
    },
    /// The candidate is not throttled, and nothing was written.
    Uncontained {
        /// The number of the brake.
        brake: u64,
        /// When that was known.
        now_ns: u64,
        /// Why it is not throttled.
        reason: BrakeRefusal,
    },
    /// It is not throttled any more.
    Eased {
        /// The number of the brake.
        brake: u64,
        /// When it was released.
        now_ns: u64,
        /// Whether `memory.high` was restored, or another process has changed it since; otherwise the next start of the
        /// daemon restores it.
        given_back: bool,
    },
}

/// Everything that the engine learns, including the time.
#[derive(Clone, Copy, Debug, Serialize)]
pub enum Input<'a> {
    /// A sample of the node.
    Node(NodeSample),
    /// The answer to [`Action::ReadUsages`](super::Action::ReadUsages).
    Usages {
        /// A sample of the node after the readings, so that no pod is evicted for memory that came back meanwhile.
        node: NodeSample,
        /// One per candidate, in the candidates' order; an absent one counts as missing.
        readings: &'a [Reading],
    },
    /// The outcome of a decision.
    Outcome(Outcome),
    /// An operator's order to arm every threshold.
    Arm {
        /// When it was given.
        now_ns: u64,
    },
}

impl Input<'_> {
    /// When it was learned, in nanoseconds of `CLOCK_BOOTTIME`.
    #[must_use]
    pub const fn now_ns(&self) -> u64 {
        match self {
            Self::Node(node) | Self::Usages { node, readings: _ } => node.now_ns,
            Self::Outcome(
                Outcome::Terminated { now_ns, .. }
                | Outcome::Requested { now_ns, .. }
                | Outcome::Unrequested { now_ns, .. }
                | Outcome::Signalled { now_ns, .. }
                | Outcome::Refused { now_ns, .. }
                | Outcome::HookEnded { now_ns, .. }
                | Outcome::Progress { now_ns, .. }
                | Outcome::Contained { now_ns, .. }
                | Outcome::Uncontained { now_ns, .. }
                | Outcome::Eased { now_ns, .. },
            )
            | Self::Arm { now_ns } => *now_ns,
        }
    }
}
