//! From a foreign write to the planned value again, for every kind of file that a plan names, and for scores.
//!
//! Each round writes to another cgroup while there are others.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use enforcer_tests::{
    daemon::Daemon,
    figures::rank,
    host::{HugePages, Swap},
    plan::{Planned, as_read, folder, pids_below},
    process::Process,
    random::Random,
};

/// The longest that the 99th percentile may be.
const BAR_MS: f64 = 100.0;
/// The longest that a round may take; a daemon that only sweeps takes up to half a minute for a score.
const TIMEOUT: Duration = Duration::from_mins(2);
/// Between two looks; a bench that looks all the time takes the processor from who is to repair.
const LOOK: Duration = Duration::from_micros(500);
const LONGEST_PAUSE_MS: u64 = 100;
const SCORE: &str = "oom_score_adj";

/// Times the way from a foreign write to the planned value.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How often each kind of file is written to
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
}

/// Whether everything is within the bar.
pub(crate) fn bench(args: &Args) -> anyhow::Result<bool> {
    let _swap = Swap::on(256 << 20)?;
    let _pages = HugePages::reserve(4)?;
    let place = Path::new("/tmp/bench-drift");
    if place.exists() {
        fs::remove_dir_all(place)?;
    }
    let settings = "mode: enforce\nmemoryThrottlingFactor: 0.9\nmemoryReservationPolicy: TieredReservation\n\
                    podPidsLimit: 100\nmemorySwap: {swapBehavior: LimitedSwap}";
    let daemon = Daemon::start(place, settings)?;
    let manifests: Vec<String> = (0..args.rounds).flat_map(manifests).collect();
    daemon.manifest("pods.yaml", &manifests.join("---\n"))?;
    let planned = Planned::of(&daemon)?;
    ensure!(planned.rejected.is_empty(), "not admitted: {:?}", planned.rejected);
    planned.wait_until_held()?;
    let processes = populate(&daemon, args.rounds)?;
    planned.wait_until_held()?;

    let mut times: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (kind, places) in kinds(&planned) {
        let times = times.entry(kind.clone()).or_default();
        // The fourth foreign write to one file within a minute is undone later.
        let mut random = Random::of_this_run();
        for place in places.iter().chain(&places).take(usize::try_from(args.rounds)?) {
            // Not in step with a daemon that looks at fixed times.
            thread::sleep(Duration::from_millis(random.below(LONGEST_PAUSE_MS)));
            let took = drift(place).with_context(|| kind.clone())?;
            times.push(took.as_secs_f64() * 1e3);
        }
        eprintln!("{kind}: {times:.1?}");
    }
    planned.wait_until_held()?;
    drop(processes);
    daemon.stop()?;
    Ok(print(times))
}

/// Two pods, which together have every kind of file.
fn manifests(number: u32) -> [String; 2] {
    let pod = |name: &str, resources: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}{number}, uid: {name}{number}}}\nspec:\n  containers:\n  \
             - name: app\n    resources: {resources}\n"
        )
    };
    [
        pod("b", "{requests: {cpu: 5m, memory: 8Mi}, limits: {cpu: 50m, memory: 24Mi}}"),
        pod("g", "{limits: {cpu: 10m, memory: 16Mi}}"),
    ]
}

fn populate(daemon: &Daemon, pods: u32) -> anyhow::Result<Vec<Process>> {
    let start = |number| {
        let child = daemon.exec(&format!("default/b{number}"), &["sleep", "100000"])?;
        Ok(Process::new(child))
    };
    let processes: Vec<Process> = (0..pods).map(start).collect::<anyhow::Result<_>>()?;
    let in_their_cgroups = |number: u32| {
        let app = folder(&format!("/kubepods/burstable/podb{number}/app"));
        !pids_below(&app).is_empty()
    };
    let begin = Instant::now();
    while !(0..pods).all(in_their_cgroups) {
        ensure!(begin.elapsed() < TIMEOUT, "a process did not join its container");
        thread::sleep(Duration::from_millis(50));
    }
    Ok(processes)
}

/// A file, and what it is to hold.
#[derive(Clone, Debug)]
struct Place {
    path: PathBuf,
    planned: String,
    foreign: String,
}

/// Where each kind of file is, pods and containers before what is above them; `/` parts the level from the file.
fn kinds(planned: &Planned) -> BTreeMap<String, Vec<Place>> {
    let mut kinds: BTreeMap<String, Vec<Place>> = BTreeMap::new();
    for (cgroup, files) in &planned.cgroups {
        let level = match cgroup.matches('/').count() {
            _ if planned.scores.contains_key(cgroup) => "container",
            _ if cgroup.contains("/pod") => "pod",
            1 => "node",
            _ => "class",
        };
        for (file, value) in files {
            let Ok(held) = as_read(file, value) else { continue };
            let place =
                Place { path: folder(cgroup).join(file), foreign: foreign(file, &held), planned: held };
            kinds.entry(format!("{level}/{file}")).or_default().push(place);
        }
    }
    for (cgroup, score) in &planned.scores {
        for pid in pids_below(&folder(cgroup)) {
            let path = PathBuf::from(format!("/proc/{pid}/{SCORE}"));
            let place = Place { path, planned: score.to_string(), foreign: String::from("1") };
            kinds.entry(format!("process/{SCORE}")).or_default().push(place);
        }
    }
    kinds
}

/// Another value than the planned one, which harms no pod.
fn foreign(file: &str, planned: &str) -> String {
    let other = match (file, planned) {
        ("cpu.weight", "77") => "78",
        ("cpu.weight", _) => "77",
        ("cpu.max", "max 100000") => "max 50000",
        ("cpu.max", _) => "max 100000",
        ("memory.low" | "memory.min", "0") => "4096",
        ("memory.low" | "memory.min" | "memory.oom.group", _) => "0",
        // A limit is lifted; where there is none, one is set that no pod reaches.
        (_, "max") => "1099511627776",
        (_, _) => "max",
    };
    other.to_owned()
}

/// Writes what another might, and waits until the file holds what is planned.
fn drift(place: &Place) -> anyhow::Result<Duration> {
    let Place { path, planned, foreign } = place;
    let read = || -> anyhow::Result<String> {
        let held = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(held.trim_end().to_owned())
    };
    let held = read()?;
    ensure!(held == *planned, "{} holds {held:?} before, planned is {planned:?}", path.display());
    fs::write(path, foreign).with_context(|| format!("cannot write {foreign:?} to {}", path.display()))?;
    let begin = Instant::now();
    while read()? != *planned {
        if begin.elapsed() > TIMEOUT {
            bail!("{} holds {:?} after {TIMEOUT:?}, planned is {planned:?}", path.display(), read()?);
        }
        thread::sleep(LOOK);
    }
    Ok(begin.elapsed())
}

fn print(times: BTreeMap<String, Vec<f64>>) -> bool {
    println!("foreign write -> planned value again");
    println!("{:<30} {:>6} {:>10} {:>10} {:>10}", "", "rounds", "median ms", "p99 ms", "max ms");
    let mut all_hold = true;
    for (kind, mut times) in times {
        times.sort_by(f64::total_cmp);
        let p99 = rank(&times, 99);
        let holds = p99 <= BAR_MS;
        all_hold &= holds;
        println!(
            "{kind:<30} {:>6} {:>10.1} {p99:>10.1} {:>10.1} {}",
            times.len(),
            rank(&times, 50),
            rank(&times, 100),
            if holds { "ok" } else { "TOO SLOW" }
        );
    }
    println!("bar: p99 <= {BAR_MS} ms");
    all_hold
}
