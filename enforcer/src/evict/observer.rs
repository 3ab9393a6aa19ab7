//! Counters of the reflex.
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{hook::Hooks, queue::Depth, reflex::Shared};
use crate::{
    clock,
    sense::{WakeStats, Wakes},
};

/// Counters of the reflex. All but `sources` and `waiting` only grow.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ReflexStats {
    /// Looks at the node.
    pub samples: u64,
    /// Looks that failed.
    pub samples_failed: u64,
    /// Failed readings of a candidate's usage.
    pub usage_failures: u64,
    /// Kernel edges that woke it.
    pub edges: u64,
    /// Edge sources that are waited on now.
    pub sources: u64,
    /// Edge sources that could not be waited on: too many, or the kernel refused.
    pub sources_refused: u64,
    /// Wakes by cause, with their latency.
    pub wakes: WakeStats,
    /// Reports made.
    pub reports: u64,
    /// Reports that were dropped because the report thread did not keep up.
    pub reports_dropped: u64,
    /// The length of its helpers' queues.
    pub waiting: Waiting,
}

/// The current length of each queue to the eviction thread's helpers.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Waiting {
    /// Reports to emit.
    pub reports: u64,
    /// Victims whose memory is to be freed.
    pub reaper: u64,
    /// Files to close and limits to restore.
    pub closer: u64,
    /// Brakes to apply or ease.
    pub brake: u64,
    /// Runs of the hook.
    pub hook: u64,
}

/// The helpers' queues.
#[derive(Clone, Debug)]
pub(super) struct Queues {
    pub(super) reports: Depth,
    pub(super) reaper: Depth,
    pub(super) closer: Depth,
    pub(super) brake: Depth,
    pub(super) hook: Depth,
}

impl Queues {
    fn waiting(&self) -> Waiting {
        let Self { reports, reaper, closer, brake, hook } = self;
        Waiting {
            reports: reports.waiting(),
            reaper: reaper.waiting(),
            closer: closer.waiting(),
            brake: brake.waiting(),
            hook: hook.waiting(),
        }
    }
}

/// Without a heartbeat for this long, the eviction thread counts as stuck. It looks at the node at least every two seconds.
const ALIVE: Duration = Duration::from_secs(5);

/// When the eviction thread last woke or went to sleep, by `CLOCK_MONOTONIC`, which like the thread stops while the
/// machine is suspended.
#[derive(Debug)]
pub(super) struct Heartbeat(AtomicU64);

impl Heartbeat {
    fn at(beat_ns: u64) -> Self {
        Self(AtomicU64::new(beat_ns))
    }

    pub(super) fn beat(&self) {
        self.0.store(clock::monotonic_ns(), Ordering::Relaxed);
    }

    fn is_alive(&self, now_ns: u64) -> bool {
        Duration::from_nanos(now_ns.saturating_sub(self.0.load(Ordering::Relaxed))) < ALIVE
    }
}

/// A thread that is about to start counts as alive.
impl Default for Heartbeat {
    fn default() -> Self {
        Self::at(clock::monotonic_ns())
    }
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) heartbeat: Heartbeat,
    pub(super) samples: AtomicU64,
    pub(super) samples_failed: AtomicU64,
    pub(super) usage_failures: AtomicU64,
    pub(super) edges: AtomicU64,
    pub(super) sources: AtomicU64,
    pub(super) sources_refused: AtomicU64,
    pub(super) wakes: Wakes,
    pub(super) reports: AtomicU64,
    pub(super) reports_dropped: AtomicU64,
}

/// Reads the reflex's counters, even after the reflex has ended.
#[derive(Clone, Debug)]
pub struct Observer {
    shared: Arc<Shared>,
    hooks: Arc<Hooks>,
    queues: Queues,
}

impl Observer {
    pub(super) fn of(shared: &Arc<Shared>, hooks: &Arc<Hooks>, queues: &Queues) -> Self {
        Self { shared: Arc::clone(shared), hooks: Arc::clone(hooks), queues: queues.clone() }
    }

    /// Whether the eviction thread is alive or was stopped on purpose.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.shared.stop.load(Ordering::Acquire)
            || self.shared.counters.heartbeat.is_alive(clock::monotonic_ns())
    }

    /// The current counters.
    #[must_use]
    pub fn stats(&self) -> ReflexStats {
        let Counters {
            heartbeat: _,
            samples,
            samples_failed,
            usage_failures,
            edges,
            sources,
            sources_refused,
            wakes,
            reports,
            reports_dropped,
        } = &self.shared.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ReflexStats {
            samples: get(samples),
            samples_failed: get(samples_failed),
            usage_failures: get(usage_failures),
            edges: get(edges),
            sources: get(sources),
            sources_refused: get(sources_refused),
            wakes: wakes.stats(),
            reports: get(reports),
            reports_dropped: get(reports_dropped).saturating_add(self.hooks.dropped()),
            waiting: self.queues.waiting(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_alive_as_long_as_it_gives_a_sign() {
        let heartbeat = Heartbeat::at(1_000);
        let after = |time: Duration| 1_000 + u64::try_from(time.as_nanos()).unwrap();
        assert!(heartbeat.is_alive(after(ALIVE / 2)) && heartbeat.is_alive(0));
        assert!(!heartbeat.is_alive(after(ALIVE)));
        heartbeat.beat();
        assert!(heartbeat.is_alive(clock::monotonic_ns()));
    }
}
