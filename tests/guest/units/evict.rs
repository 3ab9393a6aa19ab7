//! Eviction and kernel kills where pods stand in slices and containers in scopes.

use std::time::Duration;

use enforcer_tests::{
    stream::is,
    wait::{TIMEOUT, wait_until},
};

use super::{Scene, pod, text, wait_until_in};

#[guest_test(systemd)]
fn an_evicted_pods_units_go_and_it_is_let_in_no_more() {
    let scene = Scene::open("evicts", "evictionHard: {memory.available: 600Mi}");
    let mut stream = scene.daemon.follow().unwrap();
    scene.daemon.manifest("calm.yaml", &pod("calm", "{requests: {memory: 64Mi}}")).unwrap();
    // Its cpu is short: what a victim needs to die at full speed is in its scope.
    scene.daemon.manifest("hog.yaml", &pod("hog", "{limits: {cpu: 500m}}")).unwrap();
    let mut calm = scene.exec("default/calm", &["workload", "hold", "--size", "16Mi"]);
    wait_until_in(&calm, &scene.slice("burstable-podcalm").join("enforcer-calm-app.scope"));
    let mut hog = scene.exec(
        "default/hog",
        &["workload", "ramp", "--huge", "--no-catch-up", "--rate", "100Mi", "--to", "1800Mi"],
    );

    let decided = stream.wait_for_pod("eviction.decided", "default/hog", TIMEOUT).unwrap();
    assert_eq!(decided["data"]["dryRun"], false, "{decided}");
    let completed = stream.wait_for_pod("eviction.completed", "default/hog", TIMEOUT).unwrap();
    hog.wait_for_end(TIMEOUT).unwrap();
    let slice = scene.slice("burstable-podhog");
    wait_until("the end of the evicted pod's slice", || !slice.exists());
    assert!(calm.lives().unwrap(), "{completed}");
    stream.drain(Duration::from_secs(1));
    assert_eq!(stream.of("eviction.decided").count(), 1);
    assert_eq!(stream.of("oom.incident").count(), 0);

    let refused = scene.run("default/hog", "true");
    assert_eq!(refused.status.code(), Some(77), "{}", text(&refused.stderr));
    assert!(!slice.exists());
    scene.daemon.stop().unwrap();
}

/// A kernel kill in a scope that has just been made names its container.
#[guest_test(systemd)]
fn a_kernel_kill_names_the_container_of_a_scope() {
    let scene = Scene::open("kills", "");
    let mut stream = scene.daemon.follow().unwrap();
    scene.daemon.manifest("small.yaml", &pod("small", "{limits: {cpu: 500m, memory: 32Mi}}")).unwrap();
    for _ in 0..2 {
        let mut spike = scene.exec("default/small", &["workload", "spike", "--size", "256Mi"]);
        spike.wait_for_end(TIMEOUT).unwrap();
        let incident = stream.wait_for("the kill", TIMEOUT, |event| is(event, "oom.incident")).unwrap();
        assert_eq!(incident["subject"], "default/small", "{incident}");
        let victim = &incident["data"]["victims"][0];
        assert_eq!((&victim["pod"], &victim["container"]), (&"small".into(), &"app".into()), "{incident}");
        stream.seen.clear();
    }
    scene.daemon.stop().unwrap();
}
