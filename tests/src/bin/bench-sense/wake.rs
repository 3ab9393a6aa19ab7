//! From the breach of a `memory.high` to the wake-up of who waits for it.
//!
//! The onset is the kernel's: the moment in which the breaching task counted it.

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use enforcer_tests::{
    cgroup::Cgroup,
    figures::{float, rank},
    load::Load,
    trace::{Seen, Trace, Watched},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    time::{ClockId, clock_gettime},
};

/// The longest that the 99th percentile may be.
const BAR_MS: f64 = 5.0;
/// The kernel's function by which a cgroup's event file tells its readers, called where an event is counted.
const NOTIFY: &str = "cgroup_file_notify";
const LOAD: &str = "workload";
/// Emulated guests are slow.
const PATIENCE: Duration = Duration::from_secs(30);
/// A stall within a window.
const TRIGGER: &str = "some 10000 500000";

/// Prints the figures; whether the bar holds.
pub(crate) fn measure(rounds: u32) -> anyhow::Result<bool> {
    println!("wake: memory.high breached -> awake, {rounds} rounds");
    println!("{:<44} {:>10} {:>10} {:>10}", "", "median ms", "p99 ms", "max ms");
    let mut events = Vec::new();
    let mut trigger = Vec::new();
    for _ in 0..rounds {
        let (events_ms, trigger_ms) = round()?;
        events.push(events_ms);
        trigger.push(trigger_ms);
    }
    let p99_ms = print("poll of memory.events", &mut events);
    print(&format!("PSI trigger `{TRIGGER}`"), &mut trigger);
    let holds = p99_ms <= BAR_MS;
    println!("bar: poll of memory.events p99 <= {BAR_MS} ms: {}", if holds { "ok" } else { "TOO SLOW" });
    Ok(holds)
}

fn print(what: &str, times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    let p99_ms = rank(times, 99);
    println!("{what:<44} {:>10.2} {p99_ms:>10.2} {:>10.2}", rank(times, 50), rank(times, 100));
    p99_ms
}

/// One breach in a fresh cgroup: milliseconds to the poller of its events, and to that of its PSI trigger.
fn round() -> anyhow::Result<(f64, f64)> {
    let cgroup = Cgroup::create("bench-wake")?;
    cgroup.write("memory.high", "16M")?;
    let events = File::open(cgroup.path().join("memory.events"))?;
    let trigger = arm(&cgroup.path().join("memory.pressure"))?;
    // What is there before is no news.
    let mut text = [0_u8; 512];
    rustix::io::pread(&events, &mut text, 0)?;
    let trace = Trace::record(&[Watched::Function(NOTIFY)])?;
    let (events, trigger) = thread::scope(|scope| {
        let waiters = [&events, &trigger].map(|file| scope.spawn(move || wait(file)));
        let mut load = Load::start(&cgroup, &["spike", "--size", "24Mi"])?;
        let [events, trigger] = waiters.map(|waiter| match waiter.join() {
            Ok(woken) => woken,
            Err(_) => bail!("a waiter panicked"),
        });
        // It sleeps at its limit, and would for minutes.
        cgroup.kill()?;
        load.wait()?;
        anyhow::Ok((events?, trigger?))
    })?;
    ensure!(cgroup.number("memory.events", "high")? > 0, "the limit was not breached");
    let onset = trace.seen()?.into_iter().find(|seen| seen.comm == LOAD);
    let Seen { time_us: onset_us, .. } = onset.context("the kernel counted no event of the load")?;
    Ok((since_ms(onset_us, events), since_ms(onset_us, trigger)))
}

fn arm(path: &Path) -> anyhow::Result<File> {
    let open = || -> std::io::Result<File> {
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        file.write_all(TRIGGER.as_bytes())?;
        Ok(file)
    };
    open().with_context(|| format!("cannot set {TRIGGER:?} at {}", path.display()))
}

/// The moment in which that became ready, in microseconds of `CLOCK_MONOTONIC`.
fn wait(file: &File) -> anyhow::Result<u64> {
    let begin = Instant::now();
    let mut ready = [PollFd::new(file, PollFlags::PRI)];
    let patience = Timespec { tv_sec: 30, tv_nsec: 0 };
    let count = rustix::io::retry_on_intr(|| poll(&mut ready, Some(&patience)))?;
    let now = clock_gettime(ClockId::Monotonic);
    ensure!(count > 0 && begin.elapsed() < PATIENCE, "not woken within {PATIENCE:?}");
    Ok(u64::try_from(now.tv_sec)? * 1_000_000 + u64::try_from(now.tv_nsec)? / 1_000)
}

/// Below zero if it came before.
fn since_ms(onset_us: u64, woken_us: u64) -> f64 {
    (float(woken_us) - float(onset_us)) / 1e3
}
