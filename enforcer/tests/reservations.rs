//! `allocatable`, `reserve` and `unreserve`, over the real binary and its sockets; needs no privileges.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic like the test itself")]

mod scene;

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use self::scene::Scene;

const TIMEOUT: Duration = Duration::from_secs(30);

impl Scene {
    fn new() -> Self {
        Self::owned_by("enforcer")
    }

    fn owned_by(owner: &str) -> Self {
        let mut scene = Self::with(owner, "systemReserved: {cpu: 10m}\n");
        scene.pod("web", "1Mi");
        scene.start();
        scene
    }

    fn pod(&self, name: &str, memory: &str) {
        self.manifest("pods", name, &format!(", resources: {{requests: {{memory: {memory}}}}}"));
    }

    fn start(&mut self) {
        self.run();
        self.wait("the daemon's pods", |scene| {
            scene.verb(&["--live", "events", "--type", "pod.added"]).0.contains("default/web")
        });
    }

    fn done(&self, arguments: &[&str]) -> String {
        let (said, status) = self.verb(arguments);
        assert_eq!(status, 0, "{arguments:?}: {said}");
        said
    }

    fn reserve(&self, name: &str, memory: u64, ttl: &str) -> (String, i32) {
        let memory = memory.to_string();
        self.verb(&["reserve", name, "--memory", &memory, "--ttl", ttl, "--reason", "batch work"])
    }

    fn allocatable(&self) -> Value {
        serde_json::from_str(&self.done(&["-o", "json", "allocatable"])).unwrap()
    }

    fn free_bytes(&self) -> u64 {
        self.allocatable()["free"]["memoryBytes"].as_u64().unwrap()
    }

