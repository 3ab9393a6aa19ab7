//! Paces the looks at cgroups and scores, and puts them off while a victim dies.

use std::time::{Duration, Instant};

/// How often everything is looked at without a reported change: if the kernel reports changes, and if it does not.
pub(super) const LOOK_REPORTED: Duration = Duration::from_mins(5);
pub(super) const LOOK_UNREPORTED: Duration = Duration::from_secs(10);

/// How often processes with a wrong score are looked for, if the kernel does not report them.
const SWEEP: Duration = Duration::from_secs(1);

/// The least time before something that waits is tried again.
const RETRY: Duration = Duration::from_millis(100);

/// The same for what could not be written back when it was due.
const OVERDUE: Duration = Duration::from_secs(1);

/// How long changes to the cgroups wait after a kill: the victim needs the CPUs, so that its memory is freed soon.
const AFTER_A_KILL: Duration = Duration::from_secs(1);

/// When the desired state is looked at without a reported change.
#[derive(Debug)]
pub(super) struct Schedule {
    /// Whether the kernel reports changes to the cgroups.
    files_are_reported: bool,
    /// Whether it reports processes with a wrong score.
    scores_are_reported: bool,
    /// Whether a sweep of the scores is due nevertheless.
    sweep_is_due: bool,
    look: Instant,
    sweep: Instant,
    /// When something that waits is to be tried again.
    retry: Option<Instant>,
    /// When values that others insist on are to be written back.
    write_back: Option<Instant>,
}

/// The work that is due.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Due {
    /// A look at everything.
    Look,
    /// Values that others insist on are to be written back.
    WriteBack,
    /// A look at the scores alone.
    Sweep,
}

impl Schedule {
    pub(super) fn new(files_are_reported: bool, now: Instant) -> Self {
        Self {
            files_are_reported,
            scores_are_reported: false,
            sweep_is_due: false,
            look: now,
            sweep: now,
            retry: None,
            write_back: None,
        }
    }

    /// Notes whether the kernel reports changes to the cgroups; everything is looked at when it no longer does.
    pub(super) fn files_are_reported(&mut self, reported: bool, now: Instant) {
        if self.files_are_reported && !reported {
            self.look = now;
        }
        self.files_are_reported = reported;
    }

    /// Schedules a look at everything soon, but not while a victim dies.
    pub(super) fn request_resync(&mut self, now: Instant) {
        self.look = self.look.min(now + AFTER_A_KILL);
    }

    /// Schedules a look at everything in a moment: by then the reflex has the candidates that were handed to it.
    pub(super) fn request_move(&mut self, now: Instant) {
        self.look = self.look.min(now + RETRY);
    }

    /// Notes whether the kernel reports processes with a wrong score.
    pub(super) fn scores_are_reported(&mut self, reported: bool) {
        self.scores_are_reported = reported;
    }

    /// Schedules a sweep of the scores as soon as possible.
    pub(super) fn request_sweep(&mut self, now: Instant) {
        self.sweep_is_due = true;
        self.sweep = now;
    }

    /// Notes that everything is being looked at.
    pub(super) fn looked(&mut self, now: Instant) {
        self.sweep_is_due = false;
        self.look = now + if self.files_are_reported { LOOK_REPORTED } else { LOOK_UNREPORTED };
        self.sweep = now + SWEEP;
    }

    /// Notes that the scores are being looked at.
    pub(super) fn swept(&mut self, now: Instant) {
        self.sweep_is_due = false;
        self.sweep = now + SWEEP;
    }

    /// Notes when something is to be tried again; `None` for nothing.
    pub(super) fn retry_at(&mut self, due: Option<Instant>, now: Instant) {
        self.retry = due.map(|due| due.max(now + RETRY));
    }

    /// Notes when values that others insist on are to be written back; `None` for nothing. An overdue value could not
    /// be written, and waits for something else.
    pub(super) fn write_back_at(&mut self, due: Option<Instant>, now: Instant) {
        self.write_back = due.map(|due| if due <= now { now + OVERDUE } else { due });
    }

