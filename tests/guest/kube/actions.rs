//! What the API server is asked for the evicted pod of a controller, if it is not the eviction.

use enforcer_tests::{
    daemon::Daemon,
    expect::assert_holds,
    kube::{self, PATIENCE, documented_roles, wait_for},
    stream::is,
};
use serde_json::{Value, json};

use super::{Scene, Seen, hog, subject, two};

#[guest_test(kube_by_hand)]
fn the_api_server_is_asked_for_nothing_for_a_mark_or_to_delete_as_is_configured() {
    let mut scene = Scene::open("actions", &documented_roles());
    let apps = ["left", "marked", "deleted"];
    for app in apps {
        scene.begin(app, &kube::deployment(app, &two()));
    }
    let [left, marked, deleted] = apps.map(|app| scene.running(app));
    let evictions = scene.evictions();

    // For a bare pod it would be asked.
    let (daemon, requested) = evict(&scene, &left, "apiAction: none\nbarePods: evict");
    assert_holds(&requested, &json!({"outcome": "withheld", "action": null, "reason": null, "requests": 0}));
    scene.wait_for_restart(&left);
    daemon.stop().unwrap();

    let seen = Seen::watch(&scene, &marked);
    let (daemon, requested) = evict(&scene, &marked, "apiAction: status");
    assert_holds(&requested, &json!({"outcome": "accepted", "action": "status", "uid": kube::uid(&marked)}));
    // As after an eviction by the kubelet: its object stays, and its ReplicaSet makes another pod.
    replacement(&scene, "marked", &marked);
    let states = seen.states();
    let is_mark = |pod: &&Value| pod["status"]["phase"] == "Failed" && pod["status"]["reason"] == "Evicted";
    let mark = states.iter().find(is_mark).unwrap_or_else(|| panic!("{states:#?}"));
    let mut conditions = mark["status"]["conditions"].as_array().into_iter().flatten();
    let target = conditions.find(|condition| condition["type"] == "DisruptionTarget").unwrap_or(&Value::Null);
    assert_holds(target, &json!({"status": "True", "reason": "TerminationByEnforcer"}));
    let message = mark["status"]["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("The node was low on resource: memory."), "{mark}");
    let present = scene.cluster.pod(kube::name(&marked)).unwrap().unwrap_or_default();
    assert_eq!(
        (kube::uid(&present), kube::is_terminating(&present)),
        (kube::uid(&marked), false),
        "{present}"
    );
    assert_eq!(present["status"]["phase"], "Failed", "{present}");
    daemon.stop().unwrap();

    let (daemon, requested) = evict(&scene, &deleted, "apiAction: delete");
    assert_holds(&requested, &json!({"outcome": "accepted", "action": "delete", "uid": kube::uid(&deleted)}));
    scene.wait_for_end(&deleted);
    replacement(&scene, "deleted", &deleted);

    assert_eq!(scene.evictions(), evictions, "an eviction was requested");
    let events = daemon.events().unwrap();
    let subjects = |kind: &str| -> Vec<&str> {
        let of = events.iter().filter(|event| is(event, kind));
        of.filter_map(|event| event["subject"].as_str()).collect()
    };
    assert_eq!(subjects("eviction.decided"), [&left, &marked, &deleted].map(subject));
    // Where nothing removes the pod, its containers are the kubelet's.
    assert!(!subjects("eviction.repeated").contains(&subject(&left).as_str()), "{events:#?}");
    daemon.stop().unwrap();
}

/// Has a pod evicted by a daemon with these settings. Returns what came of the request.
fn evict(scene: &Scene, pod: &Value, settings: &str) -> (Daemon, Value) {
    let (daemon, mut stream) = scene.evicting(&[pod], settings);
    let mut load = hog(pod);
    stream.wait_for_pod("eviction.completed", &subject(pod), PATIENCE).unwrap();
    assert!(!load.wait_for_end(PATIENCE).unwrap().success());
    let mut requested = stream.wait_for_pod("eviction.requested", &subject(pod), PATIENCE).unwrap();
    (daemon, requested["data"].take())
}

/// The pod with a label `app` that runs in place of another one, whose object may still be there.
fn replacement(scene: &Scene, app: &str, pod: &Value) -> Value {
    let another = wait_for(&format!("another pod of {app}"), || {
        let pods = scene.cluster.pods_of(app)?;
        Ok(pods.into_iter().find(|of| kube::uid(of) != kube::uid(pod) && kube::runs(of)))
    });
    another.unwrap()
}
