//! What tracing costs those who are traced.
//!
//! The same work is timed with an idle daemon and all its programs attached, and without, by turns (with, without,
//! without, with), so that whatever else changes on the machine meets both alike. What counts is the ratio within a pair.

use std::{
    fs,
    hint::black_box,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use aya::programs::{ProgramInfo, loaded_programs};
use enforcer_tests::{
    cgroup::Cgroup,
    daemon::Daemon,
    figures::{float, rank},
    host::Swap,
};

/// The most that the work may take with the programs, as a multiple of what it takes without: the lower bound of the
/// ratio's confidence interval must be no higher.
const BAR: f64 = 1.02;
/// How many pairs there are at least.
const PAIRS: usize = 10;
/// How often each work is done in a round; the fastest counts.
const PASSES: usize = 6;
const PAGE_BYTES: usize = 4096;
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const STATISTICS: &str = "/proc/sys/kernel/bpf_stats_enabled";
/// A program that the daemon always attaches.
const OURS: &str = "process_exit";
/// How long the kernel may take to attach or free programs.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long it is left alone after a change.
const SETTLE: Duration = Duration::from_secs(3);

/// Work of a fixed amount.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Work {
    /// First touches of anonymous pages.
    Faults,
    /// Touches of more pages than the limit lets stay, with the rest in compressed swap.
    Reclaim,
    /// Processes that begin another program and end.
    Processes,
}

impl Work {
    const ALL: [Self; 3] = [Self::Faults, Self::Reclaim, Self::Processes];

    const fn name(self) -> &'static str {
        match self {
            Self::Faults => "page faults: 96 MiB by 4 KiB",
            Self::Reclaim => "reclaim: 24 MiB in turn at a limit of 16",
            Self::Processes => "fork, exec and exit: 25 times (no bar)",
        }
    }

    /// Whether the bar is for it.
    const fn is_judged(self) -> bool {
        match self {
            Self::Faults | Self::Reclaim => true,
            Self::Processes => false,
        }
    }

    /// Does it; seconds.
    fn time(self, small: &Cgroup) -> anyhow::Result<f64> {
        match self {
            Self::Faults => faults(),
            Self::Reclaim => reclaim(small),
            Self::Processes => processes(),
        }
    }
}

/// Seconds that the fastest of some passes took: what else goes on in a machine only ever adds to one.
fn fastest(mut pass: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let mut fastest = f64::INFINITY;
    for _ in 0..PASSES {
        let begin = Instant::now();
        pass()?;
        fastest = fastest.min(begin.elapsed().as_secs_f64());
    }
    Ok(fastest)
}

fn faults() -> anyhow::Result<f64> {
    fastest(|| {
        let mut memory = vec![0_u8; 96 << 20];
        touch(&mut memory);
        Ok(())
    })
}

fn touch(memory: &mut [u8]) {
    for byte in memory.iter_mut().step_by(PAGE_BYTES) {
        *byte = byte.wrapping_add(1);
    }
    black_box(memory);
}

/// In the calling thread, which joins the cgroup for as long.
fn reclaim(small: &Cgroup) -> anyhow::Result<f64> {
    let join =
        |procs: &Path| fs::write(procs, "0").with_context(|| format!("cannot write to {}", procs.display()));
    join(&small.path().join("cgroup.procs"))?;
    let mut memory = vec![0_u8; 24 << 20];
    touch(&mut memory);
    let took = fastest(|| {
        touch(&mut memory);
        Ok(())
    })?;
    drop(memory);
    join(Path::new("/sys/fs/cgroup/cgroup.procs"))?;
    Ok(took)
}

fn processes() -> anyhow::Result<f64> {
    fastest(|| {
        for _ in 0..25 {
            let mut command = Command::new("/bin/busybox");
            let status = command.arg("true").stdin(Stdio::null()).status().context("cannot run busybox")?;
            ensure!(status.success(), "busybox true: {status}");
        }
        Ok(())
    })
}

/// Prints the figures; whether the bars hold.
pub(crate) fn measure() -> anyhow::Result<bool> {
    let _swap = Swap::on(64 << 20)?;
    let small = Cgroup::create("bench-overhead")?;
    small.write("memory.max", "16M")?;
    fs::write(HUGE_PAGES, "never").with_context(|| format!("cannot write {HUGE_PAGES}"))?;
    // What is done for the first time takes longer.
    round(&small)?;

    let (mut with, mut without) = (Vec::new(), Vec::new());
    let mut daemon = None;
    for pair in 0..PAIRS {
        for is_second in [false, true] {
            // With, without; without, with; and so on.
            let is_with = is_second == (pair % 2 == 1);
            daemon = switch(daemon, is_with)?;
            let taken = round(&small)?;
            if is_with { with.push(taken) } else { without.push(taken) }
        }
    }
    let daemon = switch(daemon, true)?.context("there is no daemon")?;
    let programs = of_each(&small)?;
    daemon.stop()?;

    println!(
        "overhead: all programs and an idle daemon in observe mode, {PAIRS} pairs by turns, fastest of {PASSES}"
    );
    println!("{:<42} {:>9} {:>9} {:>7}  95 % interval", "", "without s", "with s", "ratio");
    let mut all_hold = true;
    for (index, work) in Work::ALL.into_iter().enumerate() {
        let column = |rounds: &[[f64; 3]]| rounds.iter().map(|round| round[index]).collect::<Vec<_>>();
        let (with, without) = (column(&with), column(&without));
        let Interval { ratio, low, high } = Interval::of(&with, &without);
        print!(
            "{:<42} {:>9.3} {:>9.3} {ratio:>7.4}  {low:.4} to {high:.4}",
            work.name(),
            median(without),
            median(with)
        );
        if work.is_judged() {
            let holds = low <= BAR;
            all_hold &= holds;
            println!("  (bar: lower bound <= {BAR}: {})", if holds { "ok" } else { "TOO MUCH" });
        } else {
            println!();
        }
    }
    println!("each program's own time over one round of that work, from bpf_stats_enabled:");
    for (name, runs, mean_ns) in programs {
        println!("  {name:<24} {runs:>9} runs {mean_ns:>9.0} ns each");
    }
    Ok(all_hold)
}

