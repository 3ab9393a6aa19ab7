//! What a cluster is given: its API server takes all of it.

use std::{fs, process::Command};

use enforcer_tests::process::said;

const NAMESPACE: &str = include_str!("../../../packaging/kubernetes/namespace.yaml");
const MANIFESTS: &str = include_str!("../../../packaging/kubernetes/enforcer.yaml");

/// What releases before 1.30 have no field for, and an annotation instead, which the chart writes for them.
const NEWER: &str = "          appArmorProfile:\n            type: Unconfined\n";

/// Runs kubectl on a file with this content, and returns what it prints.
fn kubectl(arguments: &[&str], content: &str) -> String {
    let file = "/tmp/manifests.yaml";
    fs::write(file, content).unwrap();
    said(Command::new("kubectl").args(arguments).args(["--filename", file])).unwrap()
}

#[guest_test(kube)]
fn the_api_server_takes_each_of_the_manifests() {
    print!("{}", said(Command::new("kubectl").args(["version", "--short"])).unwrap());
    kubectl(&["apply"], NAMESPACE);
    let manifests = MANIFESTS.replace(NEWER, "");
    assert_ne!(manifests, MANIFESTS, "nothing of it is newer");
    let taken = kubectl(&["apply", "--dry-run=server"], &manifests);
    kubectl(&["delete", "--wait=false"], NAMESPACE);
    let objects = manifests.lines().filter(|line| line.starts_with("kind: ")).count();
    let dry = taken.lines().filter(|line| line.ends_with(" (server dry run)")).count();
    assert_eq!(dry, objects, "{taken}");
    assert!(taken.contains("daemonset.apps/enforcer created"), "{taken}");
}
