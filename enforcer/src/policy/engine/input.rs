use super::{back_off::PodKey, hook::HookEnd, scale, settings::Resource};
use crate::{
    model::CgroupId,
    policy::{
        pressure::{Observation, Observations},
        threshold::Signal,
        wire::wire,
    },
};

/// A pod that could be evicted, as far as its plan tells.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CandidateFacts {
    /// Its cgroup.
    pub cgroup: CgroupId,
    /// Which pod it is, also when it comes back in another cgroup.
    pub pod: PodKey,
    /// Its priority.
    pub priority: i32,
    /// The memory request that ranking compares usage with.
    pub request_bytes: u64,
    /// Critical pods are never evicted.
    pub critical: bool,
    /// Nor are pods that an operator protects.
    pub protected: bool,
    /// How long the pod wants to be given to end by itself, in nanoseconds: its `terminationGracePeriodSeconds`. Only a
    /// soft eviction gives it anything.
    pub grace_period_ns: u64,
}

/// What a pod's cgroup is charged for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Usage {
    /// `memory.current`.
    pub current_bytes: u64,
    /// `memory.current` less inactive file pages, not below 0: what the kubelet ranks by.
    pub working_set_bytes: u64,
    /// `anon` of `memory.stat`.
    pub anon_bytes: u64,
    /// `file` of `memory.stat`, shared memory included.
    pub file_bytes: u64,
    /// `shmem` of `memory.stat`.
    pub shmem_bytes: u64,
    /// `file_mapped` of `memory.stat`, mapped shared memory included.
    pub file_mapped_bytes: u64,
    /// `pids.current`; none where it was not asked for, or could not be read. 0 says that it holds no process: then nothing
    /// comes back from it, and all the rest is 0.
    pub process_count: Option<u64>,
}

impl Usage {
    /// What comes back when the pod's processes die: their anonymous memory, and the shared memory that they map.
    ///
    /// Files in a tmpfs stay charged until they are removed or their mount goes (kubernetes#128339). Page cache stays too,
    /// until it is reclaimed, and `MemAvailable` counts most of it as available already. What is swapped out takes up no
    /// memory.
    #[must_use]
    pub fn freed_by_death_bytes(&self) -> u64 {
        self.anon_bytes.saturating_add(self.mapped_shmem_bytes())
    }

    /// Shared memory that the pod's processes map, at the most. It goes with them, unless a file in a tmpfs holds it: which
    /// of the two it is, and how much of what is mapped is shared memory, the kernel does not tell.
    #[must_use]
    pub fn mapped_shmem_bytes(&self) -> u64 {
        self.shmem_bytes.min(self.file_mapped_bytes)
    }

    /// Shared memory that no process of the pod maps, at the least: files in a tmpfs.
    #[must_use]
    pub fn unmapped_shmem_bytes(&self) -> u64 {
        self.shmem_bytes.saturating_sub(self.mapped_shmem_bytes())
    }

    /// What comes back of a resource when the pod's processes die, in its base unit.
    #[must_use]
    pub fn freed_by_death(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Memory => self.freed_by_death_bytes(),
            Resource::Pids => self.process_count.unwrap_or(0),
        }
    }

    /// Both together, for a pod that is charged in more than one place.
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

/// What reading a candidate's usage gave.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reading {
    /// It could not be read; as in the kubelet, a pod without stats is ranked first.
    Missing,
    /// The cgroup is gone: there is nothing to evict.
    Gone,
    /// The usage.
    Usage(Usage),
}

impl Reading {
    /// The usage, if it was read.
    #[must_use]
    pub fn usage(&self) -> Option<&Usage> {
        match self {
            Self::Usage(usage) => Some(usage),
            Self::Missing | Self::Gone => None,
        }
    }

    /// Whether it is known to hold no process.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Missing => false,
            Self::Gone => true,
            Self::Usage(usage) => usage.process_count == Some(0),
        }
    }
}

