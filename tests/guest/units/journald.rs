//! Events in systemd's journal: found by their ids, with their fields, through a restart of journald.

use std::{collections::BTreeSet, fs, process::Command};

use enforcer_tests::wait::wait_until;
use serde_json::Value;

use super::{Scene, pod, systemctl, text};

/// Of `enforcer/src/sink/journald/catalog.rs`; they are part of the public contract.
const OOM_INCIDENT: &str = "3d65569c05aa1de0b96dbc0e3bb13305";
const POD_ADDED: &str = "5a6003c4613433f862ceddf0d4b54356";

const CATALOG: &str = include_str!("../../../packaging/enforcer.catalog");

const UNITS: [&str; 3] =
    ["systemd-journald.socket", "systemd-journald-dev-log.socket", "systemd-journald.service"];

/// journald, which runs in this scenario alone.
struct Journald;

impl Journald {
    fn start() -> Self {
        let started = systemctl(&["start", UNITS[2]]).unwrap();
        assert!(started.status.success(), "{}", text(&started.stderr));
        Self
    }
}

impl Drop for Journald {
    fn drop(&mut self) {
        let [socket, log, service] = UNITS;
        // A scenario that fails is unwinding here: another panic would end the whole run.
        drop(systemctl(&["stop", socket, log, service]));
    }
}

/// The entries that match.
fn entries(matches: &[&str]) -> Vec<Value> {
    let mut journalctl = Command::new("journalctl");
    let output = journalctl.args(["--no-pager", "-o", "json"]).args(matches).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[guest_test(systemd)]
fn the_journal_finds_an_event_by_its_id_with_its_fields() {
    let _journald = Journald::start();
    let scene = Scene::open("journald", "sinks: {journald: {enabled: true}}");
    scene.daemon.manifest("j.yaml", &pod("j", "{limits: {cpu: 1, memory: 32Mi}}")).unwrap();
    let of_j = |id: &str| entries(&[&format!("MESSAGE_ID={id}"), "ENFORCER_POD=j"]);
    wait_until("the pod in the journal", || !of_j(POD_ADDED).is_empty());
    // It is killed for it.
    scene.run("default/j", "workload hold --size 64Mi");
    wait_until("the OOM kill in the journal", || !of_j(OOM_INCIDENT).is_empty());
    let incident = of_j(OOM_INCIDENT).remove(0);
    for (field, value) in [
        ("SYSLOG_IDENTIFIER", "enforcer"),
        ("PRIORITY", "3"),
        ("_TRANSPORT", "journal"),
        ("_UID", "0"),
        ("ENFORCER_TYPE", "dev.enforcer.oom.incident"),
        ("ENFORCER_NAMESPACE", "default"),
        ("ENFORCER_CONTAINER", "app"),
    ] {
        assert_eq!(incident[field], value, "{field} of {incident}");
    }
    assert!(
        incident["MESSAGE"].as_str().unwrap().starts_with("pod default/j had an OOM kill: "),
        "{incident}"
    );
    assert!(incident["OBJECT_CGROUP"].as_str().unwrap().contains("podj.slice"), "{incident}");
    let data: Value = serde_json::from_str(incident["ENFORCER_DATA"].as_str().unwrap()).unwrap();
    assert_eq!(data["kills"].as_u64().map(|kills| kills > 0), Some(true), "{data}");

    // journald is killed, and systemd starts it again; what happens meanwhile comes through its socket.
    let killed = systemctl(&["kill", "--kill-who=main", "--signal=KILL", UNITS[2]]).unwrap();
    assert!(killed.status.success(), "{}", text(&killed.stderr));
    scene.daemon.manifest("k.yaml", &pod("k", "{}")).unwrap();
    wait_until("the pod after the restart", || {
        !entries(&[&format!("MESSAGE_ID={POD_ADDED}"), "ENFORCER_POD=k"]).is_empty()
    });

    // Every event of the log is there.
    let output = scene.daemon.verb(&["-o", "jsonl", "events"]).output().unwrap();
    let reported: Vec<String> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["sequence"].as_str().unwrap().to_owned())
        .collect();
    assert!(reported.len() > 3, "{reported:?}");
    let source = scene.daemon.pid().to_string();
    let in_journal = || -> BTreeSet<String> {
        let of_daemon = entries(&["SYSLOG_IDENTIFIER=enforcer", &format!("_PID={source}")]);
        of_daemon.iter().filter_map(|entry| Some(entry["ENFORCER_SEQUENCE"].as_str()?.to_owned())).collect()
    };
    wait_until("all events in the journal", || {
        let present = in_journal();
        reported.iter().all(|sequence| present.contains(sequence))
    });

    // And the catalogue says what they mean.
    fs::create_dir_all("/usr/lib/systemd/catalog").unwrap();
    fs::create_dir_all("/var/lib/systemd/catalog").unwrap();
    fs::write("/usr/lib/systemd/catalog/enforcer.catalog", CATALOG).unwrap();
    let update = Command::new("journalctl").arg("--update-catalog").output().unwrap();
    assert!(update.status.success(), "{}", text(&update.stderr));
    let explained =
        Command::new("journalctl").args(["--no-pager", "-x", &format!("MESSAGE_ID={OOM_INCIDENT}")]).output();
    let explained = text(&explained.unwrap().stdout);
    assert!(explained.contains("An OOM kill, in full") && explained.contains("default/j"), "{explained}");
}
