//! Reports of the reflex.

use std::sync::Arc;

use ulid::Ulid;

use super::{
    candidate::Candidate,
    hook::HookRun,
    inherited::InheritedEviction,
    soft::{Asking, ToBeAsked},
};
use crate::{
    model::{CgroupPath, CgroupValue},
    policy::{
        engine::{
            BrakeRefusal, Completion, Containment, Decision, Failure, HookPlan, KillReason, Moments,
            Resource, Shortage, Suppression, Thresholds,
        },
        pressure::Conditions,
        threshold::Signal,
    },
    sense::{MeminfoError, snapshot::Missing},
};

/// A report of the reflex. Times are nanoseconds of `CLOCK_BOOTTIME`. The reflex makes it without allocating.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation on the reflex thread")]
pub enum Report {
    /// A threshold was crossed.
    Crossed {
        /// When it was seen.
        now_ns: u64,
        /// The threshold, and the available amount.
        shortage: Shortage,
    },
    /// A shortage is over.
    Cleared {
        /// When it was seen.
        now_ns: u64,
        /// The threshold, and the available amount now.
        shortage: Shortage,
        /// When it had been crossed.
        crossed_ns: u64,
    },
    /// The node's conditions from now on.
    Conditions(Conditions),
    /// The thresholds that are armed from now on, as far as their signals were measured.
    Arming {
        /// Those that evict.
        armed: Thresholds,
        /// Those that were crossed when they were loaded, and decide as in dry-run; empty unless the mode is enforce.
        unarmed: Thresholds,
    },
    /// A victim was chosen.
    Decided {
        /// The eviction.
        id: Ulid,
        /// The decision.
        decision: Decision,
        /// The candidates that its indices point into.
        members: Arc<[Arc<Candidate>]>,
        /// The working set of each of the victim's containers, if it has several. Empty until
        /// [`read_victim`](Self::read_victim).
        containers: Vec<(String, u64)>,
    },
    /// The victim must be asked to end now, after its hook or as an earlier process has not done it, or it must be found out
    /// whether one has. It has no event.
    ToBeAsked {
        /// The eviction.
        id: Ulid,
        /// The engine's number of the eviction.
        number: u64,
        /// The victim.
        candidate: Arc<Candidate>,
        /// Its grace period in nanoseconds.
        grace_ns: u64,
        /// Whether it has that one only if another ends it.
        graceless: bool,
        /// What is asked.
        asking: Asking,
    },
    /// The hook of an eviction has ended, or was not started.
    Hooked {
        /// The eviction.
        id: Ulid,
        /// What was short.
        signal: Signal,
        /// The victim.
        candidate: Arc<Candidate>,
        /// The planned wait for it.
        plan: HookPlan,
        /// Its result.
        ran: HookRun,
    },
    /// The victim got SIGTERM.
    Terminated {
        /// The eviction.
        id: Ulid,
        /// What was short.
        signal: Signal,
        /// The engine's number of the eviction.
        number: u64,
        /// The victim.
        candidate: Arc<Candidate>,
        /// Its grace period in nanoseconds.
        grace_ns: u64,
        /// The times of its steps.
        moments: Moments,
    },
    /// The one who runs the victim will end it. Its event is that of the request.
    Requested {
        /// The engine's number of the eviction.
        number: u64,
        /// The victim.
        candidate: Arc<Candidate>,
    },
    /// The victim got SIGKILL.
    Signalled {
        /// The eviction.
        id: Ulid,
        /// What was short.
        signal: Signal,
        /// The engine's number of the eviction.
        number: u64,
        /// The victim.
        candidate: Arc<Candidate>,
        /// Why its grace period ended; `None` if it had none.
        cut_short: Option<KillReason>,
        /// The times of its steps.
        moments: Moments,
        /// How many of its `cpu.max` and `memory.high` files could not be raised.
        brakes_failed: usize,
    },
    /// The victim is dead, and its memory is back or overdue.
    Completed {
        /// The eviction.
        id: Ulid,
        /// What was short.
        signal: Signal,
        /// The victim.
        candidate: Arc<Candidate>,
        /// The details.
        completion: Completion,
    },
    /// The victim could not be signalled, or did not die.
    Failed {
        /// The eviction.
        id: Ulid,
        /// What was short.
        signal: Signal,
        /// The intended victim.
        candidate: Arc<Candidate>,
        /// The details.
        failure: Failure,
    },
    /// The victim of an eviction that was inherited is among the candidates. It has no event.
    Inherited {
        /// The engine's number of the eviction.
        number: u64,
        /// The victim.
        candidate: Arc<Candidate>,
        /// What was known before.
        eviction: Arc<InheritedEviction>,
        /// Whether it was asked to end, or killed.
        is_asked: bool,
    },
    /// An eviction that was inherited is over, and its victim was never among the candidates of this process.
    InheritedEnded {
        /// The eviction.
        eviction: Arc<InheritedEviction>,
        /// Its end.
        end: End,
    },
    /// The next candidate is throttled while a victim's memory is awaited.
    Contained {
        /// The current eviction.
        id: Ulid,
        /// The throttled candidate.
        candidate: Arc<Candidate>,
        /// The details.
        containment: Containment,
        /// When it began.
        now_ns: u64,
    },
    /// The next candidate could not be throttled.
    Uncontained {
        /// The current eviction.
        id: Ulid,
        /// The candidate.
        candidate: Arc<Candidate>,
        /// The details.
        containment: Containment,
        /// When that was known.
        now_ns: u64,
        /// The reason.
        reason: BrakeRefusal,
    },
    /// The candidate is no longer throttled.
    Eased {
        /// The eviction that it was for.
        id: Ulid,
        /// The candidate.
        candidate: Arc<Candidate>,
        /// The details.
        containment: Containment,
        /// When it began.
        since_ns: u64,
        /// When it ended.
        now_ns: u64,
        /// Whether `memory.high` is restored; otherwise the next start restores it.
        given_back: bool,
    },
    /// No pod is evicted although a resource is short.
    Suppressed {
        /// The time.
        now_ns: u64,
        /// What is short.
        signal: Signal,
        /// The reason.
        reason: Suppression,
    },
    /// A limit that was changed for an eviction cannot be restored and is retried, or it is restored at last.
    Stuck(Box<Stuck>),
    /// Memory is short, and unmapped shared memory exceeds the threshold; no eviction frees it.
    SharedMemoryHeld {
        /// The least amount there is.
        bytes: u64,
        /// The threshold, in bytes.
        limit_bytes: u64,
        /// The candidates; some of their cgroups may be charged for it.
        members: Arc<[Arc<Candidate>]>,
    },
    /// Unmapped shared memory is below half of the threshold again.
    SharedMemoryFreed {
        /// The remaining amount.
        bytes: u64,
    },
    /// A signal cannot be read, and causes no decision until it can.
    Blind(Signal, Blindness),
    /// A signal can be read again.
    Sighted(Signal),
}

