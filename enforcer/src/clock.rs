//! The time of the kernel's clocks.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// `CLOCK_BOOTTIME`: since the boot, with the time that the machine was suspended. The eBPF programs use it too.
pub(crate) fn boottime_ns() -> u64 {
    now_ns(ClockId::Boottime)
}

/// The same in milliseconds.
pub(crate) fn boottime_ms() -> u64 {
    boottime_ns() / 1_000_000
}

/// `CLOCK_MONOTONIC`: since the boot, without the time that the machine was suspended.
pub(crate) fn monotonic_ns() -> u64 {
    now_ns(ClockId::Monotonic)
}

/// `CLOCK_REALTIME`: since 1970; it may be set.
pub(crate) fn realtime_ns() -> u64 {
    now_ns(ClockId::Realtime)
}

fn now_ns(clock: ClockId) -> u64 {
    // Only `CLOCK_REALTIME` can be before 1970; that counts as 0.
    let since = Duration::try_from(clock_gettime(clock)).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
