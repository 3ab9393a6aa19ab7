use std::cmp::Ordering;

use super::{
    back_off::{PodKey, Returned},
    hook::HookPlan,
    input::{BrakeRefusal, Reading, Refusal},
    settings::Resource,
};
use crate::{
    model::CgroupId,
    policy::{
        few::Few,
        pressure::Conditions,
        rank::{DecidedBy, MemoryRankKey, PidRankKey},
        threshold::Signal,
        wire::wire,
    },
};

/// How many ranked candidates a decision shows.
pub const SHOWN_RANKING: usize = 10;
/// How many excluded candidates a decision shows; all are counted.
pub const SHOWN_EXCLUDED: usize = 16;

/// The keys that a candidate is ranked by.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RankKey {
    /// When memory is short.
    Memory(MemoryRankKey),
    /// When process ids are short.
    Pids(PidRankKey),
}

impl RankKey {
    /// Which of the two is evicted first, and by which key. Only standings of one resource are ever compared.
    #[must_use]
    pub fn compare(&self, other: &Self) -> (Ordering, DecidedBy) {
        match (self, other) {
            (Self::Memory(one), Self::Memory(other)) => one.compare(other),
            (Self::Pids(one), Self::Pids(other)) => one.compare(other),
            (Self::Memory(_), Self::Pids(_)) => (Ordering::Less, DecidedBy::Order),
            (Self::Pids(_), Self::Memory(_)) => (Ordering::Greater, DecidedBy::Order),
        }
    }
}

/// A candidate with the keys that it is ranked by.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ranked {
    /// Its place among the candidates.
    pub index: usize,
    /// Its cgroup.
    pub cgroup: CgroupId,
    /// The keys.
    pub standing: RankKey,
    /// When its usage was read: well before the decision where reading it failed since.
    pub read_ns: u64,
}

impl Ranked {
    /// Which of the two is evicted first, and by which key.
    #[must_use]
    pub fn compare(&self, other: &Self) -> (Ordering, DecidedBy) {
        self.standing.compare(&other.standing)
    }
}

/// Why a candidate is not evicted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Exclusion {
    /// It is critical.
    Critical,
    /// An operator protects it.
    Protected,
    /// Its cgroup is gone.
    Gone,
    /// It uses nothing.
    Empty,
    /// It uses no more than it requested, or what it uses is not known, and such pods are spared by configuration.
    WithinRequest,
    /// It was tried in this episode and could not be evicted.
    PassedOver,
}

impl Exclusion {
    /// Its name in events.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Protected => "protected",
            Self::Gone => "gone",
            Self::Empty => "empty",
            Self::WithinRequest => "withinRequest",
            Self::PassedOver => "passedOver",
        }
    }
}

/// A candidate that was left out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Excluded {
    /// Its place among the candidates.
    pub index: usize,
    /// Its cgroup.
    pub cgroup: CgroupId,
    /// Why.
    pub reason: Exclusion,
}

/// A threshold that is met; amounts are in the base unit of its resource.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Shortage {
    /// What was measured.
    pub signal: Signal,
    /// Whether the threshold is a hard one.
    pub hard: bool,
    /// Its value.
    pub threshold: u64,
    /// What was available.
    pub observed: u64,
}

impl Shortage {
    /// What is short.
    #[must_use]
    pub fn resource(&self) -> Resource {
        Resource::of(self.signal).unwrap_or(Resource::Memory)
    }
}

