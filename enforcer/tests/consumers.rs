//! The consumers of `docs/consumers`: against a real daemon that is killed, and against answers that are rare. Needs no
//! privileges.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic like the test itself")]

#[expect(dead_code, reason = "other tests use more of it")]
mod scene;

use std::{
    env,
    ffi::OsString,
    fs,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use self::scene::Scene;

/// Only a test that fails reaches it.
const TIMEOUT: Duration = Duration::from_mins(2);

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/consumers");

/// Names the `go` that builds the consumer in Go; without it, that is looked for on the path.
const GO: &str = "ENFORCER_GO";

const EPOCH: &str = "01J8Z3NDEKTSV4RRFFQ69G5FAV";

/// What a consumer is written in.
#[derive(Clone, Copy, Debug)]
enum Language {
    Shell,
    Python,
    Go,
}

impl Language {
    /// The program and its first arguments; none if it cannot be built here. What is built is put into that folder.
    fn program(self, folder: &Path) -> Option<Vec<OsString>> {
        let source = |name: &str| Path::new(SOURCES).join(name).into_os_string();
        Some(match self {
            Self::Shell => {
                demanded("curl");
                vec!["sh".into(), source("follow.sh")]
            }
            Self::Python => vec![demanded("python3").into(), source("follow.py")],
            Self::Go => {
                let go = go()?;
                let program = folder.join("follow").into_os_string();
                for arguments in
                    [&["vet".into()][..], &["build".into(), OsString::from("-o"), program.clone()]]
                {
                    let mut command = Command::new(&go);
                    command.args(arguments).arg("follow.go").current_dir(SOURCES).env("CGO_ENABLED", "0");
                    let output = command.output().unwrap();
                    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                }
                vec![program]
            }
        })
    }
}

fn on_path(name: &str) -> Option<PathBuf> {
    let folders = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

fn demanded(name: &str) -> PathBuf {
    let found = on_path(name);
    assert!(
        found.is_some(),
        "{name} is not there: `apt-get install --no-install-recommends {name}`, or its like"
    );
    found.unwrap()
}

fn go() -> Option<PathBuf> {
    let found = env::var_os(GO).map(PathBuf::from).or_else(|| on_path("go"));
    let found = found.filter(|go| is_new_enough(go));
    if found.is_none() {
        // By this way it is seen although the test passes.
        let missing = "NOT RUN: docs/consumers/follow.go: no go of 1.21 or later is on the path, and ENFORCER_GO names none
";
        io::stderr().write_all(missing.as_bytes()).unwrap();
    }
    found
}

/// Whether it is 1.21 or later, whose library the consumer uses.
fn is_new_enough(go: &Path) -> bool {
    let version = Command::new(go).args(["env", "GOVERSION"]).output().unwrap();
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let minor = version.trim().strip_prefix("go1.").and_then(|rest| rest.split('.').next()?.parse().ok());
    minor.is_some_and(|minor: u32| minor >= 21)
}

/// How a consumer is started.
struct Setting {
    program: Vec<OsString>,
    socket: PathBuf,
    cursor: PathBuf,
    errors: PathBuf,
}

impl Setting {
    fn new(language: Language, folder: &Path, socket: &str) -> Option<Self> {
        Some(Self {
            program: language.program(folder)?,
            socket: folder.join(socket),
            cursor: folder.join("cursor"),
            errors: folder.join("errors"),
        })
    }

    fn start(&self) -> Consumer {
        let mut command = Command::new(&self.program[0]);
        command.args(&self.program[1..]).arg(&self.socket).arg(&self.cursor);
        let errors = fs::OpenOptions::new().create(true).append(true).open(&self.errors).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(errors).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, printed) = mpsc::channel();
        thread::spawn(move || {
            let event = |line: String| serde_json::from_str::<Value>(&line).unwrap();
            lines.map_while(Result::ok).try_for_each(|line| sender.send(event(line)))
        });
        Consumer { child, printed }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.errors).unwrap()
    }
}

/// A consumer that runs; it ends with the test.
struct Consumer {
    child: Child,
    printed: Receiver<Value>,
}