/// How much of something there is, in its base unit.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Level {
    /// What is left.
    pub available: u64,
    /// What there is in all.
    pub capacity: u64,
}

/// The node at one moment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NodeSample {
    /// When it was read: nanoseconds of `CLOCK_BOOTTIME`.
    pub now_ns: u64,
    /// `memory.available`, in bytes.
    pub memory: Level,
    /// `allocatableMemory.available`, in bytes; none where kubepods has no limit, or it was not read.
    pub allocatable: Option<Level>,
    /// `pid.available`; none where it was not read.
    pub pids: Option<Level>,
    /// How fast memory is being filled at the moment; 0 if it is not, or not known yet.
    pub fill_bytes_per_second: u64,
    /// Free pages on the kernel's per-CPU lists, in bytes, which `MemAvailable` leaves out, while the kernel gives them back at
    /// the daemon's request. Read as long as [`Engine::counts_free_lists`](super::Engine::counts_free_lists); 0 where they were
    /// not, and where nothing more comes back.
    pub free_lists_bytes: u64,
    /// Shared memory and files in tmpfs that no process maps, at the least: no death gives it back. In bytes.
    pub unmapped_shmem_bytes: u64,
}

impl NodeSample {
    /// A look at memory alone.
    #[must_use]
    pub fn memory(now_ns: u64, available: u64, capacity: u64) -> Self {
        Self {
            now_ns,
            memory: Level { available, capacity },
            allocatable: None,
            pids: None,
            fill_bytes_per_second: 0,
            free_lists_bytes: 0,
            unmapped_shmem_bytes: 0,
        }
    }

    /// When memory will be exhausted at the rate at which it is being filled; none if it is not.
    pub(super) fn exhausted_in_ns(&self) -> Option<u64> {
        let allocatable = self.allocatable.map_or(u64::MAX, |level| level.available);
        let headroom_bytes = self.memory.available.min(allocatable);
        let fills = self.fill_bytes_per_second > 0;
        fills.then(|| scale(headroom_bytes, 1_000_000_000, self.fill_bytes_per_second))
    }

    /// What a signal measures; none if it was not read.
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

    /// As the rules of pressure take it.
    pub(super) fn observations(&self) -> Observations {
        let mut observations = Observations::default();
        for signal in Signal::ALL {
            if let Some(Level { available, capacity }) = self.level(signal) {
                // A look is always of now.
                observations.set(signal, Observation { available, capacity, measured_ns: None });
            }
        }
        observations
    }
}

/// Why a candidate was not signalled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// Its cgroup is gone.
    Gone,
    /// Its cgroup holds no process.
    Empty,
    /// The cgroup behind the handle is not the one that was decided on.
    Replaced,
    /// A soft eviction could not be recorded where it lasts, and so was not begun.
    Unrecorded,
    /// Nobody is to be asked to end for it any more: the victim was spared before it could be.
    Withdrawn,
    /// The kernel refused, with this error number (`EOPNOTSUPP` for a threaded cgroup).
    Kernel(i32),
}

/// Why a candidate was not held back.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BrakeRefusal {
    /// Its cgroup is gone.
    Gone,
    /// It has no `memory.high`: the memory controller is not enabled there.
    Absent,
    /// It is held down further already, by its manifest or by another.
    Lower,
    /// It holds what must never be held back, such as this daemon.
    Forbidden,
    /// What it held could not be written down, and so would outlive a crash of the daemon.
    Unwritten,
    /// The helper thread has no room for it.
    Busy,
    /// The kernel refused, with this error number.
    Kernel(i32),
}

