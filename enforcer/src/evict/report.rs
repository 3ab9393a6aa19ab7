//! What the reflex has to tell.

use std::sync::Arc;

use ulid::Ulid;

use super::{candidate::Candidate, hook::HookRun};
use crate::{
    model::CgroupPath,
    policy::{
        engine::{
            BrakeRefusal, Completion, Containment, Decision, Failure, HookPlan, KillReason, Moments,
            Shortage, Suppression, Thresholds,
        },
        pressure::Conditions,
        threshold::Signal,
    },
    sense::{MeminfoError, snapshot::Missing},
};

/// What the reflex tells; times are nanoseconds of `CLOCK_BOOTTIME`. Nothing in it is allocated where it is made.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation on the reflex thread")]
pub enum Report {
    /// A threshold was crossed.
    Crossed {
        /// When it was seen.
        now_ns: u64,
        /// The threshold, and what was available.
        shortage: Shortage,
    },
    /// A shortage is over.
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
    /// Which thresholds are armed from now on, as far as their signals were measured.
    Arming {
        /// Those that evict.
        armed: Thresholds,
        /// Those that were crossed when they were loaded, and decide as in dry-run; none where nothing is acted on.
        unarmed: Thresholds,
    },
    /// A victim was chosen.
    Decided {
        /// The eviction.
        id: Ulid,
        /// All about it.
        decision: Decision,
        /// The candidates that its indices point into.
        members: Arc<[Arc<Candidate>]>,
    },
    /// It is to be asked to end now, after what was run before. There is nothing to tell of it.
    ToBeAsked {
        /// Its number, as the engine counts them.
        number: u64,
        /// The victim.
        candidate: Arc<Candidate>,
    },
    /// What was run before it is signalled has ended, or was not begun.
    Hooked {
        /// The eviction.
        id: Ulid,
        /// What was short.
        signal: Signal,
        /// The victim.
        candidate: Arc<Candidate>,
        /// How long it was to be waited for.
        plan: HookPlan,
        /// What came of it.
        ran: HookRun,
    },
    /// It was asked to end, by SIGTERM.
    Terminated {
        /// The eviction.
        id: Ulid,
        /// What was short.
        signal: Signal,
        /// Its number, as the engine counts them.
        number: u64,
        /// The victim.
        candidate: Arc<Candidate>,
        /// How long it is given, in nanoseconds.
        grace_ns: u64,
        /// When what happened.
        moments: Moments,
    },
    /// It was killed.
    Signalled {
        /// The eviction.
        id: Ulid,
        /// What was short.
        signal: Signal,
        /// Its number, as the engine counts them.
        number: u64,
        /// The victim.
        candidate: Arc<Candidate>,
        /// Why it was killed though it was to be given time to end; none if it had not.
        cut_short: Option<KillReason>,
        /// When what happened.
        moments: Moments,
        /// How many of `cpu.max` and `memory.high` could not be raised before.
        brakes_failed: usize,
    },
    /// It is dead, and its memory is back or overdue.
    Completed {
        /// The eviction.
        id: Ulid,
        /// What was short.
        signal: Signal,
        /// The victim.
        candidate: Arc<Candidate>,
        /// All about it.
        completion: Completion,
    },
    /// It could not be signalled, or did not die.
    Failed {
        /// The eviction.
        id: Ulid,
        /// What was short.
        signal: Signal,
        /// Who should have been the victim.
        candidate: Arc<Candidate>,
        /// All about it.
        failure: Failure,
    },
    /// The next candidate is held back while a victim's memory is awaited.
    Contained {
        /// The eviction that is under way.
        id: Ulid,
        /// Who is held back.
        candidate: Arc<Candidate>,
        /// All about it.
        containment: Containment,
        /// Since when.
        now_ns: u64,
    },
    /// It could not be held back.
    Uncontained {
        /// The eviction that is under way.
        id: Ulid,
        /// Who should have been held back.
        candidate: Arc<Candidate>,
        /// All about it.
        containment: Containment,
        /// When that was known.
        now_ns: u64,
        /// Why.
        reason: BrakeRefusal,
    },
    /// It is not held back any more.
    Eased {
        /// The eviction that it was for.
        id: Ulid,
        /// Who was held back.
        candidate: Arc<Candidate>,
        /// All about it.
        containment: Containment,
        /// Since when it was.
        since_ns: u64,
        /// Until when.
        now_ns: u64,
        /// Whether `memory.high` has its value again; otherwise the next start gives it back.
        given_back: bool,
    },
    /// Nobody is evicted although something is short.
    Suppressed {
        /// When.
        now_ns: u64,
        /// What is short.
        signal: Signal,
        /// Why.
        reason: Suppression,
    },
    /// A limit that was changed for an eviction cannot be put back and is tried again, or it is put back at last.
    Stuck(Box<Stuck>),
    /// Memory is short, and shared memory that no process maps is more than the threshold: no eviction gives it back.
    SharedMemoryHeld {
        /// How much there is at the least.
        bytes: u64,
        /// The threshold, in bytes.
        limit_bytes: u64,
        /// The candidates, of whose cgroups some may be charged for it.
        members: Arc<[Arc<Candidate>]>,
    },
    /// It is less than half of the threshold again.
    SharedMemoryFreed {
        /// How much is left.
        bytes: u64,
    },
    /// What a signal measures cannot be read: until it can, nothing is decided for its sake.
    Blind(Signal, Blindness),
    /// It can be read again.
    Sighted(Signal),
}

