//! What a converged daemon costs: writes and processor time while nothing happens, or while others do something without
//! end.
//!
//! The kernel counts both. Processor time is that of the daemon's own cgroup, threads that have ended included. An
//! emulated machine needs more or less of it; loops that were timed outside as well show by which factor. A daemon at rest
//! wakes, reads a little and sleeps, for which it finds nothing in the processor's caches; one that is kept busy does.
//! So there is a loop of each kind. A daemon at rest is judged by the one that is worse for it, floods by the one that
//! computes.

mod floods;

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use enforcer_tests::{
    cgroup::Cgroup,
    daemon::Daemon,
    figures::{float, mib},
    kernel,
    plan::{Planned, folder},
    process::Process,
    rate,
    writes::Writes,
};
use serde_json::Value;

use crate::sources;

/// The cgroup of the daemon itself.
const OWN: &str = "bench-idle";
/// What the daemon may use of one processor.
pub(crate) const BAR_PERCENT: f64 = 0.05;
/// After what costs the daemon something, so that it is at rest again.
const REST: Duration = Duration::from_secs(20);
/// The longest that the last of the changes may take to be done.
const TIMEOUT: Duration = Duration::from_mins(5);

/// Measures what a converged daemon writes, and what processor time it takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many pods there are, each with one container and one process
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u32).range(1..))]
    pods: u32,
    /// For how long; what is done seldom is done once an hour
    #[arg(long, default_value_t = 3_600, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Measure floods instead, of so many seconds each
    #[arg(long, num_args = 0..=1, default_missing_value = "20")]
    floods: Option<u32>,
    /// The units of work that `workload spin --threads 1` does in a second where nothing is emulated
    #[arg(long)]
    native_rate: Option<u64>,
    /// The processor time of a wake that reads /proc/meminfo where nothing is emulated
    #[arg(long, requires = "native_list_ns")]
    native_wake_ns: Option<u64>,
    /// The processor time of a list of a kubelet's pods there
    #[arg(long, requires = "native_rate")]
    native_list_ns: Option<u64>,
    /// Print the three for this machine, and do nothing else
    #[arg(long)]
    rate_only: bool,
    #[command(flatten)]
    sources: sources::Args,
    /// The program that has the known loop
    #[arg(long, default_value = "workload")]
    workload: String,
}

/// Whether the daemon is within its bars.
pub(crate) fn bench(args: &Args) -> anyhow::Result<bool> {
    let rate = rate::measure(&args.workload)?;
    if let Some(seconds) = args.floods {
        return floods(args, seconds, rate);
    }
    let wake_ns = rate::wake_ns()?;
    if args.rate_only {
        println!("{rate} {wake_ns} {}", sources::reading_ns(args.sources.source_pods)?);
        return Ok(true);
    }
    let factor = factor(args, rate, wake_ns);
    let native = factor.zip(args.native_list_ns).map(|(factor, list_ns)| sources::Native { factor, list_ns });
    if args.sources.only_sources {
        return sources::measure(&args.sources, args.seconds, native);
    }
    let Scene { own, daemon, planned, processes } = Scene::converged(args.pods)?;
    let writes = Writes::record()?;
    // To ask for events costs the daemon something: before and after, and not meanwhile.
    let reported_before = reported(&daemon)?;
    thread::sleep(REST);
    let threads_before = threads(daemon.pid())?;
    let before = Figures::of(&own, &daemon, &writes)?;
    thread::sleep(Duration::from_secs(args.seconds.into()));
    let after = Figures::of(&own, &daemon, &writes)?;
    let threads_after = threads(daemon.pid())?;
    let reported_after = reported(&daemon)?;
    check(&writes, &own)?;
    let differences = planned.differences(&[])?;
    ensure!(differences.is_empty(), "it is not converged:\n{}", differences.join("\n"));

    let since = after.since(&before);
    println!(
        "{} pods, each with a process, as planned; {} s in which nothing happens",
        args.pods, args.seconds
    );
    println!("writes to cgroup files, whoever made them    {:>10}", since.cgroup_writes);
    println!("writes to oom_score_adj, whoever made them   {:>10}", since.score_writes);
    println!(
        "limits.applied emitted                       {:>10}",
        reported_after.applied - reported_before.applied
    );
    println!(
        "events emitted                               {:>10}",
        reported_after.events - reported_before.events
    );
    println!("write(2) and its like by the daemon          {:>10}", since.write_calls);
    println!("read(2) and its like by the daemon           {:>10}", since.read_calls);
    println!("resident memory of the daemon                {:>10.1} MiB", mib(daemon.resident_bytes()?));
    let seconds = f64::from(args.seconds);
    let percent = float(since.cpu_us) / 1e6 / seconds * 100.0;
    println!("processor time                               {:>10.1} ms", float(since.cpu_us) / 1e3);
    println!("  of one processor, here                     {percent:>10.3} %");
    print_threads(&threads_before, &threads_after);
    let is_within = factor.is_none_or(|factor| {
        let percent = percent / factor;
        let is_within = percent <= BAR_PERCENT;
        let verdict = if is_within { "ok" } else { "TOO MUCH" };
        println!(
            "  divided by the smaller factor              {percent:>10.3} % (bar {BAR_PERCENT} %: {verdict})"
        );
        is_within
    });
    drop(processes);
    daemon.stop()?;
    println!();
    let are_within = sources::measure(&args.sources, args.seconds, native)?;
    Ok(is_within && are_within && since.cgroup_writes == 0 && since.score_writes == 0)
}

