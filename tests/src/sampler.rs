//! An independent witness of when a threshold was crossed.

use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use rustix::{
    mm::{MlockAllFlags, mlockall},
    time::{ClockId, clock_gettime},
};
use thread_priority::{
    RealtimeThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
    thread_native_id,
};

/// How long it sleeps between two looks.
const PACE: Duration = Duration::from_millis(1);

/// Reads `MemAvailable` once a millisecond, from a locked thread of the real-time class.
#[derive(Debug)]
pub struct Sampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<Seen>>,
}

/// What it saw.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// When less than the threshold was available for the first time, in microseconds of `CLOCK_MONOTONIC`.
    pub crossed_us: Option<u64>,
    /// The least that was available.
    pub lowest_bytes: u64,
}

impl Sampler {
    /// Starts looking.
    pub fn start(threshold_bytes: u64) -> anyhow::Result<Self> {
        mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
            .context("cannot lock the sampler's memory")?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (started, ready) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let prepared = prepare();
            let meminfo = match prepared {
                Ok(meminfo) => {
                    started.send(()).context("nobody waits for the sampler")?;
                    meminfo
                }
                Err(error) => return Err(error),
            };
            watch(&meminfo, threshold_bytes, &stopped)
        });
        let sampler = Self { stop, thread };
        match ready.recv() {
            Ok(()) => Ok(sampler),
            Err(_) => Err(sampler.stop().err().unwrap_or_else(|| anyhow!("the sampler did not start"))),
        }
    }

    /// Stops looking.
    pub fn stop(self) -> anyhow::Result<Seen> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_panic| anyhow!("the sampler panicked"))?
    }
}

fn prepare() -> anyhow::Result<File> {
    // Before everybody of the ordinary class, whatever they are at.
    let priority = ThreadPriority::try_from(50_u8).map_err(|error| anyhow!("{error}"))?;
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    set_thread_priority_and_policy(thread_native_id(), priority, policy)
        .map_err(|error| anyhow!("cannot give the sampler a real-time priority: {error:?}"))?;
    File::open("/proc/meminfo").context("cannot open /proc/meminfo")
}

fn watch(meminfo: &File, threshold_bytes: u64, stop: &AtomicBool) -> anyhow::Result<Seen> {
    let mut seen = Seen { crossed_us: None, lowest_bytes: u64::MAX };
    let mut buffer = [0; 4096];
    while !stop.load(Ordering::Relaxed) {
        let count = meminfo.read_at(&mut buffer, 0)?;
        let available_bytes =
            available_bytes(&buffer[..count]).context("/proc/meminfo has no MemAvailable")?;
        seen.lowest_bytes = seen.lowest_bytes.min(available_bytes);
        if available_bytes < threshold_bytes && seen.crossed_us.is_none() {
            seen.crossed_us = Some(now_us()?);
        }
        thread::sleep(PACE);
    }
    Ok(seen)
}

fn now_us() -> anyhow::Result<u64> {
    let now = clock_gettime(ClockId::Monotonic);
    Ok(u64::try_from(now.tv_sec)? * 1_000_000 + u64::try_from(now.tv_nsec)? / 1_000)
}

fn available_bytes(meminfo: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(meminfo).ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?.trim().strip_suffix(" kB")?;
    kib.parse::<u64>().ok()?.checked_mul(1024)
}
