//! Emits reports, measures wake latency, and returns refusals to the engine.

use std::sync::{Arc, atomic::Ordering};

use super::EvictionLoop;
use crate::{
    clock,
    evict::report::Report,
    policy::engine::{Actions, Input, Mode, Outcome, Refusal, Thresholds},
    sense::EdgeKind,
};

impl EvictionLoop {
    pub(super) fn emit(&self, report: Report) {
        // A dropped report is counted.
        let _is_reported = self.offer(report);
    }

    /// Reports which thresholds are armed. Unarmed ones only matter in enforce mode.
    pub(super) fn emit_of_arming(&self) {
        let engine = self.core.engine();
        let unarmed = match engine.settings().mode {
            Mode::Enforce => engine.unarmed(),
            Mode::Observe | Mode::DryRun => Thresholds::new(),
        };
        self.emit(Report::Arming { armed: engine.armed(), unarmed });
    }

    /// Reports shared memory that no eviction frees, with the cgroups that may be charged for it.
    pub(super) fn emit_held(&self, bytes: u64, limit_bytes: u64) {
        self.emit(Report::SharedMemoryHeld { bytes, limit_bytes, members: Arc::clone(&self.set.members) });
    }

    /// Queues a report, to be emitted after all other work of the pass. If the report thread does not keep up, counts
    /// it as dropped and returns `false`.
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

    /// Wakes the report thread if reports are queued. Call it last: on a busy machine that thread takes our CPU, and a
    /// victim that is decided on would run on meanwhile.
    pub(in crate::evict) fn wake_report_thread(&self) {
        if self.is_report_due.take() {
            self.wiring.reports.wake();
        }
    }

    /// Passes a rehearsal's input, which was not read from the node, to the engine and carries out its actions.
    pub(in crate::evict) fn take_in(&mut self, input: Input<'_>) {
        let actions = self.core.step(input);
        self.carry_out(&actions);
    }

    /// The numbers of the current eviction and of the current brake.
    pub(in crate::evict) fn under_way(&self) -> (Option<u64>, Option<u64>) {
        let engine = self.core.engine();
        (engine.victim().map(|(number, _)| number), engine.brake().map(|(brake, _)| brake))
    }

    /// Returns to the engine that nothing was signalled.
    pub(super) fn refuse(&mut self, number: u64, reason: Refusal) -> Actions {
        let now_ns = clock::boottime_ns();
        self.core.step(Input::Outcome(Outcome::Refused { number, now_ns, reason }))
    }

    /// Records that a look has followed the edges.
    pub(super) fn looked(&mut self) {
        if self.awake_ns == [0; EdgeKind::ALL.len()] {
            return;
        }
        let now_ns = clock::boottime_ns();
        for (kind, since_ns) in EdgeKind::ALL.into_iter().zip(std::mem::take(&mut self.awake_ns)) {
            if since_ns != 0 {
                self.counters().wakes.looked(kind, now_ns.saturating_sub(since_ns));
            }
        }
    }
}
