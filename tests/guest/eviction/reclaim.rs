//! How much is fetched, and from whom not.

use enforcer_tests::{stream::is, wait::TIMEOUT};
use serde_json::Value;

use super::{MIB, Scene, to_leave};

/// The first victim ends the shortage, and the minimum reclaim takes a second. After that only pods within their requests are
/// left, and what they fill the node with costs none of them its life.
#[guest_test(daemon)]
fn the_minimum_reclaim_is_fetched_and_pods_within_their_requests_are_spared() {
    let settings = "evictionHard: {memory.available: 200Mi}\nevictionMinimumReclaim: {memory.available: 250Mi}\n\
                    evictWithinRequest: false";
    let mut scene = Scene::open_with("eviction-reclaim", settings);
    let mut first = scene.hold("first", -10, "", "", "150Mi");
    let mut second = scene.hold("second", -5, "", "", "300Mi");
    let mut filler = scene.fill(&to_leave(120 * MIB));
    for (name, process) in [("first", &mut first), ("second", &mut second)] {
        scene.wait("eviction.completed", name);
        process.wait_for_end(TIMEOUT).unwrap();
    }
    let of_second = scene.stream.of("eviction.decided").find(|event| event["subject"] == "default/second");
    let data = &of_second.unwrap()["data"];
    // What the first has left: it may still be on the free lists of the CPUs, which `MemAvailable` leaves out.
    let back_bytes = data["observedBytes"].as_u64().unwrap() + data["freeListsBytes"].as_u64().unwrap_or(0);
    assert!(back_bytes >= data["thresholdBytes"].as_u64().unwrap(), "{data}");
    scene.wait_for_end_of_shortage();

    let mut more = scene.fill_by("more", &to_leave(120 * MIB));
    let spared = |event: &Value| is(event, "eviction.suppressed") && event["data"]["reason"] == "noCandidate";
    scene.stream.wait_for("that no pod is evicted", TIMEOUT, spared).unwrap();
    scene.catch_up();
    assert_eq!(scene.stream.of("eviction.decided").count(), 2);
    assert!(filler.lives().unwrap() && more.lives().unwrap());
    drop((filler, more));
    scene.clear(&["first", "second", "filler", "more"]);
    assert_eq!(scene.daemon.stop_and_replay().unwrap(), 2, "decisions that were run again");
}
