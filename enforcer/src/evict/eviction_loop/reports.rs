//! What the reflex says of itself: reports, how fast it was, and to the engine that nothing was signalled.

use std::sync::{Arc, atomic::Ordering};

use rustix::time::ClockId;

use super::{EvictionLoop, now_ns};
use crate::{
    evict::report::Report,
    policy::engine::{Actions, Input, Mode, Outcome, Refusal, Thresholds},
    sense::EdgeKind,
};

impl EvictionLoop {
    pub(super) fn emit(&self, report: Report) {
        // One that is lost is counted.
        let _is_reported = self.offer(report);
    }

    /// Reports which thresholds are armed. That one is not matters only where others would be acted on.
    pub(super) fn emit_of_arming(&self) {
        let engine = self.core.engine();
        let unarmed = match engine.settings().mode {
            Mode::Enforce => engine.unarmed(),
            Mode::Observe | Mode::DryRun => Thresholds::new(),
        };
        self.emit(Report::Arming { armed: engine.armed(), unarmed });
    }

    /// Reports shared memory that no eviction gives back, with the cgroups that may be charged for it.
    pub(super) fn emit_held(&self, bytes: u64, limit_bytes: u64) {
        self.emit(Report::SharedMemoryHeld { bytes, limit_bytes, members: Arc::clone(&self.set.members) });
    }

    /// Whether it will be told, once all else of the turn is done: where the report thread does not keep up, it is counted
    /// instead.
    pub(super) fn offer(&self, report: Report) -> bool {
        let counters = self.counters();
        counters.reports.fetch_add(1, Ordering::Relaxed);
        let is_reported = self.wiring.reports.put(report).is_ok();
        if is_reported {
            self.is_report_due.set(true);
        } else {
            counters.reports_dropped.fetch_add(1, Ordering::Relaxed);
        }
        is_reported
    }

    /// Wakes the report thread, if there is anything to be told. To be called when there is nothing left to be done: on a busy
    /// machine it takes our cpu, and a victim that is decided on would go on meanwhile.
    pub(in crate::evict) fn wake_report_thread(&self) {
        if self.is_report_due.take() {
            self.wiring.reports.wake();
        }
    }

    /// Takes in what was not looked at, as a rehearsal has it, and does what the engine wants.
    pub(in crate::evict) fn take_in(&mut self, input: Input<'_>) {
        let actions = self.core.step(input);
        self.carry_out(&actions);
    }

    /// The number of the eviction that is under way, and of the brake that is on.
    pub(in crate::evict) fn under_way(&self) -> (Option<u64>, Option<u64>) {
        let engine = self.core.engine();
        (engine.victim().map(|(number, _)| number), engine.brake().map(|(brake, _)| brake))
    }

    /// Answers the engine that nothing was signalled.
    pub(super) fn refuse(&mut self, number: u64, reason: Refusal) -> Actions {
        let now_ns = now_ns(ClockId::Boottime);
        self.core.step(Input::Outcome(Outcome::Refused { number, now_ns, reason }))
    }

    /// Takes note that what the edges told of was looked at.
    pub(super) fn looked(&mut self) {
        if self.awake_ns == [0; EdgeKind::ALL.len()] {
            return;
        }
        let now_ns = now_ns(ClockId::Boottime);
        for (kind, since_ns) in EdgeKind::ALL.into_iter().zip(std::mem::take(&mut self.awake_ns)) {
            if since_ns != 0 {
                self.counters().wakes.looked(kind, now_ns.saturating_sub(since_ns));
            }
        }
    }
}
