//! Processes the outcomes of the engine's actions.

use super::{
    Action, Actions, BUDGET_PAUSE_NS, Completion, EMPTY_PAUSE_NS, Engine, FailureReason, KillReason, Outcome,
    Refusal, Suppression, UNRECORDED_PAUSE_NS,
    candidates::UNTIL_FORGIVEN,
    push,
    victim::{Look, Victim},
};

impl Engine {
    /// Processes the outcome of a decision. An answer about an eviction other than the present one is stale.
    pub(super) fn on_outcome(&mut self, outcome: Outcome, actions: &mut Actions) {
        if self.on_brake_outcome(&outcome, actions) {
            return;
        }
        self.take_victim_outcome(outcome, actions);
        self.ease(actions);
    }

    fn take_victim_outcome(&mut self, outcome: Outcome, actions: &mut Actions) {
        let Some(mut victim) = self.victim else { return };
        match outcome {
            // A victim that was killed before SIGTERM is not sent SIGTERM any more.
            Outcome::Terminated { number, now_ns } if number == victim.number && victim.is_deciding() => {
                victim.terminated(now_ns);
                self.victim = Some(victim);
                self.count(victim.pod, now_ns);
                self.pace(now_ns, actions);
            }
            Outcome::Requested { number, now_ns } if number == victim.number && victim.is_deciding() => {
                victim.requested(now_ns);
                self.victim = Some(victim);
                self.count(victim.pod, now_ns);
                self.pace(now_ns, actions);
            }
            Outcome::Unrequested { number, now_ns } if number == victim.number && victim.is_to_be_asked() => {
                self.unrequested(victim, now_ns, actions);
            }
            Outcome::Signalled { number, now_ns } if number == victim.number => {
                let is_first = !victim.is_asked();
                victim.signalled(now_ns);
                self.victim = Some(victim);
                if is_first {
                    self.count(victim.pod, now_ns);
                }
                self.pace(now_ns, actions);
            }
            Outcome::HookEnded { number, now_ns, end: _ } if number == victim.number => {
                victim.hook_ended(now_ns);
                self.victim = Some(victim);
                self.pace(now_ns, actions);
            }
            Outcome::Refused { number, now_ns, reason }
                if number == victim.number && victim.is_undecided() =>
            {
                self.refused(victim, now_ns, reason, actions);
            }
            Outcome::Progress { number, now_ns, populated, current_bytes, process_count }
                if number == victim.number =>
            {
                let was_alive = victim.is_alive();
                let look = victim.look(now_ns, populated, current_bytes, process_count);
                self.note_death(&victim, was_alive);
                match look {
                    Look::Wait => self.victim = Some(victim),
                    Look::Completed(completion) => self.complete(&victim, completion, actions),
                    Look::Failed(failure) => {
                        self.victim = None;
                        self.candidates.pass_over(victim.cgroup, UNTIL_FORGIVEN);
                        push(actions, Action::Failed(failure));
                    }
                }
            }
            Outcome::Terminated { .. }
            | Outcome::Requested { .. }
            | Outcome::Unrequested { .. }
            | Outcome::Signalled { .. }
            | Outcome::Refused { .. }
            | Outcome::HookEnded { .. }
            | Outcome::Progress { .. }
            | Outcome::Contained { .. }
            | Outcome::Uncontained { .. }
            | Outcome::Eased { .. } => {}
        }
    }

    /// Goes on with a victim that no one else ends.
    fn unrequested(&mut self, mut victim: Victim, now_ns: u64, actions: &mut Actions) {
        if !victim.is_graceless() {
            victim.unrequested(now_ns);
            self.victim = Some(victim);
        } else if self.withdrawn() == Some(victim.number) {
            // It was spared, or the shortage has ended, before whoever was to ask could see that.
            return self.refused(victim, now_ns, Refusal::Withdrawn, actions);
        } else {
            victim.unanswered(now_ns);
            self.victim = Some(victim);
            push(actions, Action::Kill { number: victim.number, reason: KillReason::Unanswered });
        }
        self.pace(now_ns, actions);
    }

