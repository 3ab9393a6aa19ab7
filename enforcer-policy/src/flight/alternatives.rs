//! What the kubelet, and what the kernel alone, would have done in a recorded shortage of memory.
//!
//! Both are computed from the recorded inputs up to the moment at which the daemon acted itself, or the recording ends.
//! What follows is a model: memory goes on falling at the last measured rate. Each answer is a range, names what it
//! assumes, and is unknown where the recording does not say enough.

mod course;
mod kernel;
mod known;
mod kubelet;
#[cfg(test)]
mod tests;

use std::{fmt, iter};

use super::{
    file::Recording,
    processes::{Process, Processes},
};
use crate::{engine::Shortage, model::CgroupId};

use self::{course::Course, known::Known};

/// Everything from a lower to an upper bound, both included.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Span<T> {
    from: T,
    to: T,
}

impl<T: Copy + Ord> Span<T> {
    /// One value.
    #[must_use]
    pub fn of(value: T) -> Self {
        Self { from: value, to: value }
    }

    /// The span that also holds this value.
    #[must_use]
    pub fn with(self, value: T) -> Self {
        Self { from: self.from.min(value), to: self.to.max(value) }
    }

    /// The least value.
    #[must_use]
    pub fn from(self) -> T {
        self.from
    }

    /// The greatest value.
    #[must_use]
    pub fn to(self) -> T {
        self.to
    }
}

/// A list that is never empty.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AtLeastOne<T> {
    /// The first.
    pub first: T,
    /// The others.
    pub rest: Vec<T>,
}

impl<T> AtLeastOne<T> {
    /// Only this one.
    #[must_use]
    pub fn only(first: T) -> Self {
        Self { first, rest: Vec::new() }
    }

    /// `None` if there is nothing.
    #[must_use]
    pub fn of(all: impl IntoIterator<Item = T>) -> Option<Self> {
        let mut all = all.into_iter();
        Some(Self { first: all.next()?, rest: all.collect() })
    }

    /// All, in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        iter::once(&self.first).chain(&self.rest)
    }

    /// How many, at least 1.
    #[must_use]
    pub fn count(&self) -> usize {
        1 + self.rest.len()
    }
}

/// What others would have done in each recorded shortage in which the daemon decided on an eviction.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Alternatives {
    /// The shortages, in order.
    pub episodes: Vec<Episode>,
}

/// A shortage, from the crossing of its threshold on. All times are in milliseconds after the crossing.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Episode {
    /// When the daemon saw the threshold crossed, in nanoseconds of `CLOCK_BOOTTIME`.
    pub crossed_ns: u64,
    /// The shortage as the first decision saw it.
    pub shortage: Shortage,
    /// What the daemon did, or in dry-run would have done.
    pub here: Here,
    /// What the kubelet would have done.
    pub kubelet: Kubelet,
    /// What the kernel alone would have done.
    pub kernel: Kernel,
}

/// What the daemon did.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Here {
    /// Its decisions, in order.
    pub evictions: AtLeastOne<OwnEviction>,
    /// The least available memory that was recorded from the crossing until the shortage ended, or the recording does;
    /// `None` without a sample in that time.
    pub lowest_bytes: Option<u64>,
}

/// An eviction by the daemon.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OwnEviction {
    /// The number of the decision.
    pub number: u64,
    /// Its id in events; `None` if that was not recorded.
    pub id: Option<u128>,
    /// The victim's cgroup, as in [`Recording::names`].
    pub pod: CgroupId,
    /// When it was decided.
    pub decided_ms: u64,
    /// What came of it.
    pub end: OwnEnd,
}

/// What came of an eviction by the daemon.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OwnEnd {
    /// Nothing: it was only decided, in dry-run.
    DryRun,
    /// The recording does not show it.
    NotRecorded,
    /// The pod was dead, and its memory back or overdue.
    Over {
        /// When the eviction was over.
        over_ms: u64,
        /// How much memory came back; `None` if that could not be read.
        freed_bytes: Option<u64>,
    },
    /// The pod could not be ended.
    Failed,
}

