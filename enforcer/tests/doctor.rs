//! `enforcer doctor` as a program: it needs neither a daemon nor privileges, and says what it means by its exit status.
#![expect(clippy::panic, clippy::unwrap_used, reason = "a test's helpers may panic like the test itself")]

use std::{
    fs,
    path::Path,
    process::{Child, Command as Process, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use assert_cmd::Command;
use serde_json::Value;

/// The path of a configuration whose folders are all in `folder`.
fn config(folder: &Path) -> String {
    let path = folder.join("config.yaml");
    let shown = folder.display();
    let content = format!(
        "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\nmode: observe\n\
         stateDir: {shown}/state\nrunDir: {shown}/run\nstaticPodPath: {shown}/pods\n"
    );
    fs::create_dir_all(folder.join("pods")).unwrap();
    fs::write(&path, content).unwrap();
    path.display().to_string()
}

fn doctor(config: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("enforcer"));
    command.args(["--config", config, "doctor"]).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// A process that does not outlive the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already, which is what is wanted.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn without_a_daemon_it_looks_itself() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let output = doctor(&config, &["-o", "json"]);
    let document = json(&output);
    assert_eq!(document["source"], "here");
    assert!(text(&output.stderr).contains("the daemon cannot be asked"), "{output:?}");
    let lost = |facility: &&Value| facility["state"] == "lesser" || facility["state"] == "missing";
    let facilities = document["facilities"].as_array().unwrap();
    let count = facilities.iter().filter(lost).count();
    let is_missing = |one: &Value| one["name"] == "cgroup2" && one["state"] == "missing";
    let status = if facilities.iter().any(is_missing) { 2 } else { i32::from(count > 0) };
    assert_eq!((document["ok"].as_bool(), output.status.code()), (Some(count == 0), Some(status)));
    for facility in facilities {
        let is_lost = lost(&facility);
        assert_eq!(
            (facility["lost"].is_string(), facility["remedy"].is_string()),
            (is_lost, is_lost),
            "{facility:#}"
        );
        assert!(facility["rungs"].as_array().is_some_and(|rungs| rungs.len() >= 2), "{facility:#}");
    }
    let yaml = doctor(&config, &["-o", "yaml"]);
    let document: Value = serde_saphyr::from_str(&text(&yaml.stdout)).unwrap();
    assert_eq!(document["facilities"].as_array().unwrap().len(), facilities.len());

    let table = doctor(&config, &["-v"]);
    let shown = text(&table.stdout);
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    assert!(!shown.contains('\u{1b}'), "colour was not requested: {shown}");
    for facility in facilities {
        assert!(shown.contains(facility["name"].as_str().unwrap()), "{shown}");
    }
    assert!(shown.contains(&format!(" of {} in full", facilities.len())), "{shown}");
}

#[test]
fn the_daemon_is_asked_where_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    assert_eq!(doctor(&config, &["--live"]).status.code(), Some(69));
    assert_eq!(doctor(&config, &["--live", "--here"]).status.code(), Some(64));
    let mut daemon = Running(
        Process::new(assert_cmd::cargo::cargo_bin!("enforcer"))
            .args(["--config", &config, "run"])
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let start = Instant::now();
    let document = loop {
        let output = doctor(&config, &["--live", "-o", "json"]);
        if output.status.code() != Some(69) {
            break json(&output);
        }
        assert!(daemon.0.try_wait().unwrap().is_none(), "the daemon ended");
        assert!(start.elapsed() < Duration::from_mins(1), "{output:?}");
        thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(document["source"], "daemon");
    let programs = &document["programs"];
    let works = programs["attached"].as_array().is_some_and(|attached| !attached.is_empty());
    // A build without the object says so, and does not pretend to trace.
    assert_ne!(works, programs["error"].is_string(), "{programs:#}");
    let ebpf = document["facilities"].as_array().unwrap().iter().find(|one| one["name"] == "ebpf").unwrap();
    assert_eq!(ebpf["state"] == "missing", programs["error"].is_string(), "{ebpf:#}");
    let shown = text(&doctor(&config, &[]).stdout);
    let verdict = document["verdict"].as_str().unwrap();
    assert!(shown.starts_with(&format!("{verdict}\n\nWhat the daemon found")), "{verdict}: {shown}");
    assert_eq!(json(&doctor(&config, &["--here", "-o", "json"]))["source"], "here");
}
