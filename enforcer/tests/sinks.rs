//! The real binary and its sinks: a journald and a webhook of our own that fail in every way; needs no privileges.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic like the test itself")]

use std::{
    collections::VecDeque,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::{fs::PermissionsExt as _, net::UnixDatagram},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(40);

/// A daemon in a folder of its own.
struct Scene {
    folder: tempfile::TempDir,
    daemon: Option<Child>,
    pods: u32,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Scene {
    fn new(sinks: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("pods")).unwrap();
        let scene = Self { folder, daemon: None, pods: 0 };
        scene.configure(sinks);
        scene
    }

    fn configure(&self, sinks: &str) {
        let shown = self.folder.path().display();
        let config = format!(
            "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\nmode: dry-run\nownership: enforcer\n\
             stateDir: {shown}/state\nrunDir: {shown}/run\nstaticPodPath: {shown}/pods\n{}",
            sinks.replace("FOLDER", &shown.to_string())
        );
        fs::write(self.path("config.yaml"), config).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_enforcer"));
        command.arg("--config").arg(self.path("config.yaml")).args(arguments);
        command
    }

    fn start(&mut self) {
        let log = fs::OpenOptions::new().append(true).create(true).open(self.path("log")).unwrap();
        self.daemon = Some(self.command(&["run"]).stdout(Stdio::null()).stderr(log).spawn().unwrap());
        self.until("the daemon answers", |scene| {
            scene.command(&["--live", "events"]).output().unwrap().status.success()
        });
    }

    /// As the kernel's OOM killer would.
    fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill().unwrap();
            daemon.wait().unwrap();
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.daemon.as_ref().unwrap().id()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// Has something happen.
    fn add_pods(&mut self, count: u32) {
        for _ in 0..count {
            self.pods += 1;
            let manifest = format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: p{}}}\nspec: {{containers: [{{name: app}}]}}\n",
                self.pods
            );
            fs::write(self.path(&format!("pods/p{}.yaml", self.pods)), manifest).unwrap();
        }
        let last = format!("default/p{}", self.pods);
        self.until("the daemon reports the pods", |scene| {
            scene.events("pod.added").iter().any(|event| event["subject"] == last)
        });
    }

    fn events(&self, kind: &str) -> Vec<Value> {
        let mut arguments = vec!["-o", "jsonl", "events"];
        if !kind.is_empty() {
            arguments.extend(["--type", kind]);
        }
        let output = self.command(&arguments).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn sequences(&self) -> Vec<u64> {
        self.events("").iter().map(sequence).collect()
    }

    fn until(&self, what: &str, happens: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !happens(self) {
            let log = fs::read_to_string(self.path("log")).unwrap_or_default();
            assert!(start.elapsed() < TIMEOUT, "never: {what}\n{log}");
            thread::sleep(Duration::from_millis(30));
        }
    }
}

fn sequence(event: &Value) -> u64 {
    event["sequence"].as_str().unwrap().parse().unwrap()
}

/// Each was seen, and for the first time in the log's order.
fn assert_all_in_order(seen: &[u64], reported: &[u64]) {
    let mut firsts: Vec<u64> = Vec::new();
    for sequence in seen {
        if !firsts.contains(sequence) {
            firsts.push(*sequence);
        }
    }
    assert!(firsts.is_sorted(), "{firsts:?}");
    let missing: Vec<_> = reported.iter().filter(|sequence| !firsts.contains(sequence)).collect();
    assert!(missing.is_empty(), "{missing:?} never arrived; {firsts:?} did");
}

/// What a journald took so far.
#[derive(Clone, Default)]
struct Entries(Arc<Mutex<Vec<Vec<u8>>>>);

impl Entries {
    /// Listens as journald does, until the socket's file is replaced.
    fn listen(&self, path: &Path) {
        drop(fs::remove_file(path));
        let socket = UnixDatagram::bind(path).unwrap();
        let entries = self.0.clone();
        thread::spawn(move || {
            let mut bytes = vec![0; 1 << 20];
            while let Ok(length) = socket.recv(&mut bytes) {
                entries.lock().unwrap().push(bytes[..length].to_vec());
            }
        });
    }

    /// The values of a field that is on a line, as all of the daemon's are but those with line ends.
    fn values(&self, name: &str) -> Vec<String> {
        let entries = self.0.lock().unwrap();
        let start = format!("{name}=");
        let value = |entry: &Vec<u8>| {
            let text = String::from_utf8_lossy(entry);
            text.lines().find_map(|line| line.strip_prefix(&start)).map(str::to_owned)
        };
        entries.iter().filter_map(value).collect()
    }

