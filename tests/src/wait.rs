//! Waiting for conditions that an emulated machine is slow to reach.

use std::{
    thread,
    time::{Duration, Instant},
};

/// How long anything may take. A machine on which three guests run takes several times as long as an idle one.
pub const TIMEOUT: Duration = Duration::from_mins(4);

/// Waits until the condition holds; otherwise the scenario fails.
///
/// # Panics
///
/// When it does not hold within [`TIMEOUT`]; `what` says what was waited for.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < TIMEOUT, "{what} does not come");
        thread::sleep(Duration::from_millis(50));
    }
}
