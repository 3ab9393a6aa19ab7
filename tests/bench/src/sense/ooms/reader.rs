//! A reader of the observe socket that notes when each line came.
use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use anyhow::{Context as _, anyhow};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use thread_priority::{
    RealtimeThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
    thread_native_id,
};

const REQUEST: &str = "GET /v1/events?follow=true&type=oom.detected&type=oom.incident&type=oom.averted&\
                       type=degraded.entered&type=stream.gap HTTP/1.0\r\n\r\n";

/// A line of the stream.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// When it was read, in microseconds of `CLOCK_MONOTONIC`.
    pub(super) time_us: u64,
    /// The same, in microseconds of `CLOCK_REALTIME`, by which events are dated.
    pub(super) real_time_us: u64,
    text: String,
}

impl Line {
    pub(super) fn event(&self) -> anyhow::Result<Value> {
        serde_json::from_str(&self.text).with_context(|| format!("the stream said {:?}", self.text))
    }
}

/// What was read and not yet taken.
#[derive(Debug)]
pub(super) struct Reader(Arc<Mutex<Vec<Line>>>);

impl Reader {
    /// Follows from now on, until the daemon ends.
    pub(super) fn follow(place: &Path) -> anyhow::Result<Self> {
        let path = place.join("run/observe.sock");
        let mut socket =
            UnixStream::connect(&path).with_context(|| format!("cannot connect to {}", path.display()))?;
        socket.write_all(REQUEST.as_bytes())?;
        let lines = Arc::new(Mutex::new(Vec::new()));
        let read = Arc::clone(&lines);
        thread::spawn(move || {
            // What is measured is the daemon, not who reads it: before everybody of the ordinary class. One that is
            // refused that is only later.
            drop(hurry());
            for text in BufReader::new(socket).lines().map_while(Result::ok) {
                let line = Line {
                    time_us: now_us(ClockId::Monotonic),
                    real_time_us: now_us(ClockId::Realtime),
                    text,
                };
                if line.text.starts_with('{') {
                    read.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                }
            }
        });
        Ok(Self(lines))
    }

    /// What came since the last call.
    pub(super) fn take(&self) -> Vec<Line> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn hurry() -> anyhow::Result<()> {
    let priority = ThreadPriority::try_from(50_u8).map_err(|error| anyhow!("{error}"))?;
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    set_thread_priority_and_policy(thread_native_id(), priority, policy).map_err(|error| anyhow!("{error:?}"))
}

fn now_us(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    seconds.saturating_mul(1_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or_default() / 1_000)
}
