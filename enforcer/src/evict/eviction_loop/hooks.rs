//! Hands the program that runs before a victim's signal to the helper thread, and ends it.

use std::sync::Arc;

use super::{Current, EvictionLoop};
use crate::{
    clock,
    evict::{hook::Job, report::Report, soft::Asking},
    policy::engine::{Actions, Decision, HookEnd, HookPlan, Input, Outcome, Refusal},
};

impl EvictionLoop {
    /// Starts the hook, if the decision has one; `None` otherwise.
    pub(super) fn begin_hook(&mut self) -> Option<Begun> {
        let Current { id, decision, candidate, .. } = self.current.as_ref()?;
        let HookPlan::Awaited { for_ns } = decision.hook else { return None };
        let Decision { number, decided_ns, .. } = *decision;
        let deadline_ns = decided_ns.saturating_add(for_ns);
        let job = Job { id: *id, decision: *decision, candidate: Arc::clone(candidate), deadline_ns };
        if self.wiring.hooks.take(number) {
            if self.wiring.hooker.offer(job).is_ok() {
                return Some(Begun(None));
            }
            self.wiring.hooks.gave_up();
        }
        let outcome = Outcome::HookEnded { number, now_ns: clock::boottime_ns(), end: HookEnd::Busy };
        Some(Begun(Some(self.core.step(Input::Outcome(outcome)))))
    }

    /// Ends a hook that is no longer waited for.
    pub(super) fn end_hook(&self, number: u64) {
        let current = self.current.as_ref().filter(|current| current.number == number);
        if current.is_some_and(|current| matches!(current.decision.hook, HookPlan::Awaited { .. })) {
            self.wiring.hooks.cut(number);
        }
    }

    /// Has the victim asked to end through the report thread, which knows how to learn whether the decision is on disk.
    pub(super) fn ask(&mut self, number: u64) -> Option<Actions> {
        self.end_hook(number);
        let is_inherited = self.current.as_ref().is_some_and(|current| current.inherited.is_some());
        self.have_asked(number, if is_inherited { Asking::Again } else { Asking::First })
    }

    /// Has that asked about the victim through the report thread.
    pub(super) fn have_asked(&mut self, number: u64, asking: Asking) -> Option<Actions> {
        let current = self.current.as_ref().filter(|current| current.number == number)?;
        let Current { id, decision, candidate, .. } = current;
        let (id, candidate) = (*id, Arc::clone(candidate));
        let Decision { grace_ns, graceless, .. } = *decision;
        // If the report is dropped, it is not asked.
        (!self.offer(Report::ToBeAsked { id, number, candidate, grace_ns, graceless, asking })).then(|| {
            self.release_intent(number);
            self.refuse(number, Refusal::Unrecorded)
        })
    }
}

/// A hook that was started, or the engine's next actions if it could not be.
pub(super) struct Begun(pub(super) Option<Actions>);
