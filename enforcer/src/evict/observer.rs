//! What the reflex has done so far, counted.
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::{hook::Hooks, reflex::Shared};
use crate::sense::{WakeStats, Wakes};

/// What the reflex has done so far. All only grow.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ReflexStats {
    /// Looks at the node.
    pub samples: u64,
    /// Looks that failed.
    pub samples_failed: u64,
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
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) samples: AtomicU64,
    pub(super) samples_failed: AtomicU64,
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
}

impl Observer {
    pub(super) fn of(shared: &Arc<Shared>, hooks: &Arc<Hooks>) -> Self {
        Self { shared: Arc::clone(shared), hooks: Arc::clone(hooks) }
    }

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> ReflexStats {
        let Counters {
            samples,
            samples_failed,
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
            edges: get(edges),
            sources: get(sources),
            sources_refused: get(sources_refused),
            wakes: wakes.stats(),
            reports: get(reports),
            reports_dropped: get(reports_dropped).saturating_add(self.hooks.dropped()),
        }
    }
}
