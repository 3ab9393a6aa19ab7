//! Goes on with the eviction of an earlier process once its victim is among the candidates, or ends it without.

use std::sync::Arc;

use super::{Current, EvictionLoop};
use crate::{
    clock,
    evict::{
        candidate::Candidate,
        inherited::InheritedEviction,
        report::{End, Report},
        soft::Asking,
    },
    policy::engine::{Actions, Inherited, Input, KillReason, Outcome, Refusal},
};

/// How long a victim that is to be signalled is waited for. A kubelet's containers are named within a second of the start;
/// another pod must not be spared for one that stays unknown.
const PATIENCE_NS: u64 = 10_000_000_000;

/// An eviction of an earlier process whose victim is not among the candidates yet.
pub(super) struct Unknown {
    eviction: Arc<InheritedEviction>,
    since_ns: u64,
    /// Why it is to be killed once it is known, if it is.
    owed: Option<KillReason>,
}

impl Unknown {
    pub(super) fn new(eviction: Arc<InheritedEviction>) -> Self {
        Self { eviction, since_ns: clock::boottime_ns(), owed: None }
    }

    /// What the engine begins with, and when.
    pub(super) fn facts(&self) -> (&Inherited, u64) {
        (&self.eviction.facts, self.since_ns)
    }
}

impl EvictionLoop {
    /// Goes on with the eviction if its victim is among the candidates now: the same pod, in the same cgroup.
    pub(super) fn find_inherited(&mut self) {
        let Some(Unknown { eviction, owed, .. }) = &self.unknown else { return };
        let is_victim = |member: &&Arc<Candidate>| {
            member.facts.cgroup == eviction.facts.cgroup && member.identity.uid == eviction.uid
        };
        let engine = self.core.engine();
        let (Some(candidate), Some((number, cgroup)), Some(decision)) = (
            self.set.members.iter().find(is_victim).map(Arc::clone),
            engine.victim(),
            engine.decision().copied(),
        ) else {
            return;
        };
        let (id, owed, is_spared) = (eviction.id, *owed, engine.spared(cgroup).is_some());
        let is_asked = engine.moments().is_some_and(|moments| moments.has_begun());
        let inherited = self.unknown.take().map(|unknown| unknown.eviction);
        if let Some(eviction) = inherited.clone() {
            self.emit(Report::Inherited { number, candidate: Arc::clone(&candidate), eviction, is_asked });
        }
        self.current = Some(Current { id, number, decision, candidate: Arc::clone(&candidate), inherited });
        if is_asked {
            self.watch(&candidate);
        }
        let next: Option<Actions> = match owed {
            // It was not known then that it is spared.
            Some(_) if is_spared => Some(self.refuse(number, Refusal::Withdrawn)),
            Some(reason) => self.kill(number, Some(reason)),
            None if is_asked => None,
            // The shortage may have ended meanwhile: nothing is requested before that is known.
            None => self.have_asked(number, Asking::Whether),
        };
        if let Some(actions) = next {
            self.carry_out(&actions);
        }
    }

    /// Notes that the victim is to be killed once it is known.
    pub(super) fn owe_inherited(&mut self, number: u64, reason: Option<KillReason>) {
        let is_it = self.core.engine().victim().is_some_and(|(victim, _)| victim == number);
        if let Some(unknown) = self.unknown.as_mut().filter(|_| is_it) {
            unknown.owed = reason;
        }
    }

    /// Looks whether the victim has ended before it was known, or has been waited for long enough.
    pub(super) fn watch_inherited(&mut self, number: u64) {
        let Some(Unknown { eviction, since_ns, owed }) = &self.unknown else { return };
        let now_ns = clock::boottime_ns();
        let moments = self.core.engine().moments();
        let is_asked = moments.is_some_and(|moments| moments.has_begun());
        let is_killed = moments.is_some_and(|moments| moments.signalled_ns.is_some());
        let is_overdue = now_ns.saturating_sub(*since_ns) >= PATIENCE_NS && (owed.is_some() || !is_asked);
        let (current_bytes, process_count) = (None, None);
        let progress =
            |populated| Outcome::Progress { number, now_ns, populated, current_bytes, process_count };
        let actions = if eviction.has_ended() {
            if is_asked || owed.is_some() {
                self.core.step(Input::Outcome(progress(false)))
            } else {
                self.refuse(number, Refusal::Gone)
            }
        } else if is_killed {
            // Its time to die passes while it is unknown too.
            self.core.step(Input::Outcome(progress(true)))
        } else if is_overdue {
            self.refuse(number, Refusal::Unknown)
        } else {
            return;
        };
        self.carry_out(&actions);
    }

    /// Reports the end of an eviction whose victim never was among the candidates.
    pub(super) fn end_inherited(&mut self, end: End) {
        if let Some(Unknown { eviction, .. }) = self.unknown.take() {
            self.emit(Report::InheritedEnded { eviction, end });
        }
    }
}
