//! A pod that must not be evicted for a while.
use std::{fs, path::Path};

use enforcer_tests::{
    cgroup::ROOT,
    stream::is,
    wait::{TIMEOUT, wait_until},
};

use super::Scene;

#[guest_test(daemon)]
fn one_that_holds_the_daemon_is_no_candidate_until_it_does_not() {
    let mut scene = Scene::open("eviction-refused");
    let held = scene.hold("host", 0, "", "", "16Mi");
    let ranked = |scene: &Scene| {
        let next = scene.daemon.verb(&["-o", "json", "next"]).output().unwrap();
        String::from_utf8_lossy(&next.stdout).contains("\"host\"")
    };
    wait_until("its rank", || ranked(&scene));
    let pid = scene.daemon.pid().to_string();
    let own = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let own = Path::new(ROOT).join(own.trim().trim_start_matches("0::/")).join("cgroup.procs");
    let pod = scene.folder("host");
    fs::write(pod.join("app/cgroup.procs"), &pid).unwrap();
    // A cgroup that is made in the pod's has its candidate opened again.
    fs::create_dir(pod.join("made")).unwrap();
    for kind in ["degraded.entered", "degraded.left"] {
        let of_it = |event: &serde_json::Value| {
            let data = &event["data"];
            is(event, kind) && data["what"] == "candidate" && data["place"] == "default/host"
        };
        let event = scene.stream.wait_for(kind, TIMEOUT, of_it).unwrap();
        assert!(event["data"]["message"].as_str().unwrap().contains("it holds this daemon"), "{event}");
        if kind == "degraded.entered" {
            wait_until("its leaving the ranking", || !ranked(&scene));
            fs::write(&own, &pid).unwrap();
        }
    }
    wait_until("its rank", || ranked(&scene));
    fs::remove_dir(pod.join("made")).unwrap();
    drop(held);
    scene.clear(&["host"]);
    scene.daemon.stop().unwrap();
}
