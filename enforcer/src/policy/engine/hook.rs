//! Whether something is run before a victim is signalled, and for how long that is waited for.
//!
//! No longer than is configured, and never so long that memory would be exhausted before the victim's came back: then it is
//! cut short, and where there is no time at all it is not begun. Nor is it waited for once half of what was left at the
//! decision has gone, however fast that went.

use super::{settings::EngineSettings, victim::time_left_ns};
use crate::policy::wire::wire;

/// With less time than this nothing is begun: to start a process while memory is reclaimed takes as long.
const LEAST_NS: u64 = 50_000_000;

/// What is run before a victim is signalled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HookPlan {
    /// Nothing: none is configured, or it is a dry run.
    Off,
    /// Nothing, as memory would be exhausted meanwhile.
    NoTime,
    /// The hook, which is waited for.
    Awaited {
        /// That long at the most, in nanoseconds.
        for_ns: u64,
    },
}

impl HookPlan {
    /// By what is configured, what is left, and what the victim is predicted to give back.
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

/// How a run of the hook ended. Nothing of it changes what becomes of the victim.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HookEnd {
    /// It exited with this status.
    Exited(i32),
    /// It died of this signal, and not of ours.
    Signalled(i32),
    /// It was killed when its time was up.
    TimedOut,
    /// It was killed, or not begun, before that: the eviction went on without it.
    Cut,
    /// It was not begun: one before is stuck in its beginning, or several in their end.
    Busy,
    /// It was not begun: it, or a folder that it lies in, could be changed by others than root.
    Unsafe,
    /// It could not be begun; the kernel's error number.
    Unstarted(i32),
    /// It was not begun: it was taken out of the configuration meanwhile.
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

wire!(enum HookPlan { 0 => Off, 1 => NoTime, 2 => Awaited { for_ns: u64 } });
wire!(enum HookEnd {
    0 => Exited(status: i32), 1 => Signalled(signal: i32), 2 => TimedOut, 3 => Cut, 4 => Busy, 5 => Unsafe,
    6 => Unstarted(errno: i32), 7 => Unset,
});
