//! Hands brakes of the reflex to the helper thread and reports their outcome.

use std::sync::Arc;

use ulid::Ulid;

use super::EvictionLoop;
use crate::{
    clock,
    evict::{brake::Braking, candidate::Candidate, report::Report},
    policy::engine::{Action, Actions, BrakeRefusal, Containment, Input, Outcome},
};

/// A candidate that is throttled or was to be.
pub(super) struct Braked {
    brake: u64,
    /// The current eviction.
    id: Ulid,
    candidate: Arc<Candidate>,
}

impl EvictionLoop {
    /// Has the candidate throttled; returns the engine's next actions if the queue is full.
    pub(super) fn contain(&mut self, containment: &Containment) -> Option<Actions> {
        let Containment { brake, number, index, high_bytes, .. } = *containment;
        let current = self.current.as_ref().filter(|current| current.number == number)?;
        let candidate = Arc::clone(self.set.members.get(index.0)?);
        self.braked = Some(Braked { brake, id: current.id, candidate: Arc::clone(&candidate) });
        let work = Braking::Hold { brake, candidate, high_bytes };
        if self.wiring.braker.offer(work).is_ok() {
            return None;
        }
        let now_ns = clock::boottime_ns();
        let outcome = Outcome::Uncontained { brake, now_ns, reason: BrakeRefusal::Busy };
        Some(self.core.step(Input::Outcome(outcome)))
    }

    /// Has the brake eased; if the queue is full, the next look retries.
    pub(super) fn ease(&mut self, brake: u64) {
        self.uneased = self.wiring.braker.offer(Braking::Ease { brake }).is_err().then_some(brake);
    }

    /// Retries to ease a brake for which the queue was full.
    pub(super) fn ease_again(&mut self) {
        if let Some(brake) = self.uneased {
            self.ease(brake);
        }
    }

    /// Reports the outcome of a brake.
    pub(super) fn emit_of_brake(&mut self, action: &Action) {
        let Some(Braked { brake, id, candidate }) = &self.braked else { return };
        let (brake, id, candidate) = (*brake, *id, Arc::clone(candidate));
        let (which, is_over, report) = match *action {
            Action::Contained { now_ns, containment } => {
                (containment.brake, false, Report::Contained { id, candidate, containment, now_ns })
            }
            Action::Uncontained { now_ns, containment, reason } => {
                (containment.brake, true, Report::Uncontained { id, candidate, containment, now_ns, reason })
            }
            Action::Eased { now_ns, containment, since_ns, given_back } => {
                let report = Report::Eased { id, candidate, containment, since_ns, now_ns, given_back };
                (containment.brake, true, report)
            }
            Action::Crossed { .. }
            | Action::Cleared { .. }
            | Action::Conditions(_)
            | Action::Arming
            | Action::ReadUsages(_)
            | Action::Evict
            | Action::Ask { .. }
            | Action::Kill { .. }
            | Action::Contain(_)
            | Action::Ease { .. }
            | Action::Completed(_)
            | Action::Failed(_)
            | Action::SharedMemoryHeld { .. }
            | Action::SharedMemoryFreed { .. }
            | Action::Suppressed { .. }
            | Action::LookAgainWithin(_) => return,
        };
        if which == brake {
            self.emit(report);
            if is_over {
                self.braked = None;
            }
        }
    }
}
