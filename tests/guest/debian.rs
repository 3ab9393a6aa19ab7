//! The package in a real Debian system, with its own apt, dpkg and systemd: `cargo xtask vm test debian::` runs this
//! module in a guest of each release.
//!
//! The later package has the same program under a higher version.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use enforcer_tests::{
    kernel,
    pods::{Container, pod},
    process::{self, Process},
    stream::{Stream, is},
    wait::{TIMEOUT, wait_until},
};
use rustix::process::{Pid, Signal};
use serde_json::Value;

const PACKAGE: &str = "/packages/enforcer.deb";
const LATER: &str = "/packages/enforcer-later.deb";
const UNIT: &str = "enforcer.service";
const PROGRAM: &str = "/usr/bin/enforcer";
const CONFIGURATION: &str = "/etc/enforcer/config.yaml";
const PODS: &str = "/etc/enforcer/pods";

/// What an administrator makes of `mode: dry-run`. The grace outlasts an upgrade on an emulated machine.
const ENFORCE: &str = "mode: enforce\nownership: enforcer\ncgroupDriver: systemd\ncgroupRoot: /trial\n\
                       staticPodPath: /etc/enforcer/pods\nevictionHard: {memory.available: 200Mi}\n\
                       evictionSoft: {memory.available: 600Mi}\nevictionSoftGracePeriod: {memory.available: 1s}\n\
                       evictionMaxPodGracePeriod: 180\nevictionPressureTransitionPeriod: 1ms";

/// Longer than that grace.
const EVICTION: Duration = Duration::from_mins(8);

/// Where the pods' cgroups are.
const SLICE: &str = "/sys/fs/cgroup/trial.slice";

/// Above this a change has exposed the unit further.
const MOST_EXPOSED: f64 = 4.0;

/// How many times as long as its first start the daemon may take from SIGKILL until the next one is ready.
const MOST_AGAIN: f64 = 1.2;

/// Why what is left stays open.
const EXPOSURES: &str = include_str!("../../docs/unit.md");

const MIB: u64 = 1 << 20;

fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C");
    command
}

fn run(program: &str, arguments: &[&str]) -> Output {
    let mut command = command(program, arguments);
    command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// What a program prints that must succeed, in one piece.
fn said(program: &str, arguments: &[&str]) -> String {
    process::said(&mut command(program, arguments)).unwrap().trim_end().to_owned()
}

fn apt(arguments: &[&str]) {
    let arguments = [&["-q", "-y"], arguments].concat();
    said("apt-get", &arguments);
}

fn shown(property: &str) -> String {
    said("systemctl", &["show", "--value", "--property", property, UNIT])
}

/// One of the unit's times, since boot.
fn timestamp(property: &str) -> Duration {
    Duration::from_micros(shown(property).parse().unwrap())
}

/// From that time of the unit to when it was active.
fn ready_after(property: &str) -> Duration {
    timestamp("ActiveEnterTimestampMonotonic").saturating_sub(timestamp(property))
}

/// Now, as systemd counts.
fn monotonic() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec.try_into().unwrap(), now.tv_nsec.try_into().unwrap())
}

fn is_active() -> bool {
    run("systemctl", &["is-active", "--quiet", UNIT]).status.success()
}

fn version() -> String {
    said("dpkg-query", &["--show", "--showformat", "${Version} ${db:Status-Status}", "enforcer"])
}

/// Installs the later package over the first.
fn upgrade() {
    let (first, later) = (version(), said("dpkg-deb", &["--field", LATER, "Version"]));
    println!("upgraded from {first} to {later}");
    assert!(first.ends_with(" installed") && !first.starts_with(&later), "{first}");
    // An unattended one is not asked about a configuration that both sides have changed.
    apt(&["-o", "Dpkg::Options::=--force-confold", "install", LATER]);
    assert_eq!(version(), format!("{later} installed"));
}

