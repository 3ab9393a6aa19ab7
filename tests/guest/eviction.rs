//! The node runs short, again and again, and each time the right pod dies, and nobody else.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use enforcer_tests::{
    daemon::Daemon,
    kernel,
    pods::{Container, pod},
    process::Process,
    stream::Stream,
    wait::{PATIENCE, wait_until},
};

mod allocatable;
mod asked;
mod cache;
mod calm;
mod contain;
mod disk;
mod foretold;
mod hook;
mod metrics;
mod orders;
mod pids;
mod reckoned;
mod restart;
mod returning;
mod soft;
mod stubborn;

const MIB: u64 = 1 << 20;
const ROUNDS: u32 = 10;
const THRESHOLD_BYTES: u64 = 200 * MIB;

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
        let request = format!("memory: {}", size.parse::<u64>().unwrap() + 64 * MIB);
        self.hold(name, 0, &request, "", size)
    }

    /// Starts a pod that heeds no SIGTERM and holds so many MiB.
    fn stubborn(&self, name: &str, priority: i32, mib: u64) -> Process {
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

    /// The folder of a pod's cgroup.
    fn folder(&self, name: &str) -> Option<PathBuf> {
        let added =
            self.daemon.verb(&["-o", "jsonl", "events", "--type", "pod.added", "--pod", name]).output();
        let added = String::from_utf8(added.unwrap().stdout).unwrap();
        let added: serde_json::Value = serde_json::from_str(added.lines().last()?).unwrap();
        let class = match added["data"]["qosClass"].as_str()? {
            "BestEffort" => "besteffort/",
            "Burstable" => "burstable/",
            _ => "",
        };
        let uid = added["data"]["uid"].as_str()?;
        Some(PathBuf::from(format!("/sys/fs/cgroup/kubepods/{class}pod{uid}")))
    }

    /// A file of a pod's cgroup; none if that is not there.
    fn file(&self, name: &str, file: &str) -> Option<String> {
        fs::read_to_string(self.folder(name)?.join(file)).ok().map(|text| text.trim().to_owned())
    }

    fn number(&self, name: &str, file: &str) -> Option<u64> {
        self.file(name, file)?.parse().ok()
    }

    fn wait(&mut self, kind: &str, pod: &str) -> serde_json::Value {
        self.stream.wait_for_pod(kind, &format!("default/{pod}"), PATIENCE).unwrap()
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

    fn manifest(&self, name: &str, priority: i32, requests: &str, limits: &str) {
        let manifest = pod(name, priority, &[Container { name: "app", requests, limits }]);
        self.daemon.manifest(&format!("{name}.yaml"), &manifest).unwrap();
    }

    /// Removes the manifests and waits until their cgroups are gone.
    fn clear(&mut self, names: &[&str]) {
        for name in names {
            let folder = self.folder(name).filter(|folder| folder.exists());
            if let Some(folder) = &folder {
                // Whoever is killed may leave children, and these the cgroup to the next scene.
                fs::write(folder.join("cgroup.kill"), "1").unwrap();
            }
            self.daemon.remove_manifest(&format!("{name}.yaml")).unwrap();
            self.stream.wait_for_pod("pod.removed", &format!("default/{name}"), PATIENCE).unwrap();
            wait_until("the end of its cgroup", || folder.as_ref().is_none_or(|folder| !folder.exists()));
        }
        self.stream.seen.clear();
    }
}

/// How much to hold so that about `left_bytes` stay available, once it has come to rest.
fn to_leave(left_bytes: u64) -> String {
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
        assert!(start.elapsed() < PATIENCE, "what is available does not come to rest");
    }
    first_bytes
}

