//! Signals the victim and watches it die.

use std::sync::Arc;

use rustix::event::epoll::{self, EventData, EventFlags};

use super::{Current, EvictionLoop, VICTIM};
use crate::{
    clock,
    evict::{
        candidate::Candidate, close::Work, executor, raised_limits::RaisedLimits, reap::Dying, report::Report,
    },
    policy::engine::{Actions, Input, KillReason, Moments, Outcome},
};

impl EvictionLoop {
    /// Kills the victim of that eviction; `cut_short` is the reason, if it had a grace period.
    pub(super) fn kill(&mut self, number: u64, cut_short: Option<KillReason>) -> Option<Actions> {
        self.end_hook(number);
        // Whoever was to ask it to end must not any more.
        self.wiring.shared.withdraw(number);
        // After a hook there was no grace period.
        let cut_short = cut_short.filter(|reason| *reason != KillReason::HookOver);
        let Some(current) = self.current.as_ref().filter(|current| current.number == number) else {
            self.owe_inherited(number, cut_short);
            return None;
        };
        let Current { id, number, decision, ref candidate, .. } = *current;
        let candidate = Arc::clone(candidate);
        let outcome = match executor::signal(&candidate) {
            Ok(signalled) => {
                let now_ns = signalled.at_ns;
                self.watch(&candidate);
                let moments = self.core.engine().moments()?;
                let moments = Moments { signalled_ns: Some(now_ns), ..moments };
                let brakes_failed = signalled.brakes_failed + self.raise_limits(&candidate);
                // Reaping is only faster: if the queue is full, the victim frees its memory itself.
                let bytes = decision.reading.usage().map_or(u64::MAX, |usage| usage.current_bytes);
                let _queued = self.wiring.reaper.offer(Dying { candidate: Arc::clone(&candidate), bytes });
                self.wiring.levels.note_kill();
                let signal = decision.shortage.signal;
                self.emit(Report::Signalled {
                    id,
                    signal,
                    number,
                    candidate,
                    cut_short,
                    moments,
                    brakes_failed,
                });
                Outcome::Signalled { number, now_ns }
            }
            Err(reason) => {
                if self.core.engine().moments().is_none_or(|moments| moments.asked_ns().is_none()) {
                    self.release_intent(number);
                }
                Outcome::Refused { number, now_ns: clock::boottime_ns(), reason }
            }
        };
        Some(self.core.step(Input::Outcome(outcome)))
    }

    /// Raises limits that slow the victim down in cgroups that outlive it; returns how many could not be raised.
    fn raise_limits(&mut self, victim: &Arc<Candidate>) -> usize {
        self.queue_restore();
        if self.raised.is_some() {
            // The raised limits of an earlier victim would be forgotten, so this one dies under its limits.
            return victim.brakes.iter().filter(|brake| brake.owner.is_some()).count();
        }
        let (limits, failed) = RaisedLimits::raise(victim, self.wiring.intents.as_mut());
        self.raised = limits;
        failed
    }

    /// Has the latest victim's raised limits restored; a little later if too many already wait for the helper.
    fn queue_restore(&mut self) {
        if self.raised.is_some()
            && let Some(free) = self.due.iter_mut().find(|due| due.is_none())
        {
            *free = self.raised.take();
        }
        self.give_back();
    }

    /// Has the raised limits restored of victims that have ended or were given up.
    pub(super) fn give_back(&mut self) {
        for due in self.due.iter_mut() {
            if let Some(limits) = due.take()
                && let Err(Work::GiveBack(limits)) = self.wiring.closer.offer(Work::GiveBack(limits))
            {
                *due = Some(limits);
            }
        }
    }

    /// Restores all raised limits, even of a victim that is not dead, as this thread ends.
    pub(super) fn give_back_all(&mut self) {
        for limits in self.raised.take().into_iter().chain(self.due.iter_mut().filter_map(Option::take)) {
            // The rest is on the intent page, and the next start restores it.
            let _left = limits.give_back();
        }
        if let Some(intents) = &mut self.wiring.intents {
            intents.settle();
        }
    }

    /// Wakes us when the victim's last process is gone. The timer covers files that cannot be waited on.
    ///
    /// Edge-triggered: the file of a target that is gone stays ready, and would keep us awake until the last of the
    /// others is dead.
    pub(super) fn watch(&self, victim: &Candidate) {
        for target in &victim.targets {
            let _watched = epoll::add(
                &self.epoll,
                &target.events,
                EventData::new_u64(VICTIM),
                EventFlags::PRI | EventFlags::ET,
            );
        }
    }

    /// Ends the reports about an eviction, if it is the current one.
    pub(super) fn forget(&mut self, number: u64) -> Option<Current> {
        let current = self.current.take_if(|current| current.number == number)?;
        for target in &current.candidate.targets {
            let _unwatched = epoll::delete(&self.epoll, &target.events);
        }
        self.queue_restore();
        Some(current)
    }
}