/// All events, of which none may be missing.
fn events() -> Vec<Value> {
    let text = said(PROGRAM, &["-o", "jsonl", "events"]);
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sequences = events.iter().map(|event| event["sequence"].as_str().unwrap().parse::<usize>().unwrap());
    let first = sequences.clone().next().unwrap();
    assert!(sequences.eq(first..first + events.len()), "an event is missing:\n{text}");
    events
}

/// Whom it has decided to evict, and for what.
fn decided() -> String {
    let all = events();
    let decisions = all.iter().filter(|event| is(event, "eviction.decided"));
    let decisions = decisions.map(|event| format!("{} {}", event["subject"], event["data"]));
    decisions.collect::<Vec<_>>().join("\n")
}

fn follow() -> Stream {
    let mut command = Command::new(PROGRAM);
    command.args(["-o", "jsonl", "events", "-f"]);
    Stream::follow(command).unwrap()
}

/// Writes a pod's manifest, and waits until the daemon has it.
fn add(name: &str, priority: i32, requests: &str, limits: &str) {
    let manifest = pod(name, priority, &[Container { name: "app", requests, limits }]);
    let manifest = manifest.replacen("spec:\n", "spec:\n  terminationGracePeriodSeconds: 600\n", 1);
    fs::write(Path::new(PODS).join(format!("{name}.yaml")), manifest).unwrap();
    let is_there = |event: &Value| is(event, "pod.added") && event["subject"] == format!("default/{name}");
    wait_until(&format!("the pod {name}"), || events().iter().any(is_there));
}

/// Runs a command in the container of a pod.
fn exec(name: &str, command: &[&str]) -> Process {
    let target = format!("default/{name}");
    let mut exec = Command::new(PROGRAM);
    exec.args(["exec", &target, "--"]).args(command).stdin(Stdio::null()).stdout(Stdio::null());
    Process::new(exec.stderr(Stdio::null()).spawn().unwrap())
}

/// The cgroup that a process is in.
fn cgroup_of(pid: u32) -> PathBuf {
    let own = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let path = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    Path::new("/sys/fs/cgroup").join(path)
}

fn score_of(pid: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).ok()
}

/// The score of every process.
fn scores() -> BTreeMap<String, String> {
    let names = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter_map(|pid| score_of(&pid).map(|score| (pid, score))).collect()
}

/// The limits and protections of the slices that stand right below the root.
fn limits() -> BTreeMap<String, String> {
    let slices = ["init.scope", "system.slice"].map(|name| Path::new("/sys/fs/cgroup").join(name));
    let files =
        slices.iter().flat_map(|slice| fs::read_dir(slice).unwrap().flatten()).map(|entry| entry.path());
    let is_limit = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let (_, last) = name.rsplit_once('.').unwrap_or_default();
        ["max", "min", "low", "high", "weight", "group"].contains(&last)
    };
    let read = |path: PathBuf| Some((path.to_str()?.to_owned(), fs::read_to_string(&path).ok()?));
    files.filter(is_limit).filter_map(read).collect()
}

/// Every path of the system with the name of the package or of its cgroups.
fn traces() -> String {
    let [package, slice] = ["*enforcer*", "*trial*"];
    let output = run(
        "find",
        &[
            "/",
            "-path",
            "/proc",
            "-prune",
            "-o",
            "-path",
            "/packages",
            "-prune",
            "-o",
            "(",
            "-name",
            package,
            "-o",
            "-name",
            slice,
            ")",
            "-print",
        ],
    );
    String::from_utf8(output.stdout).unwrap()
}

/// How exposed systemd finds the unit, from 0 to 10. Each exposure has its reason in the documentation.
fn exposure() -> f64 {
    let text = said("systemd-analyze", &["--no-pager", "security", UNIT]);
    for line in text.lines().filter_map(|line| line.strip_prefix("\u{2717} ")) {
        let name = line.split(' ').next().unwrap().replace('|', "\\|");
        assert!(EXPOSURES.contains(&format!("`{name}`")), "docs/unit.md does not have {line}");
    }
    let last = text.lines().last().unwrap();
    let number = last.split(' ').find_map(|word| word.parse().ok());
    number.unwrap_or_else(|| panic!("{last}"))
}