/// What came of a decision. `number` is the decision's.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// Every process of the victim has been asked to end, by SIGTERM.
    Terminated {
        /// Which eviction.
        number: u64,
        /// When the last had been.
        now_ns: u64,
    },
    /// Every process of the victim has been sent SIGKILL.
    Signalled {
        /// Which eviction.
        number: u64,
        /// When the kernel had taken it.
        now_ns: u64,
    },
    /// Nothing was signalled.
    Refused {
        /// Which eviction.
        number: u64,
        /// When that was known.
        now_ns: u64,
        /// Why.
        reason: Refusal,
    },
    /// What runs before the victim is signalled has ended, or was not begun.
    HookEnded {
        /// Which eviction.
        number: u64,
        /// When that was known.
        now_ns: u64,
        /// How.
        end: HookEnd,
    },
    /// How far the victim has died.
    Progress {
        /// Which eviction.
        number: u64,
        /// When it was looked at.
        now_ns: u64,
        /// Whether it still holds processes.
        populated: bool,
        /// Its `memory.current`; none once the cgroup is gone.
        current_bytes: Option<u64>,
        /// How many tasks it has; none if that was not asked for, or the cgroup is gone.
        process_count: Option<u64>,
    },
    /// A candidate is held back.
    Contained {
        /// Which brake.
        brake: u64,
        /// When `memory.high` had been written; the kernel may have reclaimed meanwhile.
        now_ns: u64,
    },
    /// It is not, and nothing is written.
    Uncontained {
        /// Which brake.
        brake: u64,
        /// When that was known.
        now_ns: u64,
        /// Why.
        reason: BrakeRefusal,
    },
    /// It is not held back any more.
    Eased {
        /// Which brake.
        brake: u64,
        /// When it was let go of.
        now_ns: u64,
        /// Whether `memory.high` has its value again, or has had another from somebody else since; otherwise the next
        /// start of the daemon gives it back.
        given_back: bool,
    },
}

/// Everything that the engine learns, and all that it knows of time.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A look at the node.
    Node(NodeSample),
    /// The answer to [`Action::ReadUsages`](super::Action::ReadUsages).
    Usages {
        /// A look at the node after the readings, so that nobody is evicted for memory that came back meanwhile.
        node: NodeSample,
        /// One for each candidate, in the candidates' order; one that is not there counts as missing.
        readings: &'a [Reading],
    },
    /// What came of a decision.
    Outcome(Outcome),
    /// An operator's order to arm every threshold.
    Arm {
        /// When it was given.
        now_ns: u64,
    },
}

wire!(struct CandidateFacts { cgroup, pod, priority, request_bytes, critical, protected, grace_period_ns });
wire!(struct Usage {
    current_bytes, working_set_bytes, anon_bytes, file_bytes, shmem_bytes, file_mapped_bytes, process_count,
});
wire!(enum Reading { 0 => Missing, 1 => Gone, 2 => Usage(usage: Usage) });
wire!(struct Level { available, capacity });
wire!(struct NodeSample {
    now_ns, memory, allocatable, pids, fill_bytes_per_second, free_lists_bytes, unmapped_shmem_bytes,
});
wire!(enum Refusal {
    0 => Gone, 1 => Empty, 2 => Replaced, 3 => Unrecorded, 4 => Kernel(errno: i32), 5 => Withdrawn,
});
wire!(enum BrakeRefusal {
    0 => Gone, 1 => Absent, 2 => Lower, 3 => Forbidden, 4 => Unwritten, 5 => Busy, 6 => Kernel(errno: i32),
});
wire!(enum Outcome {
    0 => Terminated { number: u64, now_ns: u64 },
    1 => Signalled { number: u64, now_ns: u64 },
    2 => Refused { number: u64, now_ns: u64, reason: Refusal },
    3 => Progress {
        number: u64, now_ns: u64, populated: bool, current_bytes: Option<u64>, process_count: Option<u64>,
    },
    4 => Contained { brake: u64, now_ns: u64 },
    5 => Uncontained { brake: u64, now_ns: u64, reason: BrakeRefusal },
    6 => Eased { brake: u64, now_ns: u64, given_back: bool },
    7 => HookEnded { number: u64, now_ns: u64, end: HookEnd },
});
