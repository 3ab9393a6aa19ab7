//! Process ids run short.

use enforcer_tests::{host::PidMax, stream::is, wait::TIMEOUT};

use super::Scene;

#[guest_test(daemon)]
fn a_fork_bomb_of_small_processes_goes_and_not_the_large_pod() {
    // So that some hundred processes are enough to come below the threshold.
    let _bound = PidMax::leave(800).unwrap();
    let settings = "evictionHard: {memory.available: 50Mi, pid.available: \"500\"}";
    let mut scene = Scene::open_with("eviction-pids", settings);
    let mut large = scene.hold("large", 0, "", "", "300Mi");
    let mut few = scene.start("few", &["workload", "fork", "--count", "20"]);
    let mut bomb = scene.start("bomb", &["workload", "fork", "--count", "600"]);
    let decided = scene.wait("eviction.decided", "bomb");
    let data = &decided["data"];
    assert_eq!(
        (data["signal"].as_str(), data["decidedBy"].as_str()),
        (Some("pid.available"), Some("processCount"))
    );
    assert_eq!(data["thresholdCount"], 500, "{decided}");
    assert!(data["observedCount"].as_u64().unwrap() < 500, "{decided}");
    let most = data["ranking"][0]["processCount"].as_u64().unwrap();
    let next = data["ranking"][1]["processCount"].as_u64().unwrap();
    assert!(most > 200 && next < 50, "{decided}");
    scene.wait("eviction.completed", "bomb");
    bomb.wait_for_end(TIMEOUT).unwrap();
    scene.wait_for_end_of_shortage();
    assert_eq!(scene.stream.of("eviction.decided").count(), 1);
    assert!(large.lives().unwrap() && few.lives().unwrap());
    drop((large, few));
    scene.clear(&["large", "few", "bomb"]);
    scene.daemon.stop().unwrap();
}

/// Under any condition but `MemoryPressure` only critical pods start.
#[guest_test(daemon)]
fn pid_pressure_keeps_all_but_critical_pods_out() {
    let _bound = PidMax::set(1_500).unwrap();
    // It is crossed from the start, and so not armed: no pod is evicted for it.
    let mut scene = Scene::open_with("eviction-pid-pressure", "evictionHard: {pid.available: \"1499\"}");
    scene.stream.wait_for("the crossing", TIMEOUT, |event| is(event, "threshold.crossed")).unwrap();
    let request = "cpu: 10m, memory: 16Mi";
    scene.manifest("critical", 2_000_000_000, request, "");
    scene.manifest("burstable", 0, request, "");
    let rejected = scene.wait("pod.rejected", "burstable");
    assert_eq!(rejected["data"]["reason"], "Evicted", "{rejected}");
    assert_eq!(rejected["data"]["message"], "The node had condition: [PIDPressure]. ");
    let status = |scene: &Scene, pod: &str| {
        scene.daemon.verb(&["exec", &format!("default/{pod}"), "--", "true"]).output().unwrap().status.code()
    };
    assert_eq!((status(&scene, "critical"), status(&scene, "burstable")), (Some(0), Some(77)));
    assert_eq!(scene.stream.of("eviction.signalled").count(), 0);
    scene.daemon.stop().unwrap();
}