    fn wait(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            assert!(start.elapsed() < TIMEOUT, "waited for {what}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn state(&self, pod: &str) -> String {
        let answer = self.ask("observe", "GET /v1/pods HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let view: Value =
            serde_json::from_str(&body[body.find('{').unwrap()..=body.rfind('}').unwrap()]).unwrap();
        let pods = view["pods"].as_array().unwrap();
        let found = pods.iter().find(|found| found["name"] == pod);
        found.map_or_else(String::new, |found| found["state"].as_str().unwrap().to_owned())
    }

    fn ask(&self, socket: &str, request: &str) -> String {
        let mut stream = UnixStream::connect(self.file(&format!("run/{socket}.sock"))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

#[test]
fn a_reservation_takes_from_what_is_free_outlives_a_kill_and_is_released() {
    let mut scene = Scene::new();
    let before = scene.allocatable();
    let memory = |view: &Value, row: &str| view[row]["memoryBytes"].as_u64().unwrap_or(0);
    assert_eq!(before["reserved"]["cpuMilli"], 10);
    assert_eq!(memory(&before, "requested"), 1 << 20, "{before}");
    assert_eq!(
        memory(&before, "allocatable"),
        memory(&before, "capacity") - memory(&before, "hardThresholds") - memory(&before, "hugePages")
    );
    let said = scene.done(&[
        "reserve", "batch", "--memory", "64Mi", "--cpu", "100m", "--ttl", "1h", "--reason", "nightly",
    ]);
    assert!(said.starts_with("100m cpu and 64Mi memory reserved for batch until 20"), "{said}");
    scene.kill();
    scene.start();
    let after = scene.allocatable();
    assert_eq!(memory(&after, "free"), memory(&before, "free") - (64 << 20));
    assert_eq!(after["requestedByReservations"]["cpuMilli"], 100);
    assert_eq!(after["reservations"][0]["name"], "batch");
    assert!(scene.done(&["allocatable"]).contains("batch has 100m cpu and 64Mi memory reserved for "));
    let made = scene.events("reservation.made");
    assert_eq!(made.len(), 1);
    assert_eq!(made[0]["data"]["resources"]["memory"], "64Mi");
    assert_eq!(
        (&made[0]["data"]["reason"], &made[0]["data"]["leftMs"]),
        (&"nightly".into(), &3_600_000.into())
    );

    scene.done(&["reserve", "batch", "--release"]);
    assert_eq!(scene.free_bytes(), memory(&before, "free"));
    let ended = scene.events("reservation.ended");
    assert_eq!((ended.len(), &ended[0]["data"]["reason"]), (1, &"released".into()));
    let (said, status) = scene.verb(&["unreserve", "batch"]);
    assert!(status == 66 && said.contains("there is no reservation batch"), "{status}: {said}");
    scene.kill();
    scene.start();
    assert_eq!(scene.allocatable()["reservations"], Value::Array(Vec::new()));
}

#[test]
fn more_than_is_free_is_refused_and_changes_nothing() {
    let scene = Scene::new();
    let free = scene.free_bytes();
    let (said, status) = scene.reserve("much", free + 1, "1h");
    assert_eq!(status, 77, "{said}");
    assert!(said.contains("of memory are asked for and") && said.lines().count() == 1, "{said}");
    assert_eq!(scene.free_bytes(), free);
    assert!(scene.events("reservation.made").is_empty());
    assert_eq!(scene.reserve("much", free, "1h").1, 0, "to the last byte");
    assert_eq!(scene.free_bytes(), 0);
    let (said, status) = scene.reserve("more", 1, "1h");
    assert_eq!(status, 77, "{said}");
    // Its own amount does not stand in its way.
    assert_eq!(scene.reserve("much", free - 1, "1h").1, 0);
    assert_eq!(scene.events("reservation.made")[1]["data"]["replaced"], true);
}

#[test]
fn a_pod_is_admitted_beside_reservations_alone_and_comes_in_when_one_expires() {
    let mut scene = Scene::new();
    let free = scene.free_bytes();
    assert_eq!(scene.reserve("batch", free - (32 << 20), "1h").1, 0);
    scene.pod("large", "64Mi");
    scene.wait("the rejection", |scene| scene.state("large") == "rejected");
    let rejected = scene.events("pod.rejected");
    assert_eq!(rejected[0]["data"]["reason"], "OutOfmemory", "{rejected:?}");
    // After a restart it is rejected too: reservations are in force before the first pod is admitted.
    scene.kill();
    scene.start();
    scene.wait("the pod", |scene| !scene.state("large").is_empty());
    assert_eq!(scene.state("large"), "rejected");
    assert_eq!(scene.reserve("batch", free - (32 << 20), "1s").1, 0);
    scene.wait("its end", |scene| !scene.events("reservation.ended").is_empty());
    assert_eq!(scene.events("reservation.ended")[0]["data"]["reason"], "expired");
    scene.wait("the admission", |scene| scene.state("large") != "rejected");
    assert_eq!(scene.free_bytes(), free - (64 << 20));
}

/// A folder that cannot be read at a start may name pods, which then have their room.
#[test]
fn nothing_is_reserved_before_the_manifests_were_read() {
    let mut scene = Scene::new();
    scene.kill();
    let (pods, away) = (scene.file("pods"), scene.file("away"));
    // As after a boot, which leaves no run directory.
    fs::remove_dir_all(scene.file("run")).unwrap();
    fs::rename(&pods, &away).unwrap();
    scene.run();
    scene.wait("a daemon that knows no folder", |scene| {
        scene.verb(&["--live", "events", "--type", "source.down"]).0.contains("pods")
    });
    let (said, status) = scene.reserve("batch", 1 << 20, "1h");
    assert!(status == 1 && said.contains("have not been read yet"), "{status}: {said}");
    assert!(scene.events("reservation.made").is_empty());
    fs::rename(&away, &pods).unwrap();
    scene.wait("the reservation", |scene| scene.reserve("batch", 1 << 20, "1h").1 == 0);
    assert!(!scene.state("web").is_empty());
    // From now on its pods are known, also to the next daemon of this boot.
    scene.kill();
    fs::rename(&pods, &away).unwrap();
    scene.start();
    assert_eq!(scene.reserve("other", 1 << 20, "1h").1, 0);
}

#[test]
fn beside_a_kubelet_nothing_is_reserved() {
    let scene = Scene::owned_by("kubelet");
    let (said, status) = scene.reserve("batch", 1 << 20, "1h");
    assert!(status == 77 && said.contains("a kubelet admits the pods of this node"), "{status}: {said}");
    assert_eq!(scene.allocatable()["reservations"], Value::Array(Vec::new()));
}

#[test]
fn what_is_wrong_gives_one_error_and_changes_nothing() {
    let scene = Scene::new();
    let usual = ["--ttl", "1h", "--reason", "why"];
    for (arguments, says) in [
        (&["reserve", "batch", "--memory", "2GB"][..], "not a quantity"),
        (&["reserve", "batch", "--memory", "-1"], "-1"),
        (&["reserve", "a/b", "--memory", "1Mi"], "a reservation's name"),
        (&["reserve", "batch", "--resource", "pods=1"], "cannot be reserved"),
        (&["reserve", "batch"], "reserve some of a resource"),
        (&["reserve", "batch", "--memory", "1Mi", "--resource", "memory=2Mi"], "given twice"),
    ] {
        let (said, status) = scene.verb(&[arguments, &usual].concat());
        assert!(status == 64 && said.contains(says), "{arguments:?}: {status}: {said}");
    }
    let wrong = ["reserve", "batch", "--memory", "1Mi", "--ttl", "169h", "--reason", "why"];
    assert_eq!(scene.verb(&wrong).1, 64);
    let post = |body: &str| {
        let length = body.len();
        let head = format!("POST /v1/reservations HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
        scene.ask("admin", &(head + body))
    };
    for (body, says) in [
        ("", "this is not a reservation"),
        (r#"{"name":"a","resources":{"memory":"1Mi"},"reason":"why","ttlMs":60000,"more":1}"#, "more"),
        (r#"{"name":"a","resources":{"memory":"x"},"reason":"why","ttlMs":60000}"#, "not a quantity"),
        (r#"{"name":"a","resources":{"memory":"1Mi"},"reason":"","ttlMs":60000}"#, "the reason must say why"),
        (r#"{"name":"a","resources":{"memory":"1Mi"},"reason":"why","ttlMs":1}"#, "holds for 1s to 168h"),
    ] {
        let answer = post(body);
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains(says), "{body}: {answer}");
    }
    for query in ["", "?name=", "?name=a&name=b", "?nam=a"] {
        let answer =
            scene.ask("admin", &format!("DELETE /v1/reservations{query} HTTP/1.1\r\nHost: x\r\n\r\n"));
        assert!(answer.starts_with("HTTP/1.1 400"), "{query}: {answer}");
    }
    let made = post(r#"{"name":"a","resources":{"memory":"1Mi"},"reason":"why","ttlMs":60000}"#);
    assert!(made.starts_with("HTTP/1.1 200") && made.contains(r#""reservation":{"#), "{made}");
    let ended = scene.ask("admin", "DELETE /v1/reservations?name=a HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(ended.starts_with("HTTP/1.1 200"), "{ended}");
    assert_eq!(scene.events("reservation.made").len(), 1);
}
