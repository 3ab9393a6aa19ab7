//! A node that fills: the daemon warns before the end, once, names the pods that cause it, and says when it is over.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use enforcer_tests::{
    daemon::Daemon,
    disk::Disk,
    host::PidMax,
    kernel,
    pods::{Container, pod},
    process::Process,
    rounds::Rounds,
    stream::{Stream, is},
    wait::{TIMEOUT, wait_until},
};
use rustix::process::Signal;
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// A question that comes sooner after the last look is answered by that.
const A_LOOK: Duration = Duration::from_millis(300);

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
            add(&daemon, &mut stream, name);
        }
        Self { daemon, stream }
    }

    /// Has the daemon look at the node, and answers what it says.
    fn look(&self) -> Value {
        thread::sleep(A_LOOK);
        let answer = self.daemon.get("/v1/headroom").unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }

    /// Waits until the stream has delivered what the daemon has reported so far: a pod that comes now is reported after it.
    fn catch_up(&mut self, mark: &str) {
        add(&self.daemon, &mut self.stream, mark);
    }

    /// Waits until no threshold comes so near that the daemon would warn of it: its first looks are at a node that has just
    /// booted. What it warned of until then is over.
    fn settle(&mut self) {
        const FAR_MS: u64 = 90_000;
        let start = Instant::now();
        loop {
            let view = self.look();
            let signals = view["signals"].as_array().unwrap().iter();
            let mut thresholds = signals.flat_map(|signal| signal["thresholds"].as_array().unwrap());
            if thresholds.all(|threshold| threshold["crossedInMs"].as_u64().is_none_or(|left| left > FAR_MS))
            {
                break;
            }
            assert!(start.elapsed() < TIMEOUT, "the node does not come to rest: {view}");
        }
        self.catch_up("settled");
        self.wait_for_all_to_clear();
        self.stream.seen.clear();
    }

    /// Waits until each warning so far is over.
    fn wait_for_all_to_clear(&mut self) {
        let risen: Vec<Value> =
            self.stream.seen.iter().filter(|event| headroom(event, "pressure.rising")).cloned().collect();
        for rising in risen {
            let data = &rising["data"];
            self.stream
                .wait_for("the end of a warning", TIMEOUT, |event| {
                    headroom(event, "pressure.cleared")
                        && sequence(event) > sequence(&rising)
                        && event["data"]["signal"] == data["signal"]
                        && event["data"]["hard"] == data["hard"]
                })
                .unwrap();
        }
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
        self.stream.wait_for(kind, TIMEOUT, fits).unwrap()
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

fn sequence(event: &Value) -> u64 {
    event["sequence"].as_str().unwrap().parse().unwrap()
}

/// Adds a pod that requests nothing.
fn add(daemon: &Daemon, stream: &mut Stream, name: &str) {
    let container = Container { name: "app", requests: "", limits: "" };
    daemon.manifest(&format!("{name}.yaml"), &pod(name, 0, &[container])).unwrap();
    stream.wait_for_pod("pod.added", &format!("default/{name}"), TIMEOUT).unwrap();
}

/// The threshold is crossed when what is left above it has gone at the rate that the warning reports, within a minute. The
/// pod grows at about that rate: both are measured by the daemon, over different times.
fn check_figures(rising: &Value) {
    let data = &rising["data"];
    let left_bytes = number(&data["availableBytes"]) - number(&data["thresholdBytes"]);
    let rate = number(&data["fillBytesPerSecond"]);
    assert_eq!(number(&data["crossedInMs"]), left_bytes * 1_000 / rate, "{rising}");
    assert!(number(&data["crossedInMs"]) <= 60_000, "{rising}");
    let growth = number(&data["pods"][0]["growthBytesPerSecond"]);
    assert!((rate / 4..=rate * 4).contains(&growth), "{rising}");
}

#[guest_test(daemon)]
fn a_slow_fill_is_warned_of_with_the_time_that_is_left_and_the_pod_that_causes_it() {
    let settings = "evictionHard: {memory.available: 100Mi}\nevictionSoft: {memory.available: 400Mi}\n\
                    evictionSoftGracePeriod: {memory.available: 10m}\nevictionMaxPodGracePeriod: 30";
    let mut scene = Scene::open("slow", settings, &["leak", "calm"]);
    let mut calm = scene.hold("calm", 100);
    scene.settle();
    // The soft threshold comes in less than half a minute, and the hard one later.
    let available_mib = kernel::meminfo_bytes("MemAvailable").unwrap() / MIB;
    let rate = format!("{}Mi", (available_mib - 400) / 24);
    // It stops above the hard threshold.
    let to = format!("{}Mi", available_mib - 200);
    let mut leak = scene.start("leak", &["ramp", "--no-catch-up", "--rate", &rate, "--to", &to]);

    let soft = scene.wait("pressure.rising", "memory.available", false);
    assert_eq!(number(&soft["data"]["thresholdBytes"]), 400 * MIB, "{soft}");
    assert_eq!(names(&soft), ["leak"], "{soft}");
    check_figures(&soft);
    let hard = scene.wait("pressure.rising", "memory.available", true);
    assert_eq!((number(&hard["data"]["thresholdBytes"]), names(&hard)), (100 * MIB, vec!["leak"]), "{hard}");
    check_figures(&hard);
    if let Some(crossed) = scene.stream.of("threshold.crossed").next() {
        assert!(sequence(&soft) < sequence(crossed), "{crossed} before {soft}");
    }
    assert!(leak.lives().unwrap() && calm.lives().unwrap());
    drop(leak);
    let cleared = scene.wait("pressure.cleared", "memory.available", true);
    assert!(number(&cleared["data"]["availableBytes"]) > 400 * MIB, "{cleared}");
    scene.wait("pressure.cleared", "memory.available", false);
    // It would warn again at the second look.
    for _ in 0..3 {
        scene.look();
    }
    scene.catch_up("end");
    assert_eq!((scene.count("pressure.rising"), scene.count("pressure.cleared")), (2, 2));
    assert_eq!(scene.stream.of("eviction.decided").count(), 0);
    drop(calm);
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn a_fast_fill_is_warned_of_before_it_crosses_the_threshold() {
    let mut scene = Scene::open("fast", "evictionHard: {memory.available: 500Mi}", &["hog", "calm"]);
    let mut calm = scene.hold("calm", 100);
    scene.settle();
    // It goes no further than the kernel lets it go.
    let to = format!("{}Mi", kernel::meminfo_bytes("MemAvailable").unwrap() / MIB - 200);
    let mut hog = scene.start("hog", &["ramp", "--no-catch-up", "--rate", "120Mi", "--to", &to]);
    let crossed =
        scene.stream.wait_for("the crossing", TIMEOUT, |event| is(event, "threshold.crossed")).unwrap();
    let rising = scene.wait("pressure.rising", "memory.available", true);
    assert!(sequence(&rising) < sequence(&crossed), "{rising}\n{crossed}");
    assert_eq!(names(&rising), ["hog"], "{rising}");
    check_figures(&rising);
    scene.stream.wait_for_pod("eviction.completed", "default/hog", TIMEOUT).unwrap();
    hog.wait_for_end(TIMEOUT).unwrap();
    let cleared = scene.wait("pressure.cleared", "memory.available", true);
    assert!(sequence(&crossed) < sequence(&cleared));
    assert_eq!(scene.count("pressure.rising"), 1);
    assert!(calm.lives().unwrap());
    drop(calm);
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn page_cache_and_a_pod_that_has_grown_are_nothing_to_warn_of() {
    let disk = Disk::new(1 << 30).unwrap();
    let mut scene = Scene::open("cache", "evictionHard: {memory.available: 100Mi}", &["churn", "grown"]);
    scene.settle();
    // Once, at full speed, and far from the threshold.
    let grown = scene.hold("grown", 200);
    let churn = scene.start("churn", &["cache", "--file", &disk.path(), "--size", "1Gi"]);
    let cached = || kernel::meminfo_bytes("Cached").unwrap() + kernel::meminfo_bytes("Buffers").unwrap();
    wait_until("much page cache", || {
        scene.look();
        cached() > 700 * MIB
    });
    // What it has read stays where it is.
    churn.signal(Signal::STOP).unwrap();
    // By then it would have warned, as what is left for less than a minute needs eight seconds at the most.
    for _ in 0..30 {
        scene.look();
    }
    scene.catch_up("churned");
    assert_eq!(scene.count("pressure.rising"), 0, "{:?}", scene.stream.seen);

    // With a leak beside it, it is the leak's doing.
    churn.signal(Signal::CONT).unwrap();
    let rate_mib = kernel::meminfo_bytes("MemAvailable").unwrap() / MIB / 30;
    add(&scene.daemon, &mut scene.stream, "leak");
    let leak = scene.start("leak", &["ramp", "--no-catch-up", "--rate", &format!("{rate_mib}Mi")]);
    let rising = scene.wait("pressure.rising", "memory.available", true);
    assert_eq!(names(&rising), ["leak"], "{rising}");
    drop((leak, churn, grown));
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon, repeats)]
fn what_comes_and_goes_is_not_warned_of_each_time() {
    const FAR_MIB: u64 = 650;
    let threshold_mib = kernel::meminfo_bytes("MemAvailable").unwrap() / MIB - FAR_MIB;
    let settings = format!("evictionHard: {{memory.available: {threshold_mib}Mi}}");
    let mut scene = Scene::open("waves", &settings, &["waves"]);
    scene.settle();
    // At this rate the threshold would come within eight seconds.
    let ramp = ["workload", "ramp", "--no-catch-up", "--rate", "90Mi"];
    let first = scene.start("waves", &ramp[1..]);
    scene.wait("pressure.rising", "memory.available", true);
    drop(first);
    // Each of the following would be warned of as well: it goes when it has come most of the way.
    let mut rounds = Rounds::new(3, 8);
    while rounds.next().is_some() {
        let wave = [&ramp[..], &["--to", "400Mi"]].concat();
        drop(scene.daemon.exec_until_ready("default/waves", &wave).unwrap());
        rounds.note(&scene.daemon).unwrap();
    }
    scene.catch_up("end");
    scene.wait_for_all_to_clear();
    let (risen, cleared) = (scene.count("pressure.rising"), scene.count("pressure.cleared"));
    assert!((1..=2).contains(&risen) && risen == cleared, "{risen} and {cleared}");
    assert_eq!(scene.stream.of("threshold.crossed").count(), 0);
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn process_ids_that_go_are_warned_of_with_the_pod_that_has_them() {
    // So that some hundred processes are most of them.
    let _bound = PidMax::leave(300 + 500).unwrap();
    let settings = "evictionHard: {memory.available: 50Mi, pid.available: \"300\"}";
    let mut scene = Scene::open("pids", settings, &["forks", "few"]);
    // One that has just started processes would be named as well.
    let few = scene.hold("few", 16);
    scene.settle();
    // One every 20 ms, and so in a quarter of a minute or so as many as there may be.
    let script = "for i in $(seq 3000); do sleep 100000 & usleep 20000; done";
    let forks = Process::new(scene.daemon.exec("default/forks", &["sh", "-c", script]).unwrap());
    let rising = scene.wait("pressure.rising", "pid.available", true);
    let data = &rising["data"];
    assert_eq!((number(&data["thresholdCount"]), names(&rising)), (300, vec!["forks"]), "{rising}");
    assert!(number(&data["availableCount"]) > 300 && number(&data["fillPerSecond"]) > 0, "{rising}");
    let own = &data["pods"][0];
    assert!(number(&own["growthPerSecond"]) > 0 && number(&own["processCount"]) > 20, "{rising}");
    let left_count = number(&data["availableCount"]) - 300;
    assert_eq!(number(&data["crossedInMs"]), left_count * 1_000 / number(&data["fillPerSecond"]), "{rising}");
    assert!(number(&data["crossedInMs"]) <= 60_000, "{rising}");
    let crossed =
        scene.stream.wait_for("the crossing", TIMEOUT, |event| is(event, "threshold.crossed")).unwrap();
    assert!(sequence(&rising) < sequence(&crossed));
    // Some hundred processes take their time to die; how that is reported is not what this is about.
    scene.wait("pressure.cleared", "pid.available", true);
    drop((forks, few));
    scene.daemon.stop().unwrap();
}
