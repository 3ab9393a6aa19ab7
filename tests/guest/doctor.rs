//! `enforcer doctor` on real kernels: whole ones lose nothing, and each thing that is taken away is lost, and only that.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
};

use enforcer_tests::daemon::Daemon;
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use serde_json::Value;

const NOBODY: u32 = 65_534;

/// A cgroup in which the memory controller is at work, so that its files can be looked for.
fn memory_cgroup() {
    fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+memory").unwrap();
    fs::create_dir_all("/sys/fs/cgroup/looked-at").unwrap();
}

fn answer(output: &Output) -> Value {
    let reported = || format!("{output:?}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", reported()));
    let ok = document["ok"].as_bool().unwrap();
    let is_missing = |one: &Value| one["name"] == "cgroup2" && one["state"] == "missing";
    let cannot_enforce = document["facilities"].as_array().unwrap().iter().any(is_missing);
    let status = if cannot_enforce { 2 } else { i32::from(!ok) };
    assert_eq!(output.status.code(), Some(status), "{}", reported());
    document
}

/// The rows that are not in full, with their states.
fn worse_than_full(document: &Value) -> BTreeSet<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let facilities = document["facilities"].as_array().unwrap();
    assert!(facilities.len() > 20, "{document:#}");
    facilities
        .iter()
        .map(|one| (text(&one["name"]), text(&one["state"])))
        .filter(|(_, state)| state != "full")
        .collect()
}

fn expected(rows: &[(&str, &str)]) -> BTreeSet<(String, String)> {
    rows.iter().map(|(name, state)| ((*name).to_owned(), (*state).to_owned())).collect()
}

/// What the doctor finds after a shell command, in a mount namespace of its own.
fn found_after(prepare: &str) -> Value {
    memory_cgroup();
    let script = format!("{prepare} || exit 99; exec enforcer -o json doctor --here");
    answer(&Command::new("unshare").args(["-m", "sh", "-c", &script]).output().unwrap())
}

/// What it finds without these capabilities.
fn found_without(capabilities: CapabilitySet) -> Value {
    memory_cgroup();
    // What a thread may not have, the processes that it starts may not either.
    thread::spawn(move || {
        for one in capabilities.iter() {
            remove_capability_from_bounding_set(one).unwrap();
        }
        answer(&Command::new("enforcer").args(["-o", "json", "doctor", "--here"]).output().unwrap())
    })
    .join()
    .unwrap()
}

#[guest_test(kernel)]
fn a_whole_kernel_loses_nothing() {
    let document = found_after("true");
    assert_eq!(worse_than_full(&document), BTreeSet::new(), "{document:#}");
    assert_eq!((&document["ok"], &document["source"]), (&Value::Bool(true), &"here".into()));
}

#[guest_test(daemon)]
fn what_is_not_mounted_is_lost_alone() {
    let cases: [(&str, &[(&str, &str)]); 5] = [
        ("umount /sys/fs/bpf", &[("bpffs", "missing")]),
        ("mount -t tmpfs none /proc/pressure", &[("psi", "missing")]),
        (
            "mount -t tmpfs none /sys/kernel/btf",
            &[
                ("oomVictims", "lesser"),
                ("limitOwner", "lesser"),
                ("memoryBack", "lesser"),
                ("cgroupLife", "lesser"),
                ("victimDetails", "lesser"),
                ("scoreEdge", "lesser"),
                ("writeEdge", "lesser"),
                ("reclaimLimit", "lesser"),
                ("memoryHigh", "missing"),
            ],
        ),
        ("umount /sys/fs/cgroup", NO_CGROUP2),
        // As systemd mounts them for the change-over from v1.
        (
            "mount -t tmpfs none /sys/fs/cgroup && mkdir /sys/fs/cgroup/unified /sys/fs/cgroup/systemd && \
             mount -t cgroup2 none /sys/fs/cgroup/unified && \
             mount -t cgroup -o none,name=systemd none /sys/fs/cgroup/systemd",
            &[("cgroup2", "missing")],
        ),
    ];
    for (prepare, lost) in cases {
        let document = found_after(prepare);
        assert_eq!(worse_than_full(&document), expected(lost), "{prepare}: {document:#}");
    }
}

const NO_CGROUP2: &[(&str, &str)] = &[
    ("cgroup2", "missing"),
    ("controllers", "unknown"),
    ("cpuset", "unknown"),
    ("hugetlb", "unknown"),
    ("swapLimit", "unknown"),
    ("cgroupKill", "unknown"),
    ("localEvents", "unknown"),
];

#[guest_test(daemon)]
fn cgroup_v1_alone_is_reported_from_none() {
    let v1 = "mount -t tmpfs none /sys/fs/cgroup && mkdir /sys/fs/cgroup/systemd && \
              mount -t cgroup -o none,name=systemd none /sys/fs/cgroup/systemd";
    for (prepare, word) in [(v1, "but v1"), ("umount /sys/fs/cgroup", "no cgroup v2 at /sys/fs/cgroup")] {
        let document = found_after(prepare);
        assert_eq!(worse_than_full(&document), expected(NO_CGROUP2));
        let facilities = document["facilities"].as_array().unwrap();
        let row = facilities.iter().find(|one| one["name"] == "cgroup2").unwrap();
        assert!(row["found"].as_str().unwrap().ends_with(word), "{row:#}");
    }
}

