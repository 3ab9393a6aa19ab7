//! `enforcer top` under a terminal of its own, against a daemon that is played; needs no privileges.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic like the test itself")]

mod terminal;

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::{Value, json};

use self::terminal::Terminal;

const MIB: u64 = 1 << 20;

/// A daemon that is played: it answers from a socket until it is dropped.
struct Daemon {
    socket: PathBuf,
    goes: Arc<AtomicBool>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Daemon {
    fn start(run_dir: &Path) -> Self {
        let socket = run_dir.join("observe.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let (goes, asked) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<Vec<String>>>::default());
        let (going, asking) = (Arc::clone(&goes), Arc::clone(&asked));
        thread::spawn(move || {
            for stream in listener.incoming() {
                if going.load(Ordering::SeqCst) {
                    return;
                }
                let (going, asking) = (Arc::clone(&going), Arc::clone(&asking));
                thread::spawn(move || answer(stream.unwrap(), &going, &asking));
            }
        });
        Self { socket, goes, asked }
    }

    fn was_asked(&self, what: &str) -> bool {
        self.asked.lock().unwrap().iter().any(|target| target.contains(what))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.goes.store(true, Ordering::SeqCst);
        // Wakes who waits for the next one.
        drop(UnixStream::connect(&self.socket));
        std::fs::remove_file(&self.socket).unwrap();
    }
}

fn answer(mut stream: UnixStream, going: &AtomicBool, asked: &Mutex<Vec<String>>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let Some(Ok(first)) = lines.next() else { return };
    while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
    let target = first.split(' ').nth(1).unwrap().to_owned();
    asked.lock().unwrap().push(target.clone());
    let body = if target.starts_with("/v1/events") { events(&target) } else { document(&target).to_string() };
    let follows = target.contains("follow=true");
    let length = if follows { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let head = format!("HTTP/1.1 200 OK\r\n{length}Connection: close\r\n\r\n");
    // Who asked may be gone.
    drop(stream.write_all((head + &body).as_bytes()));
    while follows && !going.load(Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(20));
    }
}

fn events(target: &str) -> String {
    let event = |kind: &str, data: Value| {
        let time = "2026-01-31T12:00:00.123456Z";
        json!({"type": format!("dev.enforcer.{kind}"), "subject": "default/hog", "time": time, "sequence": "00000000000000000007",
            "id": "01J8Z3NDEKTSV4RRFFQ69G5FAV", "source": "urn:enforcer:n1:b1", "data": data})
            .to_string()
            + "\n"
    };
    let decided = json!({
        "evictionId": "01J8Z3NDEKTSV4RRFFQ69G5FAW", "dryRun": true, "hard": true, "graceMs": 0, "decidedBy": "onlyCandidate",
        "ranking": [], "rankedCount": 1, "excluded": [], "excludedCount": 0, "predictedFreedBytes": 0, "message": "",
        "configHash": "c",
        "victim": {
            "namespace": "default", "name": "hog", "uid": "u", "qosClass": "BestEffort", "priority": 0, "cgroup": "/",
            "cgroupId": 1, "requestBytes": 0, "statsMissing": false, "growthBytesPerSecond": 0,
            "usageBytes": 900 * MIB,
        },
    });
    let added = json!({
        "namespace": "default", "name": "hog", "uid": "u", "source": "static", "qosClass": "BestEffort", "priority": 0,
        "containers": [],
    });
    if target.contains("pod=") || !target.contains('?') {
        return event("eviction.decided", decided) + &event("pod.added", added);
    }
    event("degraded.entered", json!({"what": "btf", "message": "no type information"}))
}

fn document(target: &str) -> Value {
    let memory = json!({"currentBytes": 900 * MIB, "anonBytes": 890 * MIB, "fileBytes": 10 * MIB, "shmemBytes": MIB,
        "limitBytes": null, "stall": {"someAvg10Percent": 1.5, "fullAvg10Percent": 0.0}});
    let with = |key: &str, value: Value| {
        let mut memory = memory.clone();
        memory[key] = value;
        memory
    };
    match target.split('?').next().unwrap() {
        "/v1/pods" => {
            let pod = |name: &str, class: &str| {
                json!({"namespace": "default", "name": name, "uid": name, "qosClass": class, "priority": 0, "state": "active",
                    "reason": null, "startsUnderMemoryPressure": true, "cgroup": "/x", "requestBytes": 100 * MIB,
                    "containers": [{"name": "main", "kind": "app", "oomScoreAdj": 0, "cgroup": "/x/y", "cgroupId": 1}]})
            };
            let mut hostile = pod("evil", "Burstable");
            hostile["name"] = json!("evil\u{1b}]0;owned\u{7}");
            json!({"mode": "dry-run", "memoryPressure": false, "pods": [pod("hog", "BestEffort"), pod("web", "Burstable"), hostile]})
        }
        "/v1/containers" => {
            let mut pod = with("uid", json!("hog"));
            pod["containers"] = json!([with("name", json!("main"))]);
            json!({"nodeStall": {"someAvg10Percent": 2.5, "fullAvg10Percent": 0.0}, "pods": [pod], "omitted": 0})
        }
        "/v1/ranking" => {
            let ranked = json!({"rank": 1, "namespace": "default", "name": "hog", "uid": "hog", "qosClass": "BestEffort", "evictable": true,
                "statsMissing": false, "exceedsRequest": true, "priority": 0, "usageBytes": 900 * MIB, "requestBytes": 0,
                "currentBytes": 900 * MIB, "growthBytesPerSecond": 5 * MIB, "cgroupId": 1});
            json!({"signal": "memory.available", "order": [ranked], "excluded": []})
        }
        "/v1/headroom" => {
            let hard = json!({"hard": true, "value": "100Mi", "met": false, "thresholdBytes": 100 * MIB, "crossedInMs": 90_000});
            json!({"signals": [{"signal": "memory.available", "availableBytes": 555 * MIB, "capacityBytes": 2_048 * MIB,
                "thresholds": [hard]}], "slices": []})
        }
        "/v1/orders" => json!([]),
        // No answer is set for this path, and no verb can read null.
        _ => Value::Null,
    }
}

/// A folder with the configuration, and where the daemon's socket is.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let shown = folder.path().display();
    let config = format!(
        "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\nstateDir: {shown}/state\nrunDir: {shown}\n\
         staticPodPath: {shown}/pods\n"
    );
    std::fs::write(folder.path().join("config.yaml"), config).unwrap();
    folder
}

/// The view in a terminal of that size.
fn view(folder: &Path, size: (u16, u16), variables: &[(&str, &str)]) -> Terminal {
    verb(folder, size, variables, &["top", "--interval", "500ms"])
}

fn verb(folder: &Path, size: (u16, u16), variables: &[(&str, &str)], verb: &[&str]) -> Terminal {
    Terminal::start(env!("CARGO_BIN_EXE_enforcer"), size, |command| {
        command.arg("--config").arg(folder.join("config.yaml")).args(verb).envs(variables.iter().copied());
    })
}

#[test]
fn keys_are_followed_and_the_terminal_is_given_back() {
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let mut viewed = view(folder.path(), (140, 30), &[]);
    viewed.until_shown("DRY-RUN: NOTHING IS EVICTED");
    viewed.until_shown("555Mi of 2Gi available  hard 100Mi in 1m30s");
    viewed.until_shown("btf: no type information");
    viewed.until_shown("+ default/hog");
    assert!(viewed.screen().alternate_screen() && viewed.screen().hide_cursor());
    assert!(viewed.screen().contents().contains(r"default/evil\u{1b}]0;owned\u{7}"));
    viewed.press("j\r");
    viewed.until_shown("- default/hog");
    viewed.until_shown("   main");
    viewed.until("the container's memory is read", |screen| {
        screen.contents().lines().any(|line| line.contains("   main") && line.contains("900Mi"))
    });
    viewed.press("/web");
    viewed.until_not_shown("- default/hog");
    viewed.press("\x1b");
    viewed.until_shown("- default/hog");
    viewed.press("s");
    viewed.until_shown("sort: current");
    // What was selected had gone from sight meanwhile.
    viewed.press("gj");
    viewed.press("w");
    viewed.until_shown("why default/hog");
    viewed.until_shown("01J8Z3NDEKTSV4RRFFQ69G5FAW");
    viewed.press("\x1b");
    viewed.until_not_shown("01J8Z3NDEKTSV4RRFFQ69G5FAW");
    viewed.press("e");
    viewed.until_shown("pod.added");
    assert!(daemon.was_asked("namespace=default&pod=hog"));
    viewed.press("q?");
    viewed.until_shown("keys and columns");
    viewed.press("qq");
    assert!(viewed.end().success());
    assert!(viewed.raw.lock().unwrap().windows(3).any(|bytes| bytes == b"\x1b[3"), "no colour");
}

#[test]
fn signals_give_the_terminal_back() {
    let folder = folder();
    let _daemon = Daemon::start(folder.path());
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut viewed = view(folder.path(), (80, 24), &[]);
        viewed.until_shown("default/hog");
        assert!(!viewed.is_given_back());
        viewed.signal(signal);
        assert!(viewed.end().success(), "{signal:?}");
    }
    let mut viewed = view(folder.path(), (80, 24), &[]);
    viewed.until_shown("default/hog");
    viewed.press("\x03");
    assert!(viewed.end().success(), "Ctrl-C");
}

