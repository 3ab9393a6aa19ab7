//! Who may run, on a real node: who does not fit gets nothing, and who must run makes room.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use enforcer_tests::{
    daemon::Daemon,
    pods::{Container, pod},
    process::Process,
    wait::{TIMEOUT, wait_until},
};

fn folder(name: &str) -> PathBuf {
    Path::new("/tmp/admission").join(name)
}

fn requesting(requests: &str) -> [Container<'_>; 1] {
    [Container { name: "app", requests, limits: "" }]
}

/// A pod with a uid of its own, so that its cgroup is known.
fn manifest(name: &str, priority: i32, requests: &str) -> String {
    pod(name, priority, &requesting(requests))
        .replace(&format!("  name: {name}\n"), &format!("  name: {name}\n  uid: {name}\n"))
}

fn cgroup(name: &str) -> PathBuf {
    Path::new("/sys/fs/cgroup/kubepods/burstable").join(format!("pod{name}"))
}

#[guest_test(daemon)]
fn a_pod_that_does_not_fit_gets_no_cgroup_and_comes_in_when_it_does() {
    let daemon = Daemon::start(&folder("fit"), "mode: enforce").unwrap();
    let mut stream = daemon.follow().unwrap();
    daemon.manifest("small.yaml", &manifest("small", 0, "memory: 64Mi")).unwrap();
    daemon.manifest("large.yaml", &manifest("large", 0, "memory: 64Gi")).unwrap();

    let rejected = stream.wait_for_pod("pod.rejected", "default/large", TIMEOUT).unwrap();
    assert_eq!(rejected["data"]["reason"], "OutOfmemory", "{rejected}");
    let message = rejected["data"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("Node didn't have enough resource: memory, requested: 68719476736, used: "),
        "{message}"
    );
    let refused = daemon.verb(&["exec", "default/large", "--", "true"]).output().unwrap();
    let reported = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(77), "{reported}");
    assert!(reported.contains("OutOfmemory"), "{reported}");
    assert!(!cgroup("large").exists());
    let accepted = daemon.verb(&["exec", "default/small", "--", "true"]).output().unwrap();
    assert_eq!(accepted.status.code(), Some(0), "{}", String::from_utf8_lossy(&accepted.stderr));

    daemon.manifest("large.yaml", &manifest("large", 0, "memory: 128Mi")).unwrap();
    // Its cgroup is there a moment before the pod is reported as admitted.
    wait_until("large's admission", || {
        let reported = daemon.verb(&["exec", "default/large", "--", "true"]).output().unwrap();
        reported.status.code() == Some(0)
    });
    assert!(cgroup("large").exists());
    daemon.stop().unwrap();
}

/// The plain pods leave no room for the critical one. Either would make enough; the cheaper of them ends, with its
/// grace, and the other lives on.
#[guest_test(daemon)]
fn a_critical_pod_ends_the_cheapest_pod_that_makes_room() {
    let daemon = Daemon::start(&folder("preempt"), "mode: enforce").unwrap();
    let mut stream = daemon.follow().unwrap();
    daemon.manifest("a-half.yaml", &manifest("half", 0, "memory: 800Mi")).unwrap();
    daemon.manifest("b-third.yaml", &manifest("third", 0, "memory: 500Mi")).unwrap();
    let hold = ["workload", "hold", "--size", "8Mi"];
    let mut half = Process::new(daemon.exec("default/half", &hold).unwrap());
    let mut third = Process::new(daemon.exec("default/third", &hold).unwrap());
    let populated = |name: &str| {
        std::fs::read_to_string(cgroup(name).join("cgroup.procs")).is_ok_and(|procs| !procs.is_empty())
            || std::fs::read_to_string(cgroup(name).join("app/cgroup.procs"))
                .is_ok_and(|procs| !procs.is_empty())
    };
    wait_until("the plain pods' processes", || populated("half") && populated("third"));

    daemon.manifest("c-critical.yaml", &manifest("critical", 2_000_000_000, "memory: 700Mi")).unwrap();
    let rejected = stream.wait_for_pod("pod.rejected", "default/third", TIMEOUT).unwrap();
    assert_eq!(rejected["data"]["reason"], "Preempting", "{rejected}");
    assert_eq!(rejected["data"]["message"], "Preempted in order to admit critical pod");
    third.wait_for_end(TIMEOUT).unwrap();
    let mut critical = Process::new(daemon.exec("default/critical", &hold).unwrap());
    wait_until("the critical pod's process", || populated("critical"));
    assert!(half.lives().unwrap(), "who need not go stays");
    assert!(critical.lives().unwrap());
    let gone = daemon.verb(&["exec", "default/third", "--", "true"]).output().unwrap();
    assert_eq!(gone.status.code(), Some(77), "{}", String::from_utf8_lossy(&gone.stderr));
    stream.drain(Duration::from_secs(1));
    assert_eq!(stream.of("pod.rejected").count(), 1);
    drop((half, critical));
    daemon.stop().unwrap();
}