/// What the kubelet would have done.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Kubelet {
    /// It evicts.
    Evicts {
        /// One pod a pass, in order.
        passes: AtLeastOne<Pass>,
        /// The node's least available memory; 0 if it runs out, before or in spite of the evictions.
        lowest_bytes: Span<u64>,
        /// Whether the node may run out of memory before that of the first pod is back.
        exhausted_before: MayExhaust,
        /// What this assumes.
        assumptions: Vec<Assumption>,
    },
    /// The node has run out of memory before the kubelet acts, whenever it looks: the kernel comes first.
    TooLate {
        /// When memory is used up.
        exhausted_ms: Span<u64>,
        /// The first and the last moment at which it would have acted.
        would_act_ms: Span<u64>,
        /// What this assumes.
        assumptions: Vec<Assumption>,
    },
    /// It evicts no pod: the shortage is over before it looks, or it finds no pod.
    Spares {
        /// The node's least available memory.
        lowest_bytes: Span<u64>,
        /// What this assumes.
        assumptions: Vec<Assumption>,
    },
    /// The recording does not tell.
    Unknown(Unknown),
}

/// Whether the node runs out of memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MayExhaust {
    /// It does not.
    No,
    /// It does if the kubelet happens to look late, or memory falls fast: the kernel then comes first.
    Possibly {
        /// The earliest that memory is used up.
        from_ms: u64,
        /// In how many of a thousand of the ways that were tried; at least 1.
        permille: u16,
    },
}

/// One pass of the kubelet's eviction manager, which evicts one pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pass {
    /// The pod's cgroup. More than one if it depends on when the kubelet looks: the pod of the earliest look first.
    pub pods: AtLeastOne<CgroupId>,
    /// When it would be evicted.
    pub at_ms: Span<u64>,
    /// Whether there is this pass whenever the kubelet looks.
    pub is_certain: bool,
}

/// What the kernel's OOM killer would have done.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Kernel {
    /// It kills. The node's available memory is then 0.
    Kills {
        /// The kills, in order.
        kills: AtLeastOne<Kill>,
        /// When the processes were read: before the crossing if negative.
        read_ms: i64,
        /// What this assumes.
        assumptions: Vec<Assumption>,
    },
    /// It kills no process: memory does not run out.
    Spares {
        /// The node's least available memory.
        lowest_bytes: Span<u64>,
        /// What this assumes.
        assumptions: Vec<Assumption>,
    },
    /// The recording does not tell.
    Unknown(Unknown),
}

/// One choice of the OOM killer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Kill {
    /// The process. More than one if that depends on how fast memory falls: that of the fastest fall first.
    pub victims: AtLeastOne<KernelVictim>,
    /// When it would be killed.
    pub at_ms: Span<u64>,
    /// Whether there is this kill however fast memory falls.
    pub is_certain: bool,
}

/// A process that the OOM killer would choose.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KernelVictim {
    /// The process, as it was read.
    pub process: Process,
    /// Its badness by then, in pages: the process with the most is killed.
    pub badness_pages: i64,
    /// How many further processes of those that were read die with it, as `memory.oom.group` is set.
    pub others: u32,
}

/// What an answer assumes, where the recording does not say more.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Assumption {
    /// The kubelet's thresholds.
    SameThresholds,
    /// The kubelet's measure of available memory.
    SameAvailable,
    /// The phase of the kubelet's loop.
    LooksEveryTenSeconds,
    /// The age of its usages.
    UsagesUpToHalfAMinuteOld,
    /// Usages before the first reading.
    GrewAlikeBefore,
    /// Pods without a reading.
    UnreadLeftOut,
    /// What follows the daemon's own act, or the end of the recording.
    FallsOn,
    /// The duration and yield of the kubelet's evictions.
    DiesWithinGrace,
    /// When the kernel kills.
    KillsWhenUsedUp,
    /// How processes grow after they were read.
    LargestProcessGrows,
    /// Who takes what the pods do not.
    RestGrowsNoProcess,
    /// The processes that were not read.
    OnlyLargestRead,
    /// The node's settings of the OOM killer.
    DefaultSysctls,
}

