//! A node that has another name in the cluster than its machine.

use std::collections::BTreeSet;

use enforcer_tests::{
    expect::assert_holds,
    load::{Load, workload_as},
    wait::{TIMEOUT, wait_until},
};
use serde_json::json;

use super::{acting::Scene, arriving::run_with};

/// The fake API server has the pods of `node-1` alone.
#[guest_test(daemon)]
fn the_running_kubelets_flag_names_the_node_in_questions_and_events() {
    let mut scene = Scene::new("named-node");
    scene.settings = scene.settings.replace("nodeName: node-1", "podSource: apiServer");
    let web = scene.pod("web", Some("ReplicaSet"));
    let program = workload_as(&scene.node.kubelet_root(), "kubelet").unwrap();
    let kubelet = run_with(&program, 0, &["--hostname-override=Node-1"]);
    let (daemon, mut stream) = scene.start("web");
    let asked = scene.api.asked();
    let selectors: BTreeSet<String> =
        asked.iter().filter_map(|asked| asked.parameter("fieldSelector")).collect();
    assert_eq!(selectors, BTreeSet::from([String::from("spec.nodeName=node-1")]));

    web.cgroup(1).write("memory.max", "16M").unwrap();
    assert!(!Load::start(web.cgroup(1), &["spike", "--size", "64Mi"]).unwrap().wait().unwrap().success());
    stream.wait_for_pod("oom.incident", "shop/web", TIMEOUT).unwrap();
    wait_until("the Event", || !scene.events("OOMKilling").is_empty());
    assert_holds(
        &scene.events("OOMKilling")[0],
        &json!({
            "reportingInstance": "node-1",
            "related": {"kind": "Node", "name": "node-1"},
            "regarding": {"name": "web", "uid": web.uid, "fieldPath": "spec.containers{app}"},
        }),
    );
    drop(kubelet);
    daemon.stop().unwrap();
}
