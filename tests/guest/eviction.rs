//! The node runs short of memory, and each time the right pod is evicted, and no other.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use enforcer_tests::{
    daemon::Daemon,
    kernel,
    pods::{Container, pod},
    process::Process,
    rounds::Rounds,
    stream::{Stream, is},
    wait::{TIMEOUT, wait_until},
};
use serde_json::Value;

mod allocatable;
mod arming;
mod asked;
mod cache;
mod calm;
mod contain;
mod disk;
mod exhausted;
mod faults;
mod foretold;
mod hook;
mod immune;
mod lists;
mod metrics;
mod moved;
mod network;
mod orders;
mod pids;
mod reckoned;
mod reclaim;
mod refused;
mod restart;
mod returning;
mod soft;
mod stubborn;
mod tmpfs;

const MIB: u64 = 1 << 20;
const THRESHOLD_BYTES: u64 = 200 * MIB;

/// How much a pod that fills the node leaves: less than the threshold, and so much that the kernel does not kill.
const LEFT_BYTES: u64 = 100 * MIB;

struct Scene {
    daemon: Daemon,
    stream: Stream,
}

impl Scene {
    fn open(name: &str) -> Self {
        Self::open_with(name, &format!("evictionHard: {{memory.available: {}Mi}}", THRESHOLD_BYTES / MIB))
    }

    /// With these thresholds. Unless they say otherwise, no pod is kept out for a shortage that is over.
    fn open_with(name: &str, settings: &str) -> Self {
        let folder = Path::new("/tmp").join(name);
        let transition = if settings.contains("evictionPressureTransitionPeriod") {
            ""
        } else {
            "evictionPressureTransitionPeriod: 1ms\n"
        };
        let daemon = Daemon::start(&folder, &format!("mode: enforce\n{transition}{settings}")).unwrap();
        let stream = daemon.follow().unwrap();
        Self { daemon, stream }
    }

    /// Starts a pod that holds memory within its request, so that it is the last to go.
    fn fill(&self, size: &str) -> Process {
        self.fill_by("filler", size)
    }

    fn fill_by(&self, name: &str, size: &str) -> Process {
        let request = format!("memory: {}", size.parse::<u64>().unwrap() + 32 * MIB);
        self.hold(name, 0, &request, "", size)
    }

    /// Starts a pod that ignores SIGTERM and holds so many MiB.
    fn stubborn(&mut self, name: &str, priority: i32, mib: u64) -> Process {
        // A grace that no machine outlasts before what the scene is about; its settings may cut it.
        let manifest = pod(name, priority, &[Container { name: "app", requests: "", limits: "" }]);
        let manifest = manifest.replacen("spec:\n", "spec:\n  terminationGracePeriodSeconds: 600\n", 1);
        self.daemon.manifest(&format!("{name}.yaml"), &manifest).unwrap();
        // It waits for a reader that never reads.
        let work = format!("trap '' TERM; dd if=/dev/zero bs={mib}M count=1 | sleep 100000");
        let process =
            Process::new(self.daemon.exec(&format!("default/{name}"), &["sh", "-c", &work]).unwrap());
        wait_until("what it holds", || {
            self.number(name, "memory.current").is_some_and(|bytes| bytes >= mib * MIB)
        });
        process
    }

    /// The folder of a pod's cgroup, by the event stream.
    fn folder(&mut self, name: &str) -> PathBuf {
        let added = self.stream.added(&format!("default/{name}"), TIMEOUT).unwrap();
        let class = match added["data"]["qosClass"].as_str().unwrap() {
            "BestEffort" => "besteffort/",
            "Burstable" => "burstable/",
            _ => "",
        };
        let uid = added["data"]["uid"].as_str().unwrap();
        PathBuf::from(format!("/sys/fs/cgroup/kubepods/{class}pod{uid}"))
    }

    /// A file of a pod's cgroup; none if that is not there.
    fn file(&mut self, name: &str, file: &str) -> Option<String> {
        fs::read_to_string(self.folder(name).join(file)).ok().map(|text| text.trim().to_owned())
    }

