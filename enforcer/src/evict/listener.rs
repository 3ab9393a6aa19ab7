//! Who is told what the reflex did, on a thread of its own, and when.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use super::{
    candidate::Candidate,
    queue::{Next, Receiver},
    report::Report,
};

/// Of a victim that is killed at once it is told so much later at the most: it needs the CPUs to die, and for what came
/// before it is early enough. Where an eviction is to be found within 100 ms, it leaves the journal time.
pub(super) const HELD_BACK: Duration = Duration::from_millis(25);

/// How much is held back at the most.
const ROOM: usize = 32;

/// Who is told what the reflex did.
pub trait Listener: Send + 'static {
    /// Goes through what it takes to tell of that, which never was. Before all else.
    fn rehearse(&mut self, report: Report) {
        drop(report);
    }

    /// Takes note of it, as soon as may be: what others go by, and what is done in microseconds.
    fn see(&mut self, report: &Report) {
        let _ = report;
    }

    /// Tells of it. Whether what it told lasts, if it is a decision.
    fn emit(&mut self, report: Report) -> bool;
}

impl<F: FnMut(Report) -> bool + Send + 'static> Listener for F {
    fn emit(&mut self, report: Report) -> bool {
        self(report)
    }
}

/// Tells the listener, until the reflex is gone; and has those victims asked to end that wait for their decision to last:
/// by number, and with whether it does.
/// What [may wait](Report::may_wait) is told so much later, or with the next that may not.
pub(super) fn run(
    reports: &Receiver<Report>,
    mut listener: impl Listener,
    held_back: Duration,
    ended: Option<&AtomicU64>,
    ask: impl Fn(u64, &Candidate, bool),
) {
    // The latest eviction that is recorded where it lasts.
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
            let (decided, soft, end) = (report.decided(), report.to_be_asked(), report.ended());
            if listener.emit(report) {
                recorded = decided.unwrap_or(recorded);
            }
            if let (Some(number), Some(ended)) = (end, ended) {
                ended.fetch_max(number, Ordering::Release);
            }
            if let Some((number, victim)) = soft {
                ask(number, &victim, recorded == number);
            }
        }
        if is_over {
            return;
        }
    }
}
