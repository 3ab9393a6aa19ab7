//! Kernels without a controller: what is lost has a name, and the rest works.

use std::{collections::BTreeSet, fs, path::Path};

use enforcer_tests::{
    cgroup::ROOT,
    daemon::Daemon,
    host::PidMax,
    plan::Planned,
    pods::{Container, pod as manifest},
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
    assert!(scene.evict());
    process.wait_for_end(TIMEOUT).unwrap();
    scene.daemon.stop().unwrap();
}

/// Where memory and process ids run short.
struct Shortages {
    daemon: Daemon,
    stream: Stream,
    _bound: PidMax,
}

impl Shortages {
    /// Pods that take 600 MiB more, or a thousand process ids, make them short.
    fn open(name: &str) -> Self {
        let bound = PidMax::set(1_500).unwrap();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
        let available = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
        let mib = available.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1_024;
        let settings = format!(
            "mode: enforce\nevictionPressureTransitionPeriod: 1ms\n\
             evictionHard: {{memory.available: {}Mi, pid.available: \"500\"}}",
            mib - 300
        );
        let daemon = Daemon::start(&Path::new("/tmp/controllers").join(name), &settings).unwrap();
        let stream = daemon.follow().unwrap();
        for pod in ["hog", "bomb", "few"] {
            let yaml = manifest(pod, 0, &[Container { name: "app", requests: "", limits: "" }]);
            daemon.manifest(&format!("{pod}.yaml"), &yaml).unwrap();
            daemon.wait_until_decided(&format!("default/{pod}")).unwrap();
        }
        Self { daemon, stream, _bound: bound }
    }

    fn start(&self, pod: &str, command: &[&str]) -> Process {
        Process::new(self.daemon.exec(&format!("default/{pod}"), command).unwrap())
    }

    /// Waits until the resource is short and no pod is evicted for it.
    fn wait_until_spared(&mut self, signal: &str) {
        let is_it = |event: &Value| {
            let data = &event["data"];
            is(event, "eviction.suppressed") && data["signal"] == signal && data["reason"] == "noCandidate"
        };
        self.stream.wait_for(&format!("no candidate for {signal}"), TIMEOUT, is_it).unwrap();
    }

    fn wait_until_cleared(&mut self, signal: &str) {
        let is_it = |event: &Value| {
            let data = &event["data"];
            is(event, "pressure.cleared")
                && data["signal"] == signal
                && data["crossedToClearedMs"].is_number()
        };
        self.stream.wait_for(&format!("enough of {signal}"), TIMEOUT, is_it).unwrap();
        wait_until("pods to be let in", || {
            self.get("/v1/pods")["conditions"].as_array().is_none_or(Vec::is_empty)
        });
    }

    fn get(&self, path: &str) -> Value {
        let answer = self.daemon.get(path).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }

    /// Why each pod is left out of the order.
    fn left_out(&self, signal: &str) -> BTreeSet<(String, String)> {
        let ranking = self.get(&format!("/v1/ranking?signal={signal}"));
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let excluded = ranking["excluded"].as_array().unwrap().iter();
        excluded.map(|one| (text(&one["name"]), text(&one["reason"]))).collect()
    }

    /// What `why` shows of the latest decision.
    fn why(&self) -> String {
        String::from_utf8(self.daemon.verb(&["why", "latest"]).output().unwrap().stdout).unwrap()
    }
}

fn unknown(pod: &str) -> (String, String) {
    (String::from(pod), String::from("usageUnknown"))
}

/// What each pod uses is unknown, and so no pod is evicted for memory; how many processes it has is known.
#[guest_test(without_memory)]
fn without_the_memory_controller_process_ids_cost_the_right_pod_and_memory_costs_none() {
    let mut scene = Shortages::open("memory-shortages");
    let mut hog = scene.start("hog", &["workload", "hold", "--size", "600Mi"]);
    scene.wait_until_spared("memory.available");
    assert!(scene.left_out("memory.available").contains(&unknown("hog")));
    let usages = scene.get("/v1/usages");
    assert!(
        usages.as_array().unwrap().iter().any(|usage| usage["memoryUnknown"] == true
            && usage["processCount"].as_u64().is_some_and(|count| count > 0)),
        "{usages}"
    );
    let containers = scene.get("/v1/containers");
    assert_eq!(containers["pods"].as_array().unwrap().len(), 0, "{containers}");
    let top = scene.daemon.verb(&["-o", "json", "top", "--batch", "--count", "1"]).output().unwrap();
    let top: Value = serde_json::from_slice(&top.stdout).unwrap();
    assert!(!top.to_string().contains("\"currentBytes\":0"), "{top:#}");
    assert!(hog.lives().unwrap());
    drop(hog);
    scene.wait_until_cleared("memory.available");

    let mut few = scene.start("few", &["workload", "fork", "--count", "20"]);
    let mut bomb = scene.start("bomb", &["workload", "fork", "--count", "3000"]);
    let decided = scene.stream.wait_for_pod("eviction.decided", "default/bomb", TIMEOUT).unwrap();
    let data = &decided["data"];
    assert_eq!(
        (data["signal"].as_str(), data["decidedBy"].as_str()),
        (Some("pid.available"), Some("processCount"))
    );
    let victim = &data["victim"];
    assert!(victim["processCount"].as_u64().is_some_and(|count| count > 400), "{decided}");
    assert!(victim.get("usageBytes").is_none() && victim.get("currentBytes").is_none(), "{decided}");
    scene.stream.wait_for_pod("eviction.completed", "default/bomb", TIMEOUT).unwrap();
    bomb.wait_for_end(TIMEOUT).unwrap();
    assert!(few.lives().unwrap());
    let why = scene.why();
    assert!(why.contains("its memory is not counted"), "{why}");
    assert_eq!(scene.stream.of("eviction.decided").count(), 1);
    drop(few);
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

/// The same the other way round: process ids cost no pod, and memory does.
#[guest_test(without_pids)]
fn without_the_pids_controller_memory_costs_the_right_pod_and_process_ids_cost_none() {
    let mut scene = Shortages::open("pids-shortages");
    let mut bomb = scene.start("bomb", &["workload", "fork", "--count", "1200"]);
    scene.wait_until_spared("pid.available");
    assert!(scene.left_out("pid.available").contains(&unknown("bomb")));
    assert!(bomb.lives().unwrap());
    assert_eq!(scene.stream.of("eviction.decided").count(), 0);
    drop(bomb);
    scene.wait_until_cleared("pid.available");

    let mut few = scene.start("few", &["workload", "hold", "--size", "16Mi"]);
    let mut hog = scene.start("hog", &["workload", "hold", "--size", "600Mi"]);
    let decided = scene.stream.wait_for_pod("eviction.decided", "default/hog", TIMEOUT).unwrap();
    assert_eq!(decided["data"]["signal"], "memory.available", "{decided}");
    assert!(decided["data"]["victim"].get("processCount").is_none(), "{decided}");
    hog.wait_for_end(TIMEOUT).unwrap();
    scene.stream.wait_for_pod("eviction.completed", "default/hog", TIMEOUT).unwrap();
    assert!(few.lives().unwrap());
    assert_eq!(scene.stream.of("eviction.decided").count(), 1);
    drop(few);
    scene.daemon.stop().unwrap();
}
