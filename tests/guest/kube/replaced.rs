//! A Deployment's pod: killed here, evicted at the API server, and replaced.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use enforcer_tests::{
    expect::assert_holds,
    kube::{self, NAMESPACE, PATIENCE, documented_roles},
    process::{Process, said},
    rounds::{Rounds, is_soak},
};
use serde_json::{Value, json};

use super::{Scene, explained, hog, small, subject, two, wait_for_eviction};

/// What may pass from the signal to the request, at the 99th percentile of many: the kubelet starts a container that was
/// killed again after some hundred milliseconds.
const MOST_TO_REQUEST_MS: u64 = 100;

#[guest_test(kube)]
fn a_pod_of_a_deployment_is_evicted_at_the_api_server_and_replaced() {
    let mut scene = Scene::open("replaced", &documented_roles());
    let calm = small("app", &json!({"requests": {"memory": "64Mi"}}));
    scene.begin("calm", &kube::deployment("calm", &[calm]));
    scene.begin("hog", &kube::deployment("hog", &two()));
    let [calm, pod] = ["calm", "hog"].map(|app| scene.running(app));
    let evictions = scene.evictions();
    let (daemon, mut stream) = scene.evicting(&[&calm, &pod], "");

    let mut load = hog(&pod);
    let requested = wait_for_eviction(&mut stream, &pod);
    assert!(!load.wait_for_end(PATIENCE).unwrap().success());
    let restarts = scene.end(&pod);
    assert_holds(
        &requested["data"],
        &json!({"outcome": "accepted", "action": "evict", "uid": kube::uid(&pod)}),
    );
    let signalled = stream.wait_for_pod("eviction.signalled", &subject(&pod), PATIENCE).unwrap();
    println!(
        "crossing to signal {} ms, signal to request {} ms, {} requests; {restarts} containers started again by the kubelet",
        signalled["data"]["crossedToSignalledMs"],
        requested["data"]["signalledToRequestedMs"],
        requested["data"]["requests"]
    );
    stream.wait_for_pod("eviction.confirmed", &subject(&pod), PATIENCE).unwrap();
    // However often a node that is busy has to ask: it is carried out once.
    assert_eq!(scene.evictions(), evictions + 1);

    // Its ReplicaSet makes another, and the rest of the node is as before.
    let fresh = scene.running("hog");
    assert_ne!(kube::uid(&fresh), kube::uid(&pod));
    let after = scene.running("calm");
    assert_eq!((kube::uid(&after), kube::restarts(&after)), (kube::uid(&calm), 0));
    assert_eq!(stream.of("eviction.decided").count(), 1);
    // A node that is busy may be without an answer for a time, but has all rights.
    let mut lost = stream.of("degraded.entered").filter_map(|event| event["data"]["message"].as_str());
    assert!(lost.all(|message| !message.contains("status 401") && !message.contains("status 403")));

    let event = scene.wait_until_reported(&pod, "Evicted");
    assert_holds(
        &event,
        &json!({"type": "Warning", "involvedObject": {"kind": "Pod", "uid": kube::uid(&pod)}}),
    );
    assert!(
        event["message"].as_str().unwrap().starts_with("The node was low on resource: memory."),
        "{event}"
    );
    explained::assert_of_node(&scene, "EvictionThresholdMet", "Attempting to reclaim memory");
    let selector = format!("--field-selector=involvedObject.name={}", kube::name(&pod));
    let events = said(Command::new("kubectl").args(["get", "events", "-n", NAMESPACE, &selector])).unwrap();
    assert!(events.contains("Evicted") && events.contains("low on resource: memory"), "{events}");

    daemon.stop().unwrap();
}

