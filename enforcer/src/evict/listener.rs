//! Passes the reflex's reports to a listener, on a separate thread.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
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

/// Whether a decision is durable.
#[derive(Clone)]
pub enum Recorded {
    /// That is known.
    Known(bool),
    /// It is not known yet. The call waits until it is, and returns it. It is made on another thread, as a disk may take
    /// seconds, and the reports of a kill must not wait for it.
    Awaited(Arc<dyn Fn() -> bool + Send + Sync>),
}

impl Recorded {
    /// Waits until it is known.
    pub(super) fn wait(&self) -> bool {
        match self {
            Self::Known(is_recorded) => *is_recorded,
            Self::Awaited(wait) => wait(),
        }
    }
}

impl fmt::Debug for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(is_recorded) => f.debug_tuple("Known").field(is_recorded).finish(),
            Self::Awaited(_) => f.debug_tuple("Awaited").finish_non_exhaustive(),
        }
    }
}

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
    /// decision is durable. Later reports wait for the return.
    fn emit(&mut self, report: Report) -> Recorded;
}

impl<F: FnMut(Report) -> bool + Send + 'static> Listener for F {
    fn emit(&mut self, report: Report) -> Recorded {
        Recorded::Known(self(report))
    }
}

/// Passes reports to the listener until the reflex is gone. Calls `ask` for victims that are asked to end once their
/// decision is durable, with what is known of that. Reports that [may wait](Report::may_wait) are passed on after
/// `held_back`, or with the next that may not.
pub(super) fn run(
    reports: &Receiver<Report>,
    mut listener: impl Listener,
    held_back: Duration,
    ended: Option<&AtomicU64>,
    ask: impl Fn(ToBeAsked, Recorded),
) {
    // The latest eviction whose decision was emitted.
    let mut latest = (0, Recorded::Known(false));
    let mut held = Vec::with_capacity(ROOM + 1);
    let mut until = None;
    loop {
        let next = reports.next_until(until);
        let is_over = matches!(next, Next::End);
        if let Next::Value(mut report) = next {
            report.read_victim();
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
            let recorded = listener.emit(report);
            if let Some(number) = decided {
                latest = (number, recorded);
            }
            if let (Some(number), Some(ended)) = (end, ended) {
                ended.fetch_max(number, Ordering::Release);
            }
            if let Some(victim) = soft {
                let (number, recorded) = &latest;
                let is_latest = *number == victim.number;
                ask(victim, if is_latest { recorded.clone() } else { Recorded::Known(false) });
            }
        }
        if is_over {
            return;
        }
    }
}
