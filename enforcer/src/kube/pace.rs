//! When this node asks the API server although no eviction needs it: seldom, and not in step with other nodes.

use std::time::{Duration, Instant};

use crate::network::{BackOff, Bounds, fraction};

/// How often something that changes slowly is asked for. A kubelet holds its conditions for five minutes by default
/// (`evictionPressureTransitionPeriod`).
pub(super) const EVERY: Duration = Duration::from_mins(5);

/// The longest time without a request over a connection that is about to be needed, a fifth more or less. The API server
/// closes a connection after 90 s without one.
const KEEP_ALIVE: Duration = Duration::from_mins(1);

/// How long after a warning the connection is kept open.
const WARM: Duration = Duration::from_mins(10);

/// The pauses between requests of one kind.
#[derive(Debug)]
pub(super) struct Pace {
    every: Duration,
    back_off: BackOff,
}

impl Pace {
    /// One request in that time, a fifth more or less. What fails is asked again sooner: the server may be back.
    pub(super) fn new(every: Duration) -> Self {
        Self { every, back_off: BackOff::new(Bounds { least: every / 10, most: every / 5 * 2 }) }
    }

    /// The pause before the first request: a whole cluster may start at once.
    pub(super) fn first(&self) -> Duration {
        (self.every / 10).mul_f64(fraction())
    }

    /// The pause after a request that was answered.
    pub(super) fn answered(&mut self) -> Duration {
        self.back_off.reset();
        jittered(self.every)
    }

    /// The pause after one that was not.
    pub(super) fn failed(&mut self) -> Duration {
        self.back_off.next()
    }
}

/// Whether a connection is kept open for an eviction: only while memory may become short, as a node at rest must cost the
/// API server nothing.
#[derive(Debug, Default)]
pub(super) struct Warmth {
    until: Option<Instant>,
    used: Option<Instant>,
    next: Option<Instant>,
}

impl Warmth {
    /// An eviction may follow: the connection is opened at once if it was not used lately. Nothing is asked over one that is
    /// open, as an eviction would wait for the answer. Returns whether the last warning is longer ago than it keeps the
    /// connection open.
    pub(super) fn warn(&mut self, now: Instant) -> bool {
        let was_warm = self.until.is_some_and(|until| now < until);
        self.until = Some(now + WARM);
        let lasts = self.used.map(|used| used + jittered(KEEP_ALIVE)).filter(|end| now < *end);
        self.next.get_or_insert(lasts.unwrap_or(now));
        !was_warm
    }

    /// The connection is used.
    pub(super) fn used(&mut self, now: Instant) {
        self.used = Some(now);
        self.next = self.until.filter(|until| now < *until).map(|_| now + jittered(KEEP_ALIVE));
    }

    /// When a request is made only to have the connection open; `None` if none is.
    pub(super) fn due(&self) -> Option<Instant> {
        self.next
    }
}

/// That time, a fifth more or less.
fn jittered(time: Duration) -> Duration {
    time.mul_f64(0.8 + 0.4 * fraction())
}
