//! Containers that live for a moment: a limit is too small for the program, which is killed at its start.

use enforcer::{model::QosClass, policy::CgroupDriver::Systemd};
use enforcer_tests::{
    expect::assert_holds,
    load::Load,
    stream::{Stream, is},
    wait::TIMEOUT,
};
use serde_json::{Value, json};

use super::node::{Node, Placed};

/// Has the container killed at its limit, and returns its cgroup's path.
fn kill(placed: &Placed, container: usize) -> String {
    placed.cgroup(container).write("memory.max", "16M").unwrap();
    let mut load = Load::start(placed.cgroup(container), &["spike", "--size", "64Mi"]).unwrap();
    assert!(!load.wait().unwrap().success());
    placed.container_path(container)
}

/// Waits until the kill at that limit is reported with this container.
fn assert_named(stream: &mut Stream, limit: &str, pod: &str, container: &str) {
    let is_it = |event: &Value| is(event, "oom.incident") && event["data"]["limitOwner"] == limit;
    let incident = stream.wait_for(&format!("the kill in {limit}"), TIMEOUT, is_it).unwrap();
    assert_eq!(incident["subject"], format!("shop/{pod}"), "{incident}");
    let place = json!({"namespace": "shop", "pod": pod, "container": container, "attempt": 2});
    let expected = json!({"scope": "container", "trigger": place, "victims": [place]});
    assert_holds(&incident["data"], &expected);
}

/// The runtime lists each as exited from the beginning: no listing of what runs has ever had it.
#[guest_test(daemon)]
fn a_container_that_was_killed_at_its_start_is_named_although_its_cgroup_is_gone() {
    let mut node = Node::new("brief", Systemd);
    node.serve();
    let mut web = node.pod(QosClass::Burstable, "shop", "web", &["app"]);
    let daemon = node.start("");
    let mut stream = daemon.follow().unwrap();
    let has_name = |event: &Value| {
        event["subject"] == "shop/web" && (is(event, "pod.added") || is(event, "pod.changed"))
    };
    stream.wait_for("the pod's name", TIMEOUT, has_name).unwrap();
    for _ in 0..3 {
        node.add_exited(&mut web, "crash");
        let path = kill(&web, 2);
        web.remove(2);
        assert_named(&mut stream, &path, "web", "crash");
    }
    // With it its pod is gone.
    let mut job = node.pod(QosClass::BestEffort, "shop", "job", &[]);
    node.add_exited(&mut job, "once");
    let path = kill(&job, 1);
    drop(job);
    assert_named(&mut stream, &path, "job", "once");
    daemon.stop().unwrap();
}