    /// Notes what follows from a victim's death.
    fn note_death(&mut self, victim: &Victim, was_alive: bool) {
        self.died_ns = victim.dead_ns().or(self.died_ns);
        if was_alive && let Some(volume) = victim.volume() {
            self.volumes.keep(volume, self.shmem_bytes);
        }
    }

    /// Ends the eviction of a victim that is dead. Its volumes are still awaited.
    pub(super) fn complete(&mut self, victim: &Victim, completion: Completion, actions: &mut Actions) {
        self.victim = None;
        if let Some(volume) = victim.volume_left() {
            self.volumes.keep(volume, self.shmem_bytes);
        }
        push(actions, Action::Completed(completion));
    }

    fn refused(&mut self, mut victim: Victim, now_ns: u64, reason: Refusal, actions: &mut Actions) {
        let is_gone = matches!(reason, Refusal::Gone | Refusal::Empty);
        if victim.is_asked() && is_gone {
            // It ended by itself within its grace period. Its memory may still be coming back, unless its cgroup is
            // gone too.
            let (bytes, processes) = match reason {
                Refusal::Empty => victim.last_seen(),
                _ => (None, None),
            };
            let was_alive = victim.is_alive();
            let look = victim.look(now_ns, false, bytes, processes);
            self.note_death(&victim, was_alive);
            match look {
                Look::Wait => self.victim = Some(victim),
                Look::Completed(completion) => self.complete(&victim, completion, actions),
                Look::Failed(failure) => {
                    self.victim = None;
                    push(actions, Action::Failed(failure));
                }
            }
            return;
        }
        self.victim = None;
        let why = match self.spared(victim.cgroup) {
            Some(spared) if reason == Refusal::Withdrawn => FailureReason::Spared(spared),
            None if reason == Refusal::Withdrawn && victim.is_relieved() => FailureReason::Relieved,
            _ => FailureReason::Refused(reason),
        };
        push(actions, Action::Failed(victim.failure(now_ns, why)));
        match reason {
            // Neither a spared pod nor an unknown one is a candidate, and without a shortage there is none.
            Refusal::Withdrawn | Refusal::Unknown => {}
            // It is not the candidate's fault. A hard threshold does not wait for a disk.
            Refusal::Unrecorded => {
                self.soft_quiet_until_ns = now_ns.saturating_add(UNRECORDED_PAUSE_NS);
                return;
            }
            // It stays the first in the order: no other pod dies in its place. A hard threshold asks no budget.
            Refusal::Budget => {
                self.soft_quiet_until_ns = now_ns.saturating_add(BUDGET_PAUSE_NS);
                self.suppress(now_ns, victim.signal, Suppression::DisruptionBudget, actions);
                return;
            }
            Refusal::Gone | Refusal::Empty => {
                self.candidates.pass_over(victim.cgroup, now_ns.saturating_add(EMPTY_PAUSE_NS));
            }
            Refusal::Replaced | Refusal::Kernel(_) => {
                self.candidates.pass_over(victim.cgroup, UNTIL_FORGIVEN);
            }
        }
        if !victim.is_asked() {
            self.go_on(&victim, now_ns, actions);
        }
    }

    /// Continues after a refusal: with the next of the same order, if its readings are still fresh.
    fn go_on(&mut self, refused: &Victim, now_ns: u64, actions: &mut Actions) {
        let Some(before) = self.decision.filter(|decision| decision.number == refused.number) else { return };
        if let Some(reclaim) = self.may_decide(now_ns) {
            let signal = reclaim.threshold.signal;
            // A request that waited for a disk is old by now.
            let is_stale = before.grace_ns > 0 || self.candidates.order.is_empty();
            if signal != before.shortage.signal || is_stale {
                // It was ranked for a signal that is no longer short, or candidates or usages have changed since.
                return self.pace(now_ns, actions);
            }
            // Settings may have changed since the order was made.
            let rules = self.rules(signal);
            let mut order = std::mem::take(&mut self.candidates.order);
            order.retain(|ranked| {
                let slot = self.candidates.slot(ranked.index.0);
                let may = slot.is_some_and(|slot| slot.exclusion(now_ns, rules).is_none());
                may && ranked.cgroup != refused.cgroup
            });
            self.candidates.order = order;
            self.take_first(now_ns, reclaim, actions);
        }
        self.pace(now_ns, actions);
    }
}