/// The whole decision.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Decision {
    /// Counts the decisions of this engine, from 1.
    pub number: u64,
    /// Whether nothing is to be signalled.
    pub dry_run: bool,
    /// Whether an operator has paused evicting, and so nothing is to be signalled.
    pub paused: bool,
    /// Whether the threshold is not armed, and so nothing is to be signalled.
    pub unarmed: bool,
    /// The victim's place among the candidates.
    pub index: usize,
    /// The victim's cgroup.
    pub cgroup: CgroupId,
    /// Which pod it is.
    pub pod: PodKey,
    /// What is known of its evictions before, if it has returned.
    pub returned: Option<Returned>,
    /// When the threshold was seen crossed.
    pub crossed_ns: u64,
    /// When this was decided.
    pub decided_ns: u64,
    /// The threshold that is met, and by how much.
    pub shortage: Shortage,
    /// How long the victim is given to end by itself, in nanoseconds; 0 kills it at once.
    pub grace_ns: u64,
    /// What is run before that.
    pub hook: HookPlan,
    /// The victim's usage.
    pub reading: Reading,
    /// How fast its working set grew between the last two readings; 0 if it was read once.
    pub growth_bytes_per_second: i64,
    /// The key that put it before the runner-up; none if there was no other.
    pub decided_by: Option<DecidedBy>,
    /// What its death should give back of the node's memory.
    pub predicted_freed_bytes: u64,
    /// Shared memory that no process maps, at the least, which no death gives back; in bytes.
    pub unmapped_shmem_bytes: u64,
    /// What was free on the kernel's per-CPU lists and on its way back, in bytes: not enough to end the shortage.
    pub free_lists_bytes: u64,
    /// The first of the ranking, from the victim on.
    pub ranking: Few<Ranked, SHOWN_RANKING>,
    /// How many were ranked.
    pub ranked_count: usize,
    /// The first of those left out.
    pub excluded: Few<Excluded, SHOWN_EXCLUDED>,
    /// How many were left out.
    pub excluded_count: usize,
}

/// Marks the moments of one eviction, nanoseconds of `CLOCK_BOOTTIME`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Moments {
    /// The threshold was seen crossed.
    pub crossed_ns: u64,
    /// The victim was chosen.
    pub decided_ns: u64,
    /// It was asked to end, in a soft eviction.
    pub terminated_ns: Option<u64>,
    /// It was killed.
    pub signalled_ns: Option<u64>,
    /// It held no process any more.
    pub dead_ns: Option<u64>,
    /// What was predicted had come back.
    pub memory_back_ns: Option<u64>,
}

/// An eviction that is over.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Completion {
    /// Which eviction.
    pub number: u64,
    /// The victim's cgroup.
    pub cgroup: CgroupId,
    /// When what happened.
    pub moments: Moments,
    /// What its death should have given back.
    pub predicted_freed_bytes: u64,
    /// By how much its `memory.current` fell; none if the cgroup went before that could be read.
    pub freed_bytes: Option<u64>,
}

/// Why an eviction did not work.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FailureReason {
    /// It was not signalled.
    Refused(Refusal),
    /// It was signalled and still held processes when its deadline passed.
    StillPopulated,
    /// It was asked to end and has not, or something was run before it was to be signalled; and must not be killed any more.
    Spared(Spared),
    /// It was not signalled: what ran before has ended the shortage.
    Relieved,
}

/// Why a pod that was asked to end is not killed when its time to do so is over.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Spared {
    /// An operator protects it since.
    Protected,
    /// It is critical since, by its manifest.
    Critical,
    /// An operator has paused evicting since.
    Paused,
    /// The mode is not `enforce` any more.
    NotEnforcing,
}

impl Spared {
    /// Its name in events.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Protected => "protected",
            Self::Critical => "critical",
            Self::Paused => "paused",
            Self::NotEnforcing => "notEnforcing",
        }
    }
}

/// An eviction that did not work. A victim that does not die is passed over until the shortage ends, or it is seen without a
/// process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Failure {
    /// Which eviction.
    pub number: u64,
    /// The victim's cgroup.
    pub cgroup: CgroupId,
    /// When what happened.
    pub moments: Moments,
    /// When it was given up.
    pub given_up_ns: u64,
    /// What its death should have given back.
    pub predicted_freed_bytes: u64,
    /// By how much its `memory.current` had fallen by then; none if it was not looked at since the decision.
    pub freed_bytes: Option<u64>,
    /// Why.
    pub reason: FailureReason,
}

/// Why nobody is evicted although the resource is short.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Suppression {
    /// Nobody is left who may be evicted.
    NoCandidate,
    /// Too many kills within the breaker's window: from now on decisions are dry-run.
    BreakerOpen,
    /// The threshold cannot be reached though every candidate goes.
    OutOfReach,
}

/// Why a victim is killed that was not killed at once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KillReason {
    /// Its grace period has passed.
    GracePassed,
    /// A hard threshold was crossed meanwhile.
    HardThreshold,
    /// At the rate at which memory is being filled it would be exhausted before the victim's came back.
    Exhausting,
    /// What was run before has ended, or is not waited for any longer; the victim was not asked to end.
    HookOver,
}

