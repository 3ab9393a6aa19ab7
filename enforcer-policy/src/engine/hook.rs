//! Whether a hook runs before a victim is signalled, and how long it is awaited.
//!
//! The wait is at most the configured one, and never so long that memory would be exhausted before the victim's came
//! back: then it is cut short, and without any time left the hook is not started. The wait also ends once half of what
//! was available at the decision has gone, however fast.

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use super::{exhaustion::time_left_ns, settings::EngineSettings};

/// With less time than this no hook is started: starting a process while memory is reclaimed takes as long.
const LEAST_NS: u64 = 50_000_000;

/// Whether a hook runs before a victim is signalled.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub enum HookPlan {
    /// No hook: none is configured, or it is a dry run.
    Off,
    /// No hook, as memory would be exhausted before it ends.
    NoTime,
    /// The hook runs and is awaited.
    Awaited {
        /// The longest wait, in nanoseconds.
        for_ns: u64,
    },
}

impl HookPlan {
    /// Decides by the configuration, the time left, and what the victim is predicted to release.
    pub(super) fn new(
        settings: &EngineSettings,
        dry_run: bool,
        exhausted_in_ns: Option<u64>,
        predicted_freed_bytes: u64,
    ) -> Self {
        if dry_run || settings.hook_timeout_ns == 0 {
            return Self::Off;
        }
        match time_left_ns(exhausted_in_ns, predicted_freed_bytes) {
            Some(left_ns) if left_ns < LEAST_NS => Self::NoTime,
            left_ns => Self::Awaited { for_ns: settings.hook_timeout_ns.min(left_ns.unwrap_or(u64::MAX)) },
        }
    }
}

/// How a run of the hook ended. It does not affect what happens to the victim.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub enum HookEnd {
    /// It exited with this status.
    Exited(i32),
    /// It died of this signal, which the daemon did not send.
    Signalled(i32),
    /// It was killed at its timeout.
    TimedOut,
    /// It was killed before its timeout, or not started: the eviction continued without it.
    Cut,
    /// It was not started: an earlier one is stuck starting, or several are stuck ending.
    Busy,
    /// It was not started: users other than root could change it or a directory on its path.
    Unsafe,
    /// It could not be started; the kernel's error number.
    Unstarted(i32),
    /// It was not started: it was removed from the configuration meanwhile.
    Unset,
}

impl HookEnd {
    /// Its name in events.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exited(_) => "exited",
            Self::Signalled(_) => "signalled",
            Self::TimedOut => "timedOut",
            Self::Cut => "cut",
            Self::Busy => "busy",
            Self::Unsafe => "unsafe",
            Self::Unstarted(_) => "unstarted",
            Self::Unset => "unset",
        }
    }
}