    fn number(&mut self, name: &str, file: &str) -> Option<u64> {
        self.file(name, file)?.parse().ok()
    }

    /// A counter of a file of a pod's cgroup that has a key in each line.
    fn counter(&mut self, name: &str, file: &str, key: &str) -> Option<u64> {
        let text = self.file(name, file)?;
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.parse().ok())
    }

    fn wait(&mut self, kind: &str, pod: &str) -> Value {
        self.stream.wait_for_pod(kind, &format!("default/{pod}"), TIMEOUT).unwrap()
    }

    /// Waits until what was short is not short any more. A second decision about the same shortage comes before that event.
    fn wait_for_end_of_shortage(&mut self) {
        // The end of a stall and of a warning have the same type.
        let is_end =
            |event: &Value| is(event, "pressure.cleared") && event["data"]["crossedToClearedMs"].is_number();
        self.stream.wait_for("the end of the shortage", TIMEOUT, is_end).unwrap();
    }

    /// Waits until the stream has delivered all that the daemon has done so far: a pod that comes now is reported after it.
    fn catch_up(&mut self) {
        static MARKS: AtomicU32 = AtomicU32::new(0);
        let name = format!("mark-{}", MARKS.fetch_add(1, Ordering::Relaxed));
        self.manifest(&name, 0, "memory: 1Mi", "");
        self.wait("pod.added", &name);
        self.daemon.remove_manifest(&format!("{name}.yaml")).unwrap();
        self.wait("pod.removed", &name);
    }

    /// Starts a pod that holds memory, and waits until it does.
    fn hold(&self, name: &str, priority: i32, requests: &str, limits: &str, size: &str) -> Process {
        self.manifest(name, priority, requests, limits);
        self.daemon.hold(&format!("default/{name}"), size).unwrap()
    }

    /// Starts a pod that takes memory, and does not wait.
    fn start(&self, name: &str, work: &[&str]) -> Process {
        self.manifest(name, 0, "", "");
        Process::new(self.daemon.exec(&format!("default/{name}"), work).unwrap())
    }

    /// Starts a pod that takes memory at that rate until so much is left, and keeps it. Where the daemon is late, the kernel's
    /// OOM killer has no reason to kill all the same.
    fn ramp(&self, name: &str, rate: &str, left_bytes: u64) -> Process {
        let to = to_leave(left_bytes);
        self.start(name, &["workload", "ramp", "--huge", "--no-catch-up", "--rate", rate, "--to", &to])
    }

    fn manifest(&self, name: &str, priority: i32, requests: &str, limits: &str) {
        let manifest = pod(name, priority, &[Container { name: "app", requests, limits }]);
        self.daemon.manifest(&format!("{name}.yaml"), &manifest).unwrap();
    }

    /// Removes the manifests and waits until their cgroups are gone.
    fn clear(&mut self, names: &[&str]) {
        let folders: Vec<PathBuf> = names.iter().map(|name| self.folder(name)).collect();
        for (name, folder) in names.iter().zip(&folders) {
            // A killed process may leave children, and these the cgroup to the next scene. The cgroup of an evicted pod may go
            // at any moment.
            let killed = fs::write(folder.join("cgroup.kill"), "1");
            assert!(killed.is_ok() || !folder.exists(), "{name}: {killed:?}");
            self.daemon.remove_manifest(&format!("{name}.yaml")).unwrap();
        }
        for (name, folder) in names.iter().zip(&folders) {
            self.stream.wait_for_pod("pod.removed", &format!("default/{name}"), TIMEOUT).unwrap();
            wait_until("the end of its cgroup", || !folder.exists());
        }
        self.stream.seen.clear();
    }
}

/// How much to hold so that about `left_bytes` stay available, once it has come to rest.
pub(super) fn to_leave(left_bytes: u64) -> String {
    let available_bytes = at_rest_bytes();
    assert!(
        available_bytes > left_bytes,
        "{available_bytes} bytes are available, {left_bytes} are to be left"
    );
    (available_bytes - left_bytes).to_string()
}

