//! `status`, `pods`, `describe`, `version`, `bugreport` and `config effective --live`, over a fake daemon with set answers.
use std::{fs, os::unix::fs::PermissionsExt as _};

use serde_json::{Value, json};

use crate::{
    Scene,
    daemon::Answers,
    foreseen::{answers, headroom, ranking},
};

fn pod(name: &str, request_mib: u64) -> Value {
    json!({"namespace": "default", "name": name, "uid": "u", "qosClass": "Burstable", "priority": 0,
        "requestBytes": request_mib << 20, "state": "active", "reason": null, "startsUnderMemoryPressure": true,
        "cgroup": format!("/kubepods/burstable/{name}"),
        "containers": [{"name": "app", "kind": "app", "oomScoreAdj": 988,
            "cgroup": format!("/kubepods/burstable/{name}/app"), "cgroupId": 7}]})
}

fn event(kind: &str, data: &Value) -> String {
    json!({"specversion": "1.0", "id": "01J8Z3NDEKTSV4RRFFQ69G5FAV", "source": "urn:enforcer:n:b",
        "type": format!("dev.enforcer.{kind}"), "subject": "default/hog", "time": "2026-01-31T12:00:00.123456Z",
        "sequence": "00000000000000000001", "datacontenttype": "application/json", "data": data})
    .to_string()
}

/// A daemon with two pods of which one is ranked first, and something that does not work.
fn daemon() -> Answers {
    let mut daemon = answers(&ranking(), &headroom(), "enforce", &json!([]));
    let view = json!({"mode": "enforce", "memoryPressure": false, "pods": [pod("hog", 0), pod("web", 400)]});
    let doctor = json!({"facilities": [{"name": "psi", "state": "missing", "found": "f", "uses": null, "lost": "stalls",
        "remedy": "r", "rungs": []}], "programs": {"error": null, "attached": [], "failed": []}});
    let config = json!({"daemon": {"version": "9.8.7", "commit": "0123abc", "architecture": "x86_64"}, "configHash": "h",
        "configuration": {"mode": "enforce", "maxPods": 7, "nodeName": null},
        "origins": {"mode": "flag --mode", "maxPods": "/etc/enforcer/config.yaml:4", "nodeName": "default"}});
    let degraded = event("degraded.entered", &json!({"what": "journal", "message": "the disk is full"}));
    let memory = json!({"nodeStall": null, "omitted": 0, "pods": [{"uid": "u", "currentBytes": 3 << 20,
        "anonBytes": 2 << 20, "fileBytes": 1 << 20, "shmemBytes": 0, "limitBytes": null, "stall": null, "containers": []}]});
    for (path, body) in [
        ("/v1/pods", view.to_string()),
        ("/v1/doctor", doctor.to_string()),
        ("/v1/config", config.to_string()),
        ("/v1/containers", memory.to_string()),
        ("/v1/events", degraded + "\n"),
    ] {
        daemon.insert(path, body.into_bytes());
    }
    daemon
}

fn document(scene: &Scene, verb: &[&str]) -> Value {
    let printed = scene.raw(&[&["-o", "json"], verb].concat());
    assert_eq!(printed.status, 0, "{verb:?}: {printed:?}");
    serde_json::from_str(&printed.out).unwrap()
}

#[test]
fn the_node_is_on_one_screen() {
    let scene = Scene::new();
    scene.answer(daemon());
    let printed = scene.run(&["status"]);
    printed.tame();
    assert_eq!((printed.status, printed.err.as_str()), (0, ""), "{printed:?}");
    assert!(printed.out.lines().count() <= 24, "{}", printed.out);
    // The fake's soft threshold is met.
    for part in [
        "SHORT: memory.available is below its soft threshold of 1Gi",
        "enforce",
        "2 active",
        "journal: the disk",
        "psi: ",
    ] {
        assert!(printed.out.contains(part), "{part} is not in {}", printed.out);
    }
    let status = document(&scene, &["status"]);
    assert_eq!((&status["verdict"], &status["pods"]["active"]), (&json!("short"), &json!(2)));
    assert_eq!(status["lost"][0]["name"], "psi");
}

#[test]
fn pods_are_listed_with_their_place_in_the_order() {
    let scene = Scene::new();
    scene.answer(daemon());
    let printed = scene.run(&["pods"]);
    printed.tame();
    let words: Vec<Vec<&str>> = printed.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[1], ["default/hog", "Burstable", "active", "0", "1.2Gi", "1"], "{}", printed.out);
    assert_eq!(words[2], ["default/web", "Burstable", "active", "400Mi", "500Mi", "3"], "{}", printed.out);
    let pods = document(&scene, &["pods", "-n", "default"]);
    assert_eq!(
        (&pods["items"][0]["rank"], &pods["items"][0]["usageBytes"]),
        (&json!(1), &json!(1_250_u64 << 20))
    );
    assert_eq!(document(&scene, &["pods", "-n", "other"]), json!({"items": []}));
}