    fn sequences(&self) -> Vec<u64> {
        self.values("ENFORCER_SEQUENCE").iter().map(|text| text.parse().unwrap()).collect()
    }
}

#[test]
fn journald_has_every_event_through_its_own_restarts_and_the_daemons_kills() {
    let mut scene = Scene::new("sinks:\n  journald: {enabled: true, socket: FOLDER/journald}\n");
    let (entries, socket) = (Entries::default(), scene.path("journald"));
    // It is not there yet when the daemon begins.
    scene.start();
    scene.add_pods(2);
    entries.listen(&socket);
    scene.until("the first events arrive", |_| entries.values("ENFORCER_POD").contains(&String::from("p2")));
    for _ in 0..3 {
        fs::remove_file(&socket).unwrap();
        scene.add_pods(3);
        scene.kill();
        entries.listen(&socket);
        scene.start();
        scene.add_pods(2);
    }
    let last = format!("p{}", scene.pods);
    scene.until("the last event arrives", |_| entries.values("ENFORCER_POD").contains(&last));
    let reported = scene.sequences();
    scene.until("all arrive", |_| entries.sequences().last() >= reported.last());
    assert_all_in_order(&entries.sequences(), &reported);
    assert_eq!(entries.values("ENFORCER_TYPE")[0], "dev.enforcer.config.loaded", "it begins with its start");
    assert!(
        entries
            .values("MESSAGE")
            .contains(&format!("pod default/{last} is known now: BestEffort priority 0"))
    );
    let cursor = entries.values("ENFORCER_CURSOR").last().unwrap().clone();
    let behind = scene.command(&["events", "--after", &cursor]).output().unwrap();
    assert!(behind.status.success(), "a cursor of the journal is good for the stream");
}

/// How a receiver answers.
#[derive(Clone, Copy)]
enum Say {
    Status(&'static str),
    Hang,
    HangUp,
    /// 413 to the next request with more than one event: one alone that is too large is passed over for ever.
    TooLarge,
    /// The status line, and no more of what it announces.
    Half,
}

/// A receiver that gives the set answers, and 204 after them.
#[derive(Clone, Default)]
struct Receiver {
    says: Arc<Mutex<VecDeque<Say>>>,
    /// The events of requests that were answered with 204.
    taken: Arc<Mutex<Vec<Value>>>,
    headers: Arc<Mutex<Vec<String>>>,
    requests: Arc<Mutex<usize>>,
}

impl Receiver {
    fn say(&self, says: &[Say]) {
        self.says.lock().unwrap().extend(says);
    }

    fn listen(&self, listener: TcpListener) {
        let receiver = self.clone();
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let receiver = receiver.clone();
                thread::spawn(move || receiver.serve(stream));
            }
        });
    }

    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut stream = stream;
        while let Some((head, body)) = request(&mut reader) {
            *self.requests.lock().unwrap() += 1;
            self.headers.lock().unwrap().push(head);
            let events: Vec<Value> = serde_json::from_slice(&body).unwrap_or_default();
            let say = self.say_to(events.len());
            let answer = match say {
                Say::Hang => return thread::sleep(Duration::from_secs(3)),
                Say::HangUp => return,
                Say::TooLarge => String::from("HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n"),
                Say::Half => String::from("HTTP/1.1 200 OK\r\ncontent-length: 10"),
                Say::Status(status) => format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n"),
            };
            if answer.contains(" 204 ") {
                self.taken.lock().unwrap().extend(events);
            }
            if stream.write_all(answer.as_bytes()).is_err() || matches!(say, Say::Half) {
                return;
            }
        }
    }

    fn say_to(&self, events: usize) -> Say {
        let otherwise = Say::Status("204 No Content");
        let mut says = self.says.lock().unwrap();
        let waits = events < 2 && matches!(says.front(), Some(Say::TooLarge));
        if waits { otherwise } else { says.pop_front().unwrap_or(otherwise) }
    }

    fn sequences(&self) -> Vec<u64> {
        self.taken.lock().unwrap().iter().map(sequence).collect()
    }

    fn requests(&self) -> usize {
        *self.requests.lock().unwrap()
    }
}

fn request(reader: &mut BufReader<TcpStream>) -> Option<(String, Vec<u8>)> {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((head, body))
}

fn webhook(port: u16, more: &str) -> String {
    format!(
        "sinks:\n  webhook:\n  - {{name: r, url: \"http://127.0.0.1:{port}/in\", batch: {{maxEvents: 4}}, timeout: 300ms{more}}}\n"
    )
}

