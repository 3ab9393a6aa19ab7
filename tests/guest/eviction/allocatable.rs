//! The pods' own share of the node runs short, and not the node.

use enforcer_tests::{kernel, wait::TIMEOUT};

use super::{MIB, Scene};

#[guest_test(daemon)]
fn pods_are_evicted_before_they_reach_what_they_may_have_together() {
    let total_bytes = kernel::meminfo_bytes("MemTotal").unwrap();
    // So much is left for the pods.
    let allocatable_bytes = 800 * MIB;
    let settings = format!(
        "evictionHard: {{memory.available: 0%, allocatableMemory.available: 150Mi}}\nsystemReserved: {{memory: \"{}\"}}",
        total_bytes - allocatable_bytes
    );
    let mut scene = Scene::open_with("eviction-allocatable", &settings);
    let mut within = scene.hold("within", 0, "memory: 300Mi", "", "250Mi");
    let mut hog = scene
        .start("hog", &["workload", "ramp", "--huge", "--no-catch-up", "--rate", "60Mi", "--to", "700Mi"]);
    let decided = scene.wait("eviction.decided", "hog");
    let data = &decided["data"];
    assert_eq!(data["signal"], "allocatableMemory.available", "{decided}");
    assert_eq!(data["thresholdBytes"], 150 * MIB, "{decided}");
    let observed_bytes = data["observedBytes"].as_u64().unwrap();
    assert!(observed_bytes < 150 * MIB, "{decided}");
    scene.wait("eviction.completed", "hog");
    hog.wait_for_end(TIMEOUT).unwrap();
    assert!(kernel::meminfo_bytes("MemAvailable").unwrap() > 600 * MIB, "the node was short as well");
    assert!(within.lives().unwrap());
    scene.wait_for_end_of_shortage();
    assert_eq!(scene.stream.of("eviction.decided").count(), 1);
    assert_eq!(scene.stream.of("oom.incident").count(), 0, "the pods' limit was reached");
    drop(within);
    scene.clear(&["within", "hog"]);
    assert!(scene.daemon.stop_and_replay().unwrap() > 0, "no decision was recorded");
}
