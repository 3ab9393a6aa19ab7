//! What the pages say that offline verbs print, on the real binary.

use std::{fs, path::Path};

use assert_cmd::Command;

/// The four pods of `docs/planning.md`.
const PODS: &str = "apiVersion: v1
kind: Pod
metadata: {name: shop}
spec:
  initContainers:
  - name: proxy
    restartPolicy: Always
    resources: {requests: {cpu: 50m, memory: 32Mi}}
  containers:
  - name: app
    resources: {requests: {cpu: 500m, memory: 1Gi}, limits: {cpu: 1, memory: 2Gi}}
---
apiVersion: v1
kind: Pod
metadata: {name: bank}
spec: {containers: [{name: app, resources: {limits: {cpu: 2, memory: 4Gi}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: batch}
spec: {containers: [{name: app}]}
---
apiVersion: v1
kind: Pod
metadata: {name: warehouse}
spec: {containers: [{name: app, resources: {requests: {memory: 4Gi}}}]}
";

const CONFIG: &str =
    "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\nkubeReservedPolicy: auto\n";

/// A command line of a `console` block, and what the page shows below it.
fn shown(page: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for block in page.split("```console\n").skip(1) {
        let (block, _) = block.split_once("```").unwrap();
        for line in block.lines() {
            if let Some(command) = line.strip_prefix("$ ") {
                let (command, _comment) = command.split_once(" #").unwrap_or((command, ""));
                found.push((command.trim_end().to_owned(), String::new()));
            } else {
                let (_, printed) = found.last_mut().unwrap();
                printed.push_str(line);
                printed.push('\n');
            }
        }
    }
    found
}

fn page(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name)).unwrap()
}

/// What it prints, messages first, when it succeeds.
fn printed(folder: &Path, command: &str) -> String {
    let arguments: Vec<_> = command.split(' ').skip(1).collect();
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("enforcer"));
    if !arguments.contains(&"--config") {
        // Whatever this host has.
        command.arg("--no-config");
    }
    let output = command.args(&arguments).current_dir(folder).env_remove("ENFORCER_SOCKET").output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stderr).unwrap() + &String::from_utf8(output.stdout).unwrap()
}

/// A page may leave out what comes below.
#[test]
fn plan_and_rank_print_what_the_page_shows() {
    let shown = shown(&page("planning.md"));
    let folder = tempfile::tempdir().unwrap();
    let pods = folder.path().join("pods");
    fs::create_dir(&pods).unwrap();
    fs::write(pods.join("all.yaml"), PODS).unwrap();
    fs::write(folder.path().join("web.yaml"), super::inputs::TYPO).unwrap();
    fs::write(folder.path().join("auto.yaml"), CONFIG).unwrap();
    let stats = shown.iter().find(|(command, _)| command == "cat stats.json");
    fs::write(folder.path().join("stats.json"), &stats.unwrap().1).unwrap();
    let mut compared = 0;
    for (command, expected) in &shown {
        if !command.starts_with("enforcer ") || command.contains('|') || expected.is_empty() {
            continue;
        }
        let printed = printed(folder.path(), command);
        // What `rank` says of missing statistics is on stderr, which a page need not show.
        let at = printed.find(expected.as_str());
        assert!(at.is_some_and(|at| printed[..at].lines().count() < 2), "{command} prints:\n{printed}");
        compared += 1;
    }
    assert_eq!(compared, 4);
}

#[test]
fn the_configuration_verbs_of_the_page_run_without_a_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = 0;
    for (command, _) in shown(&page("configuration.md")) {
        if command.starts_with("enforcer config") && !command.contains("--live") {
            assert!(!printed(folder.path(), &command).is_empty(), "{command}");
            run += 1;
        }
    }
    assert_eq!(run, 4);
}
