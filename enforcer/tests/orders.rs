//! `protect`, `pause` and `evict`, over the real binary and its sockets; needs no privileges.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic like the test itself")]

mod scene;

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use self::scene::Scene;

const TIMEOUT: Duration = Duration::from_secs(30);

impl Scene {
    fn new() -> Self {
        let mut scene = Self::with("enforcer", "protectedMaxShare: 0.25\n");
        for name in ["web", "db"] {
            scene.pod(name, "");
        }
        scene.start();
        scene
    }

    fn pod(&self, name: &str, resources: &str) {
        self.manifest("pods", name, resources);
    }

    fn start(&mut self) {
        self.run();
        let start = Instant::now();
        while !self.verb(&["--live", "events", "--type", "pod.added"]).0.contains("default/web") {
            assert!(start.elapsed() < TIMEOUT, "the daemon knows no pods");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn orders(&self) -> Vec<Value> {
        let list: Value = serde_json::from_slice(
            &self.command(&["-o", "json", "protect", "--list"]).output().unwrap().stdout,
        )
        .unwrap();
        serde_json::from_value(list["items"].clone()).unwrap()
    }
}

/// The events that tell of orders.
fn of_orders(events: Vec<Value>) -> Vec<Value> {
    let is_orders =
        |event: &Value| ["protect", "pause"].contains(&event["data"]["what"].as_str().unwrap_or(""));
    events.into_iter().filter(is_orders).collect()
}

const PROTECT: &[&str] = &["protect", "default/web", "--for", "1h", "--reason", "a migration"];

#[test]
fn an_order_is_reported_outlives_the_daemon_and_is_ended() {
    let mut scene = Scene::new();
    let mode = fs::metadata(scene.file("run/admin.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (said, status) = scene.verb(PROTECT);
    assert_eq!(status, 0, "{said}");
    assert!(said.starts_with("pod default/web is not evicted until 20"), "{said}");
    let (said, status) = scene.verb(&["pause", "--for", "15m", "--reason", "an upgrade"]);
    assert_eq!(status, 0, "{said}");
    let uid = rustix::process::geteuid().as_raw();
    let orders = scene.orders();
    assert_eq!(orders.len(), 2);
    assert_eq!((&orders[0]["name"], &orders[0]["reason"]), (&"web".into(), &"a migration".into()));
    assert_eq!((&orders[1]["order"], &orders[1]["uid"]), (&"pause".into(), &uid.into()));
    let reported = of_orders(scene.events("degraded.entered"));
    assert_eq!(reported.len(), 2);
    assert_eq!(reported[0]["subject"], "default/web");
    for key in ["reason", "until", "uid", "pid"] {
        assert!(!reported[0]["data"][key].is_null(), "{key} in {}", reported[0]);
    }
    let (said, status) = scene.verb(&["doctor"]);
    // 2 where this machine has no cgroup v2.
    assert!(matches!(status, 1 | 2), "{status}: {said}");
    assert!(said.contains("PAUSED: no pod is evicted for 1"), "{said}");

    scene.kill();
    let (said, status) = scene.verb(PROTECT);
    assert_eq!(status, 69, "{said}");
    scene.start();
    let resumed = scene.orders();
    let untils = |orders: &[Value]| orders.iter().map(|order| order["until"].clone()).collect::<Vec<_>>();
    assert_eq!(untils(&resumed), untils(&orders));
    assert!(resumed[0]["leftMs"].as_u64() < orders[0]["leftMs"].as_u64());
    assert_eq!(of_orders(scene.events("degraded.entered"))[3]["data"]["resumed"], true);

    let end = &["protect", "default/web", "--end", "--reason", "it is done"];
    assert_eq!(scene.verb(end).1, 0);
    assert_eq!(scene.verb(&["pause", "--end", "--reason", "done too"]).1, 0);
    assert_eq!(scene.orders(), Vec::<Value>::new());
    let left = of_orders(scene.events("degraded.left"));
    assert_eq!(left[0]["data"]["endedBy"]["reason"], "it is done");
    let (said, status) = scene.verb(end);
    assert_eq!(status, 66, "{said}");
    scene.kill();
    scene.start();
    assert_eq!(scene.orders(), Vec::<Value>::new(), "an end is kept too");
}

#[test]
fn help_fits_the_terminal() {
    for verb in ["protect", "pause", "evict"] {
        let output = Command::new(env!("CARGO_BIN_EXE_enforcer")).args([verb, "--help"]).output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        assert!(help.contains("--reason") && help.lines().all(|line| line.chars().count() <= 80), "{help}");
    }
}

#[test]
fn an_order_ends_by_itself_and_that_is_reported() {
    let scene = Scene::new();
    assert_eq!(scene.verb(&["pause", "--for", "1s", "--reason", "short"]).1, 0);
    let start = Instant::now();
    let left = loop {
        let left = of_orders(scene.events("degraded.left"));
        if !left.is_empty() {
            break left;
        }
        assert!(start.elapsed() < TIMEOUT, "it does not end");
        thread::sleep(Duration::from_millis(50));
    };
    assert_eq!((left.len(), &left[0]["data"]["cause"]), (1, &"expired".into()));
    assert_eq!(scene.orders(), Vec::<Value>::new());
}

#[test]
fn what_must_not_be_is_refused_and_says_why() {
    let scene = Scene::new();
    let refused = |arguments: &[&str], status: i32, why: &str| {
        let (said, code) = scene.verb(arguments);
        assert_eq!(code, status, "{arguments:?}: {said}");
        assert!(said.contains(why), "{arguments:?}: {said}");
        assert!(said.lines().count() == 1 || status == 64, "{said}");
    };
    refused(
        &["protect", "default/wbe", "--for", "1h", "--reason", "r"],
        66,
        "no pod default/wbe: did you mean default/web?",
    );
    refused(&["evict", "default/wbe", "--reason", "r"], 66, "no pod default/wbe: did you mean default/web?");
    refused(&["evict", "default/web", "--reason", "r"], 77, "no cgroup");
    refused(&["protect", "default/web", "--for", "1h"], 64, "--reason");
    refused(&["protect", "default/web", "--reason", "r"], 64, "--for");
    refused(&["protect", "default/web", "--for", "25h", "--reason", "r"], 64, "24h");
    refused(&["protect", "default/web", "--for", "1h", "--reason", "a\nb"], 64, "reason");
    refused(&["protect", "web", "--for", "1h", "--reason", "r"], 64, "NAMESPACE/POD");
    refused(&["pause", "--for", "0s", "--reason", "r"], 64, "24h");
    refused(&["pause"], 64, "--reason");
    refused(&["evict", "default/web"], 64, "--reason");
    refused(&["protect", "--list", "default/web"], 64, "--list");
    assert_eq!(scene.orders(), Vec::<Value>::new());
}

#[test]
fn no_more_than_a_share_of_the_node_is_protected() {
    let scene = Scene::new();
    let memory_kib: u64 =
        fs::read_to_string("/proc/meminfo").unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
    // 20 and 10 hundredths, where 25 are allowed.
    for (name, hundredths) in [("large", 20), ("other", 10)] {
        scene.pod(
            name,
            &format!(", resources: {{requests: {{memory: {}Ki}}}}", memory_kib * hundredths / 100),
        );
    }
    let start = Instant::now();
    while scene.verb(&["protect", "default/other", "--for", "1h", "--reason", "r"]).1 != 0 {
        assert!(start.elapsed() < TIMEOUT, "the pods do not come");
        thread::sleep(Duration::from_millis(50));
    }
    let (said, status) = scene.verb(&["protect", "default/large", "--for", "1h", "--reason", "r"]);
    assert_eq!(status, 77, "{said}");
    assert!(said.contains("protectedMaxShare"), "{said}");
    assert_eq!(scene.orders().len(), 1);
    assert_eq!(scene.verb(&["protect", "default/other", "--end", "--reason", "r"]).1, 0);
    assert_eq!(scene.verb(&["protect", "default/large", "--for", "1h", "--reason", "r"]).1, 0);
}

#[test]
fn a_damaged_file_is_set_aside_and_reported() {
    let mut scene = Scene::new();
    assert_eq!(scene.verb(PROTECT).1, 0);
    scene.kill();
    fs::write(scene.file("state/orders.json"), "{\"version\":1,").unwrap();
    scene.start();
    assert_eq!(scene.orders(), Vec::<Value>::new());
    assert!(scene.file("state/orders.json.damaged").exists());
    let reported = scene.events("degraded.entered");
    assert!(reported.iter().any(|event| event["data"]["what"] == "orders"), "{reported:?}");
    assert_eq!(scene.verb(PROTECT).1, 0);
}

/// Many at once: none is lost, and none waits for ever.
#[test]
fn a_flood_is_answered() {
    let scene = Scene::new();
    let socket = scene.file("run/admin.sock");
    let answers: Vec<_> = thread::scope(|scope| {
        let asking: Vec<_> = (0..60).map(|_| scope.spawn(|| post(&socket))).collect();
        asking.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    let with = |status: &str| answers.iter().filter(|answer| answer.starts_with(status)).count();
    let (done, rationed) = (with("HTTP/1.1 200"), with("HTTP/1.1 429"));
    assert_eq!(done + rationed, 60, "{answers:?}");
    assert!(done >= 20, "{done} done, {rationed} put off");
    assert_eq!(scene.orders().len(), 1);
    assert_eq!(of_orders(scene.events("degraded.entered")).len(), done);
}

fn post(socket: &Path) -> String {
    let body = r#"{"do":"give","what":{"order":"pause"},"reason":"flood","forMs":60000}"#;
    let mut stream = UnixStream::connect(socket).unwrap();
    write!(stream, "POST /v1/orders HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
