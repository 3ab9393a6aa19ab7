//! The scores of containers, which are written beside a kubelet too, if that is wanted.

use std::fs;

use enforcer_tests::{
    daemon::Daemon,
    kube::{self, PATIENCE, documented_roles, wait_for},
    stream::is,
};
use serde_json::{Value, json};

use super::{Scene, container_folder};

/// What the kubelet gives a container that requests hardly anything (`GetContainerOOMScoreAdjust` in
/// `pkg/kubelet/qos/policy.go`).
const STATIC: i32 = 999;

/// The kernel would kill the pod that uses most, whatever its priority.
#[guest_test(kube_by_hand)]
fn scores_follow_the_ranking_until_the_daemon_stops() {
    let mut scene = Scene::open("scores", &documented_roles());
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "low"}, "value": -10,
    });
    scene.create("/apis/scheduling.k8s.io/v1/priorityclasses", &class);
    let holds = |size| ["hold", "--size", size, "--touch-every", "1s"];
    let container = |size| kube::container("app", &holds(size), &json!({"requests": {"memory": "4Mi"}}));
    let mut low = kube::pod("low", &[container("16Mi")]);
    low["spec"]["priorityClassName"] = json!("low");
    scene.begin("low", &low);
    scene.begin("large", &kube::pod("large", &[container("96Mi")]));
    let [low, large] = ["low", "large"].map(|app| scene.running(app));

    let daemon = scene.start("mode: enforce\noomScorePolicy: ranked");
    let mut stream = daemon.follow().unwrap();
    let is_ranked = |event: &Value| is(event, "limits.applied") && event["data"]["reason"] == "ranked";
    stream.wait_for("scores by rank", PATIENCE, is_ranked).unwrap();
    // 80 MiB more are more than a point of a node of this size.
    wait_for("scores that outweigh the memory", || {
        Ok((score(&daemon, &low) > score(&daemon, &large) + 1).then_some(()))
    })
    .unwrap();
    daemon.stop().unwrap();
    let daemon = scene.start("mode: dry-run");
    assert_eq!([&low, &large].map(|pod| score(&daemon, pod)), [STATIC; 2]);
    daemon.stop().unwrap();

    // One that is killed leaves them, and the next gives them back in any mode.
    let daemon = scene.start("mode: enforce\noomScorePolicy: ranked");
    wait_for(
        "scores by rank again",
        || Ok((score(&daemon, &low) > score(&daemon, &large) + 1).then_some(())),
    )
    .unwrap();
    drop(daemon);
    let daemon = scene.start("mode: dry-run");
    wait_for("the kubelet's scores", || {
        Ok(([&low, &large].map(|pod| score(&daemon, pod)) == [STATIC; 2]).then_some(()))
    })
    .unwrap();
    daemon.stop().unwrap();
}

/// The score of the first process of a pod's container.
fn score(daemon: &Daemon, pod: &Value) -> i32 {
    let folder = container_folder(daemon, pod, "app");
    let processes = fs::read_to_string(folder.join("cgroup.procs")).unwrap();
    let first = processes.lines().next().unwrap();
    fs::read_to_string(format!("/proc/{first}/oom_score_adj")).unwrap().trim().parse().unwrap()
}
