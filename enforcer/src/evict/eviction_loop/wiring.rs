//! What the reflex thread is connected to.

use std::sync::Arc;

use crate::{
    evict::{
        fill_detector::FillDetector,
        hook::Hooks,
        inherited::InheritedEviction,
        intents::EvictionIntents,
        levels::Levels,
        reflex::{Braker, Closer, Hooker, Reaper, ReportSender, Shared},
    },
    recorder::Tap,
    sense::{Available, EdgeSource},
};

/// What the thread is connected to.
pub(in crate::evict) struct Wiring {
    pub(in crate::evict) shared: Arc<Shared>,
    pub(in crate::evict) available: Available,
    pub(in crate::evict) levels: Levels,
    pub(in crate::evict) reports: ReportSender,
    pub(in crate::evict) reaper: Reaper,
    pub(in crate::evict) closer: Closer,
    pub(in crate::evict) braker: Braker,
    pub(in crate::evict) hooker: Hooker,
    pub(in crate::evict) hooks: Arc<Hooks>,
    pub(in crate::evict) edges: Vec<Box<dyn EdgeSource>>,
    /// How many CPUs may fill memory at once.
    pub(in crate::evict) cpus: u64,
    /// Records evictions before their signal, if set.
    pub(in crate::evict) intents: Option<EvictionIntents>,
    /// The random part of the first eviction id.
    pub(in crate::evict) seed: u128,
    /// Records the engine's input, if set.
    pub(in crate::evict) tap: Option<Tap>,
    pub(in crate::evict) fill_detector: FillDetector,
    /// The eviction to go on with, if an earlier process left one.
    pub(in crate::evict) inherited: Option<Arc<InheritedEviction>>,
}