impl Consumer {
    fn next(&self) -> Value {
        self.printed.recv_timeout(TIMEOUT).unwrap()
    }

    /// What it prints, up to the event with that sequence number.
    fn read_until(&self, newest: u64) -> Vec<Value> {
        let mut read = Vec::new();
        while read.last().is_none_or(|event| sequence(event) < newest) {
            read.push(self.next());
        }
        read
    }

    /// How it ended, once it has.
    fn ended(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < TIMEOUT, "the consumer does not end");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it as a service manager does. What it printed until then is the answer.
    fn stop(mut self) -> Vec<Value> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert_eq!(self.ended().code(), Some(0));
        self.printed.iter().collect()
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn sequence(event: &Value) -> u64 {
    event["sequence"].as_str().unwrap().parse().unwrap()
}

/// All events that are kept, oldest first.
fn kept(scene: &Scene) -> Vec<Value> {
    let output = scene.command(&["-o", "jsonl", "events"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Waits until the daemon knows that pod; the answer is the newest event's sequence number.
fn await_pod(scene: &Scene, name: &str) -> u64 {
    let (begun, subject) = (Instant::now(), format!("default/{name}"));
    loop {
        let kept = kept(scene);
        if kept.iter().any(|event| event["subject"] == subject.as_str()) {
            return sequence(kept.last().unwrap());
        }
        assert!(begun.elapsed() < TIMEOUT, "the daemon does not know {name}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// The daemon is killed and started again while the consumer runs, and while it does not; the consumer is ended and
/// started again.
fn prints_each_event_once(language: Language) {
    let mut scene = Scene::with("enforcer", "");
    let Some(setting) = Setting::new(language, scene.folder.path(), "run/observe.sock") else { return };
    // It is there before the daemon is.
    let consumer = setting.start();
    scene.manifest("pods", "first", "");
    scene.run();
    let mut printed = consumer.read_until(await_pod(&scene, "first"));
    scene.kill();
    scene.manifest("pods", "second", "");
    scene.run();
    printed.extend(consumer.read_until(await_pod(&scene, "second")));
    printed.extend(consumer.stop());
    // What happens meanwhile, it gets later.
    scene.manifest("pods", "third", "");
    await_pod(&scene, "third");
    scene.kill();
    let consumer = setting.start();
    scene.manifest("pods", "fourth", "");
    scene.run();
    printed.extend(consumer.read_until(await_pod(&scene, "fourth")));
    printed.extend(consumer.stop());

    let kept = kept(&scene);
    assert_eq!(printed, kept[..printed.len()], "{}", setting.said());
    let sequences: Vec<u64> = printed.iter().map(sequence).collect();
    let last = *sequences.last().unwrap();
    assert_eq!(sequences, (1..=last).collect::<Vec<_>>());
    let cursor = fs::read_to_string(&setting.cursor).unwrap();
    assert!(cursor.trim_end().ends_with(&format!(":{last}")), "{cursor}");
}

#[test]
fn the_consumer_in_shell_prints_each_event_once() {
    prints_each_event_once(Language::Shell);
}

#[test]
fn the_consumer_in_python_prints_each_event_once() {
    prints_each_event_once(Language::Python);
}

#[test]
fn the_consumer_in_go_prints_each_event_once() {
    prints_each_event_once(Language::Go);
}

/// Gives these answers, one for each connection, and keeps the last connection. Each request's `Last-Event-ID` is
/// received.
fn answering(socket: &Path, answers: Vec<String>) -> Receiver<Option<String>> {
    let listener = UnixListener::bind(socket).unwrap();
    let (sender, requests) = mpsc::channel();
    thread::spawn(move || {
        let mut open = None;
        for answer in answers {
            drop(open.take());
            let (stream, _) = listener.accept().unwrap();
            let mut stream = BufReader::new(stream);
            let mut last = None;
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                let Some((name, value)) = line.trim_end().split_once(": ") else {
                    if line.trim_end().is_empty() {
                        break;
                    }
                    continue;
                };
                if name.eq_ignore_ascii_case("last-event-id") {
                    last = Some(value.to_owned());
                }
            }
            sender.send(last).unwrap();
            stream.get_mut().write_all(answer.as_bytes()).unwrap();
            open = Some(stream);
        }
        // Until the client ends.
        open.unwrap().read_to_end(&mut Vec::new()).unwrap();
    });
    requests
}

fn refusal(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

fn stream(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\nretry: 2000\n\n{body}"
    )
}

fn event(sequence: u64, kind: &str, data: &str) -> String {
    format!(
        "id: {EPOCH}:{sequence}\nevent: dev.enforcer.{kind}\n\
         data: {{\"data\":{data},\"type\":\"dev.enforcer.{kind}\",\"sequence\":\"{sequence:020}\"}}\n\n"
    )
}

/// A cursor that is no longer kept, a gap, a type of a later version, a place without an event, an event that is cut off,
/// a daemon with too many clients.
fn copes_with_what_is_rare(language: Language) {
    let folder = tempfile::tempdir().unwrap();
    let Some(setting) = Setting::new(language, folder.path(), "socket") else { return };
    fs::write(&setting.cursor, format!("{EPOCH}:3\n")).unwrap();
    let gone = "{\"error\":\"the cursor is too old or of another log: 7 events are lost\",\"lost\":7}";
    let cut = event(13, "pod.added", "{}");
    let (cut, _) = cut.split_at(cut.len() - 20);
    let first = [
        &event(10, "stream.gap", "{\"count\":5}"),
        &event(11, "later.type", "{}"),
        ":\n\n",
        &format!(":\nid: {EPOCH}:12\n\n"),
        cut,
    ];
    let requests = answering(
        &setting.socket,
        vec![
            refusal("410 Gone", gone),
            stream(&first.concat()),
            refusal("503 Service Unavailable", ""),
            stream(&event(13, "pod.added", "{}")),
        ],
    );
    let consumer = setting.start();
    let printed = [(); 3].map(|()| sequence(&consumer.next()));
    assert_eq!(printed, [10, 11, 13], "{}", setting.said());
    assert_eq!(consumer.stop(), [] as [Value; 0]);
    assert_eq!(fs::read_to_string(&setting.cursor).unwrap(), format!("{EPOCH}:13\n"));
    let (third, twelfth) = (Some(format!("{EPOCH}:3")), Some(format!("{EPOCH}:12")));
    assert_eq!(requests.iter().collect::<Vec<_>>(), [third, None, twelfth.clone(), twelfth]);
    let said = setting.said();
    assert!(said.contains("7 events are lost") && said.contains("5 events are lost"), "{said}");
}

#[test]
fn the_consumer_in_shell_copes_with_what_is_rare() {
    copes_with_what_is_rare(Language::Shell);
}

#[test]
fn the_consumer_in_python_copes_with_what_is_rare() {
    copes_with_what_is_rare(Language::Python);
}

#[test]
fn the_consumer_in_go_copes_with_what_is_rare() {
    copes_with_what_is_rare(Language::Go);
}

/// To try the same again would not help, and to begin anew would hide it.
#[test]
fn a_consumer_ends_when_its_request_is_wrong() {
    for language in [Language::Shell, Language::Python, Language::Go] {
        let folder = tempfile::tempdir().unwrap();
        let Some(setting) = Setting::new(language, folder.path(), "socket") else { continue };
        fs::write(&setting.cursor, "yesterday\n").unwrap();
        let wrong = "{\"error\":\"Last-Event-ID: \\\"yesterday\\\" is not a cursor\"}";
        let _requests = answering(&setting.socket, vec![refusal("400 Bad Request", wrong)]);
        let mut consumer = setting.start();
        let status = consumer.ended();
        assert_eq!(status.code(), Some(1), "{language:?}");
        assert!(setting.said().contains("is not a cursor"), "{language:?}: {}", setting.said());
        assert_eq!(fs::read_to_string(&setting.cursor).unwrap(), "yesterday\n");
    }
}
