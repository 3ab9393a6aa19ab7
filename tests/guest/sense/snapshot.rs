//! Snapshots on real kernels: they tell what the files say, and the kubelet's reckoning is the kubelet's.
use std::{fs, path::Path, process::Command};

use enforcer::{
    cgroup::CgroupDir,
    model::CgroupPath,
    sense::{
        Available, MemoryAvailableSource, PROC_MEMINFO,
        snapshot::{EventCounts, Guarded, Missing, NodeFiles, NodePaths, Snapshots, ZoneKind},
    },
};
use enforcer_tests::{cgroup::Cgroup, daemon::Daemon, kernel, load::Load, wait::wait_until};
use serde_json::Value;

const SECOND: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;

fn guarded(name: &str, request_bytes: u64) -> Guarded {
    let root = CgroupDir::mount(Path::new("/sys/fs/cgroup")).unwrap();
    let dir = root.open(&CgroupPath::parse(name).unwrap()).unwrap();
    Guarded::open(&dir, request_bytes).unwrap()
}

fn snapshots() -> Snapshots {
    Snapshots::new(NodeFiles::open(&NodePaths::default()).unwrap())
}

#[guest_test(kernel)]
fn reports_what_the_files_say() {
    let pod = Cgroup::create("snapshot").unwrap();
    // It sleeps, and what it holds stays as it is.
    let mut load = Load::start(&pod, &["hold", "--size", "16Mi", "--touch-every", "60s"]).unwrap();
    load.wait_for("ready").unwrap();
    let mut snapshots = snapshots();
    snapshots.guard(vec![guarded("snapshot", 0), guarded("snapshot", 1 << 40)]);
    let stalled_us = || -> u64 {
        let pressure = pod.read("memory.pressure").unwrap();
        pressure.lines().next().unwrap().rsplit_once('=').unwrap().1.parse().unwrap()
    };
    let stalled_before_us = stalled_us();
    let snapshot = snapshots.take(SECOND).clone();
    let stalled_after_us = stalled_us();
    let [above, within] = snapshot.cgroups[..] else { panic!() };

    let current: u64 = pod.read("memory.current").unwrap().parse().unwrap();
    let near = |reported: u64, file: u64| assert!(reported.abs_diff(file) < MIB, "{reported} {file}");
    near(above.current_bytes.unwrap(), current);
    let split = above.split.unwrap();
    for (reported, key) in [
        (split.anon_bytes, "anon"),
        (split.file_bytes, "file"),
        (split.inactive_file_bytes, "inactive_file"),
        (split.shmem_bytes, "shmem"),
    ] {
        near(reported, pod.number("memory.stat", key).unwrap());
    }
    assert!(split.anon_bytes > 15 * MIB, "{split:?}");
    assert_eq!(within.split, Err(Missing::Unread));
    let number = |key| pod.number("memory.events", key).unwrap();
    let counts = EventCounts {
        low: number("low"),
        high: number("high"),
        max: number("max"),
        oom: number("oom"),
        oom_kill: number("oom_kill"),
        oom_group_kill: number("oom_group_kill"),
    };
    assert_eq!(above.events, Ok(counts));
    // It only grows.
    let reported_us = above.pressure.unwrap().some.total_us;
    assert!(
        (stalled_before_us..=stalled_after_us).contains(&reported_us),
        "{reported_us} is not within {stalled_before_us} to {stalled_after_us}"
    );

    let memory = snapshot.node.memory.unwrap();
    assert_eq!(memory.total_bytes, kernel::meminfo_bytes("MemTotal").unwrap());
    let far = |reported: u64, file: u64| assert!(reported.abs_diff(file) < 64 * MIB, "{reported} {file}");
    far(memory.available_bytes, kernel::meminfo_bytes("MemAvailable").unwrap());
    assert!(snapshot.node.pressure.is_ok());
    let zones = &snapshot.node.zones;
    assert_eq!((snapshot.node.zones_missing, zones.left_out()), (None, 0));
    assert!(zones.each().iter().any(|zone| zone.kind == ZoneKind::Dma32), "{zones:?}");
    assert_eq!(
        zones.sum(|zone| zone.managed_bytes),
        memory.total_bytes,
        "what is handed out is all there is"
    );
    far(zones.sum(|zone| zone.free_bytes), memory.free_bytes);
    assert!(
        zones.each().iter().all(|zone| zone.min_bytes <= zone.low_bytes && zone.low_bytes <= zone.high_bytes)
    );
}

