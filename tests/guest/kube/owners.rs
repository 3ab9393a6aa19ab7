//! Pods that nothing would replace, or that come back to this node: killed, and left to the kubelet.

use std::process::Command;

use enforcer_tests::{
    expect::assert_holds,
    kube::{self, PATIENCE, documented_roles},
    stream::is,
};
use serde_json::{Value, json};

use super::{Scene, hog, sandbox, shown, subject, two, wait_for_eviction};

/// A pod without a controller keeps its object and its sandbox, and `kubectl describe` says why its containers died.
#[guest_test(kube_by_hand)]
fn a_bare_pod_is_killed_and_its_object_and_sandbox_stay() {
    let mut scene = Scene::open("bare", &documented_roles());
    scene.begin("bare", &kube::pod("bare", &two()));
    let pod = scene.running("bare");
    let evictions = scene.evictions();
    let (daemon, mut stream) = scene.evicting(&[&pod], "");
    let before = sandbox(&daemon, &pod);
    assert_eq!(before.lines().count(), 1, "{before}");

    let mut load = hog(&pod);
    let withheld = wait_for_eviction(&mut stream, &pod);
    assert!(!load.wait_for_end(PATIENCE).unwrap().success());
    assert_holds(&withheld["data"], &json!({"outcome": "withheld", "reason": "barePod", "requests": 0}));
    let restarted = scene.wait_for_restart(&pod);
    assert_eq!(sandbox(&daemon, &restarted), before, "the sandbox was killed");
    assert_eq!(scene.evictions(), evictions);

    scene.wait_until_reported(&pod, "Evicted");
    let described = Command::new("kubectl").args(["describe", "pod", kube::name(&pod)]).output().unwrap();
    let described = String::from_utf8_lossy(&described.stdout).into_owned();
    assert!(described.contains("Evicted") && described.contains("enforcer.dev/enforcer"), "{described}");
    let why = daemon.verb(&["why", &subject(&pod)]).output().unwrap();
    let why = String::from_utf8_lossy(&why.stdout).into_owned();
    assert!(why.contains("its spec was live by "), "{why}");
    daemon.stop().unwrap();
}

#[guest_test(kube_by_hand)]
fn a_pod_of_a_daemon_set_is_killed_and_not_evicted_at_the_api_server() {
    let mut scene = Scene::open("daemonset", &documented_roles());
    scene.begin("agent", &kube::daemon_set("agent", &two()));
    let pod = scene.running("agent");
    let evictions = scene.evictions();
    let (daemon, mut stream) = scene.evicting(&[&pod], "");

    let mut load = hog(&pod);
    let withheld = wait_for_eviction(&mut stream, &pod);
    assert!(!load.wait_for_end(PATIENCE).unwrap().success());
    assert_holds(&withheld["data"], &json!({"outcome": "withheld", "reason": "daemonSetPod", "requests": 0}));
    scene.wait_for_restart(&pod);
    assert_eq!(scene.evictions(), evictions);
    daemon.stop().unwrap();
}

/// It uses the most, far above its request, and another pod is evicted.
#[guest_test(kube_by_hand)]
fn a_static_pod_is_spared() {
    let mut scene = Scene::open("static", &documented_roles());
    let large = ["hold", "--huge", "--size", "600Mi", "--touch-every", "1s"];
    let own =
        scene.static_pod("own", &[kube::container("app", &large, &json!({"requests": {"memory": "16Mi"}}))]);
    scene.begin("victim", &kube::deployment("victim", &two()));
    let pod = scene.running("victim");
    let (daemon, mut stream) = scene.evicting(&[&own, &pod], "");
    assert_holds(&shown(&daemon, &own).unwrap(), &json!({"critical": true, "state": "active"}));
    let next = daemon.verb(&["-o", "json", "next"]).output().unwrap();
    let next: Value = serde_json::from_slice(&next.stdout).unwrap();
    assert_holds(&next["excluded"], &json!([{"name": kube::name(&own), "reason": "critical"}]));

    let mut load = hog(&pod);
    let requested = wait_for_eviction(&mut stream, &pod);
    assert!(!load.wait_for_end(PATIENCE).unwrap().success());
    assert_eq!(requested["data"]["outcome"], "accepted", "{requested}");
    scene.wait_until_terminating(&pod);
    let after = scene.running("own");
    assert_eq!(kube::restarts(&after), kube::restarts(&own), "{after}");
    assert_eq!(kube::container_id(&after, "app"), kube::container_id(&own, "app"));
    assert!(
        stream
            .seen
            .iter()
            .all(|event| !is(event, "eviction.decided") || event["subject"] == requested["subject"])
    );
    daemon.stop().unwrap();
}