#[test]
fn it_stops_and_goes_on() {
    let folder = folder();
    let _daemon = Daemon::start(folder.path());
    let mut viewed = view(folder.path(), (80, 24), &[]);
    viewed.until_shown("default/hog");
    let is_stopped = |viewed: &Terminal| {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", viewed.program.id())).unwrap();
        stat.rsplit(") ").next().unwrap().starts_with('T')
    };
    for by_key in [true, false] {
        if by_key {
            viewed.press("\x1a");
        } else {
            viewed.signal(Signal::TSTP);
        }
        viewed.until("it has stopped", |_| is_stopped(&viewed) && viewed.is_given_back());
        viewed.signal(Signal::CONT);
        viewed.until("it goes on", |screen| {
            screen.alternate_screen() && screen.contents().contains("default/hog")
        });
        assert!(!viewed.is_given_back());
    }
    viewed.press("q");
    assert!(viewed.end().success());
}

#[test]
fn a_daemon_that_goes_is_said_and_one_that_comes_back_is_found() {
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let mut viewed = view(folder.path(), (80, 24), &[]);
    viewed.until_shown("default/hog");
    drop(daemon);
    viewed.until_shown("NO ANSWER");
    assert!(viewed.screen().contents().contains("default/hog"), "the last picture stays");
    let _daemon = Daemon::start(folder.path());
    viewed.until_not_shown("NO ANSWER");
    viewed.until_shown("btf: no type information");
    viewed.press("q");
    assert!(viewed.end().success());
}

