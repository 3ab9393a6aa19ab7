//! Paces the looks at cgroups and scores, and puts them off while a victim dies.

use std::time::{Duration, Instant};

/// How often everything is looked at without a reported change: if the kernel reports each write to each cgroup, if it
/// may not (inotify reports a write when the file is closed, and a cgroup may not be watched), and if it reports none.
const LOOK_CERTAIN: Duration = Duration::from_hours(1);
const LOOK_REPORTED: Duration = Duration::from_mins(5);
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
    reported: Reported,
    /// Whether it reports processes with a wrong score.
    scores_are_reported: bool,
    /// Whether a sweep of the scores is due nevertheless.
    sweep_is_due: bool,
    /// When everything was looked at last, and when it is to be without waiting for the next time.
    looked: Instant,
    requested: Option<Instant>,
    sweep: Instant,
    /// When something that waits is to be tried again.
    retry: Option<Instant>,
    /// When values that others insist on are to be written back.
    write_back: Option<Instant>,
}

/// What the kernel reports of the cgroups.
#[derive(Clone, Copy, Debug)]
struct Reported {
    /// Whether inotify reports changes.
    changes: bool,
    /// Whether it watches each cgroup.
    of_all: bool,
    /// Whether the eBPF programs report each write.
    writes: bool,
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
            reported: Reported { changes: files_are_reported, of_all: false, writes: false },
            scores_are_reported: false,
            sweep_is_due: false,
            looked: now,
            requested: Some(now),
            sweep: now,
            retry: None,
            write_back: None,
        }
    }

    /// Notes whether the kernel reports changes to the cgroups; everything is looked at when it no longer does.
    pub(super) fn files_are_reported(&mut self, reported: bool, now: Instant) {
        if self.reported.changes && !reported {
            self.request(now);
        }
        self.reported.changes = reported;
    }

    /// Notes whether the eBPF programs report each write to a cgroup's files.
    pub(super) fn writes_are_reported(&mut self, reported: bool) {
        self.reported.writes = reported;
    }

    /// Notes whether inotify watches each cgroup.
    pub(super) fn all_are_watched(&mut self, watched: bool) {
        self.reported.of_all = watched;
    }

    /// How often everything is looked at.
    pub(super) fn interval(&self) -> Duration {
        match self.reported {
            Reported { changes: true, of_all: true, writes: true } => LOOK_CERTAIN,
            Reported { changes: true, .. } => LOOK_REPORTED,
            Reported { changes: false, .. } => LOOK_UNREPORTED,
        }
    }

    fn request(&mut self, at: Instant) {
        self.requested = Some(self.requested.map_or(at, |requested| requested.min(at)));
    }

    fn look(&self) -> Instant {
        self.requested.into_iter().fold(self.looked + self.interval(), Instant::min)
    }

    /// Schedules a look at everything soon, but not while a victim dies.
    pub(super) fn request_resync(&mut self, now: Instant) {
        self.request(now + AFTER_A_KILL);
    }

    /// Schedules a look at everything in a moment: by then the reflex has the candidates that were handed to it.
    pub(super) fn request_move(&mut self, now: Instant) {
        self.request(now + RETRY);
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
        (self.looked, self.requested) = (now, None);
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
        if self.look() <= now || self.retry.is_some_and(|retry| retry <= now) {
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
        [self.retry, self.write_back, sweep].into_iter().flatten().fold(self.look(), Instant::min)
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
        schedule.writes_are_reported(true);
        assert_eq!(schedule.next(), start + LOOK_REPORTED, "a cgroup may not be watched");
        schedule.all_are_watched(true);
        assert_eq!(schedule.next(), start + LOOK_CERTAIN);
        schedule.writes_are_reported(false);
        assert_eq!(schedule.next(), start + LOOK_REPORTED);
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
