//! A soft eviction: the API server is asked, and the kubelet has a grace to end the pod.

use std::{thread, time::Duration};

use enforcer_tests::{expect::assert_holds, stream::is, wait::TIMEOUT};
use serde_json::{Value, json};

use super::acting::{Scene, fill, threshold_bytes};

/// Longer than the next daemon takes to decide.
const LONG: Duration = Duration::from_secs(5);

/// A soft threshold that what [`fill`] takes crosses, and the longest grace period of a pod.
fn evicting_softly(grace_seconds: u64) -> String {
    format!(
        "mode: enforce\nevictionPressureTransitionPeriod: 1ms\nevictionHard: {{memory.available: 30Mi}}\n\
         evictionSoft: {{memory.available: {}}}\nevictionSoftGracePeriod: {{memory.available: 1s}}\n\
         evictionMaxPodGracePeriod: {grace_seconds}",
        threshold_bytes()
    )
}

/// Budgets count for it too, and the kubelet has a moment to end it.
#[guest_test(daemon)]
fn a_pod_without_a_grace_period_is_evicted_at_the_api_server_first() {
    let mut scene = Scene::with("graceless", &evicting_softly(0));
    let web = scene.pod("web", Some("ReplicaSet"));
    let _other = scene.pod("other", Some("ReplicaSet"));
    let (daemon, mut stream) = scene.start("other");
    let filling = fill(&web);
    let decided = stream.wait_for_pod("eviction.decided", "shop/web", TIMEOUT).unwrap();
    assert_holds(&decided["data"], &json!({"hard": false, "graceMs": 1_000}));
    let requested = stream.wait_for_pod("eviction.requested", "shop/web", TIMEOUT).unwrap();
    assert_holds(
        &requested["data"],
        &json!({"outcome": "accepted", "action": "evict", "uid": web.uid, "requests": 1}),
    );
    let is_eviction = |(request, _): &(String, Value)| request.ends_with("/eviction");
    let (_, eviction) = scene.api.changed().into_iter().find(is_eviction).unwrap();
    assert_eq!(eviction["deleteOptions"]["gracePeriodSeconds"], 1, "{eviction}");

    // The kubelet ends it, and removes it.
    drop(filling);
    scene.api.remove(&web.uid);
    drop(web);
    stream.wait_for_pod("eviction.completed", "shop/web", TIMEOUT).unwrap();
    assert_eq!(stream.of("eviction.signalled").count(), 0);
    daemon.stop().unwrap();
}

/// The next daemon asks nobody again, and signals nothing, while the kubelet has time.
#[guest_test(daemon)]
fn a_daemon_that_is_killed_within_the_grace_leaves_the_pod_to_the_kubelet() {
    let mut scene = Scene::with("soft", &evicting_softly(600));
    let web = scene.pod("web", Some("ReplicaSet"));
    let _other = scene.pod("other", Some("ReplicaSet"));
    let (mut daemon, mut stream) = scene.start("other");
    let mut filling = fill(&web);
    let requested = stream.wait_for_pod("eviction.requested", "shop/web", TIMEOUT).unwrap();
    assert_holds(
        &requested["data"],
        &json!({"outcome": "accepted", "action": "evict", "uid": web.uid, "requests": 1}),
    );

    daemon.succeed().unwrap();
    let mut stream = daemon.follow().unwrap();
    thread::sleep(LONG);
    assert!(filling.lives().unwrap(), "it was signalled");

    // The kubelet ends it, and removes it.
    drop(filling);
    scene.api.remove(&web.uid);
    drop(web);
    let completed = stream.wait_for_pod("eviction.completed", "shop/web", TIMEOUT).unwrap();
    assert_eq!(completed["data"]["evictionId"], requested["data"]["evictionId"], "{completed}");
    assert_eq!(scene.evictions(), ["POST /api/v1/namespaces/shop/pods/web/eviction"]);
    let events = daemon.events().unwrap();
    let count = |kind: &str| events.iter().filter(|event| is(event, kind)).count();
    assert_eq!(
        ["eviction.decided", "eviction.requested", "eviction.signalled", "eviction.completed"].map(count),
        [1, 1, 0, 1],
        "{events:#?}"
    );
    // The decision was made by the daemon that was killed: this one's recording begins after it, and has none to replay.
    drop(daemon);
}
