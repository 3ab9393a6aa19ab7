//! From crossing a hard threshold to the first signal: enforcer and earlyoom in turn, in the same guest, on the same work.
//!
//! Neither is asked what it did. The crossing is seen by a sampler of its own, locked in memory and scheduled before
//! everybody else, and the signal by the kernel's tracepoint `signal:signal_generate`, on one clock.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "printing figures is what a benchmark is for")]

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use clap::Parser;
use enforcer_tests::{
    daemon::Daemon,
    figures::{mib, rank, verdict},
    kernel,
    pods::{Container, pod},
    process::Process,
    sampler::Sampler,
    signals::Signals,
};

const MIB: u64 = 1 << 20;
const THRESHOLD_BYTES: u64 = 200 * MIB;
/// How much is available before the ramp begins, beyond the threshold.
const RUN_UP_BYTES: u64 = 150 * MIB;
/// Emulated guests are slow.
const PATIENCE: Duration = Duration::from_mins(1);

/// Times the way from the crossing to the first signal.
#[derive(Debug, Parser)]
struct Args {
    /// How often each contender runs
    #[arg(long, default_value_t = 20)]
    runs: usize,
    /// How fast the victim grows
    #[arg(long, default_value = "100Mi")]
    rate: String,
    /// The earlyoom program
    #[arg(long, default_value = "/usr/bin/earlyoom")]
    earlyoom: String,
}

/// What one run showed.
struct Run {
    /// From the crossing to the signal; below zero if the contender saw it before the sampler did.
    latency_ms: f64,
    right: bool,
    lowest_bytes: u64,
    kernel_kills: u64,
}

fn main() -> ExitCode {
    verdict(bench(&Args::parse()).map(|()| true))
}

fn bench(args: &Args) -> anyhow::Result<()> {
    let mut runs: BTreeMap<&str, Vec<Run>> = BTreeMap::new();
    for number in 1..=args.runs {
        for (name, contender) in [("enforcer", enforcer as Contender), ("earlyoom", earlyoom)] {
            let run = contender(args).with_context(|| format!("run {number} of {name}"))?;
            eprintln!("run {number:>2}  {name:<8}  {:>8.1} ms", run.latency_ms);
            runs.entry(name).or_default().push(run);
        }
    }
    println!(
        "crossing -> first signal, memory.available<{}Mi, a BestEffort process growing by {}/s beside one within its request",
        THRESHOLD_BYTES / MIB,
        args.rate
    );
    println!(
        "{:<9} {:>5} {:>10} {:>10} {:>10} {:>12} {:>13} {:>13}",
        "", "runs", "median ms", "p99 ms", "max ms", "right victim", "lowest avail", "kernel kills"
    );
    let mut medians = BTreeMap::new();
    for (name, runs) in &runs {
        let mut latencies: Vec<_> = runs.iter().map(|run| run.latency_ms).collect();
        latencies.sort_by(f64::total_cmp);
        let median = rank(&latencies, 50);
        medians.insert(*name, (median, rank(&latencies, 99)));
        println!(
            "{name:<9} {:>5} {median:>10.1} {:>10.1} {:>10.1} {:>12} {:>11}Mi {:>13}",
            runs.len(),
            rank(&latencies, 99),
            rank(&latencies, 100),
            format!("{}/{}", runs.iter().filter(|run| run.right).count(), runs.len()),
            runs.iter().map(|run| run.lowest_bytes).min().unwrap_or(0) / MIB,
            runs.iter().map(|run| run.kernel_kills).sum::<u64>(),
        );
    }
    let (ours, theirs) = (medians["enforcer"], medians["earlyoom"]);
    // The sampler looks once a millisecond: no latency is known better than that.
    println!(
        "ratio earlyoom/enforcer: median {:.1}, p99 {:.1}",
        theirs.0 / ours.0.max(1.0),
        theirs.1 / ours.1.max(1.0)
    );
    println!("enforcer's resident memory with 10 pods: {:.1} MiB", mib(resident_bytes_with_ten_pods()?));
    for (name, runs) in &runs {
        ensure!(runs.iter().all(|run| run.right), "{name} signalled the wrong process");
    }
    Ok(())
}

type Contender = fn(&Args) -> anyhow::Result<Run>;

fn enforcer(args: &Args) -> anyhow::Result<Run> {
    let folder = Path::new("/tmp/bench");
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    let settings = format!("mode: enforce\nevictionHard:\n  memory.available: {}Mi", THRESHOLD_BYTES / MIB);
    let daemon = Daemon::start(folder, &settings)?;
    let ballast_bytes = ballast_bytes()?;
    let request = format!("memory: {}", ballast_bytes + 64 * MIB);
    daemon.manifest(
        "ballast.yaml",
        &pod("ballast", 0, &[Container { name: "app", requests: &request, limits: "" }]),
    )?;
    daemon.manifest("hog.yaml", &pod("hog", 0, &[Container { name: "app", requests: "", limits: "" }]))?;
    let size = ballast_bytes.to_string();
    let mut ballast = Process::new(daemon.exec("default/ballast", &["workload", "hold", "--size", &size])?);
    settle(&mut ballast)?;
    let run = measure(&ballast, || daemon.exec("default/hog", &["workload", "ramp", "--rate", &args.rate]))?;
    drop(ballast);
    daemon.remove_manifest("ballast.yaml")?;
    daemon.remove_manifest("hog.yaml")?;
    daemon.stop()?;
    Ok(run)
}

