//! The engine's output: decisions with their reasons, and the steps that it requests.

use std::cmp::Ordering;

use postcard_schema::{Schema, schema::NamedType};
use serde::{Deserialize, Serialize};

use super::{
    back_off::{PodKey, Returned},
    hook::HookPlan,
    input::{BrakeRefusal, Reading, Refusal},
    settings::Resource,
};
use crate::{
    few::Few,
    model::CgroupId,
    pressure::Conditions,
    rank::{DecidedBy, MemoryRankKey, PidRankKey},
    threshold::Signal,
};

/// The most ranked candidates in a decision.
pub const SHOWN_RANKING: usize = 10;
/// The most excluded candidates in a decision; all are counted.
pub const SHOWN_EXCLUDED: usize = 16;

/// The keys that a candidate is ranked by.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub enum RankKey {
    /// When memory is short.
    Memory(MemoryRankKey),
    /// When process ids are short.
    Pids(PidRankKey),
}

impl RankKey {
    /// Which of the two is evicted first, and the key that decides. Both must be ranked for the same resource.
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

/// An index among the candidates.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CandidateIndex(pub usize);

impl Schema for CandidateIndex {
    // As which a `usize` is encoded.
    const SCHEMA: &'static NamedType = u64::SCHEMA;
}

/// A candidate with the keys that it is ranked by.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub struct Ranked {
    /// Its index among the candidates.
    pub index: CandidateIndex,
    /// Its cgroup.
    pub cgroup: CgroupId,
    /// The keys.
    pub standing: RankKey,
    /// When its usage was read: well before the decision if later reads failed.
    pub read_ns: u64,
}

impl Ranked {
    /// Which of the two is evicted first, and the key that decides.
    #[must_use]
    pub fn compare(&self, other: &Self) -> (Ordering, DecidedBy) {
        self.standing.compare(&other.standing)
    }
}

/// Why a candidate is not evicted.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub enum Exclusion {
    /// It is critical.
    Critical,
    /// An operator protects it.
    Protected,
    /// Its cgroup is gone.
    Gone,
    /// It uses none of the resource.
    Empty,
    /// It uses no more than it requested, or its usage is not known, and the configuration spares such pods.
    WithinRequest,
    /// It was tried in this episode and could not be evicted.
    PassedOver,
    /// It ends by itself, and its memory falls: what it releases counts as available.
    Terminating,
    /// How much it uses of the resource is not counted: its cgroup has no controller for that.
    UsageUnknown,
    /// The pods' own limit is short, and its memory does not count towards that.
    OutsideKubepods,
    /// A dry run has chosen it for another threshold, and decides as if it had died.
    Chosen,
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
            Self::Terminating => "terminating",
            Self::UsageUnknown => "usageUnknown",
            Self::OutsideKubepods => "outsideKubepods",
            Self::Chosen => "chosen",
        }
    }
}

/// A candidate that may not be evicted.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub struct Excluded {
    /// Its index among the candidates.
    pub index: CandidateIndex,
    /// Its cgroup.
    pub cgroup: CgroupId,
    /// Why it was excluded.
    pub reason: Exclusion,
}

/// A threshold that is met; amounts are in the base unit of its resource.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub struct Shortage {
    /// The signal.
    pub signal: Signal,
    /// Whether the threshold is a hard one.
    pub hard: bool,
    /// The threshold's value.
    pub threshold: u64,
    /// The amount available.
    pub observed: u64,
}

impl Shortage {
    /// The resource that is short.
    #[must_use]
    pub fn resource(&self) -> Resource {
        Resource::or_memory(self.signal)
    }
}

/// A decision with everything that led to it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Decision {
    /// The number of the decision in this engine, from 1.
    pub number: u64,
    /// Whether no signal is sent.
    pub dry_run: bool,
    /// Whether no signal is sent because an operator has paused eviction.
    pub paused: bool,
    /// Whether no signal is sent because the threshold is not armed.
    pub unarmed: bool,
    /// The victim's index among the candidates.
    pub index: CandidateIndex,
    /// The victim's cgroup.
    pub cgroup: CgroupId,
    /// The victim's key across cgroups.
    pub pod: PodKey,
    /// Its earlier evictions, if it has returned.
    pub returned: Option<Returned>,
    /// When the threshold was seen crossed.
    pub crossed_ns: u64,
    /// When this was decided.
    pub decided_ns: u64,
    /// The threshold that is met, and by how much.
    pub shortage: Shortage,
    /// How long the victim gets to end by itself, in nanoseconds; 0 kills it at once.
    pub grace_ns: u64,
    /// Whether it has no grace period of its own, and `grace_ns` is what another is asked to give it. If no one else ends
    /// it, it is killed at once.
    pub graceless: bool,
    /// The hook that runs before the signal.
    pub hook: HookPlan,
    /// The victim's usage.
    pub reading: Reading,
    /// How fast its working set grew between the last two readings; 0 after only one.
    pub growth_bytes_per_second: i64,
    /// The key that put it before the runner-up; `None` if there was no other.
    pub decided_by: Option<DecidedBy>,
    /// How much of the node's memory its death should free.
    pub predicted_freed_bytes: u64,
    /// A lower bound of the shared memory that no process maps, which no death frees; in bytes.
    pub unmapped_shmem_bytes: u64,
    /// Pages on the kernel's per-CPU lists that were being returned, in bytes: not enough to end the shortage.
    pub free_lists_bytes: u64,
    /// The first of the ranking, starting with the victim.
    pub ranking: Few<Ranked, SHOWN_RANKING>,
    /// The number of ranked candidates.
    pub ranked_count: u32,
    /// The first of the excluded candidates.
    pub excluded: Few<Excluded, SHOWN_EXCLUDED>,
    /// The number of excluded candidates.
    pub excluded_count: u32,
}

