//! The process that speaks to the network: without rights, and without any part in an eviction.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    sync::{Arc, Mutex},
    thread,
};

use enforcer_tests::wait::{TIMEOUT, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{LEFT_BYTES, MIB, Scene, THRESHOLD_BYTES, to_leave};

/// A receiver of webhooks that takes everything.
#[derive(Clone)]
struct Receiver {
    port: u16,
    taken: Arc<Mutex<Vec<Value>>>,
}

impl Receiver {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let receiver = Self { port: listener.local_addr().unwrap().port(), taken: Arc::default() };
        let shared = receiver.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, shared) = (stream.unwrap(), shared.clone());
                thread::spawn(move || shared.answer(&stream));
            }
        });
        receiver
    }

    fn answer(&self, stream: &TcpStream) {
        let mut reader = BufReader::new(stream);
        loop {
            let mut length = 0;
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap_or(0) == 0 {
                    return;
                }
                let line = line.trim().to_ascii_lowercase();
                if let Some(value) = line.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                } else if line.is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            if reader.read_exact(&mut body).is_err() {
                return;
            }
            self.taken.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
            let mut stream = stream;
            if stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").is_err() {
                return;
            }
        }
    }

    /// Whether it took an event of that type about that pod.
    fn has(&self, kind: &str, pod: &str) -> bool {
        let taken = self.taken.lock().unwrap();
        taken.iter().any(|event| event["type"] == format!("dev.enforcer.{kind}") && event["subject"] == pod)
    }
}

/// The network process of a daemon.
fn network_process(daemon: u32) -> Option<Pid> {
    let children = fs::read_to_string(format!("/proc/{daemon}/task/{daemon}/children"));
    let of_threads = fs::read_dir(format!("/proc/{daemon}/task")).ok()?;
    let of_threads =
        of_threads.flatten().filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let pids = children.into_iter().chain(of_threads).collect::<Vec<_>>().join(" ");
    pids.split_ascii_whitespace().find_map(|pid| {
        let words = fs::read(Path::new("/proc").join(pid).join("cmdline")).ok()?;
        let is_it = words.split(|byte| *byte == 0).nth(1) == Some(b"network-process");
        Pid::from_raw(pid.parse().ok()?).filter(|_| is_it)
    })
}

fn status(pid: Pid, key: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    value
        .unwrap_or_else(|| panic!("no {key} in {text}"))
        .split_ascii_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

#[guest_test(daemon)]
fn it_has_no_rights_and_an_eviction_does_not_notice_that_it_hangs_or_dies() {
    let receiver = Receiver::start();
    let settings = format!(
        "evictionHard: {{memory.available: {}Mi}}\nsinks: {{webhook: [{{name: w, url: \"http://127.0.0.1:{}/\"}}]}}",
        THRESHOLD_BYTES / MIB,
        receiver.port
    );
    let mut scene = Scene::open_with("eviction-network", &settings);
    let daemon = scene.daemon.pid();
    scene.manifest("calm", 0, "memory: 10Mi", "");
    wait_until("the first deliveries", || receiver.has("pod.added", "default/calm"));
    let first = network_process(daemon).expect("a network process");
    assert_eq!(status(first, "Uid"), "65520 65520 65520 65520");
    assert_eq!(status(first, "Gid"), "65520 65520 65520 65520");
    assert_eq!(status(first, "Groups"), "");
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(status(first, set), "0000000000000000", "{set}");
    }
    assert_eq!((status(first, "NoNewPrivs"), status(first, "Seccomp")), ("1".into(), "2".into()));
    // Nothing of the daemon's but its log.
    let descriptors = fs::read_dir(format!("/proc/{first}/fd")).unwrap();
    let held: Vec<_> = descriptors.flatten().filter_map(|entry| fs::read_link(entry.path()).ok()).collect();
    let is_own = |link: &&std::path::PathBuf| {
        let link = link.to_string_lossy();
        ["socket:", "/dev/null", "anon_inode:[eventpoll]", "anon_inode:[eventfd]", "pipe:"]
            .iter()
            .any(|own| link.starts_with(own))
            || link.ends_with("/eviction-network/log")
    };
    assert!(held.len() > 3 && held.iter().all(|link| is_own(&link)), "{held:?}");

    // It hangs.
    kill_process(first, Signal::STOP).unwrap();
    let mut filler = scene.fill(&to_leave(THRESHOLD_BYTES + 300 * MIB));
    let mut hog = scene.ramp("hog", "300Mi", LEFT_BYTES);
    scene.wait("eviction.completed", "hog");
    hog.wait_for_end(TIMEOUT).unwrap();
    scene.wait_for_end_of_shortage();
    // Once a request has taken too long the daemon does that itself.
    let _gone = kill_process(first, Signal::KILL);
    wait_until("the deliveries after that", || receiver.has("eviction.completed", "default/hog"));
    assert!(receiver.has("eviction.decided", "default/hog"));
    let second = network_process(daemon).expect("another network process");
    assert_ne!(first, second);
    scene.clear(&["hog"]);

    // It dies in the middle of the next one.
    let mut hog = scene.ramp("hog", "300Mi", LEFT_BYTES);
    scene.wait("eviction.decided", "hog");
    kill_process(second, Signal::KILL).unwrap();
    scene.wait("eviction.completed", "hog");
    hog.wait_for_end(TIMEOUT).unwrap();
    scene.wait_for_end_of_shortage();
    assert_eq!(scene.stream.of("eviction.decided").count(), 1);
    assert!(filler.lives().unwrap());
    drop(filler);
    scene.clear(&["hog", "filler", "calm"]);
    wait_until("the next network process", || network_process(daemon).is_some_and(|third| third != second));
    let third = network_process(daemon).unwrap();
    assert_eq!(scene.daemon.stop_and_replay().unwrap(), 2, "decisions that were run again");
    let third = Path::new("/proc").join(third.to_string());
    wait_until("its end with the daemon", || !third.exists());
}
