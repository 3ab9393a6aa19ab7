//! What the configuration decides for the engine: mode, thresholds, breaker.

use std::fmt;

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use crate::{
    few::Few,
    threshold::{Signal, Threshold, ThresholdValue},
};

/// What the daemon may do, from least to most.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Schema, Serialize)]
pub enum Mode {
    /// Measures and reports.
    Observe,
    /// Decides as if it would act, reports what it would do, and does nothing.
    DryRun,
    /// Acts.
    Enforce,
}

impl Mode {
    /// Every mode with its name in configuration and events.
    pub const NAMES: &'static [(&'static str, Self)] =
        &[("observe", Self::Observe), ("dry-run", Self::DryRun), ("enforce", Self::Enforce)];

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::DryRun => "dry-run",
            Self::Enforce => "enforce",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

/// A resource that the engine evicts for.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub enum Resource {
    /// Memory, in bytes.
    Memory,
    /// Process ids, in tasks.
    Pids,
}

impl Resource {
    /// The same as [`of`](Self::of), and memory for signals that the engine does not evict for: no decision is for those.
    pub(super) fn or_memory(signal: Signal) -> Self {
        Self::of(signal).unwrap_or(Self::Memory)
    }

    /// The resource that a signal measures; `None` if the engine does not evict for it.
    #[must_use]
    pub fn of(signal: Signal) -> Option<Self> {
        match signal {
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => Some(Self::Memory),
            Signal::PidAvailable => Some(Self::Pids),
            Signal::NodefsAvailable
            | Signal::NodefsInodesFree
            | Signal::ImagefsAvailable
            | Signal::ImagefsInodesFree
            | Signal::ContainerfsAvailable
            | Signal::ContainerfsInodesFree => None,
        }
    }
}

/// The most thresholds that the engine follows: a hard and a soft one for each signal of a [`Resource`], with room to
/// spare.
pub const MAX_THRESHOLDS: usize = 8;

/// The thresholds that the engine follows.
pub type Thresholds = Few<Threshold, MAX_THRESHOLDS>;

/// The thresholds whose signals the engine follows.
#[must_use]
pub fn followed(thresholds: &[Threshold]) -> Thresholds {
    let mut followed = Thresholds::new();
    for threshold in thresholds.iter().filter(|threshold| Resource::of(threshold.signal).is_some()) {
        let fits = followed.push(*threshold);
        debug_assert!(fits, "more thresholds than these signals have");
    }
    followed
}

/// When the engine stops killing: after this many kills within the window it only reports.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub struct BreakerSettings {
    /// The most kills within the window; 0 forbids all kills.
    pub max_kills: u16,
    /// The window.
    pub window_ns: u64,
    /// The largest share of the pods, in thousandths, that may be killed within the window; it applies from the tenth
    /// kill on, and within a shortage that no kill has ended, from the third.
    pub max_share_permille: u16,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self { max_kills: 20, window_ns: 600_000_000_000, max_share_permille: 500 }
    }
}

/// What an administrator decides about eviction.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Schema, Serialize)]
pub struct EngineSettings {
    /// The mode.
    pub mode: Mode,
    /// Whether an operator has paused eviction: decisions are then only reported, as in dry-run.
    pub paused: bool,
    /// The thresholds; without one nothing is evicted.
    pub thresholds: Thresholds,
    /// `evictionPressureTransitionPeriod` in milliseconds: how long a node condition outlasts its threshold.
    pub pressure_transition_period_ms: u64,
    /// `evictionMaxPodGracePeriod` in nanoseconds: the longest grace period of a soft eviction.
    pub max_pod_grace_period_ns: u64,
    /// Whether another may end a soft eviction's victim if it is asked, such as a kubelet through the API server. Then it
    /// is asked first, also about a victim without a grace period.
    pub asks_first: bool,
    /// `evictWithinRequest`: whether pods within their request are candidates at all, after all others.
    pub evict_within_request: bool,
    /// `breaker`.
    pub breaker: BreakerSettings,
    /// `preKillHook`: the longest that an eviction waits for it, in nanoseconds; 0 if there is none.
    pub hook_timeout_ns: u64,
    /// In dry-run, how long after a decision the next one is made for the same threshold if the shortage continues: nothing
    /// was freed, so it would be the same decision.
    pub dry_run_cool_down_ns: u64,
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            mode: Mode::DryRun,
            paused: false,
            thresholds: followed(&[Threshold::hard(
                Signal::MemoryAvailable,
                ThresholdValue::Amount(100 << 20),
            )]),
            pressure_transition_period_ms: 300_000,
            max_pod_grace_period_ns: 0,
            asks_first: false,
            evict_within_request: true,
            breaker: BreakerSettings::default(),
            hook_timeout_ns: 0,
            dry_run_cool_down_ns: 60_000_000_000,
        }
    }
}