/// The moments of one eviction, in nanoseconds of `CLOCK_BOOTTIME`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub struct Moments {
    /// The threshold was seen crossed.
    pub crossed_ns: u64,
    /// The victim was chosen.
    pub decided_ns: u64,
    /// It was sent SIGTERM, in a soft eviction.
    pub terminated_ns: Option<u64>,
    /// The API server had accepted to evict it, in a soft eviction.
    pub requested_ns: Option<u64>,
    /// It was killed.
    pub signalled_ns: Option<u64>,
    /// It held no process any more.
    pub dead_ns: Option<u64>,
    /// The predicted memory had come back.
    pub memory_back_ns: Option<u64>,
}

/// An eviction that is over.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub struct Completion {
    /// The number of its decision.
    pub number: u64,
    /// The victim's cgroup.
    pub cgroup: CgroupId,
    /// The moments of the eviction.
    pub moments: Moments,
    /// How much memory its death should have freed.
    pub predicted_freed_bytes: u64,
    /// By how much its `memory.current` fell; `None` if the cgroup was removed before that could be read.
    pub freed_bytes: Option<u64>,
}

/// Why an eviction failed.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub enum FailureReason {
    /// It was not signalled.
    Refused(Refusal),
    /// It was signalled and still held processes when its deadline passed.
    StillPopulated,
    /// It was sent SIGTERM and has not ended, or a hook ran before its signal, and it must not be killed any more.
    Spared(Spared),
    /// It was not signalled: the shortage ended while the hook ran, or before the victim was asked to end.
    Relieved,
}

/// Why a pod that was sent SIGTERM is not killed at the end of its grace period.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub enum Spared {
    /// An operator has protected it since.
    Protected,
    /// Its manifest has made it critical since.
    Critical,
    /// An operator has paused eviction since.
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

/// An eviction that failed. A victim that does not die is passed over until the shortage ends, or it is seen without a
/// process.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub struct Failure {
    /// The number of its decision.
    pub number: u64,
    /// The victim's cgroup.
    pub cgroup: CgroupId,
    /// The moments of the eviction.
    pub moments: Moments,
    /// When the eviction was given up.
    pub given_up_ns: u64,
    /// How much memory its death should have freed.
    pub predicted_freed_bytes: u64,
    /// By how much its `memory.current` had fallen by then; `None` if it was not read since the decision.
    pub freed_bytes: Option<u64>,
    /// Why it failed.
    pub reason: FailureReason,
}

/// Why no pod is evicted although the resource is short.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub enum Suppression {
    /// No candidate is left that may be evicted.
    NoCandidate,
    /// Too many kills within the breaker's window: from now on decisions are dry-run.
    BreakerOpen,
    /// The threshold cannot be reached even if every candidate is evicted.
    OutOfReach,
    /// A disruption budget does not allow the eviction of the pod that is to be evicted first.
    DisruptionBudget,
}

/// Why a victim that was not killed at once is killed after all.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub enum KillReason {
    /// Its grace period has passed.
    GracePassed,
    /// A hard threshold was crossed meanwhile.
    HardThreshold,
    /// At the current fill rate, memory would be exhausted before the victim's came back.
    Exhausting,
    /// The hook has ended, or is not awaited any longer; the victim was not sent SIGTERM.
    HookOver,
    /// It has no grace period, and no one else ends it.
    Unanswered,
}

/// Why a candidate is throttled.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub enum BrakeCause {
    /// A victim has time to end, and memory would be exhausted before it has.
    Grace,
    /// A victim's memory is coming back, but too late.
    Release,
}