/// A limit that a helper thread could not put back; it may allocate.
#[derive(Clone, Debug)]
pub struct Stuck {
    /// For whose eviction, or in whose cgroup, it was changed.
    pub candidate: Arc<Candidate>,
    /// The file's cgroup.
    pub cgroup: CgroupPath,
    /// The file.
    pub file: &'static str,
    /// What it is to hold.
    pub value: String,
    /// Why it cannot be; none if it is at last.
    pub error: Option<String>,
}

/// Why a signal cannot be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Blindness {
    /// The node's memory cannot.
    #[error(transparent)]
    Memory(MeminfoError),
    /// Another of the kernel's figures cannot.
    #[error("{0}")]
    Level(Missing),
}

impl Report {
    /// The number of the eviction whose end it tells, if it does.
    pub(super) fn ended(&self) -> Option<u64> {
        match self {
            Self::Completed { completion, .. } => Some(completion.number),
            Self::Failed { failure, .. } => Some(failure.number),
            _ => None,
        }
    }

    /// Whether it may be told a little later than it happened: it comes before a victim's death by SIGKILL, or with it, and
    /// nothing that goes with the victim is read for it.
    pub(super) fn may_wait(&self) -> bool {
        match self {
            Self::Crossed { shortage, .. } => shortage.hard,
            Self::Decided { id: _, decision, members } => {
                let is_apart = |victim: &Arc<Candidate>| victim.has_several_containers();
                decision.grace_ns == 0 && !members.get(decision.index).is_some_and(is_apart)
            }
            Self::Conditions(_) | Self::Signalled { .. } => true,
            _ => false,
        }
    }

    /// The number of the eviction whose decision this is.
    pub(super) fn decided(&self) -> Option<u64> {
        if let Self::Decided { decision, .. } = self { Some(decision.number) } else { None }
    }

    /// The victim that is to be asked to end once its decision is recorded, and the number of its eviction.
    pub(super) fn to_be_asked(&self) -> Option<(u64, Arc<Candidate>)> {
        if let Self::ToBeAsked { number, candidate } = self {
            return Some((*number, Arc::clone(candidate)));
        }
        let Self::Decided { id: _, decision, members } = self else { return None };
        let is_hooked = matches!(decision.hook, HookPlan::Awaited { .. });
        let asked = decision.grace_ns > 0 && !decision.dry_run && !is_hooked;
        asked
            .then(|| members.get(decision.index))
            .flatten()
            .map(|victim| (decision.number, Arc::clone(victim)))
    }
}
