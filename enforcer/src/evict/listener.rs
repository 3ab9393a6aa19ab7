//! Passes the reflex's reports to a listener, on a separate thread.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use super::{
    queue::{Next, Receiver},
    report::Report,
    soft::ToBeAsked,
};

/// The longest delay of reports about a victim that is killed at once. The victim needs the CPUs to die, and earlier
/// events are not urgent. If an eviction must be found within 100 ms, it leaves the journal enough time.
pub(super) const HELD_BACK: Duration = Duration::from_millis(25);

/// The most reports that are delayed.
const ROOM: usize = 32;

/// Receives the reports of the reflex.
pub trait Listener: Send + 'static {
    /// Rehearses emitting a report of an eviction that did not happen. Called before all else.
    fn rehearse(&mut self, report: Report) {
        drop(report);
    }

    /// Takes note of a report without delay; for state that others rely on, and work that takes microseconds.
    fn see(&mut self, report: &Report) {
        let _ = report;
    }

    /// Emits a report. For a decision, and before the victim of an earlier process is asked to end, returns whether the
    /// decision is durable.
    fn emit(&mut self, report: Report) -> bool;
}

impl<F: FnMut(Report) -> bool + Send + 'static> Listener for F {
    fn emit(&mut self, report: Report) -> bool {
        self(report)
    }
}

/// Passes reports to the listener until the reflex is gone. Calls `ask` for victims that are asked to end once their
/// decision is durable, and whether it is. Reports that [may wait](Report::may_wait) are passed on after
/// `held_back`, or with the next that may not.
pub(super) fn run(
    reports: &Receiver<Report>,
    mut listener: impl Listener,
    held_back: Duration,
    ended: Option<&AtomicU64>,
    ask: impl Fn(ToBeAsked, bool),
) {
    // The latest eviction that is durably recorded.
    let mut recorded = 0;
    let mut held = Vec::with_capacity(ROOM + 1);
    let mut until = None;
    loop {
        let next = reports.next_until(until);
        let is_over = matches!(next, Next::End);
        if let Next::Value(report) = next {
            listener.see(&report);
            let waits = report.may_wait() && held.len() < ROOM;
            held.push(report);
            if waits {
                until.get_or_insert_with(|| Instant::now() + held_back);
                continue;
            }
        }
        until = None;
        for report in held.drain(..) {
            let (decided, soft, end) = (report.recorded(), report.to_be_asked(), report.ended());
            if listener.emit(report) {
                recorded = decided.unwrap_or(recorded);
            }
            if let (Some(number), Some(ended)) = (end, ended) {
                ended.fetch_max(number, Ordering::Release);
            }
            if let Some(victim) = soft {
                let is_recorded = recorded == victim.number;
                ask(victim, is_recorded);
            }
        }
        if is_over {
            return;
        }
    }
}