impl Assumption {
    /// Its sentence.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SameThresholds => "the kubelet has the thresholds that the daemon has",
            Self::SameAvailable => "the kubelet measures as much available memory as the daemon",
            Self::LooksEveryTenSeconds => {
                "the kubelet looks at the node every 10 s; when it does so is not known, so each moment is tried"
            }
            Self::UsagesUpToHalfAMinuteOld => "the kubelet ranks pods by usages that are 0 to 30 s old",
            Self::GrewAlikeBefore => {
                "before a pod was first read it had grown as fast as between its first two readings"
            }
            Self::UnreadLeftOut => "pods that were never read are left out",
            Self::FallsOn => {
                "after the daemon's own act, or the end of the recording, memory falls on at the rate last measured: at \
                 least as fast as the daemon's victim grew, at most as fast as the whole node filled"
            }
            Self::DiesWithinGrace => {
                "a pod that the kubelet evicts gives back its anonymous and mapped shared memory within its grace \
                 period (1 s for a hard threshold), and the next pass follows 1 to 30 s later"
            }
            Self::KillsWhenUsedUp => {
                "the kernel kills once available memory is used up, and at the latest once free swap is too"
            }
            Self::LargestProcessGrows => {
                "what a pod grows by after its processes were read is its largest process"
            }
            Self::RestGrowsNoProcess => {
                "memory fell faster than all pods that were read grew: what took the rest is not known, and no \
                 process is taken to have grown by it"
            }
            Self::OnlyLargestRead => {
                "a process that was not among the worst 64 when they were read is not killed"
            }
            Self::DefaultSysctls => "vm.panic_on_oom and vm.oom_kill_allocating_task are 0",
        }
    }
}

impl fmt::Display for Assumption {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

/// Why an answer is not known.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Unknown {
    /// Process ids were short, not memory.
    NotMemory,
    /// Of the kernel: the pods' own limit was short, not the node's memory.
    PodsLimit,
    /// The recording begins after the crossing.
    BeginsAfterCrossing,
    /// Records are missing between the crossing and the daemon's act.
    Gap,
    /// No pod was read.
    NoReadings,
    /// How fast memory was falling is not known.
    NoRate,
    /// Of the kernel: the recording has no processes; those of older versions never have.
    NoProcesses,
    /// Of the kernel: the processes were read only after the daemon had acted.
    ProcessesTooLate,
    /// Of the kernel: no process that may be killed was read.
    NoneMayBeKilled,
}

impl Unknown {
    /// Its sentence.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotMemory => "process ids were short, not memory",
            Self::PodsLimit => "the pods' own limit was short, not the node's memory",
            Self::BeginsAfterCrossing => "the recording begins after the threshold was crossed",
            Self::Gap => "records are missing between the crossing and what the daemon did",
            Self::NoReadings => "the recording has no reading of a pod",
            Self::NoRate => "the recording does not show how fast memory was falling",
            Self::NoProcesses => {
                "the recording has no processes: they were not read, or an older version recorded it"
            }
            Self::ProcessesTooLate => "processes were read only after the daemon had acted",
            Self::NoneMayBeKilled => "no process that the kernel may kill was read",
        }
    }
}

impl fmt::Display for Unknown {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

/// What the kubelet and the kernel alone would have done in each recorded shortage.
#[must_use]
pub fn alternatives(recording: &Recording<'_>) -> Alternatives {
    let known = Known::of(recording);
    let of = |shortage| episode(&known, &recording.processes, shortage);
    Alternatives { episodes: known.shortages().into_iter().filter_map(of).collect() }
}

/// The same of the shortage in which that eviction was decided, by its id in events; the others are not computed.
#[must_use]
pub fn instead_of(recording: &Recording<'_>, eviction: u128) -> Option<Episode> {
    let known = Known::of(recording);
    episode(&known, &recording.processes, known.shortage_of(eviction)?)
}

fn episode(
    known: &Known,
    processes: &[Processes],
    (crossed_ns, shortage): (u64, Shortage),
) -> Option<Episode> {
    let here = known.here(crossed_ns, shortage)?;
    let (kubelet, kernel) = match Course::of(known, crossed_ns, shortage) {
        Ok(course) => (kubelet::answer(known, &course), kernel::answer(&course, processes, shortage)),
        Err(why) => (Kubelet::Unknown(why), Kernel::Unknown(why)),
    };
    Some(Episode { crossed_ns, shortage, here, kubelet, kernel })
}
