//! An independent witness of available memory, and of the memory of some cgroups.

use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, ensure};
use rustix::{
    mm::{MlockAllFlags, mlockall},
    time::{ClockId, clock_gettime},
};
use thread_priority::{
    RealtimeThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
    thread_native_id,
};

/// Time between two samples.
const PACE: Duration = Duration::from_micros(500);

/// The watched cgroups are read in every n-th sample, and repeat their last value in the others.
const HOLDERS_EACH: usize = 4;

/// The minimum sleep between two samples: if each is slow, other tasks must still run.
const LEAST_SLEEP: Duration = Duration::from_micros(200);

/// The maximum number of watched cgroups.
pub const HOLDERS: usize = 12;

/// Room for the samples of a minute and a half: sampling allocates nothing.
const LOOKS: usize = 190_000;

/// Runs before every task of the normal scheduling class.
pub const SAMPLER_PRIORITY: u8 = 50;

/// One sample.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Sample {
    /// When, in microseconds of `CLOCK_MONOTONIC`.
    pub time_us: u64,
    /// The kernel's `MemAvailable`.
    pub available_bytes: u64,
    /// `memory.current` of the watched cgroups, in their order; 0 for one that is gone.
    pub held_bytes: [u64; HOLDERS],
}

/// Reads `MemAvailable` every half a millisecond, which is more often than any contender that is judged by it, from
/// a locked thread of the real-time class.
#[derive(Debug)]
pub struct Sampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<Vec<Sample>>>,
}

impl Sampler {
    /// Starts sampling available memory and these cgroups, given as their folders.
    pub fn start(cgroups: &[PathBuf]) -> anyhow::Result<Self> {
        ensure!(cgroups.len() <= HOLDERS, "{} cgroups, and {HOLDERS} can be watched", cgroups.len());
        lock_memory()?;
        let mut holders = Vec::new();
        for cgroup in cgroups {
            let path = cgroup.join("memory.current");
            holders.push(File::open(&path).with_context(|| format!("cannot open {}", path.display()))?);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (started, ready) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let meminfo = prepare(SAMPLER_PRIORITY)?;
            // Written to, so that its pages are resident.
            let mut samples = vec![Sample { time_us: 1, ..Sample::default() }; LOOKS];
            samples.clear();
            started.send(()).context("the caller no longer waits for the sampler")?;
            watch(&meminfo, &holders, &stopped, samples)
        });
        let sampler = Self { stop, thread };
        match ready.recv() {
            Ok(()) => Ok(sampler),
            Err(_) => Err(sampler.stop().err().unwrap_or_else(|| anyhow!("the sampler did not start"))),
        }
    }

    /// Stops sampling, and returns the samples, in order of time.
    pub fn stop(self) -> anyhow::Result<Vec<Sample>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_panic| anyhow!("the sampler panicked"))?
    }
}

/// Locks this process's memory once it has been touched.
pub fn lock_memory() -> anyhow::Result<()> {
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
        .context("cannot lock this process's memory")
}

/// Gives this thread a real-time priority, and opens the file that it samples.
pub fn prepare(priority: u8) -> anyhow::Result<File> {
    let priority = ThreadPriority::try_from(priority).map_err(|error| anyhow!("{error}"))?;
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    set_thread_priority_and_policy(thread_native_id(), priority, policy)
        .map_err(|error| anyhow!("cannot take a real-time priority: {error:?}"))?;
    File::open("/proc/meminfo").context("cannot open /proc/meminfo")
}

fn watch(
    meminfo: &File,
    holders: &[File],
    stop: &AtomicBool,
    mut samples: Vec<Sample>,
) -> anyhow::Result<Vec<Sample>> {
    let mut next = Instant::now();
    while !stop.load(Ordering::Relaxed) && samples.len() < LOOKS {
        let mut sample =
            Sample { available_bytes: available_bytes(meminfo)?, time_us: now_us()?, ..Sample::default() };
        match samples.last() {
            Some(last) if !samples.len().is_multiple_of(HOLDERS_EACH) => sample.held_bytes = last.held_bytes,
            Some(_) | None => {
                for (held_bytes, holder) in sample.held_bytes.iter_mut().zip(holders) {
                    *held_bytes = current_bytes(holder);
                }
            }
        }
        samples.push(sample);
        next += PACE;
        let left = next.saturating_duration_since(Instant::now());
        if left < LEAST_SLEEP {
            // Missed samples are not made up for.
            next = Instant::now() + LEAST_SLEEP;
        }
        thread::sleep(left.max(LEAST_SLEEP));
    }
    ensure!(samples.len() < LOOKS, "the sampler has room for {LOOKS} looks and no more");
    Ok(samples)
}

/// Microseconds of `CLOCK_MONOTONIC`.
pub fn now_us() -> anyhow::Result<u64> {
    let now = clock_gettime(ClockId::Monotonic);
    Ok(u64::try_from(now.tv_sec)? * 1_000_000 + u64::try_from(now.tv_nsec)? / 1_000)
}

/// `MemAvailable` of an open /proc/meminfo.
pub fn available_bytes(meminfo: &File) -> anyhow::Result<u64> {
    let mut buffer = [0; 512];
    let count = meminfo.read_at(&mut buffer, 0)?;
    parse(&buffer[..count]).context("/proc/meminfo has no MemAvailable")
}

fn parse(meminfo: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(meminfo).ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?.trim().strip_suffix(" kB")?;
    kib.parse::<u64>().ok()?.checked_mul(1024)
}

/// A cgroup that was removed while it was watched holds nothing.
fn current_bytes(current: &File) -> u64 {
    let mut buffer = [0; 32];
    let read = current.read_at(&mut buffer, 0).ok().and_then(|count| buffer.get(..count));
    let text = read.and_then(|bytes| std::str::from_utf8(bytes).ok());
    text.and_then(|text| text.trim_end().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn what_is_available_is_read_in_bytes() {
        let text = b"MemTotal:        2014924 kB\nMemFree:         1 kB\nMemAvailable:    1808 kB\nBuf";
        assert_eq!(parse(text), Some(1808 * 1024));
        assert_eq!(parse(b"MemTotal: 1 kB\n"), None);
    }
}
