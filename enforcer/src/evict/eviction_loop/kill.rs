//! The signal, and the look at who was signalled.

use std::sync::Arc;

use rustix::{
    event::epoll::{self, EventData, EventFlags},
    time::ClockId,
};

use super::{Current, EvictionLoop, VICTIM, now_ns};
use crate::{
    evict::{candidate::Candidate, executor, raised_limits::RaisedLimits, reap::Work, report::Report},
    policy::engine::{Actions, Decision, Input, KillReason, Moments, Outcome},
};

impl EvictionLoop {
    /// Kills the victim of that eviction; `cut_short` says why, if it had been given time to end.
    pub(super) fn kill(&mut self, number: u64, cut_short: Option<KillReason>) -> Option<Actions> {
        self.end_hook(number);
        // Then it was not given time to end.
        let cut_short = cut_short.filter(|reason| *reason != KillReason::HookOver);
        let Current { id, number, decision, ref candidate } =
            *self.current.as_ref().filter(|current| current.number == number)?;
        let candidate = Arc::clone(candidate);
        let outcome = match executor::signal(&candidate) {
            Ok(signalled) => {
                let now_ns = signalled.at_ns;
                self.watch(&candidate);
                let Decision { crossed_ns, decided_ns, .. } = decision;
                let moments = Moments {
                    crossed_ns,
                    decided_ns,
                    terminated_ns: self.core.engine().terminated_ns(),
                    signalled_ns: Some(now_ns),
                    dead_ns: None,
                    memory_back_ns: None,
                };
                let brakes_failed = signalled.brakes_failed + self.lend(&candidate);
                // Reaping only makes it faster: if there is no room, the victim frees its memory itself.
                let bytes = decision.reading.usage().map_or(u64::MAX, |usage| usage.current_bytes);
                let _queued = self.wiring.reaper.offer(Work::Reap(Arc::clone(&candidate), bytes));
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
                if self.core.engine().terminated_ns().is_none() {
                    self.release_intent(number);
                }
                Outcome::Refused { number, now_ns: now_ns(ClockId::Boottime), reason }
            }
        };
        Some(self.core.step(Input::Outcome(outcome)))
    }

    /// Raises what slows the victim down in cgroups that outlive it; how many files could not be raised.
    fn lend(&mut self, victim: &Arc<Candidate>) -> usize {
        self.owe();
        if self.loan.is_some() {
            // What an earlier victim was lent would be forgotten: this one dies under its limits.
            return victim.brakes.iter().filter(|brake| brake.owner.is_some()).count();
        }
        let (loan, failed) = RaisedLimits::raise(victim, self.wiring.intents.as_mut());
        self.loan = loan;
        failed
    }

    /// Has what the latest victim was lent put back; where as many wait for the helper already, a little later.
    fn owe(&mut self) {
        if self.loan.is_some()
            && let Some(free) = self.due.iter_mut().find(|due| due.is_none())
        {
            *free = self.loan.take();
        }
        self.give_back();
    }

    /// Has what victims were lent put back, who have ended or were given up.
    pub(super) fn give_back(&mut self) {
        for due in self.due.iter_mut() {
            if let Some(loan) = due.take()
                && let Err(Work::GiveBack(loan)) = self.wiring.reaper.offer(Work::GiveBack(loan))
            {
                *due = Some(loan);
            }
        }
    }

    /// Puts back what is lent still, also to a victim that is not dead: this thread ends.
    pub(super) fn give_back_all(&mut self) {
        for loan in self.loan.take().into_iter().chain(self.due.iter_mut().filter_map(Option::take)) {
            // What cannot be is on the intent page, and the next start puts it back.
            let _left = loan.give_back();
        }
        if let Some(intents) = &mut self.wiring.intents {
            intents.settle();
        }
    }

    /// Wakes us when the victim's last process is gone. A file that cannot be waited on is looked at by the timer.
    ///
    /// Once for each change: the file of a target that is gone stays ready, and would keep us awake until the last
    /// of the others is dead.
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

    /// Ends the telling about an eviction, if it is the current one.
    pub(super) fn forget(&mut self, number: u64) -> Option<Current> {
        let current = self.current.take_if(|current| current.number == number)?;
        for target in &current.candidate.targets {
            let _unwatched = epoll::delete(&self.epoll, &target.events);
        }
        self.owe();
        Some(current)
    }
}
