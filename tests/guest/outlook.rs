//! A node that fills: it is told before the end, once, with whose doing it is, and when it is over.

use std::{path::Path, thread, time::Duration};

use enforcer_tests::{
    daemon::Daemon,
    disk::Disk,
    host::PidMax,
    kernel,
    pods::{Container, pod},
    process::Process,
    stream::{Stream, is},
    wait::{PATIENCE, wait_until},
};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// How long the daemon looks on before anything begins: its first looks are at a node that has just booted.
const SETTLING: Duration = Duration::from_secs(12);

/// A seldom looking daemon's pause between looks, and some.
const A_LOOK: Duration = Duration::from_secs(12);

struct Scene {
    daemon: Daemon,
    stream: Stream,
}

impl Scene {
    /// With these thresholds, and pods of these names that request nothing.
    fn open(name: &str, settings: &str, pods: &[&str]) -> Self {
        let settings = format!("mode: enforce\nevictionPressureTransitionPeriod: 0s\n{settings}");
        let daemon = Daemon::start(&Path::new("/tmp/outlook").join(name), &settings).unwrap();
        let mut stream = daemon.follow().unwrap();
        for name in pods {
            let container = Container { name: "app", requests: "", limits: "" };
            daemon.manifest(&format!("{name}.yaml"), &pod(name, 0, &[container])).unwrap();
            stream.wait_for_pod("pod.added", &format!("default/{name}"), PATIENCE).unwrap();
        }
        Self { daemon, stream }
    }

    fn start(&self, pod: &str, workload: &[&str]) -> Process {
        let arguments: Vec<&str> = ["workload"].iter().chain(workload).copied().collect();
        Process::new(self.daemon.exec(&format!("default/{pod}"), &arguments).unwrap())
    }

    /// One that keeps memory in use, once it has it.
    fn hold(&self, pod: &str, mib: u64) -> Process {
        self.daemon.hold(&format!("default/{pod}"), &format!("{mib}Mi")).unwrap()
    }

    fn wait(&mut self, kind: &str, signal: &str, hard: bool) -> Value {
        let fits = |event: &Value| {
            headroom(event, kind) && event["data"]["signal"] == signal && event["data"]["hard"] == hard
        };
        self.stream.wait_for(kind, PATIENCE, fits).unwrap()
    }

    /// Of the node's memory, and not of the pods' share of it, which comes to the same here.
    fn count(&self, kind: &str) -> usize {
        let counts = |event: &&Value| headroom(event, kind) && event["data"]["signal"] == "memory.available";
        self.stream.seen.iter().filter(counts).count()
    }
}

fn headroom(event: &Value, kind: &str) -> bool {
    is(event, kind) && event["data"]["kind"] == "headroom"
}

fn names(event: &Value) -> Vec<&str> {
    event["data"]["pods"].as_array().unwrap().iter().filter_map(|pod| pod["name"].as_str()).collect()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

fn sequence(event: &Value) -> &str {
    event["sequence"].as_str().unwrap()
}

/// Both are of the same size, give or take a factor.
fn is_about(told: u64, real: u64) -> bool {
    (real * 6 / 10..=real * 17 / 10).contains(&told)
}

#[guest_test(daemon, exclusive)]
fn a_slow_fill_is_told_with_the_time_that_is_left_and_whose_doing_it_is() {
    let settings = "evictionHard: {memory.available: 100Mi}\nevictionSoft: {memory.available: 400Mi}\n\
                    evictionSoftGracePeriod: {memory.available: 10m}\nevictionMaxPodGracePeriod: 30";
    let mut scene = Scene::open("slow", settings, &["leak", "calm"]);
    let mut calm = scene.hold("calm", 100);
    thread::sleep(SETTLING);
    // The soft threshold comes in 50 s, and the hard one later.
    let rate_mib = (kernel::meminfo_bytes("MemAvailable").unwrap() / MIB - 400) / 50;
    let mut leak = scene.start("leak", &["ramp", "--no-catch-up", "--rate", &format!("{rate_mib}Mi")]);

    let soft = scene.wait("pressure.rising", "memory.available", false);
    let data = &soft["data"];
    assert_eq!(number(&data["thresholdBytes"]), 400 * MIB, "{soft}");
    let left_bytes = number(&data["availableBytes"]) - 400 * MIB;
    // At the rate at which it does grow.
    assert!(is_about(number(&data["crossedInMs"]), left_bytes * 1_000 / (rate_mib * MIB)), "{soft}");
    assert!(number(&data["crossedInMs"]) <= 60_000, "{soft}");
    assert_eq!(names(&soft), ["leak"], "{soft}");
    assert!(is_about(number(&data["pods"][0]["growthBytesPerSecond"]), rate_mib * MIB), "{soft}");
    assert!(is_about(number(&data["fillBytesPerSecond"]), rate_mib * MIB), "{soft}");
    assert!(scene.stream.of("threshold.crossed").next().is_none());

    let hard = scene.wait("pressure.rising", "memory.available", true);
    assert_eq!((number(&hard["data"]["thresholdBytes"]), names(&hard)), (100 * MIB, vec!["leak"]), "{hard}");
    assert!(leak.lives().unwrap() && calm.lives().unwrap());
    drop(leak);
    let cleared = scene.wait("pressure.cleared", "memory.available", true);
    assert!(number(&cleared["data"]["availableBytes"]) > 400 * MIB, "{cleared}");
    scene.wait("pressure.cleared", "memory.available", false);
    scene.stream.drain(A_LOOK);
    assert_eq!((scene.count("pressure.rising"), scene.count("pressure.cleared")), (2, 2));
    assert_eq!(scene.stream.of("eviction.decided").count(), 0);
    drop(calm);
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon, exclusive)]
fn a_fast_fill_is_told_before_it_crosses_the_threshold() {
    let mut scene = Scene::open("fast", "evictionHard: {memory.available: 100Mi}", &["hog", "calm"]);
    let mut calm = scene.hold("calm", 100);
    thread::sleep(SETTLING);
    let mut hog = scene.start("hog", &["ramp", "--no-catch-up", "--rate", "150Mi"]);
    let crossed =
        scene.stream.wait_for("the crossing", PATIENCE, |event| is(event, "threshold.crossed")).unwrap();
    let rising = scene.wait("pressure.rising", "memory.available", true);
    assert!(sequence(&rising) < sequence(&crossed), "{rising}\n{crossed}");
    assert_eq!(names(&rising), ["hog"], "{rising}");
    assert!(number(&rising["data"]["crossedInMs"]) < 12_000, "{rising}");
    scene.stream.wait_for_pod("eviction.completed", "default/hog", PATIENCE).unwrap();
    hog.wait_for_end(PATIENCE).unwrap();
    let cleared = scene.wait("pressure.cleared", "memory.available", true);
    assert!(sequence(&crossed) < sequence(&cleared));
    assert_eq!(scene.count("pressure.rising"), 1);
    assert!(calm.lives().unwrap());
    drop(calm);
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon, exclusive)]
fn page_cache_and_a_pod_that_has_grown_are_nothing_to_warn_of() {
    let disk = Disk::new(1 << 30).unwrap();
    let mut scene = Scene::open("cache", "evictionHard: {memory.available: 100Mi}", &["churn", "grown"]);
    thread::sleep(SETTLING);
    // Once, at full speed, and far from the threshold.
    let grown = scene.hold("grown", 200);
    let churn = scene.start("churn", &["cache", "--file", &disk.path(), "--size", "1Gi"]);
    let cached = || kernel::meminfo_bytes("Cached").unwrap() + kernel::meminfo_bytes("Buffers").unwrap();
    wait_until("much page cache", || cached() > 700 * MIB);
    scene.stream.drain(3 * A_LOOK);
    assert_eq!(scene.count("pressure.rising"), 0, "{:?}", scene.stream.seen);

    // With a leak beside it, it is the leak's doing.
    let rate_mib = kernel::meminfo_bytes("MemAvailable").unwrap() / MIB / 40;
    scene.daemon.manifest("leak.yaml", &leak()).unwrap();
    let leak = scene.start("leak", &["ramp", "--no-catch-up", "--rate", &format!("{rate_mib}Mi")]);
    let rising = scene.wait("pressure.rising", "memory.available", true);
    assert_eq!(names(&rising), ["leak"], "{rising}");
    drop((leak, churn, grown));
    scene.daemon.stop().unwrap();
}

