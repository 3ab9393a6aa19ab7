//! A `PodDisruptionBudget` that allows no disruption.

use enforcer_tests::{
    expect::assert_holds,
    kube::{self, PATIENCE, documented_roles},
    stream::is,
};
use serde_json::{Value, json};

use super::{Scene, hog, sandbox, subject, two, wait_for_eviction};

#[guest_test(kube)]
fn a_disruption_budget_is_respected_if_that_is_wanted_and_else_overridden() {
    let mut scene = Scene::open("budget", &documented_roles());
    scene.begin("hog", &kube::deployment("hog", &two()));
    let pod = scene.running("hog");
    scene.allow_no_disruption("hog");

    let (daemon, mut stream) = scene.evicting(&[&pod], "onPdb: respect");
    let before = sandbox(&daemon, &pod);
    assert_eq!(before.lines().count(), 1, "{before}");
    let mut load = hog(&pod);
    let refused = wait_for_eviction(&mut stream, &pod);
    assert!(!load.wait_for_end(PATIENCE).unwrap().success());
    assert_holds(&refused["data"], &json!({"outcome": "refused", "reason": "disruptionBudget"}));
    // The kubelet restarts its containers, and nobody deletes it.
    let restarted = scene.wait_for_restart(&pod);
    assert_eq!(sandbox(&daemon, &restarted), before, "the sandbox was killed");
    daemon.stop().unwrap();

    // The next daemon finds the same eviction in its journal, and may delete.
    let (daemon, mut stream) = scene.evicting(&[&restarted], "");
    let is_accepted =
        |event: &Value| is(event, "eviction.requested") && event["data"]["outcome"] == "accepted";
    let deleted = stream.wait_for("the deletion", PATIENCE, is_accepted).unwrap();
    assert_holds(&deleted["data"], &json!({"action": "delete", "uid": kube::uid(&pod)}));
    // The budget is asked first, by each of them.
    assert!(deleted["data"]["requests"].as_u64() >= Some(2), "{deleted}");
    scene.end(&pod);
    stream.wait_for_pod("eviction.confirmed", &subject(&pod), PATIENCE).unwrap();

    // Its ReplicaSet's next pod is killed by this daemon, refused by the budget and deleted at once.
    let fresh = scene.running("hog");
    let mut load = hog(&fresh);
    stream.wait_for_pod("eviction.completed", &subject(&fresh), PATIENCE).unwrap();
    assert!(!load.wait_for_end(PATIENCE).unwrap().success());
    let deleted = stream.wait_for_pod("eviction.requested", &subject(&fresh), PATIENCE).unwrap();
    assert_holds(
        &deleted["data"],
        &json!({"outcome": "accepted", "action": "delete", "uid": kube::uid(&fresh)}),
    );
    assert!(deleted["data"]["requests"].as_u64() >= Some(2), "{deleted}");
    scene.end(&fresh);
    daemon.stop().unwrap();
}
