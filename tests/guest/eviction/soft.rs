//! Soft thresholds: SIGTERM and grace, cut short by the hard one; and the condition, which outlasts the shortage.

use std::time::{Duration, Instant};

use enforcer_tests::{
    process::Process,
    stream::is,
    wait::{TIMEOUT, wait_until},
};

use super::{MIB, Scene, to_leave};

const SETTINGS: &str = "evictionHard: {memory.available: 200Mi}\nevictionSoft: {memory.available: 600Mi}\n\
                        evictionSoftGracePeriod: {memory.available: 1s}\nevictionMaxPodGracePeriod: 600";

#[guest_test(daemon)]
fn a_pod_that_obeys_sigterm_ends_by_itself_and_is_not_killed() {
    let mut scene = Scene::open_with("eviction-heeds", SETTINGS);
    let mut polite = scene.hold("polite", -10, "", "", "300Mi");
    let mut filler = scene.fill(&to_leave(450 * MIB));
    let decided = scene.wait("eviction.decided", "polite");
    assert_eq!(decided["data"]["hard"], false, "{decided}");
    assert_eq!(decided["data"]["graceMs"], 30_000, "{decided}");
    let completed = scene.wait("eviction.completed", "polite");
    assert_eq!(polite.wait_for_end(TIMEOUT).unwrap().code(), Some(0), "it was to end by itself");
    let sent: Vec<_> = scene.stream.of("eviction.signalled").map(|event| &event["data"]["sent"]).collect();
    assert_eq!(sent, ["SIGTERM"], "{completed}");
    assert!(completed["data"]["freedBytes"].as_u64().unwrap() + 16 * MIB >= 300 * MIB, "{completed}");
    assert!(filler.lives().unwrap());
    drop(filler);
    scene.clear(&["polite", "filler"]);
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn the_hard_threshold_cuts_the_grace_short() {
    let mut scene = Scene::open_with("eviction-cut", SETTINGS);
    let mut stubborn = scene.stubborn("stubborn", -10, 200);
    let filler = scene.fill(&to_leave(500 * MIB));
    scene.wait("eviction.signalled", "stubborn");
    assert!(stubborn.lives().unwrap());
    // Within its request too, and in no hurry: it takes the node below the hard threshold.
    scene.manifest("grower", 0, "memory: 400Mi", "");
    let ramp = ["workload", "ramp", "--no-catch-up", "--rate", "40Mi", "--to", "380Mi"];
    let grower = Process::new(scene.daemon.exec("default/grower", &ramp).unwrap());
    let killed = scene
        .stream
        .wait_for("the kill", TIMEOUT, |event| {
            is(event, "eviction.signalled") && event["data"]["sent"] == "SIGKILL"
        })
        .unwrap();
    assert_eq!(killed["subject"], "default/stubborn", "{killed}");
    assert_eq!(killed["data"]["killedBecause"], "hardThreshold", "{killed}");
    scene.wait("eviction.completed", "stubborn");
    stubborn.wait_for_end(TIMEOUT).unwrap();
    drop((filler, grower));
    scene.clear(&["stubborn", "filler", "grower"]);
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn memory_pressure_keeps_besteffort_out_until_its_transition_period_has_passed() {
    const PERIOD: Duration = Duration::from_secs(5);
    // The grace is so long that no pod is evicted.
    let settings = format!(
        "evictionHard: {{memory.available: 50Mi}}\nevictionSoft: {{memory.available: 600Mi}}\n\
         evictionSoftGracePeriod: {{memory.available: 10m}}\nevictionPressureTransitionPeriod: {}s",
        PERIOD.as_secs()
    );
    let mut scene = Scene::open_with("eviction-transition", &settings);
    let is_under_pressure = |scene: &Scene| {
        let answer = scene.daemon.get("/v1/pods").unwrap();
        assert!(answer.contains("\"memoryPressure\":"), "{answer}");
        answer.contains("\"memoryPressure\":true")
    };
    let is_admitted = |scene: &Scene, name: &str| {
        let exec = scene.daemon.verb(&["exec", &format!("default/{name}"), "--", "true"]).output().unwrap();
        exec.status.success()
    };
    let filler = scene.fill(&to_leave(450 * MIB));
    scene.stream.wait_for("the crossing", TIMEOUT, |event| is(event, "threshold.crossed")).unwrap();
    scene.manifest("during", 0, "", "");
    let rejected = scene.wait("pod.rejected", "during");
    assert_eq!(rejected["data"]["reason"], "Evicted", "{rejected}");
    // Memory is short at this moment, so the period begins no earlier.
    let begin = Instant::now();
    drop(filler);
    scene.wait_for_end_of_shortage();
    scene.manifest("soon", 0, "", "");
    scene.daemon.wait_until_decided("default/soon").unwrap();
    // By now a slow machine may have taken the whole period.
    assert!(!is_admitted(&scene, "soon") || begin.elapsed() >= PERIOD);
    wait_until("the end of the period", || !is_under_pressure(&scene));
    // The daemon may have looked last a moment before.
    assert!(begin.elapsed() + Duration::from_millis(500) >= PERIOD, "{:?}", begin.elapsed());
    scene.manifest("later", 0, "", "");
    wait_until("its admission", || is_admitted(&scene, "later"));
    assert_eq!(scene.stream.of("eviction.decided").count(), 0);
    scene.daemon.stop().unwrap();
}