#[test]
fn a_webhook_has_every_event_whatever_its_receiver_does_and_whichever_process_is_killed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut scene = Scene::new(&webhook(port, ", secretFile: FOLDER/secret"));
    fs::write(scene.path("secret"), "0123456789abcdef0123456789abcdef\n").unwrap();
    fs::set_permissions(scene.path("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    let receiver = Receiver::default();
    receiver.say(&[
        Say::Status("503 Unavailable"),
        Say::HangUp,
        Say::Status("429 Too Many\r\nretry-after: 1"),
        Say::TooLarge,
        Say::Status("204 No Content"),
        Say::Hang,
    ]);
    receiver.listen(listener);
    scene.start();
    scene.add_pods(9);
    scene.until("it comes through all of that", |_| receiver.requests() > 8);
    receiver.say(&[Say::Half, Say::Status("500 Error")]);
    for round in 0..4 {
        scene.add_pods(3);
        // At another moment each time, in the middle of something or not.
        thread::sleep(Duration::from_millis(u64::from(scene.pods * 137 % 400)));
        scene.kill();
        if round == 1 {
            receiver.say(&[Say::Status("502 Bad Gateway")]);
        }
        scene.start();
    }
    scene.add_pods(2);
    let reported = scene.sequences();
    scene.until("all arrive", |_| receiver.sequences().iter().max() >= reported.last());
    assert_all_in_order(&receiver.sequences(), &reported);
    let heads = receiver.headers.lock().unwrap().clone();
    assert!(heads.iter().all(|head| head.to_ascii_lowercase().contains("enforcer-signature: t=")));
    // A kill costs no more than what was delivered within the last second or so.
    let (all, distinct) = (receiver.sequences().len(), reported.len());
    assert!(all < 4 * distinct, "{all} deliveries of {distinct} events");
    // SIGTERM: nothing is left, and nothing comes twice.
    let before = receiver.sequences();
    scene.until("the cursor is there", |scene| {
        fs::read_to_string(scene.path("state/sinks/webhook-r.cursor"))
            .is_ok_and(|cursor| cursor.contains(&format!(":{}\"", reported.last().unwrap())))
    });
    scene.signal(Signal::TERM);
    assert!(scene.daemon.take().unwrap().wait().unwrap().success());
    scene.start();
    scene.add_pods(1);
    scene.until("the next arrives", |scene| receiver.sequences().iter().max() >= scene.sequences().last());
    let after = receiver.sequences()[before.len()..].to_vec();
    assert!(after.iter().all(|sequence| sequence > reported.last().unwrap()), "{after:?}");
}

#[test]
fn a_receiver_that_is_gone_is_left_alone_until_it_is_configured_anew() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut scene = Scene::new(&webhook(port, ""));
    let receiver = Receiver::default();
    receiver.say(&[Say::Status("410 Gone")]);
    receiver.listen(listener);
    scene.start();
    let is_reported = |scene: &Scene| {
        scene.events("degraded.entered").iter().any(|event| {
            event["data"]["sink"] == "webhook-r" && event["data"]["message"].as_str().unwrap().contains("410")
        })
    };
    scene.until("that is reported", is_reported);
    scene.add_pods(2);
    assert_eq!((receiver.requests(), receiver.sequences().len()), (1, 0));
    // Another sink is no reason to try again, a change of its own is.
    scene.configure(&webhook(port, "").replace("sinks:\n", "sinks:\n  journald: {socket: /nonexistent}\n"));
    scene.signal(Signal::HUP);
    scene.until("that is loaded", |scene| scene.events("config.loaded").len() == 2);
    assert_eq!(receiver.requests(), 1);
    scene.configure(&webhook(port, ", connectTimeout: 1s"));
    scene.signal(Signal::HUP);
    let reported = scene.sequences();
    scene.until("all arrive", |_| receiver.sequences().iter().max() >= reported.last());
    assert_all_in_order(&receiver.sequences(), &reported);
    // Taken out, it is sent nothing more.
    scene.configure("");
    scene.signal(Signal::HUP);
    scene.until("that is loaded", |scene| scene.events("config.loaded").len() == 4);
    scene.until("it has ended", |scene| {
        let status = fs::read_dir(format!("/proc/{}/task", scene.daemon.as_ref().unwrap().id())).unwrap();
        status.filter_map(Result::ok).all(|task| {
            fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() != "webhook-r")
        })
    });
    let before = receiver.requests();
    scene.add_pods(1);
    assert_eq!(receiver.requests(), before);
}
