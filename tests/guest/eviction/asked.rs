//! What the daemon is asked while nothing is short.

use serde_json::Value;

use super::{MIB, Scene, at_rest_bytes};

fn answer(scene: &Scene, arguments: &[&str]) -> Value {
    let output = scene.daemon.verb(&[&["-o", "json"], arguments].concat()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn names(rows: &Value) -> Vec<&str> {
    rows.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect()
}

/// Another threshold, and another usage: both on the pods as they are.
#[guest_test(daemon)]
fn what_if_foresees_the_order_that_next_reports() {
    let scene = Scene::open("eviction-asked");
    let low = scene.hold("low", -10, "", "", "64Mi");
    let large = scene.hold("large", 10, "", "", "300Mi");
    let within = scene.hold("within", 0, "memory: 200Mi", "", "100Mi");
    let next = answer(&scene, &["next"]);
    assert_eq!(names(&next["order"]), ["low", "large", "within"], "{next}");

    // They hold 464 MiB.
    let most = (at_rest_bytes() + 410 * MIB).to_string();
    let everybody = answer(&scene, &["what-if", "--threshold", &most]);
    assert_eq!(names(&everybody["evictions"]), ["low", "large", "within"], "{everybody}");
    assert_eq!(everybody["end"], "enough", "{everybody}");
    let in_vain = answer(&scene, &["what-if", "--threshold", "99%"]);
    assert_eq!((names(&in_vain["evictions"]).len(), &in_vain["end"]), (0, &"outOfReach".into()), "{in_vain}");
    let no_pod = answer(&scene, &["what-if", "--threshold", "1Mi"]);
    assert_eq!((names(&no_pod["evictions"]).len(), &no_pod["end"]), (0, &"enough".into()), "{no_pod}");

    // As large as the node: it goes first of those who exceed their requests, as its priority is lower than that of the other.
    let grown = answer(&scene, &["what-if", "--add", "100Gi", "--pod", "within"]);
    assert_eq!(names(&grown["evictions"])[0], "low", "{grown}");
    assert_eq!(names(&grown["evictions"])[1], "within", "{grown}");
    // It was asked only.
    for mut process in [low, large, within] {
        assert!(process.lives().unwrap());
    }
    scene.daemon.stop().unwrap();
}
