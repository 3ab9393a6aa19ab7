//! A pod whose requests are changed while it runs.

use enforcer_tests::{
    daemon::Daemon,
    expect::assert_holds,
    kube::{self, NAMESPACE, documented_roles, wait_for},
};
use serde_json::{Value, json};

use super::{MIB, wait_for_spec};
use crate::kube::{Scene, small};

/// By each source: what a pod asks for does not count before it is allocated.
#[guest_test(kube_current)]
fn the_requests_that_count_are_those_that_are_allocated() {
    let mut scene = Scene::open("resize", &documented_roles());
    let requesting = |memory: &str| [small("app", &json!({"requests": {"memory": memory}}))];
    scene.begin("other", &kube::pod("other", &requesting("2Gi")));
    scene.running("other");
    scene.begin("resized", &kube::pod("resized", &requesting("16Mi")));
    let pod = scene.running("resized");

    // Of 3.7 GiB, more than the other pod leaves.
    resize(&scene, "3Gi");
    let deferred = wait_for("a resize that is deferred", || {
        Ok(scene.cluster.pod("resized")?.filter(|pod| pending(pod).is_some()))
    })
    .unwrap();
    assert_eq!(pending(&deferred), Some("Deferred"), "{deferred}");
    assert_eq!(deferred["spec"]["containers"][0]["resources"]["requests"]["memory"], "3Gi", "{deferred}");
    assert_eq!(allocated(&deferred), "16Mi", "{deferred}");
    for source in ["podsAPI", "kubelet", "apiServer"] {
        let daemon = scene.start(&format!("podSource: {source}"));
        let known = wait_for_spec(&daemon, &pod, source, |known| known["spec"]["source"] == source);
        assert_requested(&daemon, &known, 16 * MIB);
        daemon.stop().unwrap();
    }

    let daemon = scene.start("podSource: auto");
    let known = wait_for_spec(&daemon, &pod, "its spec", |_| true);
    assert_requested(&daemon, &known, 16 * MIB);
    resize(&scene, "48Mi");
    wait_for("a resize that is done", || {
        Ok(scene.cluster.pod("resized")?.filter(|pod| allocated(pod) == "48Mi"))
    })
    .unwrap();
    let known = wait_for_spec(&daemon, &pod, "the new request", |known| known["requestBytes"] == 48 * MIB);
    assert_requested(&daemon, &known, 48 * MIB);
    let after = scene.running("resized");
    assert_eq!((kube::uid(&after), kube::restarts(&after)), (kube::uid(&pod), 0), "{after}");
    daemon.stop().unwrap();
}

/// Asks for another request of the pod's container.
fn resize(scene: &Scene, memory: &str) {
    let container = json!({"name": "app", "resources": {"requests": {"memory": memory}}});
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/resized/resize");
    scene.cluster.patch(&path, &json!({"spec": {"containers": [container]}})).unwrap();
}

/// Why a resize has not begun.
fn pending(pod: &Value) -> Option<&str> {
    let mut conditions = pod["status"]["conditions"].as_array()?.iter();
    conditions.find(|condition| condition["type"] == "PodResizePending")?["reason"].as_str()
}

fn allocated(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]["allocatedResources"]["memory"]
}

/// Asserts what is shown of the pod, and what it is ranked by.
fn assert_requested(daemon: &Daemon, known: &Value, bytes: u64) {
    assert_holds(known, &json!({"requestBytes": bytes}));
    let next = daemon.verb(&["-o", "json", "next"]).output().unwrap();
    let next: Value = serde_json::from_slice(&next.stdout).unwrap();
    let mut order = next["order"].as_array().unwrap().iter();
    let ranked = order.find(|of| of["name"] == "resized").unwrap_or_else(|| panic!("{next}"));
    assert_holds(ranked, &json!({"requestBytes": bytes}));
}