fn leak() -> String {
    pod("leak", 0, &[Container { name: "app", requests: "", limits: "" }])
}

#[guest_test(daemon, exclusive)]
fn what_comes_and_goes_is_not_told_again_and_again() {
    let mut scene = Scene::open("waves", "evictionHard: {memory.available: 300Mi}", &["waves", "calm"]);
    let to_hold = kernel::meminfo_bytes("MemAvailable").unwrap() / MIB - 900;
    let calm = scene.hold("calm", to_hold);
    // That may have been told, and is over.
    scene.stream.drain(3 * SETTLING);
    scene.stream.seen.clear();
    // Each would be at the threshold within ten seconds, and is gone after four.
    for _ in 0..8 {
        let mut wave = scene.start("waves", &["ramp", "--no-catch-up", "--rate", "60Mi", "--for", "4s"]);
        wave.wait_for_end(PATIENCE).unwrap();
        scene.stream.drain(Duration::from_secs(1));
    }
    scene.stream.drain(4 * SETTLING);
    let (risen, cleared) = (scene.count("pressure.rising"), scene.count("pressure.cleared"));
    assert!((1..=2).contains(&risen) && risen == cleared, "{risen} and {cleared}");
    assert_eq!(scene.stream.of("threshold.crossed").count(), 0);
    drop(calm);
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon, exclusive)]
fn process_ids_that_go_are_told_with_whose_processes_they_are() {
    // So that a thousand processes are most of them.
    let _bound = PidMax::leave(300 + 1_000).unwrap();
    let settings = "evictionHard: {memory.available: 50Mi, pid.available: \"300\"}";
    let mut scene = Scene::open("pids", settings, &["forks", "few"]);
    let few = scene.start("few", &["fork", "--count", "20"]);
    thread::sleep(SETTLING);
    // One every 20 ms, and so in a quarter of a minute or so as many as there may be.
    let script = "for i in $(seq 3000); do sleep 100000 & usleep 20000; done";
    let forks = Process::new(scene.daemon.exec("default/forks", &["sh", "-c", script]).unwrap());
    let rising = scene.wait("pressure.rising", "pid.available", true);
    let data = &rising["data"];
    assert_eq!((number(&data["thresholdCount"]), names(&rising)), (300, vec!["forks"]), "{rising}");
    assert!(number(&data["availableCount"]) > 300 && number(&data["fillPerSecond"]) > 0, "{rising}");
    let own = &data["pods"][0];
    assert!(number(&own["growthPerSecond"]) > 0 && number(&own["processCount"]) > 20, "{rising}");
    assert!(number(&data["crossedInMs"]) <= 60_000, "{rising}");
    let crossed = PATIENCE;
    let crossed =
        scene.stream.wait_for("the crossing", crossed, |event| is(event, "threshold.crossed")).unwrap();
    assert!(sequence(&rising) < sequence(&crossed));
    // Two thousand processes take their time to die; how that is told is not what this is about.
    scene.wait("pressure.cleared", "pid.available", true);
    drop((forks, few));
    scene.daemon.stop().unwrap();
}
