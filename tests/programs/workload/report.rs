//! When to report, what with, and when to end.
use std::{
    io::{self, Write as _},
    os::{fd::AsFd as _, unix::net::UnixStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use serde::Serialize;
use signal_hook::{consts, flag, low_level::pipe};

/// How far a load is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum State {
    /// Not all of it is there yet.
    Growing,
    /// It is all there.
    Ready,
    Running,
    Done,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<T> {
    workload: &'static str,
    state: State,
    elapsed_ms: u64,
    #[serde(flatten)]
    facts: T,
}

/// The load's own time, and whether a signal asked it to end.
#[derive(Debug)]
pub(crate) struct Clock {
    begin: Instant,
    limit: Option<Duration>,
    stop_requested: Arc<AtomicBool>,
    /// Becomes readable with the signal.
    wake: UnixStream,
}

impl Clock {
    pub(crate) fn start(limit: Option<Duration>) -> anyhow::Result<Self> {
        let stop_requested = Arc::new(AtomicBool::new(false));
        let (wake, signalled) = UnixStream::pair().context("cannot make a socket")?;
        for signal in [consts::SIGTERM, consts::SIGINT] {
            // The flag first: who is woken must find it set.
            flag::register(signal, Arc::clone(&stop_requested)).context("cannot handle signals")?;
            pipe::register(signal, signalled.try_clone()?).context("cannot handle signals")?;
        }
        Ok(Self { begin: Instant::now(), limit, stop_requested, wake })
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.stop_requested.load(Ordering::Relaxed) || self.limit.is_some_and(|limit| self.elapsed() >= limit)
    }

    /// Waits until `time` after the start, or for the end; answers whether to go on.
    pub(crate) fn wait_until(&self, time: Duration) -> bool {
        let time = self.limit.map_or(time, |limit| time.min(limit));
        loop {
            if self.is_over() {
                return false;
            }
            let left = match time.checked_sub(self.elapsed()) {
                None | Some(Duration::ZERO) => return true,
                // What no timespec can hold is as good as forever.
                Some(left) => Timespec::try_from(left).ok(),
            };
            let mut wake = [PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN)];
            match poll(&mut wake, left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                // Without it the time passes all the same.
                Err(_) => sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Prints one line.
    pub(crate) fn report(
        &self,
        workload: &'static str,
        state: State,
        facts: impl Serialize,
    ) -> anyhow::Result<()> {
        let line = Line { workload, state, elapsed_ms: millis(self.elapsed()), facts };
        let mut text = serde_json::to_string(&line)?;
        text.push('\n');
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot report")
    }
}

/// Says once a second that a report is due.
#[derive(Debug)]
pub(crate) struct EverySecond(Duration);

impl EverySecond {
    pub(crate) fn after(time: Duration) -> Self {
        Self(time + Duration::from_secs(1))
    }

    pub(crate) fn is_due(&mut self, now: Duration) -> bool {
        let due = now >= self.0;
        if due {
            *self = Self::after(now);
        }
        due
    }

    pub(crate) fn next(&self) -> Duration {
        self.0
    }
}

/// Whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Whole microseconds.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_flat_json_with_units() {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Facts {
            held_bytes: u64,
        }
        let line =
            Line { workload: "spike", state: State::Ready, elapsed_ms: 5, facts: Facts { held_bytes: 4096 } };
        assert_eq!(
            serde_json::to_string(&line).unwrap(),
            r#"{"workload":"spike","state":"ready","elapsedMs":5,"heldBytes":4096}"#
        );
    }

    #[test]
    fn report_is_due_once_a_second() {
        let mut every = EverySecond::after(Duration::ZERO);
        assert!(!every.is_due(Duration::from_millis(999)));
        assert!(every.is_due(Duration::from_millis(1500)));
        assert!(!every.is_due(Duration::from_millis(2400)));
        assert!(every.is_due(Duration::from_millis(2500)));
    }

    #[test]
    fn limit_ends_the_load() {
        let clock = Clock::start(Some(Duration::from_millis(5))).unwrap();
        assert!(!clock.wait_until(Duration::from_mins(1)));
        assert!(clock.elapsed() < Duration::from_mins(1));
    }
}
