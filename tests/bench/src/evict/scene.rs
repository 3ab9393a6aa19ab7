//! What is the same for everybody: the threshold, what is free above it, and how long a run may take.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use enforcer_tests::kernel;

pub(crate) const MIB: u64 = 1 << 20;

/// Less available than this is the crossing.
pub(crate) const THRESHOLD_BYTES: u64 = 200 * MIB;

/// How much is available before the work begins, beyond the threshold.
pub(crate) const RUN_UP_BYTES: u64 = 150 * MIB;

/// The slice that all pods are below, so that systemd-oomd can be configured to watch it.
pub(crate) const SLICE: &str = "bench.slice";

/// Emulated guests are slow.
pub(crate) const TIMEOUT: Duration = Duration::from_mins(1);

/// How much to hold so that about the run-up is what is left above the threshold.
pub(crate) fn ballast_bytes() -> anyhow::Result<u64> {
    available_at_rest_bytes(&mut || Ok(()))?
        // What the Guaranteed pod holds, and the processes themselves.
        .checked_sub(THRESHOLD_BYTES + RUN_UP_BYTES + 72 * MIB)
        .filter(|bytes| *bytes > 256 * MIB)
        .context("too little memory is available here: give the guest 2 GiB")
}

/// What is available once it has come to rest.
pub(crate) fn available_at_rest_bytes(check: &mut dyn FnMut() -> anyhow::Result<()>) -> anyhow::Result<u64> {
    let start = Instant::now();
    let mut before_bytes = kernel::meminfo_bytes("MemAvailable")?;
    loop {
        // Long enough also for whoever adapts its pace to what is left.
        thread::sleep(Duration::from_millis(500));
        check()?;
        let now_bytes = kernel::meminfo_bytes("MemAvailable")?;
        if now_bytes.abs_diff(before_bytes) < 4 * MIB {
            return Ok(now_bytes);
        }
        before_bytes = now_bytes;
        ensure!(start.elapsed() < TIMEOUT, "what is available does not come to rest");
    }
}