/// How an eviction has ended.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// The victim is dead.
    Completed(Completion),
    /// It could not be signalled.
    Failed(Failure),
}

/// A limit that a helper thread could not restore. Helper threads may allocate.
#[derive(Clone, Debug)]
pub struct Stuck {
    /// The candidate for whose eviction, or in whose cgroup, it was changed.
    pub candidate: Arc<Candidate>,
    /// The file's cgroup.
    pub cgroup: CgroupPath,
    /// The value to restore.
    pub value: CgroupValue,
    /// The error; `None` if it is restored at last.
    pub error: Option<String>,
}

/// Why a signal cannot be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Blindness {
    /// The node's memory cannot be read.
    #[error(transparent)]
    Memory(MeminfoError),
    /// Another of the kernel's figures cannot be read.
    #[error("{0}")]
    Level(Missing),
}

impl Report {
    /// The number of the eviction that it ends, if any.
    pub(super) fn ended(&self) -> Option<u64> {
        match self {
            Self::Completed { completion, .. }
            | Self::InheritedEnded { end: End::Completed(completion), .. } => Some(completion.number),
            Self::Failed { failure, .. } | Self::InheritedEnded { end: End::Failed(failure), .. } => {
                Some(failure.number)
            }
            _ => None,
        }
    }

    /// Reads what goes away with the victim, right after the signal of a hard eviction. Opens files, which the reflex does not.
    pub(super) fn read_victim(&mut self) {
        if let Self::Decided { id: _, decision, members, containers } = self
            && decision.shortage.resource() == Resource::Memory
            && let Some(victim) = members.get(decision.index.0)
            && victim.has_several_containers()
        {
            *containers = victim.containers_apart();
        }
    }

    /// Whether it may be emitted with a delay: it comes before or with a victim's SIGKILL.
    pub(super) fn may_wait(&self) -> bool {
        match self {
            Self::Crossed { shortage, .. } => shortage.hard,
            Self::Decided { decision, .. } => decision.grace_ns == 0,
            Self::Conditions(_) | Self::Signalled { .. } => true,
            _ => false,
        }
    }

    /// The number of the eviction whose decision is durable once this was emitted, if any.
    pub(super) fn recorded(&self) -> Option<u64> {
        match self {
            Self::Decided { decision, .. } => Some(decision.number),
            Self::ToBeAsked { number, asking: Asking::Again, .. } => Some(*number),
            _ => None,
        }
    }

    /// The victim that is asked to end once its decision is recorded.
    pub(super) fn to_be_asked(&self) -> Option<ToBeAsked> {
        if let Self::ToBeAsked { id, number, candidate, grace_ns, graceless, asking } = self {
            return Some(ToBeAsked {
                id: *id,
                number: *number,
                candidate: Arc::clone(candidate),
                grace_ns: *grace_ns,
                graceless: *graceless,
                asking: *asking,
            });
        }
        let Self::Decided { id, decision, members, containers: _ } = self else { return None };
        let is_hooked = matches!(decision.hook, HookPlan::Awaited { .. });
        let asked = decision.grace_ns > 0 && !decision.dry_run && !is_hooked;
        let candidate = Arc::clone(members.get(decision.index.0).filter(|_| asked)?);
        let Decision { number, grace_ns, graceless, .. } = *decision;
        Some(ToBeAsked { id: *id, number, candidate, grace_ns, graceless, asking: Asking::First })
    }
}