#[test]
fn the_size_is_followed_down_to_the_smallest() {
    let folder = folder();
    let _daemon = Daemon::start(folder.path());
    let mut viewed = view(folder.path(), (80, 24), &[]);
    viewed.until_shown("GROWTH/S");
    for (columns, rows) in [(20, 5), (1, 1), (200, 50), (20, 5)] {
        viewed.resize((columns, rows));
        thread::sleep(Duration::from_millis(100));
    }
    viewed.until_shown("DRY-RUN 555Mi");
    viewed.press("q");
    assert!(viewed.end().success());
}

#[test]
fn without_colour_none_is_sent() {
    let folder = folder();
    let _daemon = Daemon::start(folder.path());
    let mut viewed = view(folder.path(), (80, 24), &[("NO_COLOR", "1")]);
    viewed.until_shown("default/hog");
    viewed.press("q");
    assert!(viewed.end().success());
    let raw = viewed.raw.lock().unwrap().clone();
    let text = String::from_utf8_lossy(&raw);
    // Colours are 30 to 37, 38, 40 to 47, 48 and 90 to 107; 39 and 49 take them back.
    for sequence in text.split("\x1b[").skip(1).filter_map(|rest| rest.split_once('m')) {
        let (codes, _) = sequence;
        for code in codes.split(';').filter_map(|code| code.parse::<u8>().ok()) {
            assert!(!matches!(code, 30..=38 | 40..=48 | 90..=107), "{codes:?}");
        }
    }
}

