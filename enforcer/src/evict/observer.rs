//! What the reflex has done so far, counted.
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::{hook::Hooks, queue::Depth, reflex::Shared};
use crate::sense::{WakeStats, Wakes};

/// What the reflex has done so far. All but what waits only grow.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ReflexStats {
    /// Looks at the node.
    pub samples: u64,
    /// Looks that failed.
    pub samples_failed: u64,
    /// Readings of what a candidate uses that failed.
    pub usage_failures: u64,
    /// Kernel edges that woke it.
    pub edges: u64,
    /// Edge sources that are waited on now.
    pub sources: u64,
    /// Edge sources that could not be waited on, as there were too many or the kernel refused.
    pub sources_refused: u64,
    /// What woke it, and how long that took.
    pub wakes: WakeStats,
    /// Reports made.
    pub reports: u64,
    /// Reports that were lost because the teller did not keep up.
    pub reports_dropped: u64,
    /// What waits for its helpers.
    pub waiting: Waiting,
}

/// What waits now for each of the eviction thread's helpers.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Waiting {
    /// Reports, to be told.
    pub reports: u64,
    /// What is to be freed or closed.
    pub reaper: u64,
    /// Brakes to be put on or let go of.
    pub brake: u64,
    /// Runs of the hook.
    pub hook: u64,
}

/// The helpers' queues.
#[derive(Clone, Debug)]
pub(super) struct Queues {
    pub(super) reports: Depth,
    pub(super) reaper: Depth,
    pub(super) brake: Depth,
    pub(super) hook: Depth,
}

impl Queues {
    fn waiting(&self) -> Waiting {
        let Self { reports, reaper, brake, hook } = self;
        Waiting {
            reports: reports.waiting(),
            reaper: reaper.waiting(),
            brake: brake.waiting(),
            hook: hook.waiting(),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Counters {
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

/// Knows what the reflex has done, also when that has ended.
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

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> ReflexStats {
        let Counters {
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
