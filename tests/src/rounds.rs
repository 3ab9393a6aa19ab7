//! How often a scene is repeated: in a test as few times as can still fail, in a soak often.

use std::{
    env, fs,
    time::{Duration, Instant},
};

use crate::daemon::Daemon;

/// Set in a soak.
const SOAK: &str = "ENFORCER_SOAK";

/// For how many seconds a test begins further rounds in a soak of limited time.
const SECONDS: &str = "ENFORCER_SOAK_SECONDS";

/// The memory and descriptors of a daemon.
#[derive(Clone, Copy, Debug)]
struct Holding {
    resident_bytes: u64,
    descriptors: usize,
}

/// The rounds of one scene. Dropping it prints how many ran, and what the daemon held in the first and the last.
#[derive(Debug)]
pub struct Rounds {
    /// This many run, whatever the time.
    least: u32,
    count: u32,
    /// When no further one begins.
    end: Option<Instant>,
    started: u32,
    first: Option<Holding>,
    last: Option<Holding>,
}

/// Whether this runs in a soak.
#[must_use]
pub fn is_soak() -> bool {
    env::var_os(SOAK).is_some()
}

impl Rounds {
    /// `in_test` rounds in a test, and `in_soak` in a soak, or as many as there is time for.
    #[must_use]
    pub fn new(in_test: u32, in_soak: u32) -> Self {
        let count = if is_soak() { in_soak } else { in_test };
        let seconds = env::var(SECONDS).ok().and_then(|seconds| seconds.parse().ok());
        let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
        Self { least: in_test, count, end, started: 0, first: None, last: None }
    }

    /// Notes what the daemon holds now: once in each round, always at the same point of it.
    pub fn note(&mut self, daemon: &Daemon) -> anyhow::Result<()> {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", daemon.pid()))?.count();
        let holding = Holding { resident_bytes: daemon.resident_bytes()?, descriptors };
        self.first.get_or_insert(holding);
        self.last = Some(holding);
        Ok(())
    }
}

/// The number of each round, from 1.
impl Iterator for Rounds {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let is_late = self.started >= self.least && self.end.is_some_and(|end| Instant::now() >= end);
        (self.started < self.count && !is_late).then(|| {
            self.started += 1;
            self.started
        })
    }
}

impl Drop for Rounds {
    #[expect(clippy::print_stdout, reason = "the test runner shows it, and a soak reads it")]
    fn drop(&mut self) {
        let held = |holding: Option<Holding>| {
            holding.map(|held| {
                serde_json::json!({"residentBytes": held.resident_bytes, "descriptors": held.descriptors})
            })
        };
        let report = serde_json::json!({
            "rounds": self.started, "first": held(self.first), "last": held(self.last)
        });
        println!("soak: {report}");
    }
}