fn plain(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_enforcer"));
    command.arg("--config").arg(folder.join("config.yaml")).args(arguments);
    command.stdin(Stdio::null()).output().unwrap()
}

#[test]
fn without_a_terminal_a_plain_table_is_printed() {
    let folder = folder();
    let _daemon = Daemon::start(folder.path());
    let text = |output: Output| {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let one = text(plain(folder.path(), &["top"]));
    assert_eq!(one.matches("DRY-RUN").count(), 1);
    assert!(
        one.contains("default/hog") && one.contains(r"default/evil\u{1b}]0;owned\u{7}"),
        "whole names: {one}"
    );
    assert!(one.lines().next().is_some() && one.contains("would evict first: default/hog"), "{one}");
    assert!(!one.chars().any(|character| character.is_control() && character != '\n'), "{one:?}");
    let begin = Instant::now();
    let two = text(plain(folder.path(), &["top", "-b", "--count", "2", "--interval", "500ms"]));
    assert!(begin.elapsed() >= Duration::from_millis(500));
    assert_eq!(two.matches("DRY-RUN").count(), 2);
    let wide = text(plain(folder.path(), &["top", "--wide"]));
    assert!(wide.contains("SHMEM") && !one.contains("SHMEM"));
    let named = |arguments: &[&str]| {
        let all = text(plain(folder.path(), &[&["top"], arguments].concat()));
        all.lines()
            .filter(|line| line.trim_start().starts_with("default/"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(named(&[]).len(), 3);
    assert_eq!(named(&["--filter", "hog"]).len(), 1);
    assert_eq!(named(&["-n", "other"]), Vec::<String>::new());
    let burstable = named(&["--sort", "name"]);
    assert!(burstable[1].contains("default/evil") && burstable[2].contains("default/web"), "{burstable:?}");
    let document: Value = serde_json::from_str(&text(plain(folder.path(), &["-o", "json", "top"]))).unwrap();
    assert_eq!(document["classes"][0]["pods"][0]["rank"], 1);
    assert_eq!(document["classes"][0]["pods"][0]["containers"][0]["currentBytes"], 900 * MIB);
    assert_eq!(document["tally"]["degraded"][0]["what"], "btf");
}

#[test]
fn no_daemon_is_reported_before_the_terminal_is_taken() {
    let folder = folder();
    let output = plain(folder.path(), &["top"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(said.contains("`enforcer run`"), "{said}");
    let mut viewed = view(folder.path(), (80, 24), &[]);
    assert_eq!(viewed.end().code(), Some(69));
    viewed.until_shown("error: cannot reach the daemon");
    assert!(!String::from_utf8_lossy(&viewed.raw.lock().unwrap()).contains("\x1b[?1049h"));
}

#[test]
fn a_daemon_on_a_terminal_logs_in_colour() {
    let folder = folder();
    std::fs::create_dir_all(folder.path().join("pods")).unwrap();
    let run = ["run", "--mode", "dry-run"];
    let mut viewed = verb(folder.path(), (200, 50), &[("RUST_LOG", "info")], &run);
    viewed.until_shown("INFO");
    viewed.signal(Signal::TERM);
    assert!(viewed.end().success(), "{}", viewed.screen().contents());
    let raw = String::from_utf8_lossy(&viewed.raw.lock().unwrap()).into_owned();
    assert!(raw.contains("\u{1b}[32m") && !raw.contains("crate feature"), "{raw}");
}
