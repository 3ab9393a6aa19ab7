use std::fmt;

/// What the daemon may do; in the order of its reach.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Mode {
    /// Senses and tells.
    Observe,
    /// Decides as if it would act, tells what it would do, and does nothing.
    DryRun,
    /// Acts.
    Enforce,
}

impl Mode {
    /// Every mode by the name that configuration and events give it.
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

/// A hard threshold of `memory.available`, percentages already resolved.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HardThreshold {
    /// Met while fewer bytes than this are available.
    pub bytes: u64,
    /// `evictionMinimumReclaim`: once met, it stays met until this much more is available.
    pub min_reclaim_bytes: u64,
}

/// When the engine stops trusting itself: after that many kills within the window it only tells any more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BreakerSettings {
    /// The most kills within the window; 0 kills never.
    pub max_kills: u16,
    /// The window.
    pub window_ns: u64,
}

/// What an administrator decides about eviction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EngineSettings {
    /// The mode.
    pub mode: Mode,
    /// `evictionHard` of `memory.available`; without it nothing is ever evicted for memory.
    pub memory_available: Option<HardThreshold>,
    /// `evictWithinRequest`: whether pods within their request are candidates at all, behind all others.
    pub evict_within_request: bool,
    /// `breaker`.
    pub breaker: BreakerSettings,
    /// In dry-run, how long after a decision the next one is made if the shortage goes on: nothing was freed,
    /// so it would only be the same one again.
    pub dry_run_cool_down_ns: u64,
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            mode: Mode::DryRun,
            memory_available: Some(HardThreshold { bytes: 100 << 20, min_reclaim_bytes: 0 }),
            evict_within_request: true,
            breaker: BreakerSettings { max_kills: 20, window_ns: 600_000_000_000 },
            dry_run_cool_down_ns: 60_000_000_000,
        }
    }
}
