//! Measures the daemon's own loop: how long it is busy per wake, and how late it wakes.

use std::{
    cell::Cell,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use super::durations::{Durations, Taken};

/// The worst lateness is remembered for this time at least, in seconds, and for twice as long at most.
const WINDOW_SECONDS: u64 = 300;

/// The low bits of a slot hold microseconds, the high bits the window's number.
const MICROS_BITS: u32 = 40;
const MOST_MICROS: u64 = (1 << MICROS_BITS) - 1;

static METRICS: LazyLock<LoopMetrics> = LazyLock::new(LoopMetrics::new);

thread_local! {
    /// When this thread woke; each thread of the runtime is measured separately.
    static AWAKE_SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The metrics of this process's loop.
#[must_use]
pub fn loops() -> &'static LoopMetrics {
    &METRICS
}

/// The metrics of a loop. Takes no lock.
#[derive(Debug)]
pub struct LoopMetrics {
    start: Instant,
    busy: Durations,
    late: Durations,
    /// The worst lateness of two windows; a new window replaces the older one.
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

    /// Records that the calling thread, which runs the loop, has work.
    pub fn wakes(&self) {
        AWAKE_SINCE.set(Some(Instant::now()));
    }

    /// Records that it has no more work.
    pub fn sleeps(&self) {
        if let Some(since) = AWAKE_SINCE.take() {
            self.busy.record(nanoseconds(since, Instant::now()));
        }
    }

    /// Records that it woke for work that was due at that time.
    pub fn woken_for(&self, due: Instant) {
        let now = Instant::now();
        let late_ns = nanoseconds(due, now);
        self.late.record(late_ns);
        self.note(now.saturating_duration_since(self.start).as_secs() / WINDOW_SECONDS, late_ns / 1_000);
    }

    fn note(&self, window: u64, micros: u64) {
        let noted = (window << MICROS_BITS) | micros.min(MOST_MICROS);
        let place = usize::from(window % 2 == 1);
        // The window is in the high bits, so any value of this window is larger than those of older ones.
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
        let loops = LoopMetrics::new();
        loops.note(0, 900);
        loops.note(0, 100);
        assert_eq!((loops.worst_at(0), loops.worst_at(1), loops.worst_at(2)), (900, 900, 0));
        loops.note(1, 5);
        assert_eq!((loops.worst_at(1), loops.worst_at(2)), (900, 5));
        loops.note(2, u64::MAX);
        assert_eq!(loops.worst_at(2), MOST_MICROS);
    }

    #[test]
    fn a_turn_is_from_waking_to_sleeping() {
        let loops = LoopMetrics::new();
        loops.sleeps();
        loops.wakes();
        loops.sleeps();
        loops.sleeps();
        assert_eq!(loops.busy().count(), 1);
        let now = Instant::now();
        loops.woken_for(now.checked_sub(Duration::from_millis(30)).unwrap_or(now));
        loops.woken_for(now + Duration::from_secs(9));
        assert_eq!(loops.late().count(), 2);
        assert!(loops.worst_micros() >= 30_000);
    }
}