#[guest_test(kernel)]
fn a_cgroup_that_goes_is_gone_and_its_namesake_begins_anew() {
    let pod = Cgroup::create("goes").unwrap();
    let mut snapshots = snapshots();
    let first = guarded("goes", 0);
    let id = first.id();
    snapshots.guard(vec![first]);
    assert!(snapshots.take(SECOND).cgroups[0].current_bytes.is_ok());
    assert_eq!(snapshots.take(2 * SECOND).cgroups[0].growth_bytes_per_second, Some(0));
    drop(pod);
    let again = Cgroup::create("goes").unwrap();
    let view = snapshots.take(3 * SECOND).cgroups[0];
    assert_eq!((view.id, view.current_bytes), (id, Err(Missing::Gone)));
    assert_eq!((view.split, view.events), (Err(Missing::Gone), Err(Missing::Gone)));
    let second = guarded("goes", 0);
    assert_ne!(second.id(), id);
    snapshots.guard(vec![second]);
    let view = snapshots.take(4 * SECOND).cgroups[0];
    assert_eq!((view.current_bytes.is_ok(), view.growth_bytes_per_second), (true, None));
    drop(again);
}

/// The kubelet's own arithmetic, done by another program over the kubelet's own file, once that has caught up.
#[guest_test(kernel)]
fn the_kubelets_reckoning_is_of_the_root_cgroup() {
    let mut available = Available::open(Path::new(PROC_MEMINFO), MemoryAvailableSource::Kubelet).unwrap();
    let script = "awk '/^anon /{u+=$2} /^file /{u+=$2} /^inactive_file /{i=$2} END{print u-i}' /sys/fs/cgroup/memory.stat";
    let working_set = || -> u64 {
        let output = Command::new("sh").args(["-c", script]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
    };
    let total = kernel::meminfo_bytes("MemTotal").unwrap();
    let mut reported = || available.read().unwrap().available_bytes;
    let mut agree = || wait_until("agreement", || reported().abs_diff(total - working_set()) < 8 * MIB);
    agree();
    // Page cache in use counts as used: by the kernel's own estimate it would not.
    let file = Path::new("/tmp/in-use");
    let before = total - working_set();
    fs::write(file, vec![1; 64 << 20]).unwrap();
    agree();
    let after = reported();
    assert!(before.saturating_sub(after) > 48 * MIB, "{before} {after}");
    fs::remove_file(file).unwrap();
}

/// The daemon decides by it: the threshold lies between the kubelet's figure and the kernel's.
#[guest_test(daemon)]
fn the_daemon_goes_by_the_source_that_is_configured() {
    let read = |source| {
        let mut available = Available::open(Path::new(PROC_MEMINFO), source).unwrap();
        available.read().unwrap().available_bytes
    };
    for (source, name) in
        [(MemoryAvailableSource::Kubelet, "kubelet"), (MemoryAvailableSource::MemAvailable, "memAvailable")]
    {
        let folder = format!("/tmp/source-{name}");
        let (one, other) = (read(MemoryAvailableSource::Kubelet), read(MemoryAvailableSource::MemAvailable));
        let (low, high) = (one.min(other), one.max(other));
        assert!(high - low > 16 * MIB, "{low} {high} are the same here");
        let threshold_bytes = low + (high - low) / 2;
        let settings = format!(
            "mode: dry-run\nmemoryAvailableSource: {name}\nevictionHard: {{memory.available: \"{threshold_bytes}\"}}"
        );
        let daemon = Daemon::start(Path::new(&folder), &settings).unwrap();
        let crossed = || -> Option<Value> {
            let output =
                daemon.verb(&["-o", "jsonl", "events", "--type", "threshold.crossed"]).output().unwrap();
            let first = output.stdout.split(|byte| *byte == b'\n').find(|line| !line.is_empty())?;
            Some(serde_json::from_slice(first).unwrap())
        };
        let source_bytes = read(source);
        if source_bytes < threshold_bytes {
            wait_until("the crossing", || crossed().is_some());
            let observed = crossed().unwrap()["data"]["observedBytes"].as_u64().unwrap();
            // The daemon's own memory is gone by the second reading.
            let before_bytes = if source == MemoryAvailableSource::Kubelet { one } else { other };
            let (least, most) = (source_bytes.min(before_bytes), source_bytes.max(before_bytes));
            let is_seen = (least.saturating_sub(32 * MIB)..most + 32 * MIB).contains(&observed);
            assert!(is_seen, "{name}: {observed} {before_bytes} {source_bytes}");
        } else {
            // The daemon counts its looks at the node.
            let looks = || -> u64 {
                let metrics = daemon.get("/metrics").unwrap();
                let count = |line: &str| {
                    line.strip_prefix("enforcer_reflex_looks_total{outcome=\"ok\"} ")?.parse().ok()
                };
                metrics.lines().find_map(count).unwrap()
            };
            let before = looks();
            wait_until("more looks", || looks() > before + 2);
            assert_eq!(crossed(), None, "{name}: {low} {high}");
        }
        daemon.stop().unwrap();
        fs::remove_dir_all(folder).unwrap();
    }
}