    /// Returns the work that is due now.
    pub(super) fn due(&self, now: Instant) -> Option<Due> {
        if self.look <= now || self.retry.is_some_and(|retry| retry <= now) {
            return Some(Due::Look);
        }
        if self.write_back.is_some_and(|write_back| write_back <= now) {
            return Some(Due::WriteBack);
        }
        (self.sweeps() && self.sweep <= now).then_some(Due::Sweep)
    }

    fn sweeps(&self) -> bool {
        self.sweep_is_due || !self.scores_are_reported
    }

    /// When something is due next.
    pub(super) fn next(&self) -> Instant {
        let sweep = self.sweeps().then_some(self.sweep);
        [self.retry, self.write_back, sweep].into_iter().flatten().fold(self.look, Instant::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reported_is_looked_for_seldom() {
        let start = Instant::now();
        let mut schedule = Schedule::new(true, start);
        assert_eq!(schedule.due(start), Some(Due::Look));
        schedule.looked(start);
        assert_eq!(schedule.due(start), None);
        assert_eq!((schedule.next(), schedule.due(start + SWEEP)), (start + SWEEP, Some(Due::Sweep)));
        schedule.scores_are_reported(true);
        assert_eq!((schedule.next(), schedule.due(start + SWEEP)), (start + LOOK_REPORTED, None));
        schedule.files_are_reported(false, start);
        assert_eq!(schedule.due(start), Some(Due::Look));
        schedule.looked(start);
        assert_eq!(schedule.next(), start + LOOK_UNREPORTED);
    }

    #[test]
    fn a_sweep_that_is_owed_comes_once() {
        let start = Instant::now();
        let mut schedule = Schedule::new(true, start);
        schedule.looked(start);
        schedule.scores_are_reported(true);
        schedule.request_sweep(start);
        assert_eq!((schedule.next(), schedule.due(start)), (start, Some(Due::Sweep)));
        schedule.swept(start);
        assert_eq!(schedule.due(start + SWEEP), None);
    }

    #[test]
    fn what_follows_from_a_kill_waits_a_moment() {
        let start = Instant::now();
        let mut schedule = Schedule::new(true, start);
        schedule.looked(start);
        schedule.scores_are_reported(true);
        schedule.request_resync(start);
        assert_eq!((schedule.next(), schedule.due(start)), (start + AFTER_A_KILL, None));
        // A second one does not put it off.
        schedule.request_resync(start + AFTER_A_KILL / 2);
        assert_eq!(schedule.due(start + AFTER_A_KILL), Some(Due::Look));
        schedule.looked(start + AFTER_A_KILL);
        assert_eq!(schedule.due(start + AFTER_A_KILL), None);
    }

    #[test]
    fn what_is_written_back_costs_no_look_at_everything() {
        let start = Instant::now();
        let mut schedule = Schedule::new(true, start);
        schedule.looked(start);
        schedule.scores_are_reported(true);
        schedule.write_back_at(Some(start + RETRY), start);
        assert_eq!((schedule.next(), schedule.due(start)), (start + RETRY, None));
        assert_eq!(schedule.due(start + RETRY), Some(Due::WriteBack));
        schedule.write_back_at(Some(start + RETRY), start + RETRY);
        assert_eq!(schedule.next(), start + RETRY + OVERDUE);
        schedule.write_back_at(None, start + RETRY);
        assert_eq!(schedule.next(), start + LOOK_REPORTED);
    }

    #[test]
    fn what_is_overdue_is_not_tried_without_a_pause() {
        let start = Instant::now();
        let mut schedule = Schedule::new(true, start);
        schedule.looked(start);
        schedule.retry_at(Some(start), start + SWEEP);
        assert_eq!(schedule.due(start + SWEEP), Some(Due::Sweep));
        assert_eq!(schedule.due(start + SWEEP + RETRY), Some(Due::Look));
        schedule.retry_at(None, start);
        schedule.scores_are_reported(true);
        assert_eq!(schedule.next(), start + LOOK_REPORTED);
    }
}
