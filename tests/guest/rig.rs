//! The guest itself: what every scenario relies on.
use std::{
    collections::BTreeSet,
    fs,
    os::unix::process::ExitStatusExt as _,
    path::Path,
    time::{Duration, Instant},
};

use enforcer_tests::{
    cgroup::{Cgroup, ROOT},
    load::Load,
    wait::wait_until,
};
use rustix::process::{Pid, Signal, kill_process};

fn is_mounted(mounts: &str, kind: &str, target: &str) -> bool {
    mounts.lines().any(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        words.get(1) == Some(&target) && words.get(2) == Some(&kind)
    })
}

#[guest_test(kernel)]
fn file_systems_are_mounted() {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    for (kind, target) in [
        ("cgroup2", ROOT),
        ("tracefs", "/sys/kernel/tracing"),
        ("bpf", "/sys/fs/bpf"),
        ("securityfs", "/sys/kernel/security"),
        ("tmpfs", "/run"),
    ] {
        assert!(is_mounted(&mounts, kind, target), "no {kind} on {target}");
    }
}

#[guest_test(kernel)]
fn cgroup2_has_every_controller() {
    let text = fs::read_to_string(Path::new(ROOT).join("cgroup.controllers")).unwrap();
    let present: BTreeSet<&str> = text.split_whitespace().collect();
    for controller in ["cpuset", "cpu", "io", "memory", "hugetlb", "pids"] {
        assert!(present.contains(controller), "no {controller} in {text}");
    }
}

#[guest_test(kernel)]
fn kernel_reports_pressure_and_types() {
    let pressure = fs::read_to_string("/proc/pressure/memory").unwrap();
    assert!(pressure.starts_with("some avg10="), "{pressure}");
    let types = fs::read("/sys/kernel/btf/vmlinux").unwrap();
    // BTF's magic number, little-endian.
    assert_eq!(types.get(..2), Some(&[0x9f, 0xeb][..]));
    for event in ["oom/mark_victim", "vmscan/mm_vmscan_memcg_reclaim_begin"] {
        let id = Path::new("/sys/kernel/tracing/events").join(event).join("id");
        assert!(id.exists(), "no {}", id.display());
    }
}

#[guest_test(kernel)]
fn oom_kill_is_counted_in_its_cgroup() {
    let cgroup = Cgroup::create("rig-oom").unwrap();
    cgroup.write("memory.max", &(64 << 20).to_string()).unwrap();
    let before = cgroup.number("memory.events", "oom_kill").unwrap();
    let mut load = Load::start(&cgroup, &["spike", "--size", "256Mi"]).unwrap();
    let status = load.wait().unwrap();
    assert_eq!(status.signal(), Some(9), "{status}");
    assert_eq!(cgroup.number("memory.events", "oom_kill").unwrap(), before + 1);
}

#[guest_test(daemon)]
fn workload_holds_what_it_says() {
    let cgroup = Cgroup::create("rig-hold").unwrap();
    let mut load = Load::start(&cgroup, &["hold", "--size", "64Mi"]).unwrap();
    let ready = load.wait_for("ready").unwrap();
    assert_eq!(ready["heldBytes"], 64 << 20);
    let anon_bytes = cgroup.number("memory.stat", "anon").unwrap();
    assert!((64 << 20..72 << 20).contains(&anon_bytes), "{anon_bytes}");
    load.wait_for("running").unwrap();
    let done = load.end().unwrap();
    assert!(done["ticks"].as_u64().unwrap() > 0, "{done}");
}

#[guest_test(daemon)]
fn workload_ramps_by_the_clock() {
    let cgroup = Cgroup::create("rig-ramp").unwrap();
    let begin = Instant::now();
    let mut load = Load::start(&cgroup, &["ramp", "--rate", "50Mi", "--to", "100Mi"]).unwrap();
    let ready = load.wait_for("ready").unwrap();
    let took = begin.elapsed();
    assert_eq!(ready["heldBytes"], 100 << 20);
    // Never faster than its rate; later on a slow machine.
    assert!(took >= Duration::from_secs(2), "{took:?}");
}

#[guest_test(daemon)]
fn a_bomb_goes_on_without_its_first_process() {
    let cgroup = Cgroup::create("rig-bomb").unwrap();
    let bomb = ["bomb", "--size", "64Ki", "--chains", "2", "--most", "19"];
    let mut load = Load::start(&cgroup, &bomb).unwrap();
    assert_eq!(load.wait_for("ready").unwrap()["chains"], 2);
    let first = Pid::from_raw(i32::try_from(load.pid()).unwrap()).unwrap();
    kill_process(first, Signal::KILL).unwrap();
    load.wait().unwrap();
    // Each chain comes to its end all the same.
    wait_until("the end of the chains", || cgroup.read("pids.current").unwrap() == "40");
}

#[guest_test(daemon)]
fn workload_starts_processes_until_the_limit() {
    let cgroup = Cgroup::create("rig-fork").unwrap();
    let mut load = Load::start(&cgroup, &["fork", "--count", "10"]).unwrap();
    assert_eq!(load.wait_for("ready").unwrap()["alive"], 10);
    assert_eq!(cgroup.read("pids.current").unwrap(), "11");
    load.end().unwrap();

    cgroup.write("pids.max", "5").unwrap();
    let mut load = Load::start(&cgroup, &["fork", "--count", "10"]).unwrap();
    let ready = load.wait_for("ready").unwrap();
    assert_eq!(ready["started"], 4, "{ready}");
    assert!(ready["refused"].is_string(), "{ready}");
}