fn earlyoom(args: &Args) -> anyhow::Result<Run> {
    // SIGTERM and SIGKILL both at the threshold, no report, no delay beyond its own pace.
    let threshold = format!("{0},{0}", THRESHOLD_BYTES / 1024);
    let mut daemon = Process::new(
        Command::new(&args.earlyoom)
            .args(["-M", &threshold, "-r", "0"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot run {}", args.earlyoom))?,
    );
    let size = ballast_bytes()?.to_string();
    let mut ballast =
        Process::new(Command::new("workload").args(["hold", "--size", &size]).stdout(Stdio::null()).spawn()?);
    settle(&mut ballast)?;
    let run = measure(&ballast, || {
        // The score that a BestEffort pod has, so that both look at the same thing.
        let script = "echo 1000 > /proc/self/oom_score_adj && exec workload ramp --rate \"$0\"";
        Ok(Command::new("sh")
            .args(["-c", script, &args.rate])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?)
    })?;
    ensure!(daemon.lives()?, "earlyoom ended by itself");
    Ok(run)
}

/// How much to hold so that about the run-up is what is left above the threshold.
fn ballast_bytes() -> anyhow::Result<u64> {
    available_at_rest_bytes(&mut || Ok(()))?
        .checked_sub(THRESHOLD_BYTES + RUN_UP_BYTES)
        .filter(|bytes| *bytes > 64 * MIB)
        .context("too little memory is available here: give the guest 2 GiB")
}

/// Waits until the ballast is held.
///
/// A processor keeps pages that were freed on it to itself for a while; they are not counted as available, and taken
/// first. So some more than the run-up may be left.
fn settle(ballast: &mut Process) -> anyhow::Result<()> {
    let held_bytes = THRESHOLD_BYTES + RUN_UP_BYTES + 256 * MIB;
    let start = Instant::now();
    let mut lives = || {
        ensure!(ballast.lives()?, "the ballast has ended");
        Ok(())
    };
    while available_at_rest_bytes(&mut lives)? > held_bytes {
        ensure!(start.elapsed() < PATIENCE, "the ballast is not held after {PATIENCE:?}");
    }
    Ok(())
}

/// What is available once it has come to rest.
fn available_at_rest_bytes(check: &mut dyn FnMut() -> anyhow::Result<()>) -> anyhow::Result<u64> {
    let start = Instant::now();
    let mut before_bytes = kernel::meminfo_bytes("MemAvailable")?;
    loop {
        // Long enough also for whoever adapts its pace to what is left.
        thread::sleep(Duration::from_millis(500));
        check()?;
        let now_bytes = kernel::meminfo_bytes("MemAvailable")?;
        if now_bytes.abs_diff(before_bytes) < 4 * MIB {
            return Ok(now_bytes);
        }
        before_bytes = now_bytes;
        ensure!(start.elapsed() < PATIENCE, "what is available does not come to rest");
    }
}

fn measure(ballast: &Process, hog: impl FnOnce() -> anyhow::Result<Child>) -> anyhow::Result<Run> {
    let kills_before = kernel::vmstat("oom_kill")?;
    let signals = Signals::record()?;
    let sampler = Sampler::start(THRESHOLD_BYTES)?;
    let mut hog = Process::new(hog()?);
    let start = Instant::now();
    while hog.lives()? {
        if start.elapsed() > PATIENCE {
            bail!(
                "the hog lives after {PATIENCE:?}; lowest available {} bytes",
                sampler.stop()?.lowest_bytes
            );
        }
        thread::sleep(Duration::from_millis(10));
    }
    let seen = sampler.stop()?;
    let crossed_us = seen.crossed_us.context("the sampler never saw the threshold crossed")?;
    let first = signals
        .first_to(&[hog.id(), ballast.id()])?
        .context("the kernel saw no signal to the hog or its neighbour")?;
    #[expect(clippy::cast_precision_loss, reason = "microseconds of an uptime are far below 2^52")]
    let latency_ms = (first.time_us as f64 - crossed_us as f64) / 1_000.0;
    Ok(Run {
        latency_ms,
        right: first.pid == hog.id(),
        lowest_bytes: seen.lowest_bytes,
        kernel_kills: kernel::vmstat("oom_kill")? - kills_before,
    })
}

fn resident_bytes_with_ten_pods() -> anyhow::Result<u64> {
    let folder = Path::new("/tmp/bench-resident");
    let daemon = Daemon::start(folder, "mode: enforce")?;
    let mut stream = daemon.follow()?;
    let mut processes = Vec::new();
    for number in 0..10 {
        let name = format!("pod{number}");
        let requests = "cpu: 10m, memory: 16Mi";
        daemon.manifest(
            &format!("{name}.yaml"),
            &pod(&name, 0, &[Container { name: "app", requests, limits: requests }]),
        )?;
        let target = format!("default/{name}");
        processes.push(Process::new(daemon.exec(&target, &["workload", "hold", "--size", "1Mi"])?));
        stream.wait_for_pod("limits.applied", &target, PATIENCE)?;
    }
    thread::sleep(Duration::from_secs(3));
    let resident_bytes = daemon.resident_bytes()?;
    drop(processes);
    daemon.stop()?;
    Ok(resident_bytes)
}