/// A candidate that is throttled: the next in rank while a victim's memory is awaited.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub struct Containment {
    /// The number of the brake in this engine, from 1.
    pub brake: u64,
    /// The number of the eviction under way.
    pub number: u64,
    /// The candidate's index among the candidates.
    pub index: CandidateIndex,
    /// Its cgroup.
    pub cgroup: CgroupId,
    /// When this was decided.
    pub decided_ns: u64,
    /// Why it is throttled.
    pub cause: BrakeCause,
    /// The candidate's usage, in bytes.
    pub usage_bytes: u64,
    /// The `memory.high` to write, in bytes.
    pub high_bytes: u64,
    /// How fast pods fill memory, without the victim.
    pub fill_bytes_per_second: u64,
    /// How much they may still fill, in bytes.
    pub headroom_bytes: u64,
    /// How long the victim's memory is awaited.
    pub awaited_ns: u64,
}

impl Moments {
    /// When it was asked to end: by SIGTERM, or through the API server.
    #[must_use]
    pub fn asked_ns(&self) -> Option<u64> {
        self.terminated_ns.or(self.requested_ns)
    }

    /// Whether its end has begun, by whatever means.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.asked_ns().or(self.signalled_ns).is_some()
    }
}

/// What the engine requests or reports. A step awaits at most one answer.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Schema, Serialize)]
pub enum Action {
    /// Report: a threshold was crossed.
    Crossed {
        /// When it was seen.
        now_ns: u64,
        /// The threshold, and the amount available.
        shortage: Shortage,
    },
    /// Report: a shortage is over.
    Cleared {
        /// When it was seen.
        now_ns: u64,
        /// The threshold, and the amount available now.
        shortage: Shortage,
        /// When the threshold had been crossed.
        crossed_ns: u64,
    },
    /// The node's conditions from now on.
    Conditions(Conditions),
    /// Report: the set of armed thresholds has changed; see [`Engine::armed`](super::Engine::armed) and
    /// [`Engine::unarmed`](super::Engine::unarmed).
    Arming,
    /// Read at once how much of this every candidate uses, and its memory in any case; answer with `Input::Usages`.
    ReadUsages(Resource),
    /// Carry out [`Engine::decision`](super::Engine::decision). If it awaits a hook, start that, and answer with
    /// `Outcome::HookEnded`; `Ask` or `Kill` follow. Otherwise, without a grace period, kill at once, and answer with
    /// `Outcome::Signalled` or `Refused`; with one, do as for `Ask`. A dry run is only reported; no answer is awaited.
    Evict,
    /// Send the victim SIGTERM or have the API server evict it, and answer with `Outcome::Terminated`, `Requested` or
    /// `Refused`. A victim that is `graceless` is not sent SIGTERM: the answer is `Unrequested` then. It follows a hook,
    /// or `Outcome::Unrequested` about a victim of an earlier process if the shortage lasts.
    Ask {
        /// The number of its decision.
        number: u64,
    },
    /// Kill the victim that was or was to be sent SIGTERM now, and answer with `Outcome::Signalled` or `Refused`.
    Kill {
        /// The number of its decision.
        number: u64,
        /// Why now.
        reason: KillReason,
    },
    /// Throttle this candidate, and answer with `Outcome::Contained` or `Uncontained`.
    Contain(Containment),
    /// Release the candidate that is or was to be throttled, and answer with `Outcome::Eased`.
    Ease {
        /// The number of the brake.
        brake: u64,
    },
    /// Report: a candidate is throttled.
    Contained {
        /// When it was throttled.
        now_ns: u64,
        /// The candidate and the reason.
        containment: Containment,
    },
    /// Report: a candidate could not be throttled.
    Uncontained {
        /// When this was known.
        now_ns: u64,
        /// The candidate and the reason.
        containment: Containment,
        /// Why it failed.
        reason: BrakeRefusal,
    },
    /// Report: a candidate is not throttled any more.
    Eased {
        /// When it was released.
        now_ns: u64,
        /// The candidate and the reason.
        containment: Containment,
        /// When it was throttled.
        since_ns: u64,
        /// Whether `memory.high` was restored.
        given_back: bool,
    },
    /// Report: an eviction is over.
    Completed(Completion),
    /// Report: an eviction failed.
    Failed(Failure),
    /// Report: no pod is evicted in spite of a shortage.
    Suppressed {
        /// When this was found.
        now_ns: u64,
        /// The signal that is short.
        signal: Signal,
        /// Why no pod is evicted.
        reason: Suppression,
    },
    /// Report: memory is short, and shared memory that no process maps exceeds the threshold. No eviction frees it.
    SharedMemoryHeld {
        /// When it was seen.
        now_ns: u64,
        /// A lower bound of that shared memory.
        bytes: u64,
        /// The threshold.
        limit_bytes: u64,
    },
    /// Report: it has fallen to half of that threshold.
    SharedMemoryFreed {
        /// When it was seen.
        now_ns: u64,
        /// How much of it is left.
        bytes: u64,
    },
    /// Sample the node, and the victim if there is one, within this time; replaces the sampler's own interval until the
    /// next `Input::Node` or `Input::Usages`.
    LookAgainWithin(u64),
}

/// The actions of one step, in order.
pub type Actions = Few<Action, 16>;

impl Action {
    /// Whether its answer is awaited before anything else is requested.
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
