//! A Job that does not count disruptions as failures.

use enforcer_tests::{
    expect::assert_holds,
    kube::{self, NAMESPACE, PATIENCE, documented_roles},
};
use serde_json::{Value, json};

use crate::kube::{Scene, Seen, hog, two, wait_for_eviction};

#[guest_test(kube_current)]
fn a_job_replaces_an_evicted_pod_and_does_not_count_it_as_failed() {
    let mut scene = Scene::open("job", &documented_roles());
    scene.begin("worker", &kube::job("worker", &two()));
    let pod = scene.running("worker");
    let (daemon, mut stream) = scene.evicting(&[&pod], "");
    let seen = Seen::watch(&scene, &pod);

    let mut load = hog(&pod);
    let requested = wait_for_eviction(&mut stream, &pod);
    assert!(!load.wait_for_end(PATIENCE).unwrap().success());
    assert_holds(
        &requested["data"],
        &json!({"outcome": "accepted", "action": "evict", "uid": kube::uid(&pod)}),
    );
    println!("signal to request {} ms", requested["data"]["signalledToRequestedMs"]);
    scene.wait_for_end(&pod);
    let fresh = scene.running("worker");
    assert_ne!(kube::uid(&fresh), kube::uid(&pod));

    let is_target = |condition: &&Value| condition["type"] == "DisruptionTarget";
    let all = seen.states();
    let mut conditions = all.iter().filter_map(|pod| pod["status"]["conditions"].as_array()).flatten();
    let condition = conditions.rfind(is_target).unwrap_or_else(|| panic!("{all:?}"));
    assert_holds(condition, &json!({"status": "True", "reason": "EvictionByEvictionAPI"}));
    let jobs = format!("/apis/batch/v1/namespaces/{NAMESPACE}/jobs/worker");
    let status = scene.cluster.get(&jobs).unwrap().unwrap()["status"].take();
    assert_holds(&status, &json!({"active": 1, "failed": null, "conditions": null}));
    daemon.stop().unwrap();
}