/// Why a candidate is held back.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BrakeCause {
    /// A victim is given time to end, and memory would run out before it has.
    Grace,
    /// A victim's memory is coming back, and would come too late.
    Release,
}

/// A candidate that is held back: the next in rank while a victim's memory is awaited.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Containment {
    /// Counts the brakes of this engine, from 1.
    pub brake: u64,
    /// The eviction that is under way.
    pub number: u64,
    /// The candidate's place among the candidates.
    pub index: usize,
    /// Its cgroup.
    pub cgroup: CgroupId,
    /// When this was decided.
    pub decided_ns: u64,
    /// Why.
    pub cause: BrakeCause,
    /// What it used, in bytes.
    pub usage_bytes: u64,
    /// What its `memory.high` is to be, in bytes.
    pub high_bytes: u64,
    /// How fast pods fill memory, the victim left out.
    pub fill_bytes_per_second: u64,
    /// How much they may still fill.
    pub headroom_bytes: u64,
    /// How long the victim's memory is awaited.
    pub awaited_ns: u64,
}

/// What the engine wants done, or told. In one step it asks for one answer at the most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// Tell: a threshold was crossed.
    Crossed {
        /// When it was seen.
        now_ns: u64,
        /// The threshold, and what was available.
        shortage: Shortage,
    },
    /// Tell: a shortage is over.
    Cleared {
        /// When it was seen.
        now_ns: u64,
        /// The threshold, and what is available now.
        shortage: Shortage,
        /// When it had been crossed.
        crossed_ns: u64,
    },
    /// The node's conditions are these from now on.
    Conditions(Conditions),
    /// Tell: other thresholds are armed, or not, from now on: [`Engine::armed`](super::Engine::armed),
    /// [`Engine::unarmed`](super::Engine::unarmed).
    Arming,
    /// Read what every candidate uses of this, and its memory in any case, at once, and answer with `Input::Usages`.
    ReadUsages(Resource),
    /// Carry out [`Engine::decision`](super::Engine::decision). If a hook is awaited, begin it, and answer with
    /// `Outcome::HookEnded`; `Ask` or `Kill` follow. Otherwise, without a grace period at once, and answer with
    /// `Outcome::Signalled` or `Refused`; with one by SIGTERM, and answer with `Outcome::Terminated` or `Refused`. If it
    /// is a dry run, only tell it; no answer is awaited.
    Evict,
    /// Ask the victim to end, by SIGTERM, and answer with `Outcome::Terminated` or `Refused`.
    Ask {
        /// Which eviction.
        number: u64,
    },
    /// Kill the victim that was asked to end, or was to be, now, and answer with `Outcome::Signalled` or `Refused`.
    Kill {
        /// Which eviction.
        number: u64,
        /// Why now.
        reason: KillReason,
    },
    /// Hold this candidate back, and answer with `Outcome::Contained` or `Uncontained`.
    Contain(Containment),
    /// Let go of what is held back, or was to be, and answer with `Outcome::Eased`.
    Ease {
        /// Which brake.
        brake: u64,
    },
    /// Tell: a candidate is held back.
    Contained {
        /// Since when.
        now_ns: u64,
        /// All about it.
        containment: Containment,
    },
    /// Tell: a candidate could not be held back.
    Uncontained {
        /// When.
        now_ns: u64,
        /// All about it.
        containment: Containment,
        /// Why.
        reason: BrakeRefusal,
    },
    /// Tell: it is not held back any more.
    Eased {
        /// When.
        now_ns: u64,
        /// All about it.
        containment: Containment,
        /// Since when it was.
        since_ns: u64,
        /// Whether `memory.high` has its value again.
        given_back: bool,
    },
    /// Tell: an eviction is over.
    Completed(Completion),
    /// Tell: an eviction did not work.
    Failed(Failure),
    /// Tell: nobody is evicted.
    Suppressed {
        /// When.
        now_ns: u64,
        /// For what.
        signal: Signal,
        /// Why.
        reason: Suppression,
    },
    /// Tell: memory is short, and shared memory that no process maps is more than the threshold. No eviction gives it back.
    SharedMemoryHeld {
        /// When it was seen.
        now_ns: u64,
        /// How much there is at the least.
        bytes: u64,
        /// The threshold.
        limit_bytes: u64,
    },
    /// Tell: it is less than half of that again.
    SharedMemoryFreed {
        /// When it was seen.
        now_ns: u64,
        /// How much is left.
        bytes: u64,
    },
    /// Look at the node, and at the victim if there is one, after this time at the latest; holds until the next
    /// `Input::Node` or `Input::Usages`, and instead of the sampler's own pace.
    LookAgainWithin(u64),
}

