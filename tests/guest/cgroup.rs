//! Cgroups, scores and removal on a real hierarchy.
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use enforcer::{
    cgroup::{self, ApplyError, Changes, Index, Permit, Reason, Reconciler, Report, Step, WatchEvents},
    model::{CgroupPath, Node, PodName},
    policy::{MemoryReservationPolicy, Plan, Settings, SwapBehavior, plan},
    source::manifest,
};
use enforcer_tests::{plan::as_read, wait::TIMEOUT};

const MOUNT: &str = "/sys/fs/cgroup";

const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: guaranteed, uid: g1}
spec:
  containers:
  - name: app
    resources: {limits: {cpu: 500m, memory: 64Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: burstable, uid: b1}
spec:
  containers:
  - name: app
    resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 200m, memory: 64Mi}}
  initContainers:
  - name: mesh
    restartPolicy: Always
    resources: {limits: {cpu: 100m, memory: 16Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: besteffort, uid: e1}
spec:
  containers: [{name: app}]
";

/// A hierarchy of its own below `/<name>`, and what works on it.
struct Scene {
    root: String,
    node: Node,
    settings: Settings,
    reconciler: Reconciler,
    permit: Permit,
    processes: Vec<Child>,
}

impl Scene {
    fn new(name: &str) -> Self {
        fs::create_dir(Path::new(MOUNT).join(name)).unwrap();
        let reconciler = Reconciler::new(Path::new(MOUNT), Index::new()).unwrap();
        let permit = Permit::for_enforce_mode();
        let settings = Settings { cgroup_root: CgroupPath::parse(name).unwrap(), ..Settings::default() };
        Self { root: name.to_owned(), node: node(), settings, reconciler, permit, processes: Vec::new() }
    }

    fn plan(&self, manifests: &str) -> Plan {
        let parsed = manifest::parse("test.yaml", manifests.as_bytes());
        assert!(parsed.errors.is_empty(), "{:?}", parsed.errors);
        plan(&self.node, &self.settings, &parsed.pods)
    }

    fn reconcile(&mut self, manifests: &str) -> Report {
        let plan = self.plan(manifests);
        self.reconciler.reconcile(&plan, &[], Some(&self.permit))
    }

    /// The path of a file below this scene's kubepods.
    fn file(&self, path: &str) -> PathBuf {
        Path::new(MOUNT).join(&self.root).join("kubepods").join(path)
    }

    fn read(&self, path: &str) -> String {
        let file = self.file(path);
        fs::read_to_string(&file)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()))
            .trim_end()
            .to_owned()
    }

    /// Every file of the plan holds what it says. Returns the names of those files.
    fn assert_held(&self, manifests: &str) -> BTreeSet<String> {
        let plan = self.plan(manifests);
        let pods = plan.pods.iter().flat_map(|pod| {
            std::iter::once(&pod.cgroup).chain(pod.containers.iter().map(|container| &container.cgroup))
        });
        let mut files = BTreeSet::new();
        for cgroup in std::iter::once(&plan.node).chain(plan.qos.iter().map(|(_, cgroup)| cgroup)).chain(pods)
        {
            for (file, value) in cgroup.values.to_text() {
                let path = format!("{MOUNT}{}/{file}", cgroup.path);
                let held = fs::read_to_string(&path).unwrap();
                assert_eq!(held.trim_end(), as_read(&file, &value).unwrap(), "{path}");
                files.insert(file);
            }
        }
        files
    }

    /// Runs a shell script inside a cgroup and waits for the line `ready` that it prints.
    fn run(&mut self, cgroup: &str, script: &str) -> u32 {
        let procs = self.file(cgroup).join("cgroup.procs");
        let script = format!("echo $$ > {}; {script}", procs.display());
        let mut child =
            Command::new("/bin/busybox").args(["sh", "-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
            .unwrap();
        assert_eq!(line, "ready\n");
        self.processes.push(child);
        pid
    }
}

impl Drop for Scene {
    /// Kills what runs below it. A scenario that fails is unwinding here: another panic would end the whole run.
    fn drop(&mut self) {
        drop(fs::write(Path::new(MOUNT).join(&self.root).join("cgroup.kill"), "1"));
        for child in &mut self.processes {
            drop(child.wait());
        }
    }
}

fn node() -> Node {
    Node::new(2_000, 2 << 30)
}

fn name(pod: &str) -> PodName {
    PodName { namespace: "default".into(), name: pod.into() }
}

fn score(pid: u32) -> i16 {
    fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim().parse().unwrap()
}

fn pids(procs: &str) -> Vec<u32> {
    procs.lines().map(|line| line.parse().unwrap()).collect()
}

fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let start = Instant::now();
    while !check() {
        assert!(start.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[guest_test(kernel)]
fn the_files_of_every_class_hold_what_the_plan_says() {
    let mut scene = Scene::new("values");
    fs::create_dir(Path::new(MOUNT).join("beside")).unwrap();
    let report = scene.reconcile(PODS);
    assert!(report.failed.is_empty() && report.errors.is_empty(), "{report:?}");
    assert!(report.missing.is_empty(), "{:?}", report.missing);
    // kubepods, two classes, three pods, four containers.
    assert_eq!(report.created.len(), 10, "{:?}", report.created);
    for (file, value) in [
        ("cpu.weight", "79"),
        ("memory.max", "2147483648"),
        ("podg1/cpu.weight", "20"),
        ("podg1/cpu.max", "50000 100000"),
        ("podg1/memory.max", "67108864"),
        ("podg1/app/memory.max", "67108864"),
        ("podg1/app/memory.oom.group", "1"),
        ("podg1/app/cpu.weight", "59"),
        ("burstable/cpu.weight", "8"),
        ("burstable/podb1/cpu.max", "30000 100000"),
        ("burstable/podb1/memory.max", "83886080"),
        ("burstable/podb1/app/cpu.max", "20000 100000"),
        ("burstable/podb1/mesh/memory.max", "16777216"),
        ("besteffort/cpu.weight", "1"),
        ("besteffort/pode1/cpu.weight", "1"),
        ("besteffort/pode1/memory.max", "max"),
        ("besteffort/pode1/app/memory.oom.group", "1"),
    ] {
        assert_eq!(scene.read(file), value, "{file}");
    }
    scene.assert_held(PODS);
    let second = scene.reconcile(PODS);
    assert!(second.is_converged(), "{second:?}");
    let beside = Path::new(MOUNT).join("beside");
    assert_eq!(fs::read_to_string(beside.join("cgroup.subtree_control")).unwrap().trim(), "");
    fs::remove_dir(beside).unwrap();
}

/// The whole daemon, under many more settings, is compared with its plan on one kernel.
#[guest_test(kernel)]
fn the_files_that_settings_alone_name_hold_what_the_plan_says() {
    let mut scene = Scene::new("settings");
    scene.node.swap_bytes = 256 << 20;
    scene.node.swap_controller = true;
    scene.settings = Settings {
        pod_pids_limit: Some(64),
        memory_throttling_factor: Some(0.55),
        memory_reservation_policy: MemoryReservationPolicy::TieredReservation,
        swap_behavior: SwapBehavior::LimitedSwap,
        cpu_cfs_quota_period_us: 20_000,
        ..scene.settings.clone()
    };
    let report = scene.reconcile(PODS);
    assert!(report.failed.is_empty() && report.errors.is_empty(), "{report:?}");
    assert!(report.missing.is_empty(), "{:?}", report.missing);
    let files = scene.assert_held(PODS);
    for file in ["memory.high", "memory.low", "memory.min", "memory.swap.max", "pids.max"] {
        assert!(files.contains(file), "{file} is not in the plan: {files:?}");
    }
    for (file, value) in [
        ("podg1/pids.max", "64"),
        ("podg1/memory.min", "67108864"),
        ("podg1/cpu.max", "10000 20000"),
        ("burstable/podb1/app/cpu.max", "4000 20000"),
    ] {
        assert_eq!(scene.read(file), value, "{file}");
    }
    let second = scene.reconcile(PODS);
    assert!(second.is_converged(), "{second:?}");
}

#[guest_test(daemon)]
fn nothing_is_made_without_a_permit() {
    let mut scene = Scene::new("nothing");
    let plan = scene.plan(PODS);
    let report = scene.reconciler.reconcile(&plan, &[], None);
    assert!(report.planned.iter().any(|step| matches!(step, Step::Create(_))));
    assert!(!scene.file("").exists());
    let own = Path::new(MOUNT).join("nothing/cgroup.subtree_control");
    assert_eq!(fs::read_to_string(own).unwrap().trim(), "");
}

#[guest_test(daemon)]
fn a_changed_plan_and_a_foreign_write_are_put_right() {
    let mut scene = Scene::new("changes");
    drop(scene.reconcile(PODS));
    fs::write(scene.file("podg1/memory.max"), "max").unwrap();
    let report = scene.reconcile(PODS);
    assert_eq!(report.written.len(), 1, "{report:?}");
    assert_eq!(
        (report.written[0].reason, report.written[0].change.old.as_deref()),
        (Reason::Drifted, Some("max"))
    );
    let wider = PODS.replace("cpu: 500m, memory: 64Mi", "cpu: 750m, memory: 128Mi");
    let report = scene.reconcile(&wider);
    assert!(report.failed.is_empty(), "{report:?}");
    assert!(report.written.iter().all(|write| write.reason == Reason::PlanChanged), "{:?}", report.written);
    assert_eq!(scene.read("podg1/app/memory.max"), "134217728");
    assert_eq!(scene.read("podg1/cpu.max"), "75000 100000");
    assert!(scene.reconcile(&wider).is_converged());
}

#[guest_test(kernel)]
fn memory_max_is_not_put_below_what_is_in_use() {
    let mut scene = Scene::new("usage");
    drop(scene.reconcile(PODS));
    scene.run(
        "podg1/app",
        "dd if=/dev/zero of=/dev/shm/held bs=1M count=48 2>/dev/null && echo ready && exec sleep 600",
    );
    let narrower = PODS.replace("cpu: 500m, memory: 64Mi", "cpu: 500m, memory: 32Mi");
    let report = scene.reconcile(&narrower);
    assert_eq!(report.withheld.len(), 2, "the container's and the pod's: {report:?}");
    assert!(report.withheld.iter().all(|withheld| withheld.usage_bytes >= 48 << 20));
    assert_eq!(scene.read("podg1/app/memory.max"), "67108864");
    assert!(scene.read("podg1/app/memory.events").contains("oom_kill 0"));
    fs::remove_file("/dev/shm/held").unwrap();
    let report = scene.reconcile(&narrower);
    assert!(report.withheld.is_empty(), "{report:?}");
    assert_eq!(scene.read("podg1/app/memory.max"), "33554432");
    assert_eq!(scene.read("podg1/memory.max"), "33554432");
    assert!(scene.read("podg1/app/memory.events").contains("oom_kill 0"));
}

#[guest_test(daemon)]
fn every_process_gets_its_containers_score() {
    let mut scene = Scene::new("scores");
    drop(scene.reconcile(PODS));
    let sweep = scene.reconciler.sweep(&scene.permit);
    assert!(sweep.scores.changed.is_empty());
    let script = "sleep 600 & sleep 600 & echo ready; wait";
    scene.run("burstable/podb1/app", script);
    fs::create_dir(scene.file("besteffort/pode1/app/nested")).unwrap();
    scene.run("besteffort/pode1/app/nested", script);
    let sweep = scene.reconciler.sweep(&scene.permit).scores;
    assert!(sweep.errors.is_empty() && sweep.refused == 0, "{sweep:?}");
    assert_eq!(sweep.changed.len(), 6, "{sweep:?}");
    let container = scene.reconciler.container_path(&name("burstable"), "app").unwrap().clone();
    let expected = scene.reconciler.score(&container).unwrap();
    // 1000 - 1000 * 32 MiB / 2 GiB, as the kubelet reckons.
    assert_eq!(expected, 985);
    let found = pids(&scene.read("burstable/podb1/app/cgroup.procs"));
    assert_eq!(found.len(), 3);
    assert!(found.iter().all(|pid| score(*pid) == expected));
    let nested = pids(&scene.read("besteffort/pode1/app/nested/cgroup.procs"));
    assert_eq!(nested.len(), 3);
    assert!(nested.iter().all(|pid| score(*pid) == 1000));
    assert!(scene.reconciler.sweep(&scene.permit).scores.changed.is_empty());
}

#[guest_test(kernel)]
fn a_child_inherits_the_score_and_a_joining_process_is_seen_at_once() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut scene = Scene::new("joins");
        let (watch, mut events) = cgroup::watch().unwrap();
        scene.reconciler.set_watch(watch);
        drop(scene.reconcile(PODS));
        let fifo = "/tmp/fork";
        rustix::fs::mknodat(
            rustix::fs::CWD,
            fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let start = Instant::now();
        scene.run("podg1/app", &format!("(read go < {fifo}; sleep 600) & echo ready; wait"));
        let changes = populated(&mut events, "/joins/kubepods/podg1/app").await;
        let report = scene.reconciler.look_at(&changes, Some(&scene.permit));
        println!("start of the process to its score: {} ms", start.elapsed().as_millis());
        assert_eq!(report.scores.changed.len(), 2, "{report:?}");
        fs::write(fifo, "go\n").unwrap();
        let is_sleep = |pid: &u32| {
            fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == b"sleep\x00600\x00")
        };
        eventually("the child", || pids(&scene.read("podg1/app/cgroup.procs")).iter().any(is_sleep));
        let found = pids(&scene.read("podg1/app/cgroup.procs"));
        assert!(found.iter().all(|pid| score(*pid) == -997), "{found:?}");
        assert!(scene.reconciler.sweep(&scene.permit).scores.changed.is_empty(), "nothing was left to do");
    });
}

