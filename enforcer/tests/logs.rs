//! The daemon's log, of the real binary without privileges.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic like the test itself")]

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

/// A daemon that only observes, with its log in a file; it ends with the test.
struct Daemon {
    folder: tempfile::TempDir,
    child: Child,
}

impl Daemon {
    fn start(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let shown = folder.path().display();
        fs::create_dir(folder.path().join("pods")).unwrap();
        let config = format!(
            "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\nmode: observe\nownership: enforcer\n\
             stateDir: {shown}/state\nrunDir: {shown}/run\nstaticPodPath: {shown}/pods\n"
        );
        fs::write(folder.path().join("config.yaml"), config).unwrap();
        let log = File::create(folder.path().join("log")).unwrap();
        let mut daemon = verb(folder.path(), &[&["run"], arguments].concat());
        let child = daemon.env_remove("RUST_LOG").stdin(Stdio::null()).stderr(log).spawn().unwrap();
        let mut daemon = Self { folder, child };
        daemon.until("ready");
        daemon
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Waits for such a line.
    fn until(&mut self, text: &str) {
        let start = Instant::now();
        while !self.log().contains(text) {
            assert!(self.child.try_wait().unwrap().is_none(), "the daemon ended: {}", self.log());
            assert!(start.elapsed() < Duration::from_mins(1), "no {text:?}: {}", self.log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn ask(&self, arguments: &[&str]) -> Output {
        verb(self.folder.path(), arguments).output().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn verb(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_enforcer"));
    command.arg("--config").arg(folder.join("config.yaml")).args(arguments);
    command
}

#[test]
fn a_start_is_one_line_and_one_ready_and_no_debug_text() {
    let daemon = Daemon::start(&[]);
    let log = daemon.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains(" INFO ")).collect();
    assert_eq!(lines.iter().filter(|line| line.ends_with(" ready")).count(), 1, "{log}");
    let begin = lines.iter().find(|line| line.contains(" starts: ")).unwrap();
    let run = daemon.folder.path().join("run").display().to_string();
    for part in [
        " starts: mode observe; thresholds: hard memory.available<",
        "; pods of /",
        &format!("; sockets {run}/observe.sock and "),
    ] {
        assert!(begin.contains(part), "{part}: {begin}");
    }
    for debug in ["Some(", "Recovered {"] {
        assert!(!log.contains(debug), "{debug}: {log}");
    }
    for warning in log.lines().filter(|line| line.contains(" WARN ")) {
        assert_eq!(log.matches(warning.split_once(" WARN ").unwrap().1).count(), 1, "once: {log}");
    }
}

#[test]
fn as_json_each_line_is_an_object() {
    let daemon = Daemon::start(&["--log-format", "json"]);
    let log = daemon.log();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in &lines {
        for key in ["time", "level", "target", "message"] {
            assert!(line[key].is_string(), "{key}: {line}");
        }
    }
    let is_start = |line: &&Value| line["message"].as_str().unwrap().contains(" starts: mode observe");
    assert_eq!(lines.iter().filter(is_start).count(), 1, "{log}");
    assert!(lines.iter().any(|line| line["message"] == "ready"), "{log}");
}

#[test]
fn the_level_changes_by_a_reload_and_is_an_event() {
    let mut daemon = Daemon::start(&[]);
    assert!(!daemon.log().contains(" DEBUG "), "{}", daemon.log());
    let refused = daemon.ask(&["reload", "--log-level", "loud"]);
    let reported = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(64), "{reported}");
    assert!(reported.contains("it is one of error, warn, info, debug, trace"), "{reported}");
    let done = daemon.ask(&["reload", "--log-level", "debug"]);
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success() && said.contains("the log level is debug"), "{said}");
    let events = daemon.ask(&["--live", "-o", "jsonl", "events", "--type", "config.loaded"]).stdout;
    assert!(String::from_utf8(events).unwrap().contains("the log level is debug, by order of uid "));
    assert!(daemon.ask(&["reload", "--log-level", "error"]).status.success());
    assert!(daemon.ask(&["reload"]).status.success());
    // At its end all lines are written.
    let pid = rustix::process::Pid::from_child(&daemon.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    daemon.child.wait().unwrap();
    let log = daemon.log();
    assert_eq!(log.matches("the configuration is unchanged").count(), 2, "the third is not logged: {log}");
    assert!(!log.contains("stopping: "), "{log}");
}