#[guest_test(kernel)]
fn the_right_pod_dies_ten_times_of_ten() {
    let threshold = THRESHOLD_BYTES / MIB;
    // Ten of five pods would be too many.
    let settings =
        format!("evictionHard: {{memory.available: {threshold}Mi}}\nbreaker: {{maxKills: 50, maxShare: 1}}");
    let mut scene = Scene::open_with("eviction-ten", &settings);
    let killed_by_kernel = kernel::vmstat("oom_kill").unwrap();
    for round in 1..=ROUNDS {
        let mut within = scene.hold("shop", 0, "memory: 400Mi", "memory: 600Mi", "250Mi");
        let mut above = scene.hold("cache", 0, "memory: 50Mi", "", "100Mi");
        let mut bank = scene.hold("bank", 0, "cpu: 100m, memory: 256Mi", "cpu: 100m, memory: 256Mi", "64Mi");
        let size = to_leave(THRESHOLD_BYTES + 300 * MIB);
        let request = format!("memory: {}", size.parse::<u64>().unwrap() + 64 * MIB);
        let mut ballast = scene.hold("ballast", 0, &request, "", &size);
        at_rest_bytes();

        let mut hog = scene.start("hog", &["workload", "ramp", "--no-catch-up", "--rate", "300Mi"]);
        let decided = scene.stream.wait_for_pod("eviction.decided", "default/hog", PATIENCE).unwrap();
        scene.stream.wait_for_pod("eviction.completed", "default/hog", PATIENCE).unwrap();
        hog.wait_for_end(PATIENCE).unwrap();
        // Long enough for a second decision, were there one.
        scene.stream.drain(Duration::from_millis(1_500));

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
    }
    assert_eq!(kernel::vmstat("oom_kill").unwrap(), killed_by_kernel, "the kernel's OOM killer was faster");
    let replayed = scene.daemon.stop_and_replay().unwrap();
    assert_eq!(replayed, usize::try_from(ROUNDS).unwrap(), "decisions that were run again");
}

#[guest_test(daemon)]
fn priority_decides_between_two_above_their_requests_and_a_critical_pod_is_spared() {
    let mut scene = Scene::open("eviction-priority");
    let mut critical = scene.hold("critical", 2_000_000_000, "", "", "500Mi");
    let large = scene.hold("large", 10, "", "", "300Mi");
    let mut small = scene.hold("small", -10, "", "", "64Mi");
    // The one that fills the node stays within its request.
    let size = to_leave(THRESHOLD_BYTES - 150 * MIB);
    let request = format!("memory: {}", size.parse::<u64>().unwrap() + 64 * MIB);
    let mut filler = scene.hold("filler", 0, &request, "", &size);

    let decided = scene
        .stream
        .wait_for("a decision", PATIENCE, |event| enforcer_tests::stream::is(event, "eviction.decided"))
        .unwrap();
    scene.stream.wait_for_pod("eviction.completed", "default/small", PATIENCE).unwrap();
    small.wait_for_end(PATIENCE).unwrap();

    let data = &decided["data"];
    assert_eq!(decided["subject"], "default/small", "{decided}");
    assert_eq!(data["decidedBy"], "priority", "{decided}");
    assert_eq!(data["ranking"][1]["name"], "large", "{decided}");
    let excluded = data["excluded"].as_array().unwrap();
    assert!(excluded.iter().any(|pod| pod["name"] == "critical" && pod["reason"] == "critical"), "{decided}");
    assert!(critical.lives().unwrap() && filler.lives().unwrap());
    // What one death gives back need not be enough; then the next in rank follows, and nobody else.
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

/// Killed right after the signal, the daemon has forgotten nothing: its successor tells one eviction, and keeps the pod out
/// until its manifest is another one.
#[guest_test(daemon)]
fn an_eviction_outlives_the_daemon() {
    for round in 0..3 {
        let name = format!("eviction-kill-{round}");
        let mut scene = Scene::open(&name);
        let mut hog = scene.start("hog", &["workload", "ramp", "--no-catch-up", "--rate", "200Mi"]);
        scene.stream.wait_for_pod("eviction.signalled", "default/hog", PATIENCE).unwrap();
        // Dropping it is SIGKILL.
        drop(scene);
        hog.wait_for_end(PATIENCE).unwrap();

        let mut scene = Scene::open(&name);
        let refused = scene.daemon.verb(&["exec", "default/hog", "--", "true"]).output().unwrap();
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(77), "{told}");
        assert!(told.contains("evict"), "{told}");
        scene.wait("eviction.decided", "hog");
        scene.wait("eviction.signalled", "hog");
        scene.stream.drain(Duration::from_secs(2));
        assert_eq!(scene.stream.of("eviction.decided").count(), 1, "told twice");
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
        let start = Instant::now();
        while !scene.daemon.verb(&["exec", "default/hog", "--", "true"]).output().unwrap().status.success() {
            assert!(start.elapsed() < PATIENCE, "another manifest does not bring it back");
        }
        scene.daemon.stop().unwrap();
    }
}