#[guest_test(daemon)]
fn what_forks_while_scores_are_set_is_not_missed() {
    let mut scene = Scene::new("forks");
    drop(scene.reconcile(PODS));
    scene.run("podg1/app", "i=0; echo ready; while [ $i -lt 200 ]; do sleep 600 & i=$((i+1)); done; wait");
    let first = scene.reconciler.sweep(&scene.permit).scores;
    assert!(!first.changed.is_empty() && first.errors.is_empty(), "{first:?}");
    eventually("201 processes", || pids(&scene.read("podg1/app/cgroup.procs")).len() == 201);
    // One that was in the middle of its fork all along has the old score still, and is new on the list.
    let second = scene.reconciler.sweep(&scene.permit).scores;
    println!("first sweep: {}, second: {}", first.changed.len(), second.changed.len());
    let found = pids(&scene.read("podg1/app/cgroup.procs"));
    assert!(found.iter().all(|pid| score(*pid) == -997));
    assert!(scene.reconciler.sweep(&scene.permit).scores.changed.is_empty());
}

#[guest_test(kernel)]
fn a_removed_pods_cgroups_go_once_they_are_empty() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut scene = Scene::new("removal");
        let (watch, mut events) = cgroup::watch().unwrap();
        scene.reconciler.set_watch(watch);
        drop(scene.reconcile(PODS));
        fs::create_dir(scene.file("podg1/app/nested")).unwrap();
        scene.run("podg1/app/nested", "echo ready && exec sleep 600");
        let path = scene.reconciler.container_path(&name("guaranteed"), "app").unwrap().clone();
        let id = scene.reconciler.open(&path).unwrap().id();
        let (_, others) = PODS.split_once("---").unwrap();
        let report = scene.reconcile(others);
        assert_eq!(report.draining.len(), 2, "{report:?}");
        assert!(report.strangers.is_empty(), "{:?}", report.strangers);
        assert_eq!(scene.read("podg1/app/memory.max"), "67108864", "limits hold until the end");
        fs::write(scene.file("podg1/app/cgroup.kill"), "1").unwrap();
        let start = Instant::now();
        for child in &mut scene.processes {
            child.wait().unwrap();
        }
        while scene.file("podg1").exists() {
            let changes = populated(&mut events, "/removal/kubepods/podg1").await;
            drop(scene.reconciler.look_at(&changes, Some(&scene.permit)));
            assert!(start.elapsed() < TIMEOUT);
        }
        println!("last exit to gone: {} ms", start.elapsed().as_millis());
        let resolved = scene.reconciler.index().resolve(id).unwrap();
        assert!(!resolved.alive);
        assert_eq!(resolved.owner.level.container(), Some("app"));
        assert!(scene.file("burstable/podb1/app").exists());
    });
}