#[test]
fn a_pod_is_described_by_name_and_an_unknown_one_is_not_there() {
    let scene = Scene::new();
    scene.answer(daemon());
    let printed = scene.run(&["describe", "web"]);
    printed.tame();
    assert_eq!(printed.status, 0, "{printed:?}");
    for part in [
        "default/web",
        "request 400Mi, no limit",
        "uses 3Mi",
        "number 3",
        "oom_score_adj 988",
        "degraded.entered",
    ] {
        assert!(printed.out.contains(part), "{part} is not in {}", printed.out);
    }
    let described = document(&scene, &["describe", "default/web"]);
    assert_eq!((&described["pod"]["name"], &described["row"]["rank"]), (&json!("web"), &json!(3)));
    let unknown = scene.run(&["describe", "default/wbe"]);
    assert!(unknown.status == 66 && unknown.err.contains("did you mean default/web?"), "{unknown:?}");
}

#[test]
fn without_a_daemon_they_exit_69_and_the_own_version_is_known() {
    let scene = Scene::new();
    for verb in [
        &["status"][..],
        &["pods"],
        &["describe", "web"],
        &["version", "--live"],
        &["config", "effective", "--live"],
    ] {
        let printed = scene.run(verb);
        assert!(printed.status == 69 && printed.out.is_empty(), "{verb:?}: {printed:?}");
    }
    let version = document(&scene, &["version"]);
    assert_eq!(version["client"]["version"], env!("CARGO_PKG_VERSION"));
    assert!(version["daemon"].is_null() && version["unknown"].is_string(), "{version}");
}

#[test]
fn the_daemons_version_is_its_own() {
    let scene = Scene::new();
    scene.answer(daemon());
    let version = document(&scene, &["version"]);
    assert_eq!(
        (&version["daemon"]["version"], &version["daemon"]["commit"]),
        (&json!("9.8.7"), &json!("0123abc"))
    );
    assert_eq!(version["facilities"][0], json!({"name": "psi", "state": "missing"}));
    scene.run(&["version"]).tame();
}

#[test]
fn what_the_daemon_runs_with_is_shown_with_where_it_is_from() {
    let scene = Scene::new();
    scene.answer(daemon());
    let live = document(&scene, &["config", "effective", "--live"]);
    assert_eq!(
        (&live["configuration"]["maxPods"], &live["origins"]["mode"]),
        (&json!(7), &json!("flag --mode"))
    );
    let text = scene.run(&["--live", "config", "effective"]).out;
    assert!(text.contains("flag --mode") && text.contains("config.yaml:4"), "{text}");
}

/// What is printed can be used in place of all files.
#[test]
fn the_effective_configuration_as_yaml_is_a_configuration() {
    let scene = Scene::new();
    let text = fs::read_to_string(scene.path("config.yaml")).unwrap();
    fs::write(scene.path("config.yaml"), text + "evictionSoft: {memory.available: 200Mi}\n\
        evictionSoftGracePeriod: {memory.available: 90s}\nsystemReserved: {memory: 64Mi}\nbreaker: {maxShare: 0.25}\n").unwrap();
    let before = document(&scene, &["config", "effective"]);
    let yaml = scene.raw(&["-o", "yaml", "config", "effective"]);
    assert_eq!((yaml.status, yaml.err.as_str()), (0, ""), "{yaml:?}");
    assert!(
        yaml.out.contains("config.yaml:3\nmode: observe\n") && yaml.out.contains("# default\n"),
        "{}",
        yaml.out
    );
    let whole = scene.path("whole.yaml");
    fs::write(&whole, &yaml.out).unwrap();
    let checked = scene.run(&["config", "check", whole.to_str().unwrap()]);
    assert_eq!(checked.status, 0, "{checked:?}\n{}", yaml.out);
    fs::write(scene.path("config.yaml"), &yaml.out).unwrap();
    assert_eq!(document(&scene, &["config", "effective"])["configuration"], before["configuration"]);
}

#[test]
fn a_report_of_a_bug_is_listed_first_private_and_never_written_over_another() {
    let scene = Scene::new();
    let mut daemon = daemon();
    let mut view: Value = serde_json::from_slice(&daemon["/v1/pods"]).unwrap();
    view["pods"][0]["annotations"] = json!({"password": "hunter2"});
    daemon.insert("/v1/pods", view.to_string().into_bytes());
    scene.answer(daemon);
    let file = scene.path("report.tar.gz");
    let named = file.to_str().unwrap();
    let listed = scene.run(&["bugreport", "--dry-run", "--file", named]);
    listed.tame();
    assert!(listed.status == 0 && !file.exists(), "{listed:?}");
    for part in
        ["pods.json", "events.ndjson", "not there: metrics.txt", "removed: pods.json: pods[].annotations"]
    {
        assert!(listed.out.contains(part), "{part} is not in {}", listed.out);
    }
    let written = scene.run(&["bugreport", "--file", named]);
    assert_eq!(written.status, 0, "{written:?}");
    assert!(written.out.ends_with("written: FOLDER/report.tar.gz\n"), "{}", written.out);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let bytes = fs::read(&file).unwrap();
    let again = scene.run(&["bugreport", "--file", named]);
    assert!(again.status == 1 && again.err.contains("cannot create"), "{again:?}");
    assert!(fs::read(&file).unwrap() == bytes, "it is as it was");
}