/// Kills the daemon, waits until the next one is ready, and prints how long each part of that took. Returns the whole.
fn kill_daemon() -> Duration {
    let killed = shown("MainPID");
    let begin = monotonic();
    let daemon: i32 = killed.parse().unwrap();
    rustix::process::kill_process(Pid::from_raw(daemon).unwrap(), Signal::KILL).unwrap();
    wait_until("its end", || !Path::new("/proc").join(&killed).exists());
    let ended = monotonic();
    // The times are systemd's own, and to ask for them all the time would take the processor from the daemon.
    wait_until("the next daemon", || {
        thread::sleep(Duration::from_secs(1));
        is_active() && ![&killed, "0"].contains(&shown("MainPID").as_str())
    });
    let whole = timestamp("ActiveEnterTimestampMonotonic").saturating_sub(begin);
    println!(
        "ready {whole:?} after SIGKILL: ended after {:?}, started after {:?}, ready {:?} after that",
        ended.saturating_sub(begin),
        timestamp("ExecMainStartTimestampMonotonic").saturating_sub(begin),
        ready_after("ExecMainStartTimestampMonotonic")
    );
    whole
}

/// Keeps so much of the node's memory that this is left.
fn fill_to(left_bytes: u64) -> Process {
    let bytes = kernel::meminfo_bytes("MemAvailable").unwrap() - left_bytes;
    add("filler", 100, &format!("memory: {}", bytes + 64 * MIB), "");
    exec("filler", &["workload", "hold", "--huge", "--size", &bytes.to_string()])
}

