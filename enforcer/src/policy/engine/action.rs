use super::{
    few::Few,
    input::{Reading, Refusal},
};
use crate::{
    model::CgroupId,
    policy::rank::{DecidedBy, MemoryStanding},
};

/// How many ranked candidates a decision shows.
pub const SHOWN_RANKING: usize = 10;
/// How many excluded candidates a decision shows; all are counted.
pub const SHOWN_EXCLUDED: usize = 16;

/// A candidate with the keys that it is ranked by.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ranked {
    /// Its place among the candidates.
    pub index: usize,
    /// Its cgroup.
    pub cgroup: CgroupId,
    /// The keys.
    pub standing: MemoryStanding,
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
    /// It uses no more than it requested, and such pods are spared by configuration.
    WithinRequest,
    /// It was tried in this episode and could not be evicted.
    PassedOver,
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

/// The whole decision.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Decision {
    /// Counts the decisions of this engine, from 1.
    pub number: u64,
    /// Whether nothing is to be signalled.
    pub dry_run: bool,
    /// The victim's place among the candidates.
    pub index: usize,
    /// The victim's cgroup.
    pub cgroup: CgroupId,
    /// When the threshold was seen crossed.
    pub crossed_ns: u64,
    /// When this was decided.
    pub decided_ns: u64,
    /// The threshold that is met.
    pub threshold_bytes: u64,
    /// What was available.
    pub observed_bytes: u64,
    /// The victim's usage.
    pub reading: Reading,
    /// How fast its working set grew between the last two readings; 0 if it was read once.
    pub growth_bytes_per_second: i64,
    /// The key that put it before the runner-up; none if there was no other.
    pub decided_by: Option<DecidedBy>,
    /// What its death should give back.
    pub predicted_freed_bytes: u64,
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
    /// It was signalled.
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
}

/// An eviction that did not work; its victim is passed over until the episode ends.
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
}

/// What the engine wants done, or told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Action {
    /// Tell: the threshold was crossed.
    Crossed {
        /// When it was seen.
        now_ns: u64,
        /// What was available.
        available_bytes: u64,
        /// The threshold.
        threshold_bytes: u64,
    },
    /// Tell: the shortage is over.
    Cleared {
        /// When it was seen.
        now_ns: u64,
        /// What was available.
        available_bytes: u64,
        /// The threshold.
        threshold_bytes: u64,
        /// When it had been crossed.
        crossed_ns: u64,
    },
    /// Read every candidate's usage at once, and answer with `Input::Usages`.
    ReadUsages,
    /// Carry out [`Engine::decision`](super::Engine::decision), at once, and answer with `Outcome::Signalled` or `Refused`.
    /// If it is a dry run, only tell it; no answer is awaited.
    Evict,
    /// Tell: an eviction is over.
    Completed(Completion),
    /// Tell: an eviction did not work.
    Failed(Failure),
    /// Tell: nobody is evicted.
    Suppressed {
        /// When.
        now_ns: u64,
        /// Why.
        reason: Suppression,
    },
    /// Look at the node, and at the victim if there is one, after this time at the latest; holds until the next
    /// `Input::Node` or `Input::Usages`, and instead of the sampler's own pace.
    LookAgainWithin(u64),
}

/// What one step of the engine wants, in order.
pub type Actions = Few<Action, 8>;
