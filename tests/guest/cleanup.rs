//! `enforcer cleanup`: what a killed daemon has changed on the machine is as before.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use enforcer::sense;
use enforcer_tests::{
    cgroup::{Cgroup, ROOT},
    daemon::Daemon,
    load::workload_as,
    pods::{Container, pod},
    process::Process,
    wait::wait_until,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const PINS: &str = "/sys/fs/bpf/enforcer";

/// The files that the daemon may write.
const FILES: [&str; 10] = [
    "cpu.max",
    "cpu.weight",
    "cpuset.cpus",
    "memory.high",
    "memory.low",
    "memory.max",
    "memory.min",
    "memory.oom.group",
    "memory.swap.max",
    "pids.max",
];

fn folder() -> &'static Path {
    Path::new("/tmp/cleanup/daemon")
}

fn at(below: &str) -> PathBuf {
    Path::new(ROOT).join("cleanup").join(below)
}

fn score(pid: u32) -> i32 {
    // One read: what two return may be the halves of two scores.
    let mut text = [0; 16];
    let length = File::open(format!("/proc/{pid}/oom_score_adj")).unwrap().read(&mut text).unwrap();
    str::from_utf8(&text[..length]).unwrap().trim().parse().unwrap()
}

/// A process that joins a cgroup behind the daemon's back, with that score.
fn joined(cgroup: &Path, score: &str) -> Process {
    let script = format!(
        "echo {score} > /proc/self/oom_score_adj; echo 0 > {}/cgroup.procs || exit 1; exec sleep 1000",
        cgroup.display()
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null());
    Process::new(command.spawn().unwrap())
}

/// Every cgroup of the scene with the values of its files, and what is in the daemon's folders and in that of the pins.
#[derive(Debug, Eq, PartialEq)]
struct Snapshot {
    values: BTreeMap<PathBuf, String>,
    files: BTreeSet<PathBuf>,
    scores: Vec<i32>,
}

impl Snapshot {
    fn take(processes: &[&Process]) -> Self {
        let mut values = BTreeMap::new();
        let mut waiting = vec![at("")];
        while let Some(cgroup) = waiting.pop() {
            for file in FILES.map(|file| cgroup.join(file)) {
                if let Ok(value) = fs::read_to_string(&file) {
                    values.insert(file, value);
                }
            }
            let below = fs::read_dir(&cgroup).unwrap().map(|entry| entry.unwrap().path());
            waiting.extend(below.filter(|path| path.is_dir()));
            values.insert(cgroup, String::new());
        }
        let mut files = BTreeSet::new();
        for folder in [folder().join("run"), folder().join("state"), PathBuf::from(PINS)] {
            files.extend(fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()));
        }
        let scores = processes.iter().map(|process| score(process.id())).collect();
        Self { values, files, scores }
    }
}

/// A process that the daemon takes for a component of the node.
fn component() -> Process {
    let program = workload_as(Path::new("/tmp/cleanup/bin"), "cleanup-component").unwrap();
    let script = format!("echo 9 > /proc/self/oom_score_adj; exec {} hold --size 1Mi", program.display());
    let mut component = Command::new("sh");
    component.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null());
    let component = Process::new(component.spawn().unwrap());
    let comm = || fs::read_to_string(format!("/proc/{}/comm", component.id())).unwrap();
    wait_until("the component's program", || comm().trim() == "cleanup-compone");
    component
}

/// Checks that these cgroups have the values of one that was just made.
fn assert_as_fresh(cgroups: &[PathBuf]) {
    let fresh = Cgroup::create("cleanup/fresh").unwrap();
    for cgroup in cgroups {
        for file in FILES.iter().filter(|file| cgroup.join(file).exists() && fresh.path().join(file).exists())
        {
            let value = |folder: &Path| fs::read_to_string(folder.join(file)).unwrap();
            assert_eq!(value(cgroup), value(fresh.path()), "{}/{file}", cgroup.display());
        }
    }
}

fn verb(options: &[&str]) -> Command {
    let config = folder().join("config.yaml");
    let mut command = Command::new("enforcer");
    command.arg("--config").arg(config).args(["-o", "json", "cleanup"]).args(options);
    command
}

fn cleanup(options: &[&str]) -> Output {
    verb(options).output().unwrap()
}

/// What was undone, or would be.
fn done(options: &[&str]) -> Value {
    let output = cleanup(options);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert_eq!((output.status.code(), &document["failed"]), (Some(0), &Value::Array(vec![])), "{document:#}");
    document
}