/// Whether the daemon is within its bar while others do something without end, for so long each.
fn floods(args: &Args, seconds: u32, rate: u64) -> anyhow::Result<bool> {
    let factor = args.native_rate.map(|native| float(native) / float(rate.max(1)));
    if let Some(factor) = factor {
        println!("a loop that computes is slower than outside by a factor of {factor:.2}");
    }
    let Scene { own, daemon, planned, processes } = Scene::converged(args.pods)?;
    let is_within = floods::measure((&own, &daemon), &planned, Duration::from_secs(seconds.into()), factor)?;
    floods::storm(&planned)?;
    drop(processes);
    daemon.stop()?;
    Ok(is_within)
}

/// A daemon and its pods, each with a process in its container.
struct Scene {
    own: Cgroup,
    daemon: Daemon,
    planned: Planned,
    processes: Vec<Process>,
}

impl Scene {
    /// Waits until everything is as planned, and the daemon at rest.
    fn converged(pods: u32) -> anyhow::Result<Self> {
        let own = Cgroup::create(OWN)?;
        let daemon = start(&own, Path::new("/tmp/bench-idle"), "mode: enforce\nmaxPods: 1000")?;
        let manifests: Vec<String> = (0..pods).map(manifest).collect();
        daemon.manifest("pods.yaml", &manifests.join("---\n"))?;
        let planned = wait_for_plan(&daemon, pods)?;
        planned.wait_until_held()?;
        let processes = populate(&planned)?;
        planned.wait_until_held()?;
        eprintln!("{pods} pods with a process each are as planned");
        settle(&own)?;
        Ok(Self { own, daemon, planned, processes })
    }
}

/// How many times the processor time here is that outside, by the loop of which it is less. Prints what each loop took.
fn factor(args: &Args, rate: u64, wake_ns: u64) -> Option<f64> {
    let (Some(native_rate), Some(native_wake_ns)) = (args.native_rate, args.native_wake_ns) else {
        println!("the emulation's part is not known: run by way of `cargo xtask bench idle`");
        return None;
    };
    let factor = float(native_rate) / float(rate.max(1));
    let wake_factor = float(wake_ns) / float(native_wake_ns.max(1));
    println!(
        "a loop that computes, units a second: outside {native_rate}, here {rate}: a factor of {factor:.2}"
    );
    println!(
        "a wake that reads /proc/meminfo, us of a processor: outside {:.1}, here {:.1}: a factor of {wake_factor:.2}",
        float(native_wake_ns) / 1e3,
        float(wake_ns) / 1e3
    );
    println!(
        "a list of a kubelet's pods, ms of a processor: outside {:.1}",
        float(args.native_list_ns.unwrap_or(0)) / 1e6
    );
    Some(factor.min(wake_factor))
}

/// Starts a daemon in a cgroup of its own, with its files in a new folder.
pub(crate) fn start(own: &Cgroup, place: &Path, settings: &str) -> anyhow::Result<Daemon> {
    if place.join("state").exists() {
        fs::remove_dir_all(place)?;
    }
    let script = format!(r#"echo 0 > {}/cgroup.procs && exec "$0" "$@""#, own.path().display());
    let mut daemon = Daemon::launch(place, settings, &["sh", "-c", &script])?;
    daemon.wait_until_ready()?;
    Ok(daemon)
}

/// Of every class one after the other.
fn manifest(number: u32) -> String {
    let resources = match number % 3 {
        0 => "{limits: {cpu: 1m, memory: 2Mi}}",
        1 => "{requests: {cpu: 1m, memory: 1Mi}, limits: {memory: 8Mi}}",
        _ => "{}",
    };
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p{number}, uid: p{number}}}\nspec:\n  containers:\n  - name: app\n    \
         resources: {resources}\n"
    )
}

fn wait_for_plan(daemon: &Daemon, pods: u32) -> anyhow::Result<Planned> {
    let planned = Planned::of(daemon)?;
    let pods = usize::try_from(pods)?;
    ensure!(planned.scores.len() == pods, "{} of {pods} pods are admitted", planned.scores.len());
    Ok(planned)
}

