//! The kernel's OOM kills of containers, as many at once as this machine can: counted by the kernel, reported by the
//! daemon.
//!
//! Counted are the kills by `memory.events.local` of every container. Each process is known from its start on, so that
//! every incident is compared with the pod and container that its victim was started in. The moment of a kill is that
//! of the kernel's own trace; the moment in which it was reported, that in which a reader of the observe socket
//! had it.

mod burst;
mod pool;
mod reader;
mod tally;

use std::{fs, path::Path, thread, time::Duration};

use anyhow::Context as _;
use enforcer_tests::{
    daemon::Daemon,
    figures::{float, rank},
    random::Random,
};
use rustix::process::{Pid, Signal, kill_process};

use self::{burst::Burst, pool::Pool, reader::Reader, tally::Tally};

/// The longest that the 99th percentile of single kills may be.
const BAR_MS: f64 = 5.0;
/// The least number of single ones: fewer have no 99th percentile.
const SINGLES: u32 = 100;
/// Between two single ones, so that each meets a daemon at rest.
const PAUSE_MS: std::ops::Range<u64> = 60..160;

/// From which level on messages are left out of the console.
const CONSOLE: &str = "/proc/sys/kernel/printk";

/// Prints the figures; whether the bars hold.
pub(crate) fn measure(rounds: u32, bursts: &[usize], held: usize) -> anyhow::Result<bool> {
    let place = Path::new("/tmp/bench-ooms");
    // Each container dies of its own limit alone: the machine is never short.
    let daemon = Daemon::start(
        place,
        "mode: enforce\nmaxPods: 200\nsingleProcessOOMKill: true\nevictionHard: {memory.available: \"0%\"}",
    )?;
    let pool = Pool::fill(&daemon)?;
    let reader = Reader::follow(place)?;
    println!("ooms: container OOM kills; {} containers of {} pods", pool.containers().len(), pool.pods());

    // What the kernel writes on a console it writes in the middle of a kill, and an emulated line takes milliseconds.
    fs::write(CONSOLE, "1").with_context(|| format!("cannot write {CONSOLE}"))?;
    let singles = usize::try_from(rounds.max(SINGLES))?;
    let mut single = Burst::begin(&pool, &reader)?;
    let mut random = Random::of_this_run();
    for number in 0..singles {
        thread::sleep(Duration::from_millis(PAUSE_MS.start + random.below(PAUSE_MS.end - PAUSE_MS.start)));
        single.kill(number..number + 1)?;
    }
    let single = single.end().context("single kills")?;
    let mut all_hold = true;
    println!(
        "{:>7} {:>7} {:>8} {:>7} {:>6} {:>6} {:>6} {:>8} {:>7} {:>9} {:>9} {:>9}",
        "started",
        "killed",
        "reported",
        "right",
        "wrong",
        "recon.",
        "lost",
        "by log",
        "s",
        "p50 ms",
        "p99 ms",
        "max ms"
    );
    all_hold &= print(single)?;
    for size in bursts {
        let mut burst = Burst::begin(&pool, &reader)?;
        burst.kill_all(*size)?;
        all_hold &= print(burst.end().with_context(|| format!("{size} kills"))?)?;
    }
    if held > 0 {
        // More than the ring holds, while it is not read: kills without a record are reported from counters.
        let mut burst = Burst::begin(&pool, &reader)?;
        let pid =
            i32::try_from(daemon.pid()).ok().and_then(Pid::from_raw).context("the daemon has no pid")?;
        kill_process(pid, Signal::STOP)?;
        burst.kill_all(held)?;
        kill_process(pid, Signal::CONT)?;
        println!("the same while the daemon is held:");
        all_hold &= print(burst.end().context("the daemon held")?)?;
    }
    daemon.stop()?;
    println!(
        "bars: every kill is reported, of the right pod and container, none wrong, none lost; p99 of the first line <= {BAR_MS} ms"
    );
    println!("{}", if all_hold { "ok" } else { "NOT WITHIN THE BARS" });
    Ok(all_hold)
}

/// Prints one line; whether it holds. Only single ones have a bar for their time.
fn print(tally: Tally) -> anyhow::Result<bool> {
    let Tally {
        started,
        killed,
        reported,
        right,
        wrong,
        reconstructed,
        logged,
        took,
        mut latencies_ms,
        mut dated_ms,
        is_single,
    } = tally;
    latencies_ms.sort_by(f64::total_cmp);
    dated_ms.sort_by(f64::total_cmp);
    let lost = killed.saturating_sub(reported);
    let p99_ms = rank(&latencies_ms, 99);
    println!(
        "{started:>7} {killed:>7} {reported:>8} {right:>7} {wrong:>6} {reconstructed:>6} {lost:>6} {logged:>8} {:>7.1} {:>9.2} {p99_ms:>9.2} {:>9.2}",
        took.as_secs_f64(),
        rank(&latencies_ms, 50),
        rank(&latencies_ms, 100),
    );
    let share = float(u64::try_from(right)?) / float(u64::try_from(killed)?);
    println!(
        "        {:.1} % attributed; by the kernel's log {:.1} %; until the event was made p50 {:.2}, p99 {:.2} ms",
        share * 100.0,
        float(u64::try_from(logged)?) / float(u64::try_from(killed)?) * 100.0,
        rank(&dated_ms, 50),
        rank(&dated_ms, 99)
    );
    Ok(right == killed && reported == killed && wrong == 0 && (!is_single || p99_ms <= BAR_MS))
}