/// What is available once it has stayed the same for as many looks: who frees it may have to wait for a processor.
fn at_rest_bytes() -> u64 {
    const LOOKS: u32 = 4;
    let start = Instant::now();
    let mut first_bytes = kernel::meminfo_bytes("MemAvailable").unwrap();
    let mut looks = 0;
    while looks < LOOKS {
        thread::sleep(Duration::from_millis(300));
        let now_bytes = kernel::meminfo_bytes("MemAvailable").unwrap();
        looks += 1;
        if now_bytes.abs_diff(first_bytes) >= 4 * MIB {
            (first_bytes, looks) = (now_bytes, 0);
        }
        assert!(start.elapsed() < TIMEOUT, "what is available does not come to rest");
    }
    first_bytes
}

#[guest_test(kernel, repeats)]
fn the_right_pod_dies_each_time() {
    let threshold = THRESHOLD_BYTES / MIB;
    // Ten of five pods would be too many.
    let settings =
        format!("evictionHard: {{memory.available: {threshold}Mi}}\nbreaker: {{maxKills: 50, maxShare: 1}}");
    let mut scene = Scene::open_with("eviction-right", &settings);
    let killed_by_kernel = kernel::vmstat("oom_kill").unwrap();
    let mut rounds = Rounds::new(1, 10);
    let mut decisions = 0;
    while let Some(round) = rounds.next() {
        let mut within = scene.hold("shop", 0, "memory: 400Mi", "memory: 600Mi", "250Mi");
        let mut above = scene.hold("cache", 0, "memory: 50Mi", "", "100Mi");
        let mut bank = scene.hold("bank", 0, "cpu: 100m, memory: 256Mi", "cpu: 100m, memory: 256Mi", "64Mi");
        let size = to_leave(THRESHOLD_BYTES + 300 * MIB);
        let request = format!("memory: {}", size.parse::<u64>().unwrap() + 32 * MIB);
        let mut ballast = scene.hold("ballast", 0, &request, "", &size);

        let mut hog = scene.ramp("hog", "300Mi", LEFT_BYTES);
        let decided = scene.wait("eviction.decided", "hog");
        scene.wait("eviction.completed", "hog");
        hog.wait_for_end(TIMEOUT).unwrap();
        scene.wait_for_end_of_shortage();

        assert_eq!(decided["data"]["decidedBy"], "aboveRequest", "round {round}: {decided}");
        assert_eq!(decided["data"]["ranking"][1]["name"], "cache", "round {round}: {decided}");
        assert_eq!(scene.stream.of("eviction.decided").count(), 1, "round {round}");
        assert_eq!(scene.stream.of("eviction.completed").count(), 1, "round {round}");
        assert_eq!(scene.stream.of("oom.incident").count(), 0, "round {round}");
        for (name, process) in
            [("shop", &mut within), ("cache", &mut above), ("bank", &mut bank), ("ballast", &mut ballast)]
        {
            assert!(process.lives().unwrap(), "round {round}: {name} died");
        }
        drop((within, above, bank, ballast));
        scene.clear(&["shop", "cache", "bank", "ballast", "hog"]);
        rounds.note(&scene.daemon).unwrap();
        decisions += 1;
    }
    assert_eq!(
        kernel::vmstat("oom_kill").unwrap(),
        killed_by_kernel,
        "the kernel's OOM killer killed as well"
    );
    assert_eq!(scene.daemon.stop_and_replay().unwrap(), decisions, "decisions that were run again");
}