/// Puts a process into every container.
fn populate(planned: &Planned) -> anyhow::Result<Vec<Process>> {
    let start = |path: &String| {
        let script = format!("echo 0 > {}/cgroup.procs && exec sleep 100000", folder(path).display());
        let mut command = Command::new("/bin/sh");
        let command = command.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null());
        Ok(Process::new(command.spawn().context("cannot start sh")?))
    };
    planned.scores.keys().map(start).collect()
}

/// Waits until the daemon's processor time of ten seconds is no less than that of the ten before.
pub(crate) fn settle(own: &Cgroup) -> anyhow::Result<()> {
    let pause = Duration::from_secs(10);
    let start = Instant::now();
    let used = || own.number("cpu.stat", "usage_usec");
    let mut before_us = u64::MAX;
    loop {
        let begin_us = used()?;
        thread::sleep(pause);
        let used_us = used()? - begin_us;
        if used_us + used_us / 10 >= before_us {
            return Ok(());
        }
        before_us = used_us;
        ensure!(start.elapsed() < TIMEOUT, "the daemon does not come to rest: {used_us} us in {pause:?}");
    }
}

/// Makes sure that a write would have been counted.
fn check(writes: &Writes, own: &Cgroup) -> anyhow::Result<()> {
    let before = writes.count()?;
    own.write("cpu.weight", "100")?;
    fs::write("/proc/self/oom_score_adj", "0").context("cannot write this process's score")?;
    let after = writes.count()?;
    let seen = after.cgroup_files > before.cgroup_files && after.scores > before.scores;
    ensure!(seen, "the kernel's probes count nothing: {before:?}, then {after:?}");
    Ok(())
}

/// What has been counted up to a moment.
#[derive(Clone, Copy, Debug)]
struct Figures {
    cpu_us: u64,
    cgroup_writes: u64,
    score_writes: u64,
    read_calls: u64,
    write_calls: u64,
}

impl Figures {
    fn of(own: &Cgroup, daemon: &Daemon, writes: &Writes) -> anyhow::Result<Self> {
        let io = format!("/proc/{}/io", daemon.pid());
        let counted = writes.count()?;
        Ok(Self {
            cpu_us: own.number("cpu.stat", "usage_usec")?,
            cgroup_writes: counted.cgroup_files,
            score_writes: counted.scores,
            read_calls: kernel::field(&io, "syscr:")?,
            write_calls: kernel::field(&io, "syscw:")?,
        })
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            cpu_us: self.cpu_us - before.cpu_us,
            cgroup_writes: self.cgroup_writes - before.cgroup_writes,
            score_writes: self.score_writes - before.score_writes,
            read_calls: self.read_calls - before.read_calls,
            write_calls: self.write_calls - before.write_calls,
        }
    }
}

/// What threads have used of processors since they began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    pub(crate) cpu_ns: u64,
    /// How often they were given one.
    turns: u64,
}

/// The threads that a process has now, by name, those of one name together.
pub(crate) fn threads(pid: u32) -> anyhow::Result<BTreeMap<String, Used>> {
    let mut threads: BTreeMap<String, Used> = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let path = entry?.path();
        // Some end between the list and the look.
        let read = |file: &str| fs::read_to_string(path.join(file)).unwrap_or_default();
        let schedstat = read("schedstat");
        let numbers: Vec<u64> = schedstat.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        if let [cpu_ns, _waited_ns, turns] = numbers[..] {
            let used = threads.entry(read("comm").trim_end().to_owned()).or_default();
            used.cpu_ns += cpu_ns;
            used.turns += turns;
        }
    }
    Ok(threads)
}

/// Prints what each thread has used from `before` to `after`.
pub(crate) fn print_threads(before: &BTreeMap<String, Used>, after: &BTreeMap<String, Used>) {
    for (name, after) in after {
        let before = before.get(name).copied().unwrap_or_default();
        let (cpu_ns, turns) =
            (after.cpu_ns.saturating_sub(before.cpu_ns), after.turns.saturating_sub(before.turns));
        println!("    {name:<40} {:>10.1} ms in {turns} turns", float(cpu_ns) / 1e6);
    }
}

/// How many events the journal holds.
#[derive(Clone, Copy, Debug, Default)]
struct Emitted {
    events: u64,
    /// Those about written limits.
    applied: u64,
}

fn reported(daemon: &Daemon) -> anyhow::Result<Emitted> {
    let output = daemon.verb(&["-o", "jsonl", "events"]).output()?;
    ensure!(output.status.success(), "enforcer events: {}", String::from_utf8_lossy(&output.stderr));
    let mut reported = Emitted::default();
    for line in output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let event: Value = serde_json::from_slice(line).context("an event is no JSON")?;
        reported.events += 1;
        reported.applied += u64::from(event["type"] == "dev.enforcer.limits.applied");
    }
    Ok(reported)
}
