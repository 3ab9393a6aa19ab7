//! Which source of specs is chosen, by what the kubelet offers and the daemon's user may do.

use enforcer_tests::{
    daemon::Daemon,
    kube::{self, PATIENCE},
    stream::is,
};
use serde_json::{Value, json};

use super::{Kubelet, wait_for_spec};
use crate::kube::{Scene, small};

const GROUP: &str = "rbac.authorization.k8s.io";

/// Without any right.
#[guest_test(kube_current)]
fn the_pods_api_is_chosen_where_the_kubelet_has_it() {
    let mut scene = Scene::open("pods-api", &[]);
    let pod = placed(&mut scene);
    let daemon = scene.start("podSource: auto");
    assert_chosen(&daemon, &pod, "podsAPI");
    daemon.stop().unwrap();
}

/// The right to `nodes/pods` is enough, without that to `nodes/proxy` or to the API server's pods.
#[guest_test(kube_current)]
fn the_kubelet_is_asked_for_its_pods_where_it_has_no_pods_api() {
    let _kubelet = Kubelet::with(|own| own.replace("PodsAPI: true", "PodsAPI: false"));
    let mut scene = Scene::open("nodes-pods", &[]);
    let right = json!({"apiGroups": [""], "resources": ["nodes/pods"], "verbs": ["get"]});
    let (name, version) = ("enforcer-nodes-pods", format!("{GROUP}/v1"));
    let role =
        json!({"apiVersion": version, "kind": "ClusterRole", "metadata": {"name": name}, "rules": [right]});
    let binding = json!({
        "apiVersion": version,
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": GROUP, "kind": "User", "name": "enforcer"}],
    });
    scene.create(&format!("/apis/{GROUP}/v1/clusterroles"), &role);
    scene.create(&format!("/apis/{GROUP}/v1/clusterrolebindings"), &binding);
    let pod = placed(&mut scene);
    let daemon = scene.start("podSource: auto");
    assert_chosen(&daemon, &pod, "kubelet");
    daemon.stop().unwrap();
}

/// A pod with a request, which only a spec says.
fn placed(scene: &mut Scene) -> Value {
    let app = small("app", &json!({"requests": {"memory": "16Mi"}}));
    scene.begin("placed", &kube::pod("placed", &[app]));
    scene.running("placed")
}

fn assert_chosen(daemon: &Daemon, pod: &Value, source: &str) {
    let known = wait_for_spec(daemon, pod, "its spec", |_| true);
    assert_eq!(known["spec"]["source"], source, "{known}");
    assert_eq!(known["requestBytes"], 16 << 20, "{known}");
    let mut stream = daemon.follow().unwrap();
    let is_up = |event: &Value| is(event, "source.up") && event["data"]["source"] == "specs";
    let up = stream.wait_for("a source of specs", PATIENCE, is_up).unwrap();
    let message = up["data"]["message"].as_str().unwrap_or_default();
    assert!(message.starts_with(source), "{up}");
}
