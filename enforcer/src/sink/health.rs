//! How far each sink is and how often it failed, for metrics.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
};

/// The kind of a sink's receiver.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Kind {
    /// systemd's journal.
    Journald,
    /// An HTTP receiver.
    Webhook,
    /// The Kubernetes API server.
    Kubernetes,
}

impl Kind {
    /// Every kind.
    pub const ALL: &'static [Self] = &[Self::Journald, Self::Webhook, Self::Kubernetes];

    /// Its name: `journald`, `webhook` or `kubernetes`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Journald => "journald",
            Self::Webhook => "webhook",
            Self::Kubernetes => "kubernetes",
        }
    }
}

/// The health of each kind of sinks; clones share it. It exists, at 0, even without any sink.
#[derive(Clone, Debug, Default)]
pub struct Healths {
    journald: Arc<Health>,
    webhook: Arc<Health>,
    kubernetes: Arc<Health>,
}

impl Healths {
    /// The health of one kind.
    #[must_use]
    pub fn of(&self, kind: Kind) -> &Arc<Health> {
        match kind {
            Kind::Journald => &self.journald,
            Kind::Webhook => &self.webhook,
            Kind::Kubernetes => &self.kubernetes,
        }
    }
}

/// The health of the sinks of one kind. Its counters outlive the sinks.
#[derive(Debug, Default)]
pub struct Health {
    delivered: AtomicU64,
    failures: AtomicU64,
    lost: AtomicU64,
    passed_over: AtomicU64,
    /// By the sink's name. Only adding, removing and reading take the lock.
    sinks: Mutex<BTreeMap<String, Arc<Progress>>>,
}

/// The progress of one sink.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The last sequence that needs no delivery any more.
    position: AtomicU64,
    /// The last delivery, in milliseconds since 1970; 0 before the first.
    last_success_ms: AtomicI64,
}

impl Health {
    /// How many records the slowest sink has not delivered yet; 0 without sinks. `newest` is the log's newest sequence.
    pub fn lag_records(&self, newest: u64) -> u64 {
        let lag = |progress: &Arc<Progress>| newest.saturating_sub(progress.position());
        self.sinks().values().map(lag).max().unwrap_or(0)
    }

    /// Whether there is a sink of that kind.
    pub fn is_any(&self) -> bool {
        !self.sinks().is_empty()
    }

    /// The time of the last delivery, in milliseconds since 1970; the oldest one of several sinks. `None` if a sink has
    /// delivered nothing yet, or there are no sinks.
    pub fn last_success_ms(&self) -> Option<i64> {
        let last = |progress: &Arc<Progress>| progress.last_success_ms.load(Ordering::Relaxed);
        self.sinks().values().map(last).min().filter(|ms| *ms > 0)
    }

    /// How many events were delivered.
    pub fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// How many attempts failed.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// How many events were no longer kept when a sink came to them.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// How many events were skipped because a receiver would never take them.
    pub fn passed_over(&self) -> u64 {
        self.passed_over.load(Ordering::Relaxed)
    }

    pub(super) fn count_delivered(&self, progress: &Progress, events: u64, now_ms: i64) {
        self.delivered.fetch_add(events, Ordering::Relaxed);
        progress.last_success_ms.store(now_ms, Ordering::Relaxed);
    }

    pub(super) fn count_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_lost(&self, events: u64) {
        self.lost.fetch_add(events, Ordering::Relaxed);
    }

    pub(super) fn count_passed_over(&self) {
        self.passed_over.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a sink. Replaces an old one of that name.
    pub(super) fn add(&self, name: &str) -> Arc<Progress> {
        let progress = Arc::new(Progress::default());
        self.sinks().insert(name.to_owned(), Arc::clone(&progress));
        progress
    }

    /// Removes a sink, unless another has its name by now.
    pub(super) fn remove(&self, name: &str, progress: &Arc<Progress>) {
        let mut sinks = self.sinks();
        if sinks.get(name).is_some_and(|present| Arc::ptr_eq(present, progress)) {
            sinks.remove(name);
        }
    }

    fn sinks(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<Progress>>> {
        // Each change is a single step, so a panic leaves the map consistent.
        self.sinks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress {
    pub(super) fn set(&self, position: u64) {
        self.position.store(position, Ordering::Relaxed);
    }

    pub(super) fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hindmost_sink_of_a_kind_is_shown() {
        let healths = Healths::default();
        let health = healths.of(Kind::Webhook);
        assert_eq!((health.lag_records(9), health.last_success_ms()), (0, None));
        let (one, other) = (health.add("one"), health.add("other"));
        one.set(9);
        other.set(4);
        health.count_delivered(&one, 3, 50);
        assert_eq!((health.lag_records(9), health.last_success_ms()), (5, None));
        health.count_delivered(&other, 1, 70);
        assert_eq!(health.last_success_ms(), Some(50));
        let again = health.add("other");
        health.remove("other", &other);
        again.set(9);
        assert_eq!((health.lag_records(9), health.delivered()), (0, 4));
        assert_eq!(healths.of(Kind::Journald).lag_records(9), 0);
    }
}
