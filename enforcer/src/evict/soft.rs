//! Has a soft eviction's victim ended: by the one who runs the pod, if that can be asked, else by SIGTERM.

use std::{
    fmt,
    sync::{Arc, mpsc},
    time::Duration,
};

use ulid::Ulid;

use super::{
    candidate::{Candidate, Identity},
    executor, graceful,
    listener::Recorded,
};
use crate::{
    clock,
    policy::engine::{Outcome, Refusal},
};

/// A victim that is to be asked to end.
#[derive(Clone, Debug)]
pub(super) struct ToBeAsked {
    pub(super) id: Ulid,
    pub(super) number: u64,
    pub(super) candidate: Arc<Candidate>,
    /// Its grace period.
    pub(super) grace_ns: u64,
    /// Whether it has that one only if another ends it: otherwise it is killed at once.
    pub(super) graceless: bool,
    /// What is asked.
    pub(super) asking: Asking,
}

/// What is asked about a victim.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Asking {
    /// Its end.
    First,
    /// Whether an earlier process has requested its end. Nothing is sent that ends it.
    Whether,
    /// Its end, unless an earlier process has requested it.
    Again,
}

/// Has a pod ended by the one who runs it, without a signal from here.
pub trait Requester: fmt::Debug + Send + Sync {
    /// Requests the end of a pod within a grace period, with one effect at most, for the eviction `id`. May block for
    /// seconds. If an earlier process may have requested it (`is_again`), it is found out first whether one has. What
    /// is withdrawn by the time that it could be sent is not sent.
    fn request(
        &self,
        id: Ulid,
        pod: &Identity,
        grace: Duration,
        is_again: bool,
        is_withdrawn: &dyn Fn() -> bool,
    ) -> Requested;

    /// Whether an earlier process has requested the end of a pod for the eviction `id`; false if that cannot be found out.
    /// Requests nothing. May block for seconds.
    fn was_requested(&self, id: Ulid, pod: &Identity) -> bool;
}

/// The answer to such a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Requested {
    /// The pod will be ended within its grace period.
    Accepted,
    /// A disruption budget does not allow it now.
    Budget,
    /// There is no one to ask for this pod, no answer that settles it, or it was withdrawn before.
    Unanswered,
}

/// Has victims ended until there are no more to come: by the requester, if there is one. It runs on a thread of its own: the
/// report thread must not wait for an answer, nor for the disk to have the decision.
pub(super) fn run(
    victims: &mpsc::Receiver<(ToBeAsked, Recorded)>,
    requester: Option<&dyn Requester>,
    is_withdrawn: impl Fn(u64) -> bool,
    answer: impl Fn(Outcome),
) {
    for (victim, recorded) in victims {
        answer(outcome(&victim, recorded.wait(), requester, &is_withdrawn));
    }
}

fn outcome(
    victim: &ToBeAsked,
    is_recorded: bool,
    requester: Option<&dyn Requester>,
    is_withdrawn: &impl Fn(u64) -> bool,
) -> Outcome {
    let ToBeAsked { id, number, ref candidate, grace_ns, asking, .. } = *victim;
    let (pod, grace) = (candidate.identity(), Duration::from_nanos(grace_ns));
    let is_over = || is_withdrawn(number);
    if candidate.is_forbidden() && asking != Asking::Whether {
        return Outcome::Refused { number, now_ns: clock::boottime_ns(), reason: executor::FORBIDDEN };
    }
    let reply = match (asking, requester.filter(|_| !is_over())) {
        (Asking::Whether, Some(requester)) if requester.was_requested(id, pod) => Requested::Accepted,
        (Asking::First, Some(requester)) if is_recorded => requester.request(id, pod, grace, false, &is_over),
        (Asking::Again, Some(requester)) if is_recorded => requester.request(id, pod, grace, true, &is_over),
        (Asking::First | Asking::Whether | Asking::Again, _) => Requested::Unanswered,
    };
    match reply {
        Requested::Accepted => Outcome::Requested { number, now_ns: clock::boottime_ns() },
        Requested::Budget => {
            Outcome::Refused { number, now_ns: clock::boottime_ns(), reason: Refusal::Budget }
        }
        // It may have been spared, or the shortage may have ended meanwhile.
        Requested::Unanswered => unanswered(victim, is_recorded, is_over()),
    }
}

/// What follows where no one else ends the victim: SIGTERM, if it is to be ended and has a grace period. Without one it
/// is killed, which the engine decides.
fn unanswered(victim: &ToBeAsked, is_recorded: bool, is_withdrawn: bool) -> Outcome {
    let ToBeAsked { number, ref candidate, graceless, asking, .. } = *victim;
    let is_to_be_killed = graceless && is_recorded && !is_withdrawn;
    if is_to_be_killed || asking == Asking::Whether {
        return Outcome::Unrequested { number, now_ns: clock::boottime_ns() };
    }
    graceful::ask(number, candidate, is_recorded, is_withdrawn)
}
