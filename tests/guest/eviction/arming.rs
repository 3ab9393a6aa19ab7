//! A wrong digit in a threshold kills no pod; an operator who means it arms it.

use std::fs;

use enforcer_tests::{stream::is, wait::TIMEOUT};
use serde_json::Value;

use super::{MIB, Scene, THRESHOLD_BYTES, at_rest_bytes};

const NAME: &str = "arming";

fn settings(threshold_bytes: u64) -> String {
    format!("evictionHard: {{memory.available: \"{threshold_bytes}\"}}")
}

fn is_unarmed(event: &Value) -> bool {
    is(event, "degraded.entered") && event["data"]["what"] == "unarmed"
}

#[guest_test(daemon)]
fn a_threshold_that_is_crossed_when_it_is_loaded_kills_no_pod_until_it_is_armed() {
    let mut scene = Scene::open_with(NAME, &settings(THRESHOLD_BYTES));
    let mut hog = scene.hold("hog", 0, "", "", "300Mi");
    let mut modest = scene.hold("modest", 0, "memory: 128Mi", "", "64Mi");
    let typo = settings(at_rest_bytes() + 100 * MIB);
    let config = scene.daemon.folder().join("config.yaml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace(&settings(THRESHOLD_BYTES), &typo)).unwrap();
    let reload = |scene: &Scene, arm: &[&str]| {
        let output = scene.daemon.verb(&["reload"]).args(arm).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    reload(&scene, &[]);
    scene.stream.wait_for("that it is not armed", TIMEOUT, is_unarmed).unwrap();
    let decided = scene.wait("eviction.decided", "hog");
    assert_eq!(decided["data"]["dryRun"], true, "{decided}");
    assert_eq!(decided["data"]["unarmed"], true, "{decided}");

    // A restart arms nothing that was not.
    drop(scene);
    let mut scene = Scene::open_with(NAME, &typo);
    // The journal has the first one, too.
    let first = scene.stream.wait_for("the first", TIMEOUT, is_unarmed).unwrap()["sequence"].clone();
    let again = |event: &Value| is_unarmed(event) && event["sequence"] != first;
    scene.stream.wait_for("that it is not armed still", TIMEOUT, again).unwrap();
    scene.catch_up();
    assert!(hog.lives().unwrap() && modest.lives().unwrap());
    assert_eq!(scene.stream.of("eviction.signalled").count(), 0);

    // Armed by order it evicts.
    reload(&scene, &["--arm"]);
    let armed = |event: &Value| is(event, "degraded.left") && event["data"]["what"] == "unarmed";
    scene.stream.wait_for("that it is armed", TIMEOUT, armed).unwrap();
    scene.wait("eviction.signalled", "hog");
    hog.wait_for_end(TIMEOUT).unwrap();
    scene.wait_for_end_of_shortage();
    assert!(modest.lives().unwrap());
    drop(modest);
    scene.clear(&["hog", "modest"]);
    assert!(scene.daemon.stop_and_replay().unwrap() > 0, "no decision was recorded");
}
