//! Who `next` names goes next, `headroom` says how near it is, and `why` says why it went.

use serde_json::Value;

use enforcer_tests::kernel;

use super::{MIB, Scene, THRESHOLD_BYTES, to_leave};

fn verb(scene: &Scene, arguments: &[&str]) -> String {
    let output = scene.daemon.verb(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(scene: &Scene, verb: &str) -> Value {
    serde_json::from_str(&self::verb(scene, &["-o", "json", verb])).unwrap()
}

#[guest_test(daemon)]
fn who_is_next_is_evicted_next_and_why_says_so() {
    let mut scene = Scene::open("eviction-foretold");
    let critical = scene.hold("critical", 2_000_000_000, "", "", "100Mi");
    let hog = scene.hold("hog", 0, "memory: 50Mi", "memory: 900Mi", "300Mi");
    let small = scene.hold("small", 0, "", "", "64Mi");
    let within = scene.hold("within", 0, "memory: 200Mi", "", "100Mi");

    let ranking = json(&scene, "next");
    let order = ranking["order"].as_array().unwrap();
    let names: Vec<_> = order.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["hog", "small", "within"], "{ranking}");
    assert_eq!(order[0]["decidedBy"], "aboveRequest", "{ranking}");
    assert_eq!(order[1]["decidedBy"], "exceedsRequest", "{ranking}");
    assert_eq!(order[0]["limitBytes"], 900 * MIB, "{ranking}");
    let used = order[0]["usageBytes"].as_u64().unwrap();
    assert!((300 * MIB..340 * MIB).contains(&used), "{ranking}");
    assert_eq!(ranking["excluded"][0]["name"], "critical", "{ranking}");
    assert_eq!(ranking["excluded"][0]["reason"], "critical", "{ranking}");

    let headroom = json(&scene, "headroom");
    let memory = headroom["signals"].as_array().unwrap().iter();
    let memory = memory.clone().find(|signal| signal["signal"] == "memory.available").unwrap();
    let available = kernel::meminfo_bytes("MemAvailable").unwrap();
    let reported = memory["availableBytes"].as_u64().unwrap();
    assert!(reported.abs_diff(available) < 64 * MIB, "{available}: {headroom}");
    let threshold = &memory["thresholds"][0];
    assert_eq!(threshold["thresholdBytes"], THRESHOLD_BYTES, "{headroom}");
    assert_eq!(threshold["headroomBytes"], reported - THRESHOLD_BYTES, "{headroom}");
    let slices = headroom["slices"].as_array().unwrap();
    let names: Vec<_> = slices.iter().map(|slice| slice["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["kubepods", "burstable", "besteffort"], "{headroom}");
    assert!(slices[0]["currentBytes"].as_u64().unwrap() > 500 * MIB, "{headroom}");
    assert!(slices.iter().all(|slice| slice["someAvg10Percent"].is_number()), "{headroom}");

    let filler = scene.fill(&to_leave(THRESHOLD_BYTES - 100 * MIB));
    scene.wait("eviction.completed", "hog");
    for what in ["default/hog", "hog"] {
        let why = verb(&scene, &["why", what]);
        assert!(why.starts_with("default/hog was evicted because memory.available fell to"), "{why}");
        let sentence = why.split("\n\n").next().unwrap().replace('\n', " ");
        assert!(sentence.contains("it came before default/small because it is "), "{why}");
        assert!(why.contains("killed (SIGKILL)") && why.contains("came back"), "{why}");
        assert!(why.lines().all(|line| line.chars().count() <= 80), "{why}");
    }
    let after = json(&scene, "next");
    assert_eq!(after["order"][0]["name"], "small", "{after}");
    drop((critical, hog, small, within, filler));
    scene.clear(&["critical", "hog", "small", "within", "filler"]);
    assert!(scene.daemon.stop_and_replay().unwrap() > 0, "no decision was recorded");
}
