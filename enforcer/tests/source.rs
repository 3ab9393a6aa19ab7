//! The folder of manifests that is away, another one or not to be trusted, and a stuck stderr: over the real binary and
//! its sockets; needs no privileges.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic like the test itself")]

#[expect(dead_code, reason = "other tests use more of it")]
mod scene;

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::{
        fs::{PermissionsExt as _, symlink},
        net::UnixStream,
    },
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use self::scene::Scene;

const TIMEOUT: Duration = Duration::from_mins(1);

impl Scene {
    /// With the pods `web` and `db`, and not started.
    fn new() -> Self {
        let scene = Self::with("enforcer", "");
        for name in ["web", "db"] {
            scene.manifest("pods", name, "");
        }
        scene
    }

    fn started() -> Self {
        let mut scene = Self::new();
        scene.start();
        scene.wait_for("the pods", || scene.pods() == ["db", "web"]);
        scene
    }

    fn start(&mut self) {
        self.run();
        self.wait_for("the daemon", || self.get("/readyz").starts_with("HTTP/1.1 200"));
    }

    /// What the observe socket answers, with its head.
    fn get(&self, path: &str) -> String {
        let mut answer = String::new();
        if let Ok(mut stream) = UnixStream::connect(self.file("run/observe.sock")) {
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            if stream.write_all(request.as_bytes()).is_ok() {
                let _cut_short = stream.read_to_string(&mut answer);
            }
        }
        answer
    }

    /// The names of the pods whose manifest is not gone, by name.
    fn pods(&self) -> Vec<String> {
        let answer = self.get("/v1/pods");
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let view: Value = serde_json::from_str(body).unwrap_or_default();
        let pods = view["pods"].as_array().cloned().unwrap_or_default();
        let staying = pods.iter().filter(|pod| pod["state"] != "removed");
        let mut names: Vec<_> = staying.map(|pod| pod["name"].as_str().unwrap().to_owned()).collect();
        names.sort_unstable();
        names
    }

