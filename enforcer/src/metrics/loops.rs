//! How the daemon's own loop does: how long its turns take, and how late it wakes.

use std::{
    cell::Cell,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use super::durations::{Durations, Taken};

/// How long the worst is remembered, in seconds: at least once, and at the most twice as long.
const WINDOW_SECONDS: u64 = 300;

/// The low bits of a slot hold microseconds, the high ones which window they are of.
const MICROS_BITS: u32 = 40;
const MOST_MICROS: u64 = (1 << MICROS_BITS) - 1;

static TURNS: LazyLock<LoopMetrics> = LazyLock::new(LoopMetrics::new);

thread_local! {
    /// When this thread woke; each thread of the runtime has its own turns.
    static AWAKE_SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Those of this process, which has one loop.
#[must_use]
pub fn turns() -> &'static LoopMetrics {
    &TURNS
}

/// The turns of a loop. Takes no lock.
#[derive(Debug)]
pub struct LoopMetrics {
    start: Instant,
    busy: Durations,
    late: Durations,
    /// The worst of two windows, the newest of which replaces the oldest.
    worst: [AtomicU64; 2],
}

impl LoopMetrics {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            busy: Durations::default(),
            late: Durations::default(),
            worst: Default::default(),
        }
    }

    /// The calling thread, which runs the loop, has something to do.
    pub fn wakes(&self) {
        AWAKE_SINCE.set(Some(Instant::now()));
    }

    /// It has nothing more to do.
    pub fn sleeps(&self) {
        if let Some(since) = AWAKE_SINCE.take() {
            self.busy.record(nanoseconds(since, Instant::now()));
        }
    }

    /// It woke for what was due at that time.
    pub fn woken_for(&self, due: Instant) {
        let now = Instant::now();
        let late_ns = nanoseconds(due, now);
        self.late.record(late_ns);
        self.note(now.saturating_duration_since(self.start).as_secs() / WINDOW_SECONDS, late_ns / 1_000);
    }

    fn note(&self, window: u64, micros: u64) {
        let noted = (window << MICROS_BITS) | micros.min(MOST_MICROS);
        let place = usize::from(window % 2 == 1);
        // An older window's figure is less than any of this one.
        if let Some(worst) = self.worst.get(place) {
            worst.fetch_max(noted, Ordering::Relaxed);
        }
    }

    pub(super) fn busy(&self) -> Taken {
        self.busy.read()
    }

    pub(super) fn late(&self) -> Taken {
        self.late.read()
    }

    /// The worst lateness of the last five to ten minutes, in microseconds.
    pub(super) fn worst_micros(&self) -> u64 {
        self.worst_at(self.start.elapsed().as_secs() / WINDOW_SECONDS)
    }

    fn worst_at(&self, window: u64) -> u64 {
        let noted = self.worst.each_ref().map(|worst| worst.load(Ordering::Relaxed));
        let recent = noted.into_iter().filter(|noted| (noted >> MICROS_BITS) + 1 >= window);
        recent.map(|noted| noted & MOST_MICROS).max().unwrap_or(0)
    }
}

fn nanoseconds(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_worst_is_forgotten_after_two_windows() {
        let turns = LoopMetrics::new();
        turns.note(0, 900);
        turns.note(0, 100);
        assert_eq!((turns.worst_at(0), turns.worst_at(1), turns.worst_at(2)), (900, 900, 0));
        turns.note(1, 5);
        assert_eq!((turns.worst_at(1), turns.worst_at(2)), (900, 5));
        turns.note(2, u64::MAX);
        assert_eq!(turns.worst_at(2), MOST_MICROS);
    }

    #[test]
    fn a_turn_is_from_waking_to_sleeping() {
        let turns = LoopMetrics::new();
        turns.sleeps();
        turns.wakes();
        turns.sleeps();
        turns.sleeps();
        assert_eq!(turns.busy().count(), 1);
        let now = Instant::now();
        turns.woken_for(now.checked_sub(Duration::from_millis(30)).unwrap_or(now));
        turns.woken_for(now + Duration::from_secs(9));
        assert_eq!(turns.late().count(), 2);
        assert!(turns.worst_micros() >= 30_000);
    }
}