#[guest_test(kernel)]
fn each_capability_is_lost_alone() {
    let document = found_without(CapabilitySet::SYS_RESOURCE);
    // Before Linux 6.5 no trigger at all without it, since then those with windows of 2 s.
    let lost = |psi| expected(&[("capSysResource", "missing"), ("psi", psi)]);
    assert!([lost("lesser"), lost("missing")].contains(&worse_than_full(&document)), "{document:#}");
    let cases: [(CapabilitySet, &[(&str, &str)]); 8] = [
        (CapabilitySet::KILL, &[("capKill", "missing")]),
        (CapabilitySet::DAC_OVERRIDE, &[("capDacOverride", "missing")]),
        (CapabilitySet::DAC_READ_SEARCH, &[("capDacReadSearch", "missing")]),
        (CapabilitySet::SYS_PTRACE, &[("capSysPtrace", "missing")]),
        (CapabilitySet::IPC_LOCK, &[("memoryLock", "missing")]),
        // One of them is enough.
        (CapabilitySet::SYS_ADMIN, &[]),
        (CapabilitySet::SYS_ADMIN.union(CapabilitySet::BPF), NO_EBPF),
        (CapabilitySet::SYS_ADMIN.union(CapabilitySet::PERFMON), NO_EBPF),
    ];
    for (capabilities, lost) in cases {
        let document = found_without(capabilities);
        assert_eq!(worse_than_full(&document), expected(lost), "{capabilities:?}: {document:#}");
    }
}

const NO_EBPF: &[(&str, &str)] = &[
    ("ebpf", "missing"),
    ("oomVictims", "lesser"),
    ("oomKills", "lesser"),
    ("limitOwner", "lesser"),
    ("memoryBack", "lesser"),
    ("cgroupLife", "lesser"),
    ("victimDetails", "lesser"),
    ("scoreEdge", "lesser"),
    ("writeEdge", "lesser"),
    ("reclaimEdges", "lesser"),
    ("stalls", "lesser"),
    ("reclaimLimit", "lesser"),
    ("memoryHigh", "missing"),
];

#[guest_test(daemon)]
fn another_pid_namespace_is_seen() {
    memory_cgroup();
    let output = Command::new("unshare")
        .args(["-p", "-f", "--mount-proc", "enforcer", "-o", "json", "doctor", "--here"])
        .output()
        .unwrap();
    assert_eq!(worse_than_full(&answer(&output)), expected(&[("processIds", "lesser")]));
}

#[guest_test(daemon)]
fn enforce_in_another_pid_namespace_is_refused_with_the_reason() {
    let output = Command::new("unshare")
        .args(["-p", "-f", "--mount-proc", "timeout", "30", "enforcer", "run", "--mode", "enforce"])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{error}");
    assert!(error.contains("the machine's own PID namespace"), "{error}");
}

#[guest_test(daemon)]
fn without_privileges_it_says_what_it_could_not_emit() {
    memory_cgroup();
    let output =
        Command::new("enforcer").args(["-o", "json", "doctor"]).uid(NOBODY).gid(NOBODY).output().unwrap();
    let document = answer(&output);
    let worse = worse_than_full(&document);
    assert!(worse.iter().all(|(_, state)| state == "unknown"), "{document:#}");
    for name in ["ebpf", "root", "capSysResource"] {
        assert!(worse.contains(&(name.to_owned(), "unknown".to_owned())), "{document:#}");
    }
    assert!(document["limited"].as_str().unwrap().contains("root"), "{document:#}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot be asked"), "{output:?}");
}

fn folder(name: &str) -> PathBuf {
    Path::new("/tmp/doctor").join(name)
}

#[guest_test(daemon)]
fn the_daemon_answers_for_itself() {
    memory_cgroup();
    let daemon = Daemon::start(&folder("whole"), "mode: observe").unwrap();
    let document = answer(&daemon.verb(&["-o", "json", "--live", "doctor"]).output().unwrap());
    assert_eq!(document["source"], "daemon");
    assert_eq!(worse_than_full(&document), BTreeSet::new(), "{document:#}");
    let programs = &document["programs"];
    assert_eq!(programs["failed"], serde_json::json!([]));
    let attached = programs["attached"].as_array().unwrap();
    assert!(attached.iter().any(|name| name == "mark_victim_task"), "{programs:#}");
    daemon.stop().unwrap();

    // Whoever asks has all rights, and the daemon has not.
    let daemon = thread::spawn(|| {
        remove_capability_from_bounding_set(CapabilitySet::SYS_RESOURCE).unwrap();
        Daemon::start(&folder("poor"), "mode: observe").unwrap()
    })
    .join()
    .unwrap();
    let document = answer(&daemon.verb(&["-o", "json", "doctor"]).output().unwrap());
    assert!(worse_than_full(&document).contains(&("capSysResource".to_owned(), "missing".to_owned())));
    let here = answer(&daemon.verb(&["-o", "json", "doctor", "--here"]).output().unwrap());
    assert_eq!(worse_than_full(&here), BTreeSet::new(), "{here:#}");
    daemon.stop().unwrap();
}