/// A pod that has cleaned up is there until it is deleted.
fn assert_stays_until_stopped() {
    let mut stays = verb(&["--stay"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(stays.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(stays.try_wait().unwrap().is_none(), "it stays: {line}");
    kill_process(Pid::from_child(&stays), Signal::TERM).unwrap();
    assert_eq!(stays.wait().unwrap().code(), Some(0));
}

fn is_done(document: &Value, what: &str, path: &str) -> bool {
    let done = document["done"].as_array().unwrap();
    done.iter().any(|item| item["what"] == what && item["path"].as_str().unwrap().starts_with(path))
}

#[guest_test(daemon)]
fn what_a_killed_daemon_has_changed_is_given_back_and_a_second_cleanup_finds_nothing() {
    drop(sense::unpin());
    // The daemon enables every controller, and those stay.
    fs::write(Path::new(ROOT).join("cgroup.subtree_control"), "+cpuset").unwrap();
    let root = Cgroup::create("cleanup").unwrap();
    root.write("cgroup.subtree_control", "+cpuset").unwrap();
    let web = Cgroup::create("cleanup/web.service").unwrap();
    web.write("memory.max", "402653184").unwrap();
    web.write("cpu.weight", "55").unwrap();
    let adopted = joined(web.path(), "7");
    let component = component();
    wait_until("the first processes", || (score(adopted.id()), score(component.id())) == (7, 9));
    let before = Snapshot::take(&[&adopted, &component]);

    let settings = "mode: enforce\ncgroupRoot: /cleanup\nnodeComponents: [cleanup-component]";
    let daemon = Daemon::start(folder(), settings).unwrap();
    let (small, large) = ("cpu: 100m, memory: 32Mi", "cpu: 200m, memory: 64Mi");
    for (name, requests, limits) in
        [("guaranteed", "", large), ("burstable", small, large), ("besteffort", "", ""), ("idle", "", large)]
    {
        let containers = [Container { name: "app", requests, limits }];
        let manifest =
            pod(name, 0, &containers).replace("metadata:\n", &format!("metadata:\n  uid: {name}\n"));
        daemon.manifest(&format!("{name}.yaml"), &manifest).unwrap();
    }
    let manifest = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  annotations: {enforcer.dev/cgroup: /cleanup/web.service}\n\
                    spec:\n  containers:\n  - name: app\n    resources: {limits: {cpu: 500m, memory: 256Mi}}\n";
    daemon.manifest("web.yaml", manifest).unwrap();
    let app = |class: &str, name: &str| at("kubepods").join(class).join(format!("pod{name}/app"));
    for name in ["guaranteed", "burstable", "besteffort", "idle"] {
        daemon.wait_until_decided(&format!("default/{name}")).unwrap();
    }
    let guaranteed = joined(&app("", "guaranteed"), "3");
    let besteffort = joined(&app("besteffort", "besteffort"), "4");
    let burstable = Process::new(daemon.exec("default/burstable", &["sleep", "1000"]).unwrap());
    let own = score(std::process::id());
    wait_until("all scores", || {
        score(guaranteed.id()) == -997
            && score(besteffort.id()) == 1000
            && (3..1000).contains(&score(burstable.id()))
            && score(adopted.id()) == -997
            && score(component.id()) == -999
    });
    wait_until("the adopted cgroup's limit", || web.read("memory.max").unwrap() == "268435456");
    wait_until("the limit of the idle one", || {
        fs::read_to_string(app("", "idle").join("memory.max")).is_ok_and(|max| max == "67108864\n")
    });

    let refused = cleanup(&[]);
    assert_eq!(refused.status.code(), Some(64), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("systemctl stop enforcer"), "{refused:?}");
    assert_eq!(score(guaranteed.id()), -997);
    let beside = done(&["--dry-run"]);
    assert!(beside["daemon"].as_str().is_some_and(|daemon| daemon.starts_with("process ")), "{beside:#}");
    assert!(is_done(&beside, "limit", "/cleanup/web.service"), "{beside:#}");
    assert_eq!(score(guaranteed.id()), -997, "a dry run changes nothing");

    // SIGKILL.
    drop(daemon);
    let without_rights = verb(&[]).uid(65_534).output().unwrap();
    assert_eq!(without_rights.status.code(), Some(77), "{without_rights:?}");
    let processes = [&adopted, &component, &guaranteed, &besteffort, &burstable];
    let killed = Snapshot::take(&processes);
    let dry = done(&["--dry-run"]);
    assert_eq!(Snapshot::take(&processes), killed, "a dry run changes nothing");
    for (what, path) in [
        ("limit", "/cleanup/web.service"),
        ("limit", "/cleanup/kubepods/podguaranteed/app"),
        ("score", "/cleanup/kubepods/burstable/podburstable/app"),
        ("cgroup", "/cleanup/kubepods/podidle/app"),
        ("mark", "/cleanup/web.service"),
        ("pin", PINS),
        ("file", "/tmp/cleanup/daemon/run/"),
    ] {
        assert!(is_done(&dry, what, path), "no {what} of {path}: {dry:#}");
    }

    let is_components = |item: &Value| item["what"] == "score" && item["pid"] == component.id();
    assert!(dry["done"].as_array().unwrap().iter().any(is_components), "{dry:#}");

    let first = done(&[]);
    assert_eq!(first["done"], dry["done"], "a dry run says what is done");
    let scores = processes.map(|process| score(process.id()));
    assert_eq!(scores, [7, 9, 3, 4, own], "each has its own score again");
    assert_eq!(
        (web.read("memory.max").unwrap(), web.read("cpu.weight").unwrap()),
        ("402653184".into(), "55".into())
    );
    assert!(!Path::new(PINS).exists());
    assert!(!at("kubepods/podidle").exists(), "an empty one is gone");
    assert_as_fresh(&[app("", "guaranteed"), app("burstable", "burstable"), at("kubepods")]);
    let standing = first["left"].to_string();
    assert!(
        standing.contains("/cleanup/kubepods/podguaranteed/app") && standing.contains("/state"),
        "{standing}"
    );
    assert_eq!(done(&[])["done"], Value::Array(vec![]), "a second one finds nothing to do");

    drop((guaranteed, besteffort, burstable));
    let second = done(&["--state"]);
    assert!(is_done(&second, "cgroup", "/cleanup/kubepods"), "{second:#}");
    assert_eq!(Snapshot::take(&[&adopted, &component]), before);
    assert_stays_until_stopped();
    let third = done(&["--state"]);
    assert_eq!(third["done"], Value::Array(vec![]), "{third:#}");
    drop((adopted, component, web, root));
}