/// Seconds of every work.
fn round(small: &Cgroup) -> anyhow::Result<[f64; 3]> {
    let [first, second, third] = Work::ALL;
    Ok([first.time(small)?, second.time(small)?, third.time(small)?])
}

/// Starts a daemon, or ends it, if that is not how it is.
fn switch(daemon: Option<Daemon>, is_with: bool) -> anyhow::Result<Option<Daemon>> {
    let daemon = match (daemon, is_with) {
        (Some(daemon), false) => {
            daemon.stop()?;
            // Some programs outlive the daemon, so that a restart loses nothing.
            let status = Command::new("enforcer").args(["run", "--unpin"]).stdout(Stdio::null()).status();
            let status = status.context("cannot run enforcer")?;
            ensure!(status.success(), "enforcer run --unpin: {status}");
            None
        }
        (None, true) => Some(Daemon::start(Path::new("/tmp/bench-overhead"), "mode: observe")?),
        (daemon, _) => return Ok(daemon),
    };
    // The kernel frees programs a moment after they were detached.
    let begin = Instant::now();
    while ours()?.iter().any(|program| program.name_as_str() == Some(OURS)) != is_with {
        let wrong = if is_with { "not attached" } else { "still attached" };
        ensure!(begin.elapsed() < TIMEOUT, "the programs are {wrong}");
        thread::sleep(Duration::from_millis(100));
    }
    // Both ways alike: a daemon's first seconds are not idle, and neither is a kernel that frees what it left.
    thread::sleep(SETTLE);
    Ok(daemon)
}

/// The tracing programs in the kernel, which in a guest are all the daemon's.
fn ours() -> anyhow::Result<Vec<ProgramInfo>> {
    loaded_programs().collect::<Result<_, _>>().context("cannot list the kernel's programs")
}

/// How often each program ran in one round, and how long each run took, the dearest in all first.
fn of_each(small: &Cgroup) -> anyhow::Result<Vec<(String, u64, f64)>> {
    fs::write(STATISTICS, "1").with_context(|| format!("cannot write {STATISTICS}"))?;
    let taken = round(small);
    fs::write(STATISTICS, "0")?;
    taken?;
    let mut programs: Vec<_> = ours()?
        .iter()
        .filter(|program| program.run_count() > 0)
        .map(|program| {
            let name = program.name_as_str().unwrap_or("?").to_owned();
            (name, program.run_count(), program.run_time())
        })
        .collect();
    programs.sort_by_key(|(_, _, time)| std::cmp::Reverse(*time));
    Ok(programs
        .into_iter()
        .map(|(name, runs, time)| (name, runs, time.as_secs_f64() * 1e9 / float(runs)))
        .collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    rank(&values, 50)
}

/// A ratio and where it lies with a confidence of 95 %.
#[derive(Clone, Copy, Debug)]
struct Interval {
    ratio: f64,
    low: f64,
    high: f64,
}

/// Student's t for 95 %, two-sided, by degrees of freedom from 1 on.
const STUDENT: [f64; 19] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093,
];

impl Interval {
    /// Of the mean of the logarithms of the pairs' ratios.
    fn of(with: &[f64], without: &[f64]) -> Self {
        let logs: Vec<f64> = with.iter().zip(without).map(|(with, without)| (with / without).ln()).collect();
        let count = float(u64::try_from(logs.len()).unwrap_or_default());
        let mean = logs.iter().sum::<f64>() / count;
        let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let student = logs.len().checked_sub(2).and_then(|index| STUDENT.get(index)).copied();
        let half = student.unwrap_or(f64::INFINITY) * (variance / count).sqrt();
        Self { ratio: mean.exp(), low: (mean - half).exp(), high: (mean + half).exp() }
    }
}

#[cfg(test)]
mod tests {
    use super::Interval;

    #[test]
    fn an_interval_holds_the_ratio_and_is_that_of_a_textbook() {
        let without = [1.0; 4];
        let with = [1.1_f64, 1.3, 1.0, 1.2];
        let Interval { ratio, low, high } = Interval::of(&with, &without);
        let mean = with.iter().map(|with| with.ln()).sum::<f64>() / 4.0;
        assert!((ratio - mean.exp()).abs() < 1e-12);
        assert!(low < ratio && ratio < high);
        // Half the width in logarithms is t(3) times the standard error.
        let deviation = (with.iter().map(|with| (with.ln() - mean).powi(2)).sum::<f64>() / 3.0).sqrt();
        assert!(((high / low).ln() / 2.0 - 3.182 * deviation / 2.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_always_the_same_has_no_width() {
        let Interval { ratio, low, high } = Interval::of(&[2.0; 10], &[1.0; 10]);
        assert!((ratio - 2.0).abs() < 1e-12 && (high - low).abs() < 1e-9);
    }
}
