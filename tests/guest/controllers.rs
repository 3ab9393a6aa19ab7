//! Kernels without a controller: what is lost has a name, and the rest works.

use std::{collections::BTreeSet, fs, path::Path};

use enforcer_tests::{
    cgroup::ROOT,
    daemon::Daemon,
    plan::Planned,
    process::Process,
    stream::{Stream, is},
    wait::{TIMEOUT, wait_until},
};
use serde_json::Value;

/// A daemon with a pod that has limits of every kind.
struct Scene {
    daemon: Daemon,
    stream: Stream,
}

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, uid: web}\nspec:\n  containers:\n  - name: app\n    \
                   resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 200m, memory: 64Mi}}\n";

impl Scene {
    fn open(name: &str) -> Self {
        let folder = Path::new("/tmp/controllers").join(name);
        let daemon = Daemon::start(&folder, "mode: enforce\npodPidsLimit: 20").unwrap();
        let stream = daemon.follow().unwrap();
        daemon.manifest("web.yaml", POD).unwrap();
        daemon.wait_until_decided("default/web").unwrap();
        Self { daemon, stream }
    }

    /// Waits until the daemon says that this is lost.
    fn wait_for_loss(&mut self, what: &str, of: &str) {
        let is_it = |event: &Value| {
            let message = event["data"]["message"].as_str().unwrap_or_default();
            event["data"]["what"] == what && message.starts_with(of)
        };
        self.stream.wait_for(&format!("{what}: {of}"), TIMEOUT, is_it).unwrap();
    }

    /// The rows of the daemon's own `doctor` that are lost in part or whole.
    fn lost(&self) -> BTreeSet<String> {
        let output = self.daemon.verb(&["-o", "json", "--live", "doctor"]).output().unwrap();
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        let rows = document["facilities"].as_array().unwrap().iter();
        rows.filter(|row| row["state"] == "lesser" || row["state"] == "missing")
            .map(|row| row["name"].as_str().unwrap().to_owned())
            .collect()
    }

    /// A process of the container, which gets the container's score.
    fn scored(&self) -> Process {
        let process =
            self.daemon.exec_until_ready("default/web", &["workload", "hold", "--size", "8Mi"]).unwrap();
        let score = || fs::read_to_string(format!("/proc/{}/oom_score_adj", process.id())).unwrap();
        let planned = Planned::of(&self.daemon).unwrap().scores["/kubepods/burstable/podweb/app"];
        wait_until("the container's score", || score().trim() == planned.to_string());
        process
    }

    /// Orders that the pod is evicted, and answers whether that was accepted.
    fn evict(&self) -> bool {
        let order = ["evict", "default/web", "--reason", "a test"];
        let output = self.daemon.verb(&order).output().unwrap();
        println!("{output:?}");
        output.status.success()
    }
}

fn pod() -> std::path::PathBuf {
    Path::new(ROOT).join("kubepods/burstable/podweb")
}

fn wait_for(file: &str, value: &str) {
    let path = pod().join(file);
    let held = || fs::read_to_string(&path).unwrap_or_default();
    wait_until(&format!("{value} in {}", path.display()), || held().trim_end() == value);
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[guest_test(without_memory)]
fn without_the_memory_controller_processors_processes_and_scores_are_still_governed() {
    let mut scene = Scene::open("memory");
    scene.wait_for_loss("controllers", "not on cgroup v2: memory: ");
    scene.wait_for_loss("limits", "/kubepods/burstable/podweb/memory.max does not exist: ");
    scene.wait_for_loss("threshold", "no pod is evicted for allocatableMemory.available");
    assert_eq!(scene.lost(), set(&["controllers"]));
    wait_for("cpu.max", "20000 100000");
    wait_for("cpu.weight", "4");
    wait_for("app/cpu.weight", "17");
    wait_for("pids.max", "20");
    assert!(!pod().join("memory.max").exists());
    let mut process = scene.scored();
    // What it uses is unknown, and so no pod is a candidate.
    assert!(!scene.evict());
    assert!(process.lives().unwrap());
    scene.daemon.stop().unwrap();
}

/// Each of the three is missed by its own name.
#[guest_test(without_pids)]
fn without_cpuset_hugetlb_and_pids_processors_memory_and_scores_are_still_governed() {
    let mut scene = Scene::open("pids");
    scene.wait_for_loss("controllers", "not on cgroup v2: pids: ");
    scene.wait_for_loss("cpuset", "not on cgroup v2: cpuset: ");
    scene.wait_for_loss("hugetlb", "not on cgroup v2: hugetlb: ");
    scene.wait_for_loss("limits", "/kubepods/burstable/podweb/pids.max does not exist: ");
    assert_eq!(scene.lost(), set(&["controllers", "cpuset", "hugetlb"]));
    wait_for("cpu.max", "20000 100000");
    wait_for("app/cpu.weight", "17");
    wait_for("memory.max", "67108864");
    wait_for("app/memory.oom.group", "1");
    // The limit of memory holds.
    let spike = ["workload", "spike", "--size", "128Mi"];
    let mut hog = Process::new(scene.daemon.exec("default/web", &spike).unwrap());
    hog.wait_for_end(TIMEOUT).unwrap();
    // The pod's limit is as low as the container's, and either may be hit first.
    let is_its = |event: &Value| is(event, "oom.incident") && event["subject"] == "default/web";
    scene.stream.wait_for("oom.incident", TIMEOUT, is_its).unwrap();
    let mut process = scene.scored();
    assert!(scene.evict());
    process.wait_for_end(TIMEOUT).unwrap();
    scene.daemon.stop().unwrap();
}
