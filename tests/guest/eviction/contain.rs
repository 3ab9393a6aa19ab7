//! The next in rank is held back while a victim's memory is awaited, and let go of.

use std::fs;

use enforcer_tests::{
    process::Process,
    stream::is,
    wait::{TIMEOUT, wait_until},
};
use serde_json::Value;

use super::{MIB, Scene, to_leave};

const SETTINGS: &str = "evictionHard: {memory.available: 30Mi}\nevictionSoft: {memory.available: 700Mi}\n\
                        evictionSoftGracePeriod: {memory.available: 1s}\nevictionMaxPodGracePeriod: 600";

/// A victim that takes its time, and one that grows meanwhile and is held back for it.
struct Held {
    victim: Process,
    _filler: Process,
    _grower: Process,
    reported: Value,
}

impl Held {
    fn begin(scene: &mut Scene) -> Self {
        let victim = scene.stubborn("victim", -10, 150);
        let filler = scene.fill(&to_leave(600 * MIB));
        scene.wait("eviction.signalled", "victim");
        // No BestEffort pod may start while memory is short.
        scene.manifest("grower", 0, "memory: 16Mi", "");
        let ramp = ["workload", "ramp", "--no-catch-up", "--rate", "30Mi", "--to", "450Mi"];
        let grower = Process::new(scene.daemon.exec("default/grower", &ramp).unwrap());
        let reported = scene
            .stream
            .wait_for("a pod that is held back", TIMEOUT, |event| {
                is(event, "eviction.contained") && event["data"]["state"] == "contained"
            })
            .unwrap();
        Self { victim, _filler: filler, _grower: grower, reported }
    }
}

#[guest_test(daemon)]
fn it_is_held_back_while_the_victim_takes_its_time_and_let_go_of_when_it_is_gone() {
    let mut scene = Scene::open_with("eviction-contain", SETTINGS);
    let mut held = Held::begin(&mut scene);
    let (reported, data) = (&held.reported, &held.reported["data"]);
    assert_eq!(reported["subject"], "default/grower", "{reported}");
    assert_eq!(data["cause"], "grace", "{reported}");
    let (usage, high) = (data["usageBytes"].as_u64().unwrap(), data["memoryHighBytes"].as_u64().unwrap());
    assert_eq!(high, usage / 10 * 9 + usage % 10 * 9 / 10, "{reported}");
    assert_eq!(scene.number("grower", "memory.high"), Some(high / 4_096 * 4_096));

    let folder = scene.folder("victim");
    fs::write(folder.join("cgroup.kill"), "1").unwrap();
    held.victim.wait_for_end(TIMEOUT).unwrap();
    let released = scene
        .stream
        .wait_for("its release", TIMEOUT, |event| {
            is(event, "eviction.contained") && event["data"]["state"] == "released"
        })
        .unwrap();
    assert_eq!(released["data"]["evictionId"], held.reported["data"]["evictionId"]);
    assert!(released["data"]["heldMs"].as_f64().unwrap() > 0.0, "{released}");
    wait_until("the value before", || scene.file("grower", "memory.high").is_none_or(|high| high == "max"));
    // The daemon wrote it itself: that is no drift.
    assert_eq!(scene.stream.of("limits.drifted").count(), 0);
    drop(held);
    scene.clear(&["victim", "filler", "grower"]);
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn a_daemon_that_is_killed_meanwhile_leaves_no_pod_held_back_after_the_next_start() {
    let mut scene = Scene::open_with("eviction-contain-killed", SETTINGS);
    let held = Held::begin(&mut scene);
    let folder = scene.folder("grower");
    let high = || fs::read_to_string(folder.join("memory.high")).unwrap().trim().to_owned();
    let victim = scene.folder("victim");
    // Dropping it is SIGKILL.
    drop(scene);
    assert_ne!(high(), "max", "it was not held back when the daemon was killed");
    // No pod is to be held back again.
    for folder in [&folder, &victim] {
        fs::write(folder.join("cgroup.kill"), "1").unwrap();
    }
    drop(held);
    let mut scene = Scene::open_with("eviction-contain-killed", SETTINGS);
    wait_until("the value before", || high() == "max");
    let interrupted =
        |event: &Value| is(event, "limits.restored") && event["data"]["reason"] == "interrupted";
    let restored = scene.stream.wait_for("word of it", TIMEOUT, interrupted).unwrap();
    assert_eq!(restored["data"]["files"][0]["file"], "memory.high");
    scene.clear(&["victim", "filler", "grower"]);
    scene.daemon.stop().unwrap();
}
