//! The real process that speaks to a container runtime: it lists a node's pods without any rights, in little memory.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic like the test itself")]

use std::{
    fs,
    io::{Read as _, Write as _},
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{Child, Command, Stdio},
    thread,
};

use serde_json::Value;

#[path = "../src/cri/fake.rs"]
#[expect(dead_code, reason = "the client's own tests use more of it")]
mod fake;

/// A process with its connection to the daemon; its runtime has that many pods.
fn start(pods: usize) -> (Child, UnixStream) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runtime.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    thread::spawn(move || {
        let node = fake::Node::with_pods(pods);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::UnixListener::from_std(listener).unwrap();
            fake::serve(listener, move |path, message| node.say(path, message)).await
        })
    });
    let (ours, theirs) = UnixStream::pair().unwrap();
    let runtime = UnixStream::connect(&path).unwrap();
    let process = Command::new(env!("CARGO_BIN_EXE_enforcer"))
        .arg("runtime-process")
        .stdin(OwnedFd::from(theirs))
        .stdout(OwnedFd::from(runtime))
        .spawn()
        .unwrap();
    (process, ours)
}

/// Asks for a listing. Returns the answer's head and body.
fn ask(daemon: &mut UnixStream, id: u64) -> (Value, Value) {
    let head = format!(r#"{{"id":{id},"content":{{"timeoutMs":60000}}}}"#);
    let length = u32::try_from(head.len()).unwrap().to_le_bytes();
    daemon.write_all(&[&length[..], &[0; 4], head.as_bytes()].concat()).unwrap();
    let mut read = |length: usize| {
        let mut bytes = vec![0; length];
        daemon.read_exact(&mut bytes).unwrap();
        bytes
    };
    let mut length = || usize::try_from(u32::from_le_bytes(read(4).try_into().unwrap())).unwrap();
    let (of_head, of_body) = (length(), length());
    let mut json = |length| serde_json::from_slice(&read(length)).unwrap();
    (json(of_head), json(of_body))
}

/// A line of the process's status.
fn status(process: &Child, key: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    value.unwrap().split_ascii_whitespace().next().unwrap().to_owned()
}

#[test]
fn five_hundred_pods_are_listed_without_rights_and_the_process_ends_with_the_daemon() {
    let (mut process, mut daemon) = start(500);
    for id in 0..3 {
        let (head, listing) = ask(&mut daemon, id);
        assert_eq!(head, serde_json::json!({"id": id, "content": "listed"}));
        assert_eq!(listing["sandboxes"].as_array().unwrap().len(), 500);
        assert_eq!(listing["containers"].as_array().unwrap().len(), 1_000);
    }
    assert_eq!(status(&process, "NoNewPrivs"), "1");
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(status(&process, set), "0000000000000000", "{set}");
    }
    if rustix::process::geteuid().is_root() {
        assert_eq!((status(&process, "Uid"), status(&process, "Gid")), ("65521".into(), "65521".into()));
    }
    assert_eq!(status(&process, "Seccomp"), "2");
    assert_eq!(status(&process, "Threads"), "1");
    let most_kib = |key| status(&process, key).parse::<u64>().unwrap();
    println!(
        "500 pods: VmRSS {} KiB, VmHWM {} KiB, of it RssAnon {} KiB",
        most_kib("VmRSS"),
        most_kib("VmHWM"),
        most_kib("RssAnon")
    );
    drop(daemon);
    assert!(process.wait().unwrap().success());
}

#[test]
fn it_is_started_by_the_daemon_and_by_nothing_else() {
    let run = |stdin: Stdio| {
        let verb = Command::new(env!("CARGO_BIN_EXE_enforcer")).arg("runtime-process").stdin(stdin).output();
        let output = verb.unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(run(Stdio::null()).contains("started by `enforcer run`"));
    let (_ours, theirs) = UnixStream::pair().unwrap();
    // Its standard output is no connection to a runtime.
    assert!(run(OwnedFd::from(theirs).into()).contains("started by `enforcer run`"));
}
