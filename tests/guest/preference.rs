//! How early a pod goes by its own wish: earlier as it likes, later only as far as the administrator allows.

use std::path::Path;

use enforcer_tests::{
    daemon::Daemon,
    kernel,
    pods::{Container, pod},
    process::Process,
    stream::{Stream, is},
    wait::TIMEOUT,
};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

/// Values that are not allowed there: no whole number of 32 bits.
const HOSTILE: [&str; 9] =
    ["", "never", "1e9", "0x10", "2147483648", "-2147483649", "99999999999999999999999999", "1 2", "１"];

struct Scene {
    daemon: Daemon,
    stream: Stream,
}

impl Scene {
    fn open(name: &str, settings: &str) -> Self {
        let settings =
            format!("mode: enforce\nevictionHard: {{memory.available: 200Mi}}\nmaxPods: 50\n{settings}");
        let daemon = Daemon::start(&Path::new("/tmp/preference").join(name), &settings).unwrap();
        let stream = daemon.follow().unwrap();
        Self { daemon, stream }
    }

    fn manifest(&self, name: &str, priority: i32, request: &str, wish: Option<&str>) {
        let manifest = pod(name, priority, &[Container { name: "app", requests: request, limits: "" }]);
        // Written as JSON, which YAML takes, so that any text can be there.
        let annotation = wish.map_or_else(String::new, |wish| {
            format!("  annotations: {{enforcer.dev/eviction-priority: {}}}\n", json!(wish))
        });
        let manifest = manifest.replacen("spec:\n", &format!("{annotation}spec:\n"), 1);
        self.daemon.manifest(&format!("{name}.yaml"), &manifest).unwrap();
    }

    /// One that holds memory.
    fn hold(&mut self, name: &str, priority: i32, wish: Option<&str>, mib: u64) -> Process {
        self.manifest(name, priority, "", wish);
        self.stream.wait_for_pod("pod.added", &format!("default/{name}"), TIMEOUT).unwrap();
        self.daemon.hold(&format!("default/{name}"), &format!("{mib}Mi")).unwrap()
    }

    /// Has the node run short by one that stays within what it asked for, until so many are evicted; who, in their order,
    /// with the priority that each was ranked by.
    fn evicted(&mut self, count: usize) -> Vec<(String, i64)> {
        self.manifest("filler", 0, "memory: 1700Mi", None);
        self.stream.wait_for_pod("pod.added", "default/filler", TIMEOUT).unwrap();
        // Slowly at the end alone.
        let near_bytes = kernel::meminfo_bytes("MemAvailable").unwrap() - 500 * MIB;
        let ballast = self.daemon.hold("default/filler", &near_bytes.to_string()).unwrap();
        let filler = self
            .daemon
            .exec("default/filler", &["workload", "ramp", "--no-catch-up", "--rate", "60Mi"])
            .unwrap();
        let filler = Process::new(filler);
        let mut decided: Vec<(String, i64)> = Vec::new();
        while decided.len() < count {
            let known: Vec<String> = decided.iter().map(|(name, _)| name.clone()).collect();
            let next = |event: &Value| {
                let name = event["data"]["victim"]["name"].as_str().unwrap_or_default();
                is(event, "eviction.decided") && !known.iter().any(|known| known == name)
            };
            let event = self.stream.wait_for("the next eviction", TIMEOUT, next).unwrap();
            let victim = &event["data"]["victim"];
            decided.push((victim["name"].as_str().unwrap().to_owned(), victim["priority"].as_i64().unwrap()));
        }
        drop((filler, ballast));
        decided
    }
}

#[guest_test(daemon)]
fn a_pod_goes_earlier_as_it_likes_and_not_later() {
    let mut scene = Scene::open("unbounded", "");
    let boast = scene.hold("boast", 0, Some("2000000000"), 200);
    let plain = scene.hold("plain", 5, None, 150);
    let meek = scene.hold("meek", 10, Some("-100"), 150);
    let evicted = scene.evicted(3);
    let expected =
        [("meek", -100), ("boast", 0), ("plain", 5)].map(|(name, priority)| (name.to_owned(), priority));
    assert_eq!(evicted, expected);
    drop((boast, plain, meek));
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn a_pod_goes_later_as_far_as_it_is_allowed() {
    let mut scene = Scene::open("bounded", "evictionPriorityCeiling: 100");
    // Allowed up to 100, so after the one with 50, and before the one whose own priority is more.
    let boast = scene.hold("boast", 0, Some("2147483647"), 200);
    let plain = scene.hold("plain", 50, None, 150);
    let high = scene.hold("high", 200, None, 150);
    let evicted = scene.evicted(3);
    let expected =
        [("plain", 50), ("boast", 100), ("high", 200)].map(|(name, priority)| (name.to_owned(), priority));
    assert_eq!(evicted, expected);
    drop((boast, plain, high));
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn what_is_no_number_is_reported_and_starts_nothing() {
    let mut scene = Scene::open("hostile", "evictionPriorityCeiling: 2147483647");
    let long = "9".repeat(100_000);
    for (number, wish) in (0..).zip(HOSTILE.into_iter().chain([long.as_str()])) {
        let (name, file) = (format!("hostile{number}"), format!("hostile{number}.yaml"));
        scene.manifest(&name, 0, "", Some(wish));
        let reported = scene
            .stream
            .wait_for("its rejection", TIMEOUT, |event| {
                is(event, "pod.rejected") && event.to_string().contains(&file)
            })
            .unwrap();
        let text = reported.to_string();
        assert!(text.contains("enforcer.dev/eviction-priority"), "{wish:.20}: {text:.500}");
        assert!(text.len() < 4_096, "{wish:.20}: an event of {} bytes", text.len());
    }
    assert!(scene.stream.of("pod.added").next().is_none());
    // To be critical is not for it to ask for: it is evicted like anybody else.
    let boast = scene.hold("boast", 0, Some("2147483647"), 200);
    assert_eq!(scene.evicted(1), [(String::from("boast"), i64::from(i32::MAX))]);
    drop(boast);
    scene.daemon.stop().unwrap();
}