/// What one step of the engine wants, in order.
pub type Actions = Few<Action, 16>;

wire!(enum RankKey as "Standing" { 0 => Memory(standing: MemoryRankKey), 1 => Pids(standing: PidRankKey) });
wire!(struct Ranked { index, cgroup, standing, read_ns });
wire!(enum Exclusion { 0 => Critical, 1 => Protected, 2 => Gone, 3 => Empty, 4 => WithinRequest, 5 => PassedOver });
wire!(struct Excluded { index, cgroup, reason });
wire!(struct Shortage { signal, hard, threshold, observed });
wire!(struct Decision {
    number, dry_run, paused, unarmed, index, cgroup, pod, returned, crossed_ns, decided_ns, shortage, grace_ns, hook, reading,
    growth_bytes_per_second,
    decided_by, predicted_freed_bytes, unmapped_shmem_bytes,
    free_lists_bytes, ranking, ranked_count, excluded, excluded_count,
});
wire!(struct Moments { crossed_ns, decided_ns, terminated_ns, signalled_ns, dead_ns, memory_back_ns });
wire!(struct Completion { number, cgroup, moments, predicted_freed_bytes, freed_bytes });
wire!(enum FailureReason {
    0 => Refused(refusal: Refusal), 1 => StillPopulated, 2 => Spared(spared: Spared), 3 => Relieved
});
wire!(enum Spared { 0 => Protected, 1 => Critical, 2 => Paused, 3 => NotEnforcing });
wire!(struct Failure { number, cgroup, moments, given_up_ns, predicted_freed_bytes, freed_bytes, reason });
wire!(enum Suppression { 0 => NoCandidate, 1 => BreakerOpen, 2 => OutOfReach });
wire!(enum KillReason { 0 => GracePassed, 1 => HardThreshold, 2 => Exhausting, 3 => HookOver });
wire!(enum BrakeCause { 0 => Grace, 1 => Release });
wire!(struct Containment {
    brake, number, index, cgroup, decided_ns, cause, usage_bytes, high_bytes, fill_bytes_per_second, headroom_bytes,
    awaited_ns,
});
impl Action {
    /// Whether its answer is awaited before anything else is asked for.
    #[must_use]
    pub fn is_question(&self) -> bool {
        match self {
            Self::ReadUsages(_) | Self::Evict | Self::Ask { .. } | Self::Kill { .. } | Self::Contain(_) => {
                true
            }
            Self::Crossed { .. }
            | Self::Cleared { .. }
            | Self::Conditions(_)
            | Self::Arming
            | Self::Ease { .. }
            | Self::Contained { .. }
            | Self::Uncontained { .. }
            | Self::Eased { .. }
            | Self::Completed(_)
            | Self::Failed(_)
            | Self::Suppressed { .. }
            | Self::SharedMemoryHeld { .. }
            | Self::SharedMemoryFreed { .. }
            | Self::LookAgainWithin(_) => false,
        }
    }
}

wire!(enum Action {
    0 => Crossed { now_ns: u64, shortage: Shortage },
    1 => Cleared { now_ns: u64, shortage: Shortage, crossed_ns: u64 },
    2 => Conditions(conditions: Conditions),
    3 => ReadUsages(resource: Resource),
    4 => Evict,
    5 => Kill { number: u64, reason: KillReason },
    6 => Completed(completion: Completion),
    7 => Failed(failure: Failure),
    8 => Suppressed { now_ns: u64, signal: Signal, reason: Suppression },
    9 => LookAgainWithin(within_ns: u64),
    10 => Contain(containment: Containment),
    11 => Ease { brake: u64 },
    12 => Contained { now_ns: u64, containment: Containment },
    13 => Uncontained { now_ns: u64, containment: Containment, reason: BrakeRefusal },
    14 => Eased { now_ns: u64, containment: Containment, since_ns: u64, given_back: bool },
    15 => Ask { number: u64 },
    16 => Arming,
    17 => SharedMemoryHeld { now_ns: u64, bytes: u64, limit_bytes: u64 },
    18 => SharedMemoryFreed { now_ns: u64, bytes: u64 },
});
