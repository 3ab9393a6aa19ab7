//! How fast this machine is, by loops that are the same everywhere.

use std::{
    fs::File,
    io::{BufRead as _, BufReader},
    os::unix::fs::FileExt as _,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

/// How many wakes are timed together, how many times that is done, and the time between two wakes: a daemon at rest wakes
/// once a second, and the longer a thread sleeps the less is left of it in the processor.
const WAKES: u32 = 10;
const ROUNDS: usize = 3;
const PAUSE: Duration = Duration::from_secs(1);

/// What a thread pays for a wake in which it reads how much memory is available, in nanoseconds of processor time: the
/// median of some rounds. A thread that sleeps has nothing in the processor's caches, and an emulator least of all.
pub fn wake_ns() -> anyhow::Result<u64> {
    let file = File::open("/proc/meminfo").context("cannot open /proc/meminfo")?;
    let mut buffer = [0; 8 << 10];
    let mut round = || -> anyhow::Result<u64> {
        let begin_ns = used_ns();
        for _ in 0..WAKES {
            thread::sleep(PAUSE);
            let bytes = file.read_at(&mut buffer, 0)?;
            ensure!(bytes > 0, "/proc/meminfo is empty");
        }
        Ok((used_ns() - begin_ns) / u64::from(WAKES))
    };
    let mut rounds = (0..ROUNDS).map(|_| round()).collect::<anyhow::Result<Vec<_>>>()?;
    rounds.sort_unstable();
    rounds.get(ROUNDS / 2).copied().context("no round was timed")
}

/// The processor time of this thread.
fn used_ns() -> u64 {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(used.tv_sec * 1_000_000_000 + used.tv_nsec).unwrap_or(0)
}

/// The units of work that `workload spin --threads 1` does in a second: the maximum of five runs, as a machine may be
/// shared.
///
/// `workload` is the program, by name or path.
pub fn measure(workload: &str) -> anyhow::Result<u64> {
    let mut command = Command::new(workload);
    let command = command.args(["spin", "--threads", "1", "--for", "5s"]);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {workload}"))?;
    let lines = BufReader::new(child.stdout.take().context("no output to read")?).lines();
    let (mut most, mut before_ms) = (0, 0);
    for line in lines {
        let line = line.context("cannot read from the workload")?;
        let report: Value = serde_json::from_str(&line).with_context(|| format!("it said {line:?}"))?;
        let number = |key: &str| report[key].as_u64().with_context(|| format!("{line:?} has no {key}"));
        if report["state"] == "running" {
            let now_ms = number("elapsedMs")?;
            // A report may come late.
            most = most.max(number("recentWork")? * 1_000 / now_ms.saturating_sub(before_ms).max(1));
            before_ms = now_ms;
        }
    }
    let status = child.wait()?;
    ensure!(status.success() && most > 0, "{workload} ended with {status} after {most} units a second");
    Ok(most)
}