    /// The messages of the events of that type, oldest first.
    fn messages(&self, kind: &str) -> Vec<String> {
        let output = self.command(&["--live", "-o", "jsonl", "events", "--type", kind]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.map(|event| event["data"]["message"].as_str().unwrap_or_default().to_owned()).collect()
    }

    fn wait_for_message(&self, kind: &str, with: &str) -> String {
        let found = || self.messages(kind).into_iter().find(|message| message.contains(with));
        self.wait_for(&format!("{kind} with {with:?}"), || found().is_some());
        found().unwrap()
    }

    fn wait_for(&self, what: &str, is_so: impl Fn() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(
                start.elapsed() < TIMEOUT,
                "{what}: {:?}, {:?}",
                self.pods(),
                self.messages("source.down")
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.file(from), self.file(to)).unwrap();
    }
}

#[test]
fn pods_stay_while_their_folder_is_away_over_a_restart_too() {
    let mut scene = Scene::started();
    scene.rename("pods", "away");
    let reported = scene.wait_for_message("source.down", "missing");
    assert!(reported.contains("2 pods stay") && reported.contains("reload --accept-empty"), "{reported}");
    // What stands in its place is another folder: an empty mount point, or what a deploy tool has swapped in.
    fs::create_dir(scene.file("pods")).unwrap();
    scene.wait_for_message("source.down", "another folder");
    scene.manifest("pods", "new", "");
    let (said, status) = scene.verb(&["reload"]);
    assert!(status == 0 && said.contains("another folder"), "{status}: {said}");
    assert_eq!(scene.pods(), ["db", "web"]);
    fs::remove_file(scene.file("pods/new.yaml")).unwrap();
    scene.kill();
    scene.start();
    assert_eq!(scene.pods(), ["db", "web"], "a start remembers what was read last");
    fs::remove_dir(scene.file("pods")).unwrap();
    scene.kill();
    scene.start();
    assert_eq!(scene.pods(), ["db", "web"]);
    assert_eq!(scene.messages("pod.removed"), Vec::<String>::new());
    let ups = scene.messages("source.up").len();
    scene.rename("away", "pods");
    scene.wait_for("the folder's return", || scene.messages("source.up").len() > ups);
    fs::remove_file(scene.file("pods/db.yaml")).unwrap();
    scene.wait_for("the end of db", || scene.pods() == ["web"]);
    // The same folder, empty, means no pods.
    fs::remove_file(scene.file("pods/web.yaml")).unwrap();
    scene.wait_for("the end of web", || scene.pods().is_empty());
}

#[test]
fn another_folder_is_taken_by_order() {
    let scene = Scene::started();
    fs::create_dir(scene.file("next")).unwrap();
    scene.manifest("next", "new", "");
    scene.rename("pods", "old");
    scene.rename("next", "pods");
    scene.wait_for_message("source.down", "another folder");
    let (said, status) = scene.verb(&["reload", "--accept-empty"]);
    assert!(status == 0 && said.contains("1 pod"), "{status}: {said}");
    assert_eq!(scene.pods(), ["new"], "it is in force when it is answered");
    fs::remove_dir_all(scene.file("pods")).unwrap();
    scene.wait_for_message("source.down", "missing");
    let (said, status) = scene.verb(&["reload", "--accept-empty"]);
    assert_eq!((status, scene.pods()), (0, vec![]), "{said}");
}

#[test]
fn what_others_may_write_to_is_not_followed() {
    let mut scene = Scene::started();
    let open_to_all =
        |path: &str, mode| fs::set_permissions(scene.file(path), fs::Permissions::from_mode(mode)).unwrap();
    open_to_all("pods", 0o777);
    let reported = scene.wait_for_message("source.down", "may be written to by everybody");
    assert!(reported.contains("chmod o-w,g-w"), "{reported}");
    scene.manifest("pods", "late", "");
    let (said, _status) = scene.verb(&["reload"]);
    assert!(said.contains("may be written to"), "{said}");
    assert_eq!(scene.pods(), ["db", "web"]);
    // Only the change of the folder's mode is notified.
    open_to_all("pods", 0o755);
    scene.wait_for("the late pod", || scene.pods() == ["db", "late", "web"]);
    open_to_all("pods/web.yaml", 0o666);
    scene.wait_for_message("pod.rejected", "web.yaml: may be written to by everybody");
    scene.manifest(".", "outside", "");
    symlink("../outside.yaml", scene.file("pods/outside.yaml")).unwrap();
    scene.wait_for_message("pod.rejected", "outside.yaml: is a link that leads out of the folder");
    assert_eq!(scene.pods(), ["db", "late", "web"], "the last good version stays");
    // The configuration likewise: a running daemon keeps its own, and none starts with it.
    open_to_all("config.yaml", 0o666);
    let (said, status) = scene.verb(&["reload"]);
    assert!(status == 77 && said.contains("config.yaml may be written to"), "{status}: {said}");
    scene.kill();
    let (said, status) = scene.verb(&["run"]);
    assert!(status == 64 && said.contains("config.yaml may be written to by everybody"), "{status}: {said}");
}

#[test]
fn a_stuck_stderr_stops_nothing() {
    let mut scene = Scene::new();
    // No process reads the pipe, which holds 64 KiB: less than the daemon logs about these.
    for number in 0..2_000 {
        fs::write(scene.file(&format!("pods/{number:0>200}")), "").unwrap();
    }
    let mut run = scene.command(&["run"]);
    scene.daemon = Some(run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    scene.wait_for("the daemon", || scene.get("/readyz").starts_with("HTTP/1.1 200"));
    let dropped = || {
        let page = scene.get("/metrics");
        let line = page.lines().find_map(|line| line.strip_prefix("enforcer_log_lines_dropped_total "))?;
        line.parse::<u64>().ok()
    };
    assert!(dropped().unwrap() > 0);
    // It goes on reading manifests, which is the main loop's work.
    for (name, count) in [("one", 3), ("two", 4)] {
        scene.manifest("pods", name, "");
        scene.wait_for("a new pod", || scene.pods().len() == count);
    }
    // Once the pipe is read again, the log says where lines were dropped.
    let mut stderr = scene.daemon.as_mut().unwrap().stderr.take().unwrap();
    let (sender, lines) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let mut chunk = [0_u8; 4096];
        while let Ok(read @ 1..) = stderr.read(&mut chunk) {
            drop(sender.send(String::from_utf8_lossy(&chunk[..read]).into_owned()));
        }
    });
    let (start, mut text) = (Instant::now(), String::new());
    while !text.contains("log lines were dropped here") {
        assert!(start.elapsed() < TIMEOUT, "{}", text.len());
        text.extend(lines.recv_timeout(TIMEOUT));
    }
}