/// What another scheduler reserved is not for pods: also not after the daemon was killed, and until it expires.
#[guest_test(daemon)]
fn what_is_reserved_no_pod_gets_until_it_ends() {
    let folder = folder("reserve");
    let daemon = Daemon::start(&folder, "mode: enforce").unwrap();
    let verb = |daemon: &Daemon, arguments: &[&str]| {
        let output = daemon.verb(arguments).output().unwrap();
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (said, output.status.code())
    };
    let free = |daemon: &Daemon| {
        let (said, status) = verb(daemon, &["-o", "json", "allocatable"]);
        assert_eq!(status, Some(0), "{said}");
        let view: serde_json::Value = serde_json::from_str(&said).unwrap();
        view["free"]["memoryBytes"].as_u64().unwrap()
    };
    let whole = free(&daemon);
    let reserve = |daemon: &Daemon, bytes: u64, ttl: &str| {
        let bytes = bytes.to_string();
        verb(daemon, &["reserve", "batch", "--memory", &bytes, "--ttl", ttl, "--reason", "batch work"])
    };
    let (said, status) = reserve(&daemon, whole + 1, "1h");
    assert!(status == Some(77) && said.contains("of memory are asked for and"), "{said}");
    assert_eq!(free(&daemon), whole, "a refusal changes nothing");
    let (said, status) = reserve(&daemon, whole - (64 << 20), "1h");
    assert_eq!(status, Some(0), "{said}");

    // The daemon is killed: dropping it is SIGKILL.
    drop(daemon);
    let daemon = Daemon::start(&folder, "mode: enforce").unwrap();
    let mut stream = daemon.follow().unwrap();
    assert_eq!(free(&daemon), 64 << 20);
    daemon.manifest("large.yaml", &manifest("large", 0, "memory: 128Mi")).unwrap();
    let rejected = stream.wait_for_pod("pod.rejected", "default/large", TIMEOUT).unwrap();
    assert_eq!(rejected["data"]["reason"], "OutOfmemory", "{rejected}");
    assert!(!cgroup("large").exists());

    let (said, status) = reserve(&daemon, whole - (64 << 20), "2s");
    assert_eq!(status, Some(0), "{said}");
    let expired = |event: &serde_json::Value| {
        event["type"] == "dev.enforcer.reservation.ended" && event["data"]["reason"] == "expired"
    };
    stream.wait_for("the end of its time", TIMEOUT, expired).unwrap();
    wait_until("large's admission", || cgroup("large").exists());
    // What the pod has now cannot be reserved.
    let (said, status) = reserve(&daemon, whole - (64 << 20), "1h");
    assert!(status == Some(77) && said.contains("of memory are asked for and"), "{said}");
    assert_eq!(free(&daemon), whole - (128 << 20));
    daemon.stop().unwrap();
}
