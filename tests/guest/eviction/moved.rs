//! A pod whose class changes while it runs is ranked and evicted for all that it holds, wherever the kernel charges it.

use enforcer_tests::{
    stream::is,
    wait::{TIMEOUT, wait_until},
};

use super::{MIB, Scene, THRESHOLD_BYTES, to_leave};

#[guest_test(daemon)]
fn a_pod_whose_class_has_changed_is_evicted_for_what_it_held_before() {
    let mut scene = Scene::open("eviction-moved");
    let mut hog = scene.hold("hog", 0, "", "", "450Mi");
    let former = scene.folder("hog");
    scene.manifest("hog", 0, "memory: 16Mi", "");
    let moved = |event: &serde_json::Value| {
        is(event, "limits.applied") && event["subject"] == "default/hog" && event["data"]["reason"] == "moved"
    };
    scene.stream.wait_for("the move", TIMEOUT, moved).unwrap();
    let mut calm = scene.hold("calm", 0, "", "", "100Mi");
    // The one that fills the node stays within its request.
    let mut filler = scene.fill(&to_leave(THRESHOLD_BYTES - 80 * MIB));
    let decided = scene.wait("eviction.decided", "hog");
    scene.wait("eviction.completed", "hog");
    hog.wait_for_end(TIMEOUT).unwrap();
    let victim = &decided["data"]["victim"];
    assert_eq!(victim["qosClass"], "Burstable", "{decided}");
    assert!(victim["usageBytes"].as_u64().unwrap() >= 440 * MIB, "{decided}");
    assert!(calm.lives().unwrap() && filler.lives().unwrap());
    wait_until("the end of its former cgroup", || !former.exists());
    drop((calm, filler));
    scene.clear(&["hog", "calm", "filler"]);
    scene.daemon.stop().unwrap();
}
