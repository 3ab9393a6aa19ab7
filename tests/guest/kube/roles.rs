//! A missing role costs what the documentation says, and nothing else.

use enforcer_tests::{
    expect::assert_holds,
    kube::{self, PATIENCE, Role, documented_roles, wait_for},
    stream::is,
};
use serde_json::{Value, json};

use super::{
    Scene, degraded, hog, node, of_api_server, pods, shown, small, subject, two, view, wait_for_eviction,
};

/// All but one.
fn without(name: &str) -> Vec<Role> {
    let roles = documented_roles();
    let left: Vec<Role> = roles.iter().copied().filter(|role| role.name != name).collect();
    assert_eq!(left.len() + 1, roles.len(), "no page names {name}");
    left
}

/// Then only pods of class `BestEffort` may be evicted, and whether the kubelet's disk is full is not known.
#[guest_test(kube_by_hand)]
fn without_the_role_for_specs_there_are_none_and_evictions_go_on() {
    let mut roles = without("enforcer-specs");
    // It may read the node as well.
    roles.retain(|role| role.name != "enforcer-node");
    let mut scene = Scene::open("no-specs", &roles);
    let small = ["app", "side"].map(|name| small(name, &json!({})));
    scene.begin("hog", &kube::deployment("hog", &small));
    scene.begin("other", &kube::deployment("other", &two()));
    let [pod, other] = ["hog", "other"].map(|app| scene.running(app));
    let (daemon, mut stream) = scene.evicting(&[], "");
    let is_down = |event: &Value| is(event, "source.down") && event["data"]["source"] == "specs";
    let down = stream.wait_for("no source of specs", PATIENCE, is_down).unwrap();
    let message = down["data"]["message"].as_str().unwrap();
    for source in ["podsAPI: ", "kubelet: ", "apiServer: "] {
        assert!(message.contains(source), "{message}");
    }
    assert!(message.contains("status 403"), "{message}");
    let next = || {
        let next = daemon.verb(&["-o", "json", "next"]).output()?;
        let order = serde_json::from_slice::<Value>(&next.stdout).unwrap_or_default()["order"].clone();
        Ok(order.as_array().and_then(|order| order.first().cloned()))
    };
    let first = wait_for("a candidate", next).unwrap();
    assert_eq!(first["name"], kube::name(&pod), "{first}");
    assert!(pods(&daemon).iter().all(|pod| pod["spec"].is_null()), "{:?}", pods(&daemon));
    assert_holds(&shown(&daemon, &other).unwrap(), &json!({"qosClass": "Burstable", "requestBytes": 0}));

    let mut load = hog(&pod);
    let requested = wait_for_eviction(&mut stream, &pod);
    assert!(!load.wait_for_end(PATIENCE).unwrap().success());
    assert_holds(&requested["data"], &json!({"outcome": "accepted", "action": "evict"}));
    scene.wait_until_terminating(&pod);
    scene.wait_until_reported(&pod, "Evicted");
    assert!(view(&daemon)["diskPressure"].is_null(), "{}", view(&daemon));
    assert_eq!(of_api_server(&stream), [""; 0]);
    daemon.stop().unwrap();
}

/// The kubelet then restarts what was killed.
#[guest_test(kube_by_hand)]
fn without_the_role_for_evictions_pods_are_killed_and_start_again() {
    let mut scene = Scene::open("no-evictions", &without("enforcer-evictions"));
    scene.begin("hog", &kube::deployment("hog", &two()));
    let pod = scene.running("hog");
    let evictions = scene.evictions();
    let (daemon, mut stream) = scene.evicting(&[&pod], "");
    let mut load = hog(&pod);
    stream.wait_for_pod("eviction.completed", &subject(&pod), PATIENCE).unwrap();
    assert!(!load.wait_for_end(PATIENCE).unwrap().success());
    let missing = degraded(&mut stream, "apiServer");
    assert!(missing["data"]["message"].as_str().unwrap().contains("status 403"), "{missing}");
    scene.wait_for_restart(&pod);
    assert_eq!(scene.evictions(), evictions);
    let requested = stream.of("eviction.requested").all(|event| event["data"]["outcome"] == "refused");
    assert!(requested, "{:?}", stream.seen);
    scene.wait_until_reported(&pod, "Evicted");
    assert_eq!(of_api_server(&stream), ["apiServer"]);
    daemon.stop().unwrap();
}

/// Then `kubectl describe` does not say why a pod died.
#[guest_test(kube_by_hand)]
fn without_the_role_for_events_there_are_none_and_pods_are_evicted() {
    let mut scene = Scene::open("no-events", &without("enforcer-events"));
    scene.begin("hog", &kube::deployment("hog", &two()));
    let pod = scene.running("hog");
    let (daemon, mut stream) = scene.evicting(&[&pod], "");
    let mut load = hog(&pod);
    let requested = wait_for_eviction(&mut stream, &pod);
    assert!(!load.wait_for_end(PATIENCE).unwrap().success());
    assert_holds(&requested["data"], &json!({"outcome": "accepted", "action": "evict"}));
    let missing = degraded(&mut stream, "sink");
    assert_eq!(missing["data"]["sink"], "kubernetes", "{missing}");
    assert!(missing["data"]["message"].as_str().unwrap().contains("403"), "{missing}");
    scene.wait_until_terminating(&pod);
    let events = scene.cluster.events_of(kube::uid(&pod)).unwrap();
    assert!(events.iter().all(|event| event["reportingComponent"] != "enforcer.dev/enforcer"), "{events:?}");
    assert_eq!(of_api_server(&stream), ["sink"]);
    daemon.stop().unwrap();
}

/// Then the scheduler does not learn that memory is short.
#[guest_test(kube_by_hand)]
fn without_the_role_for_the_node_nothing_is_set_on_it_and_pods_are_evicted() {
    let mut scene = Scene::open("no-node", &without("enforcer-node"));
    scene.begin("hog", &kube::deployment("hog", &two()));
    let pod = scene.running("hog");
    let (daemon, mut stream) = scene.evicting(&[&pod], node::SETTINGS);
    let mut load = hog(&pod);
    let requested = wait_for_eviction(&mut stream, &pod);
    assert!(!load.wait_for_end(PATIENCE).unwrap().success());
    assert_holds(&requested["data"], &json!({"outcome": "accepted", "action": "evict"}));
    let missing = degraded(&mut stream, "nodeCondition");
    assert!(missing["data"]["message"].as_str().unwrap().contains("status 403"), "{missing}");
    scene.wait_until_reported(&pod, "Evicted");
    node::assert_unmarked(&scene);
    assert_eq!(of_api_server(&stream), [""; 0]);
    daemon.stop().unwrap();
}