/// As after a downgrade.
#[guest_test(daemon)]
fn the_mark_of_a_newer_version_is_kept_beside_this_ones() {
    const NEWER: &str = r#"{"version":9,"made":true,"files":{},"more":[1]}"#;
    let mut scene = Scene::new("newer-mark");
    drop(scene.reconcile(PODS));
    let pod = scene.file("podg1");
    rustix::fs::setxattr(&pod, "trusted.enforcer", NEWER.as_bytes(), rustix::fs::XattrFlags::empty())
        .unwrap();
    scene.reconciler = Reconciler::new(Path::new(MOUNT), Index::new()).unwrap();
    let report = scene.reconcile(&PODS.replace("memory: 64Mi", "memory: 48Mi"));
    assert!(!report.written.is_empty());
    let mark = |name: &str| {
        let mut content = [0; 1024];
        let length = rustix::fs::getxattr(&pod, name, &mut content).unwrap();
        String::from_utf8(content[..length].to_vec()).unwrap()
    };
    assert_eq!(mark("trusted.enforcer.v9"), NEWER);
    assert!(mark("trusted.enforcer").starts_with(r#"{"version":1,"#), "{}", mark("trusted.enforcer"));
}

#[guest_test(daemon)]
fn a_pod_cgroup_that_holds_processes_itself_is_named() {
    let mut scene = Scene::new("internal");
    drop(
        scene.reconcile(
            "{apiVersion: v1, kind: Pod, metadata: {name: other}, spec: {containers: [{name: c}]}}",
        ),
    );
    let pod = scene.file("podg1");
    fs::create_dir(&pod).unwrap();
    scene.run("podg1", "echo ready && exec sleep 600");
    let report = scene.reconcile(PODS);
    let internal = report.failed.iter().find_map(|failure| match &failure.error {
        ApplyError::InternalProcesses { path, processes } => Some((path.as_str().to_owned(), *processes)),
        _ => None,
    });
    assert_eq!(internal, Some(("/internal/kubepods/podg1".to_owned(), 1)), "{report:?}");
    assert_eq!(scene.read("podg1/memory.max"), "67108864", "its own limits are set nevertheless");
    assert_eq!(scene.read("burstable/podb1/app/memory.max"), "67108864", "and so are the others");
}

/// Waits for the kernel to tell of a change at or below `path`.
async fn populated(events: &mut WatchEvents, path: &str) -> Changes {
    loop {
        let changes = tokio::time::timeout(TIMEOUT, events.next())
            .await
            .unwrap_or_else(|_| panic!("no event for {path} within {TIMEOUT:?}"))
            .unwrap();
        if changes.overflow || changes.populated.iter().any(|changed| changed.as_str().starts_with(path)) {
            return changes;
        }
    }
}