#[guest_test(debian)]
fn the_package_is_installed_upgraded_in_an_eviction_and_purged_without_a_trace() {
    let (scores_before, limits_before, traces_before) = (scores(), limits(), traces());
    assert_eq!(traces_before, "");
    let systemd = said("systemctl", &["--version"]);
    println!(
        "Debian {}, {}",
        fs::read_to_string("/etc/debian_version").unwrap().trim(),
        systemd.lines().next().unwrap()
    );

    // As README has it: install, enforce, restart.
    let begin = Instant::now();
    apt(&["install", PACKAGE]);
    println!("installed {:?} after the first command", begin.elapsed());
    let first_start = ready_after("ExecMainStartTimestampMonotonic");
    println!("ready {first_start:?} after the first start");
    // Type=notify: it is ready.
    assert!(is_active());
    let configuration = fs::read_to_string(CONFIGURATION).unwrap().replace("mode: dry-run", ENFORCE);
    fs::write(CONFIGURATION, &configuration).unwrap();
    said("systemctl", &["restart", UNIT]);
    println!("protected {:?} after the first command", begin.elapsed());
    println!(
        "ready {:?} after a start with programs that are there",
        ready_after("ExecMainStartTimestampMonotonic")
    );
    assert_eq!(said("systemctl", &["is-enabled", UNIT]), "enabled");

    // A pod with a limit and a score, which outlives all that follows.
    add("calm", 10, "memory: 64Mi", "memory: 96Mi");
    let mut calm = exec("calm", &["workload", "hold", "--size", "16Mi"]);
    wait_until("the pod's limit", || {
        let limit = fs::read_to_string(cgroup_of(calm.id()).join("memory.max"));
        cgroup_of(calm.id()).starts_with(SLICE) && limit.is_ok_and(|limit| limit == "100663296\n")
    });
    let pid = calm.id().to_string();
    let own = score_of(&std::process::id().to_string());
    wait_until("the pod's score", || score_of(&pid) != own);

    add("hog", 0, "", "");
    let mut stream = follow();
    let mut hog =
        exec("hog", &["workload", "ramp", "--huge", "--no-catch-up", "--rate", "100Mi", "--to", "1800Mi"]);
    stream.wait_for_pod("eviction.completed", "default/hog", TIMEOUT).unwrap();
    hog.wait_for_end(TIMEOUT).unwrap();
    assert!(calm.lives().unwrap());
    drop(stream);

    let before = events();
    let again = kill_daemon();
    assert!(again <= first_start.mul_f64(MOST_AGAIN), "{again:?} after SIGKILL, {first_start:?} at first");
    let after = events();
    assert!(after.starts_with(&before), "what was before the kill is not what is after it");

    add("stubborn", 0, "", "");
    let mut stubborn =
        exec("stubborn", &["sh", "-c", "trap '' TERM; dd if=/dev/zero bs=300M count=1 | sleep 100000"]);
    let holds = |bytes: u64| {
        let held = fs::read_to_string(cgroup_of(stubborn.id()).join("memory.current"));
        cgroup_of(stubborn.id()).starts_with(SLICE)
            && held.is_ok_and(|held| held.trim().parse().is_ok_and(|held: u64| held >= bytes))
    };
    // The root is memory: what an upgrade and its old program take of that is less.
    wait_until("what it holds", || holds(300 * MIB));
    // Below the soft threshold alone: at the hard one there is no grace.
    let mut filler = fill_to(450 * MIB);
    let mut stream = follow();
    let asked = stream.wait_for_pod("eviction.signalled", "default/stubborn", TIMEOUT).unwrap();
    assert_eq!(asked["data"]["sent"], "SIGTERM", "{asked}");
    upgrade();
    assert!(is_active());
    assert_eq!(fs::read_to_string(CONFIGURATION).unwrap(), configuration);
    let mut stream = follow();
    let interrupted = stream.wait_for_pod("eviction.failed", "default/stubborn", TIMEOUT).unwrap();
    assert_eq!(interrupted["data"]["reason"], "interrupted", "{interrupted}");
    stream.wait_for_pod("eviction.completed", "default/stubborn", EVICTION).unwrap();
    stubborn.wait_for_end(TIMEOUT).unwrap();
    assert!(calm.lives().unwrap() && filler.lives().unwrap(), "{}", decided());
    assert!(events().starts_with(&after));
    drop((stream, filler));
    let exposure = exposure();
    println!("exposure of the unit: {exposure}");
    assert!(exposure <= MOST_EXPOSED, "{exposure}");

    let decisions = decided();
    apt(&["remove", "enforcer"]);
    assert!(calm.lives().unwrap(), "{decisions}");
    assert_eq!(score_of(&pid), own, "its score was not given back");
    assert_eq!(fs::read_to_string(cgroup_of(calm.id()).join("memory.max")).unwrap(), "max\n");
    assert!(Path::new(CONFIGURATION).exists() && Path::new("/var/lib/enforcer").exists());
    assert!(!Path::new("/sys/fs/bpf/enforcer").exists(), "programs are pinned");
    // A removal ends no process, and leaves the cgroups of those that run.
    drop(calm);
    said("systemctl", &["stop", "trial.slice"]);
    for manifest in fs::read_dir(PODS).unwrap() {
        fs::remove_file(manifest.unwrap().path()).unwrap();
    }
    apt(&["purge", "enforcer"]);
    // systemd removes a unit that nobody uses a moment later.
    wait_until("the end of the last trace", || traces().is_empty());
    let after = scores();
    for (pid, score) in scores_before {
        assert!(
            after.get(&pid).is_none_or(|after| *after == score),
            "the score of process {pid} has changed"
        );
    }
    // A controller that was enabled for pods stays enabled, and its files with it.
    let after = limits();
    for (file, limit) in limits_before {
        assert_eq!(after.get(&file), Some(&limit), "{file}");
    }
}
