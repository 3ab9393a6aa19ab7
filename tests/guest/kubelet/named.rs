//! A kubelet with flags: for the node's name in the cluster, and for its own root directory.

use std::collections::BTreeSet;

use enforcer::{model::QosClass, policy::CgroupDriver::Systemd};
use enforcer_tests::{
    expect::assert_holds,
    load::{Load, workload_as},
    stream::is,
    wait::{TIMEOUT, wait_until},
};
use serde_json::json;

use super::{
    acting::Scene,
    arriving::run_with,
    node::Node,
    specs::{fake::FakeKubelet, pod_of, serve_pods_api, spec},
};

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

/// k0s gives its kubelet another one than the usual. The kubelet starts after the daemon, as at boot.
#[guest_test(daemon)]
fn the_running_kubelets_flag_says_where_its_pods_api_listens() {
    let mut node = Node::new("rooted", Systemd);
    node.serve();
    let web = node.pod(QosClass::Burstable, "shop", "web", &["app"]);
    let kubelet = FakeKubelet::new();
    kubelet.put(spec(&web, "web", "Burstable", 7, "16Mi"));
    drop(serve_pods_api(&node, &kubelet));
    let daemon = node.start_and_find_root("podSource: podsAPI");
    let mut stream = daemon.follow().unwrap();
    let down = stream
        .wait_for("a silent source", TIMEOUT, |event| {
            is(event, "source.down") && event["data"]["source"] == "specs"
        })
        .unwrap();
    assert!(down.to_string().contains("/var/lib/kubelet/pods-api/pods-api.sock"), "{down}");
    assert!(pod_of(&daemon, "web")["spec"].is_null());

    let program = workload_as(&node.kubelet_root(), "kubelet").unwrap();
    let process = run_with(&program, 0, &[&format!("--root-dir={}", node.kubelet_root().display())]);
    wait_until("the spec", || pod_of(&daemon, "web")["spec"]["source"] == "podsAPI");
    drop(process);
    daemon.stop().unwrap();
}
