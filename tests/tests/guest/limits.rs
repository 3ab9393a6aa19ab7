//! Limits that are lowered under load, and values that others write.
#![expect(clippy::unwrap_used, reason = "a scenario's helpers may panic like the scenario itself")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use enforcer_tests::{
    daemon::Daemon,
    pods::{Container, pod},
    process::Process,
    stream::is,
    wait::{PATIENCE, wait_until},
};
use serde_json::Value;

fn daemon(name: &str, settings: &str) -> Daemon {
    let folder = Path::new("/tmp/limits").join(name);
    Daemon::start(&folder, &format!("mode: enforce\n{settings}")).unwrap()
}

fn limited(name: &str, limit: &str) -> String {
    pod(name, 0, &[Container { name: "app", requests: "", limits: &format!("memory: {limit}") }])
}

/// The container's cgroup, once it is there.
fn app(daemon: &Daemon, pod: &str) -> PathBuf {
    let pods = daemon.verb(&["-o", "json", "plan", "-f"]).arg(daemon.pods()).output().unwrap();
    let plan: Value = serde_json::from_slice(&pods.stdout).unwrap();
    let pods = plan["pods"].as_array().unwrap();
    let pod = pods.iter().find(|planned| planned["name"] == pod).unwrap();
    let path = pod["containers"][0]["cgroup"]["path"].as_str().unwrap();
    let cgroup = Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/'));
    wait_until("the container's cgroup", || cgroup.join("memory.max").exists());
    cgroup
}

fn read(cgroup: &Path, file: &str) -> String {
    fs::read_to_string(cgroup.join(file)).unwrap().trim_end().to_owned()
}

fn bytes(cgroup: &Path, file: &str) -> u64 {
    read(cgroup, file).parse().unwrap()
}

const MIB: u64 = 1 << 20;

#[test]
fn a_limit_below_what_cannot_be_reclaimed_kills_nothing_and_is_told() {
    let daemon = daemon("held", "");
    let mut stream = daemon.follow().unwrap();
    daemon.manifest("web.yaml", &limited("web", "512Mi")).unwrap();
    let mut load =
        Process::new(daemon.exec("default/web", &["workload", "hold", "--size", "300Mi"]).unwrap());
    let app = app(&daemon, "web");
    wait_until("300Mi in use", || bytes(&app, "memory.current") > 300 * MIB);

    daemon.manifest("web.yaml", &limited("web", "128Mi")).unwrap();
    let is_it = |event: &Value| {
        let message = event["data"]["message"].as_str().unwrap_or_default();
        message.contains("/app/memory.max stays above 134217728: ") && message.contains(" bytes are in use")
    };
    let told = stream.wait_for("degraded.entered", PATIENCE, is_it).unwrap();
    assert_eq!(told["data"]["what"], "limits");
    assert!(load.lives().unwrap());
    assert_eq!(bytes(&app, "memory.max"), 512 * MIB);
    wait_until("memory.high back at its value", || read(&app, "memory.high") == "max");
    assert!(read(&app, "memory.events").contains("oom_kill 0"), "{}", read(&app, "memory.events"));

    // Back to what fits, and it is no problem any longer.
    daemon.manifest("web.yaml", &limited("web", "384Mi")).unwrap();
    let is_over = |event: &Value| is(event, "degraded.left") && is_it(event);
    stream.wait_for("degraded.left", PATIENCE, is_over).unwrap();
    wait_until("the new limit", || bytes(&app, "memory.max") == 384 * MIB);
    assert!(load.lives().unwrap());
    daemon.stop().unwrap();
}

#[test]
fn what_another_writes_is_put_right_until_it_insists() {
    let daemon = daemon("drift", "");
    let mut stream = daemon.follow().unwrap();
    daemon.manifest("web.yaml", &limited("web", "64Mi")).unwrap();
    stream.wait_for_pod("limits.applied", "default/web", PATIENCE).unwrap();
    let app = app(&daemon, "web");
    wait_until("the limit", || read(&app, "memory.max") == "67108864");
    let of = |kind: &'static str, pointer: &'static str, value: &'static str| {
        move |event: &Value| is(event, kind) && event.pointer(pointer).is_some_and(|found| found == value)
    };
    for foreign in ["max", "134217728", "268435456"] {
        fs::write(app.join("memory.max"), foreign).unwrap();
        wait_until("the planned value", || read(&app, "memory.max") == "67108864");
        let drifted = of("limits.drifted", "/data/new", foreign);
        let drifted = stream.wait_for("limits.drifted", PATIENCE, drifted).unwrap();
        assert_eq!(drifted["subject"], "default/web");
        assert_eq!(drifted["data"]["old"], "67108864", "{drifted}");
        assert_eq!(drifted["data"]["action"], "restored", "{drifted}");
        let restored = of("limits.restored", "/data/files/0/old", foreign);
        let restored = stream.wait_for("limits.restored", PATIENCE, restored).unwrap();
        assert_eq!(restored["data"]["files"][0]["new"], "67108864", "{restored}");
    }
    fs::write(app.join("memory.max"), "536870912").unwrap();
    let yielded = of("limits.drifted", "/data/new", "536870912");
    let yielded = stream.wait_for("limits.drifted", PATIENCE, yielded).unwrap();
    assert_eq!(yielded["data"]["action"], "yielded");
    assert_eq!(read(&app, "memory.max"), "536870912");
    daemon.stop().unwrap();
}

#[test]
fn what_another_writes_is_only_told_if_it_is_to_be() {
    let daemon = daemon("report", "onDrift: report");
    let mut stream = daemon.follow().unwrap();
    daemon.manifest("web.yaml", &limited("web", "64Mi")).unwrap();
    stream.wait_for_pod("limits.applied", "default/web", PATIENCE).unwrap();
    let app = app(&daemon, "web");
    wait_until("the limit", || read(&app, "memory.max") == "67108864");
    fs::write(app.join("memory.max"), "max").unwrap();
    let drifted = stream.wait_for_pod("limits.drifted", "default/web", PATIENCE).unwrap();
    assert_eq!(drifted["data"]["action"], "reported");
    assert_eq!(read(&app, "memory.max"), "max");
    daemon.stop().unwrap();
}
