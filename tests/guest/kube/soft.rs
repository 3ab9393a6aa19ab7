//! A soft threshold: the API server is asked, and the kubelet ends the pod.

use std::time::Duration;

use enforcer_tests::{
    daemon::Daemon,
    expect::assert_holds,
    kernel,
    kube::{self, PATIENCE, documented_roles, wait_for},
    stream::{Stream, is},
};
use serde_json::{Value, json};

use super::{MARGIN_BYTES, Scene, hog, of_api_server, shown, subject, two};

#[guest_test(kube_by_hand)]
fn a_pod_over_a_soft_threshold_is_evicted_at_the_api_server_and_not_signalled_here() {
    let mut scene = Scene::open("soft", &documented_roles());
    scene.begin("hog", &kube::deployment("hog", &two()));
    let pod = scene.running("hog");
    let evictions = scene.evictions();
    let (daemon, mut stream) = evicting_softly(&scene, &pod);

    let mut load = hog(&pod);
    let decided = stream.wait_for("a decision", PATIENCE, |event| is(event, "eviction.decided")).unwrap();
    assert_eq!(decided["subject"], subject(&pod), "{decided}");
    assert_holds(&decided["data"], &json!({"hard": false, "graceMs": 1_000}));
    let requested = stream.wait_for_pod("eviction.requested", &subject(&pod), PATIENCE).unwrap();
    assert_holds(
        &requested["data"],
        &json!({"outcome": "accepted", "action": "evict", "uid": kube::uid(&pod)}),
    );
    let completed = stream.wait_for_pod("eviction.completed", &subject(&pod), PATIENCE).unwrap();
    assert!(completed["data"]["crossedToRequestedMs"].is_number(), "{completed}");
    assert!(!load.wait_for_end(PATIENCE).unwrap().success());
    scene.wait_for_end(&pod);
    stream.wait_for_pod("eviction.confirmed", &subject(&pod), PATIENCE).unwrap();
    assert_eq!(scene.evictions(), evictions + 1);
    let signalled: Vec<&Value> = stream.of("eviction.signalled").collect();
    assert!(signalled.is_empty(), "{signalled:?}");
    assert_eq!(stream.of("eviction.requested").count(), 1);
    assert_eq!(of_api_server(&stream), [""; 0]);
    daemon.stop().unwrap();
}

/// No other pod takes its place, and it runs on.
#[guest_test(kube_by_hand)]
fn a_disruption_budget_suppresses_a_soft_eviction() {
    let mut scene = Scene::open("soft-budget", &documented_roles());
    scene.begin("calm", &kube::deployment("calm", &two()));
    scene.begin("hog", &kube::deployment("hog", &two()));
    let [calm, pod] = ["calm", "hog"].map(|app| scene.running(app));
    scene.allow_no_disruption("hog");
    let (daemon, mut stream) = evicting_softly(&scene, &pod);

    let _load = hog(&pod);
    let is_suppressed = |event: &Value| is(event, "eviction.suppressed");
    let suppressed = stream.wait_for("a suppression", PATIENCE, is_suppressed).unwrap();
    assert_holds(&suppressed["data"], &json!({"signal": "memory.available", "reason": "disruptionBudget"}));
    let requested = stream.wait_for_pod("eviction.requested", &subject(&pod), PATIENCE).unwrap();
    assert_holds(&requested["data"], &json!({"outcome": "refused", "reason": "disruptionBudget"}));
    // Another one would be chosen within moments.
    stream.drain(Duration::from_secs(5));
    assert!(
        stream.of("eviction.decided").all(|event| event["subject"] == subject(&pod)),
        "{:?}",
        stream.seen
    );
    for of in [&calm, &pod] {
        let present = scene.cluster.pod(kube::name(of)).unwrap().unwrap();
        assert!(!kube::is_terminating(&present) && kube::uid(&present) == kube::uid(of), "{present}");
        assert_eq!(kube::restarts(&present), kube::restarts(of), "{present}");
    }
    assert_eq!(stream.of("eviction.signalled").count(), 0);
    daemon.stop().unwrap();
}

/// Starts a daemon with a soft threshold that has time, and waits until it has the pod's spec.
fn evicting_softly(scene: &Scene, pod: &Value) -> (Daemon, Stream) {
    let available_bytes = kernel::meminfo_bytes("MemAvailable").unwrap();
    let daemon = scene.start(&format!(
        "mode: enforce\nevictionPressureTransitionPeriod: 1ms\nevictionMaxPodGracePeriod: 30\n\
         evictionHard: {{memory.available: 200Mi}}\n\
         evictionSoft: {{memory.available: {}}}\nevictionSoftGracePeriod: {{memory.available: 1s}}",
        available_bytes.saturating_sub(MARGIN_BYTES)
    ));
    wait_for("its spec", || Ok(shown(&daemon, pod).filter(|pod| !pod["spec"].is_null()))).unwrap();
    let stream = daemon.follow().unwrap();
    (daemon, stream)
}