/// Again and again, and how soon the API server knows of it: no later than twice what `kubectl delete` takes.
#[guest_test(kube_by_hand, repeats)]
fn a_pod_of_a_deployment_is_gone_as_soon_as_one_that_is_deleted() {
    let mut scene = Scene::open("sooner", &documented_roles());
    scene.begin("hog", &kube::deployment("hog", &two()));
    let (mut evictions, mut deletions, mut requests, mut restarted) = (vec![], vec![], vec![], 0);
    let mut resent = 0;
    for round in Rounds::new(1, 20) {
        let pod = scene.running("hog");
        let (daemon, mut stream) = scene.evicting(&[&pod], "");
        let mut load = hog(&pod);
        stream.wait_for_pod("eviction.signalled", &subject(&pod), PATIENCE).unwrap();
        evictions.push(terminating(&scene, &pod, Instant::now()));
        assert!(!load.wait_for_end(PATIENCE).unwrap().success());
        let requested = wait_for_eviction(&mut stream, &pod);
        assert_holds(&requested["data"], &json!({"outcome": "accepted", "uid": kube::uid(&pod)}));
        requests.push(requested["data"]["signalledToRequestedMs"].as_f64().unwrap());
        resent += requested["data"]["requests"].as_u64().unwrap() - 1;
        restarted += u32::from(scene.end(&pod) > 0);
        println!(
            "round {round}: signal to request {} ms, {} requests",
            requested["data"]["signalledToRequestedMs"], requested["data"]["requests"]
        );
        stream.wait_for_pod("eviction.confirmed", &subject(&pod), PATIENCE).unwrap();
        daemon.stop().unwrap();
        let fresh = scene.running("hog");
        assert_ne!(kube::uid(&fresh), kube::uid(&pod), "round {round}");
        deletions.push(deleting(&scene, &fresh));
        scene.end(&fresh);
    }
    let count = evictions.len();
    let [evicted_in, deleted_in] = [&mut evictions, &mut deletions].map(|times| median(times));
    println!(
        "{count} evictions: signal to terminating {evicted_in:?} at the median, kubectl delete to terminating {deleted_in:?}; \
         signal to request {:.0} ms at the median, {:.0} at most, {resent} sent again; {restarted} pods with a container that \
         was started again",
        median(&mut requests),
        requests.last().unwrap(),
    );
    assert!(restarted * 20 <= u32::try_from(count).unwrap(), "{restarted} of {count} were restarted");
    // One round says nothing about a median.
    let is_as_soon = evicted_in <= 2 * deleted_in;
    assert!(!is_soak() || is_as_soon, "an eviction takes {evicted_in:?}, a deletion {deleted_in:?}");
}

/// Again and again with one daemon, on a node that starts pods all the while: how soon an eviction is requested.
#[guest_test(kube_by_hand, repeats)]
fn an_eviction_is_requested_right_after_its_signal() {
    const APPS: [&str; 4] = ["hog-a", "hog-b", "hog-c", "hog-d"];
    let mut scene = Scene::open("requests", &documented_roles());
    for app in APPS {
        scene.begin(app, &kube::deployment(app, &two()));
    }
    let pods = APPS.map(|app| scene.running(app));
    let (daemon, mut stream) = scene.evicting(&pods.each_ref(), "breaker: {maxKills: 200, maxShare: 1.0}");
    let (mut requests, mut resent, mut evicted) = (vec![], 0, APPS.map(|_| None));
    for (round, which) in Rounds::new(1, 100).zip((0..APPS.len()).cycle()) {
        if let Some(pod) = &evicted[which] {
            scene.end(pod);
        }
        let pod = scene.running(APPS[which]);
        let mut load = hog(&pod);
        stream.wait_for_pod("eviction.completed", &subject(&pod), PATIENCE).unwrap();
        let requested = stream.wait_for_pod("eviction.requested", &subject(&pod), PATIENCE).unwrap();
        assert!(!load.wait_for_end(PATIENCE).unwrap().success());
        assert_holds(&requested["data"], &json!({"outcome": "accepted", "uid": kube::uid(&pod)}));
        let after_ms = requested["data"]["signalledToRequestedMs"].as_u64().unwrap();
        println!(
            "round {round}: signal to request {after_ms} ms, {} requests",
            requested["data"]["requests"]
        );
        requests.push(after_ms);
        resent += requested["data"]["requests"].as_u64().unwrap() - 1;
        evicted[which] = Some(pod);
    }
    // None but those that took too much, each once.
    assert_eq!(stream.of("eviction.decided").count(), requests.len());
    let median_ms = median(&mut requests);
    let p99_ms = requests[(requests.len() * 99).div_ceil(100) - 1];
    println!(
        "{} evictions: signal to request {median_ms} ms at the median, {p99_ms} ms at the 99th percentile, {} ms at most, \
         {resent} sent again",
        requests.len(),
        requests.last().unwrap(),
    );
    assert!(!is_soak() || p99_ms <= MOST_TO_REQUEST_MS, "{p99_ms} ms at the 99th percentile");
    daemon.stop().unwrap();
}

/// Sorts the values, and returns the middle one.
fn median<T: Copy + PartialOrd>(values: &mut [T]) -> T {
    values.sort_by(|left, right| left.partial_cmp(right).unwrap());
    values[values.len() / 2]
}

/// How long from a moment until a pod is terminating.
fn terminating(scene: &Scene, pod: &Value, since: Instant) -> Duration {
    scene.wait_until_terminating(pod);
    since.elapsed()
}

/// How long it takes from the start of `kubectl delete` until a pod is terminating.
fn deleting(scene: &Scene, pod: &Value) -> Duration {
    let name = kube::name(pod);
    let start = Instant::now();
    let command =
        Command::new("kubectl").args(["delete", "pod", "-n", NAMESPACE, "--wait=false", name]).spawn();
    let mut command = Process::new(command.unwrap());
    let took = terminating(scene, pod, start);
    assert!(command.wait_for_end(PATIENCE).unwrap().success());
    took
}