#[guest_test(daemon)]
fn priority_decides_between_two_above_their_requests_and_a_critical_pod_is_spared() {
    let mut scene = Scene::open("eviction-priority");
    let mut critical = scene.hold("critical", 2_000_000_000, "", "", "500Mi");
    let large = scene.hold("large", 10, "", "", "300Mi");
    let mut small = scene.hold("small", -10, "", "", "64Mi");
    // The one that fills the node stays within its request.
    let size = to_leave(THRESHOLD_BYTES - 150 * MIB);
    let request = format!("memory: {}", size.parse::<u64>().unwrap() + 32 * MIB);
    let mut filler = scene.hold("filler", 0, &request, "", &size);

    let decided =
        scene.stream.wait_for("a decision", TIMEOUT, |event| is(event, "eviction.decided")).unwrap();
    scene.stream.wait_for_pod("eviction.completed", "default/small", TIMEOUT).unwrap();
    small.wait_for_end(TIMEOUT).unwrap();

    let data = &decided["data"];
    assert_eq!(decided["subject"], "default/small", "{decided}");
    assert_eq!(data["decidedBy"], "priority", "{decided}");
    assert_eq!(data["ranking"][1]["name"], "large", "{decided}");
    let excluded = data["excluded"].as_array().unwrap();
    assert!(excluded.iter().any(|pod| pod["name"] == "critical" && pod["reason"] == "critical"), "{decided}");
    assert!(critical.lives().unwrap() && filler.lives().unwrap());
    // What one death gives back need not be enough; then the next in rank follows, and no other.
    let others: Vec<_> = scene
        .stream
        .of("eviction.decided")
        .map(|event| event["subject"].clone())
        .filter(|pod| pod != "default/small")
        .collect();
    assert!(others.iter().all(|pod| pod == "default/large"), "{others:?}");
    drop((critical, large, filler));
    scene.clear(&["critical", "large", "small", "filler"]);
    assert!(scene.daemon.stop_and_replay().unwrap() > 0, "no decision was recorded");
}

/// The daemon is killed right after the signal. Its successor reports one eviction, and keeps the pod out until its manifest is
/// another one.
#[guest_test(daemon, repeats)]
fn an_eviction_outlives_the_daemon() {
    let mut rounds = Rounds::new(1, 3);
    while let Some(round) = rounds.next() {
        let name = format!("eviction-kill-{round}");
        let mut scene = Scene::open(&name);
        let mut hog = scene.ramp("hog", "200Mi", LEFT_BYTES);
        scene.wait("eviction.signalled", "hog");
        // Dropping it is SIGKILL.
        drop(scene);
        hog.wait_for_end(TIMEOUT).unwrap();

        let mut scene = Scene::open(&name);
        let refused = scene.daemon.verb(&["exec", "default/hog", "--", "true"]).output().unwrap();
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(77), "{error}");
        assert!(error.contains("evict"), "{error}");
        scene.wait("eviction.decided", "hog");
        scene.wait("eviction.signalled", "hog");
        scene.catch_up();
        assert_eq!(scene.stream.of("eviction.decided").count(), 1, "reported twice");
        assert_eq!(scene.stream.of("eviction.signalled").count(), 1);
        let sequences: Vec<u64> = scene
            .stream
            .seen
            .iter()
            .map(|event| event["sequence"].as_str().unwrap().parse().unwrap())
            .collect();
        assert!(sequences.windows(2).all(|pair| pair[1] == pair[0] + 1), "{sequences:?}");

        // A third start knows it from the disk alone.
        drop(scene);
        let scene = Scene::open(&name);
        let refused = scene.daemon.verb(&["exec", "default/hog", "--", "true"]).output().unwrap();
        assert_eq!(refused.status.code(), Some(77), "{}", String::from_utf8_lossy(&refused.stderr));
        scene.manifest("hog", 1, "", "");
        wait_until("the pod's return by another manifest", || {
            scene.daemon.verb(&["exec", "default/hog", "--", "true"]).output().unwrap().status.success()
        });
        let events = scene.daemon.events().unwrap();
        for kind in ["eviction.decided", "eviction.signalled"] {
            assert_eq!(
                events.iter().filter(|event| is(event, kind)).count(),
                1,
                "{kind} of all three daemons"
            );
        }
        rounds.note(&scene.daemon).unwrap();
        scene.daemon.stop().unwrap();
    }
}
