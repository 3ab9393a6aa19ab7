//! The kernel's OOM killer in containers of the kinds that an older release has not.

use enforcer_tests::{
    expect::assert_holds,
    kube::{self, NAMESPACE, PATIENCE, documented_roles, wait_for},
    stream::{Stream, is},
};
use serde_json::{Value, json};

use super::wait_for_spec;
use crate::kube::{Scene, small, subject};

#[guest_test(kube_current)]
fn a_kill_in_a_sidecar_and_one_in_an_ephemeral_container_name_it() {
    let mut scene = Scene::open("kinds", &documented_roles());
    let limited = json!({"limits": {"memory": "32Mi"}});
    let mut pod = kube::pod("kinds", &[small("app", &limited)]);
    let mut sidecar = small("proxy", &limited);
    sidecar["restartPolicy"] = json!("Always");
    pod["spec"]["initContainers"] = json!([sidecar]);
    scene.begin("kinds", &pod);
    let pod = scene.running("kinds");
    let daemon = scene.start("sinks: {kubernetes: {enabled: true}}");
    let mut stream = daemon.follow().unwrap();
    wait_for_spec(&daemon, &pod, "its containers", |known| {
        kind(known, "app") == Some("app") && kind(known, "proxy") == Some("sidecar")
    });

    let id = kube::container_id(&pod, "proxy").unwrap();
    assert_killed(&mut stream, &pod, "proxy", "container", id);

    // It has no limit of its own, so that the pod's is hit.
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/kinds/ephemeralcontainers");
    let mut debug = small("debug", &json!({}));
    debug["resources"].take();
    scene.cluster.patch(&path, &json!({"spec": {"ephemeralContainers": [debug]}})).unwrap();
    let pod = wait_for("an ephemeral container", || {
        let pod = scene.cluster.pod("kinds")?.unwrap_or_default();
        let running = !pod["status"]["ephemeralContainerStatuses"][0]["state"]["running"].is_null();
        Ok(running.then_some(pod))
    })
    .unwrap();
    wait_for_spec(&daemon, &pod, "its ephemeral container", |known| {
        kind(known, "debug") == Some("ephemeral")
    });
    let uid = kube::uid(&pod).replace('-', "_");
    assert_killed(&mut stream, &pod, "debug", "pod", &uid);
    daemon.stop().unwrap();
}

/// The kind of a pod's container, as the daemon has it.
fn kind<'a>(known: &'a Value, container: &str) -> Option<&'a str> {
    let mut containers = known["containers"].as_array()?.iter();
    containers.find(|of| of["name"] == container)?["kind"].as_str()
}

/// Has a container take more than the limit, which a cgroup with `owner` in its path has.
fn assert_killed(stream: &mut Stream, pod: &Value, container: &str, scope: &str, owner: &str) {
    let mut load = kube::exec(pod, container, &["spike", "--size", "128Mi"]).unwrap();
    assert!(!load.wait_for_end(PATIENCE).unwrap().success());
    let is_it = |event: &Value| {
        is(event, "oom.incident")
            && event["data"]["scope"] == scope
            && event["data"]["limitOwner"].as_str().is_some_and(|path| path.contains(owner))
    };
    let incident = stream.wait_for(&format!("the kill in {container}"), PATIENCE, is_it).unwrap();
    assert_eq!(incident["subject"], subject(pod), "{incident}");
    let place =
        json!({"namespace": NAMESPACE, "pod": "kinds", "uid": kube::uid(pod), "container": container});
    let data = &incident["data"];
    assert_holds(data, &json!({"trigger": place, "reconciled": true, "reconstructed": false}));
    // The kubelet has all processes of a container killed.
    let victims = data["victims"].as_array().unwrap();
    assert!(!victims.is_empty() && data["kills"] == victims.len(), "{incident}");
    for victim in victims {
        assert_holds(victim, &place);
    }
    println!("{} killed in {container}", victims.len());
}
