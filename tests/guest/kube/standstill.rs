//! The kubelet and the container runtime stand still, with their connections open, until the cluster counts the node as
//! silent.

use std::{io, process::Command};

use enforcer_tests::{
    daemon::Daemon,
    expect::assert_holds,
    kube::{self, PATIENCE, documented_roles, wait_for},
    load::Load,
};
use serde_json::{Value, json};

use super::{HOG, Scene, container_folder, node, pods, subject, two, wait_for_eviction};

const UNITS: [&str; 2] = ["kubelet.service", "containerd.service"];

/// While this lives, the main processes of the units are stopped.
struct Stopped;

impl Stopped {
    fn begin() -> Self {
        signal("SIGSTOP").unwrap();
        Self
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // A scene that fails is unwinding here: another panic would end the whole run.
        drop(signal("SIGCONT"));
    }
}

fn signal(signal: &str) -> io::Result<()> {
    let mut command = Command::new("systemctl");
    command.args(["kill", "--kill-who=main", &format!("--signal={signal}")]).args(UNITS);
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{signal}: {status}"))) }
}

/// What the cluster says of the node's condition `Ready`.
fn ready(scene: &Scene) -> Value {
    let ready = node::of(&node::node(scene)["status"]["conditions"], "type", "Ready");
    ready.unwrap_or_default()["status"].take()
}

/// Those of these pods that the daemon knows by uid and name. What earlier scenes leave behind goes when it may.
fn known<'a>(daemon: &Daemon, of: &[&'a Value]) -> Vec<&'a str> {
    let known = pods(daemon);
    let is_known = |pod: &Value| {
        known.iter().any(|known| known["uid"] == kube::uid(pod) && known["name"] == kube::name(pod))
    };
    of.iter().filter(|pod| is_known(pod)).map(|pod| kube::name(pod)).collect()
}

#[guest_test(kube_by_hand)]
fn while_kubelet_and_runtime_stand_still_no_pod_is_lost_and_the_right_one_is_evicted_once() {
    let mut scene = Scene::open("standstill", &documented_roles());
    for app in ["calm", "hog"] {
        scene.begin(app, &kube::deployment(app, &two()));
    }
    let [calm, pod] = ["calm", "hog"].map(|app| scene.running(app));
    let evictions = scene.evictions();
    let (daemon, mut stream) = scene.evicting(&[&calm, &pod], "");
    let all = [&calm, &pod];
    let names = all.map(kube::name);
    let folder = container_folder(&daemon, &pod, "app");

    let stopped = Stopped::begin();
    wait_for("a silent node", || {
        assert_eq!(known(&daemon, &all), names, "a pod is lost");
        Ok((ready(&scene) == "Unknown").then_some(()))
    })
    .unwrap();
    // The runtime starts nothing now.
    let mut load = Load::start_in(&folder, &HOG).unwrap();
    let requested = wait_for_eviction(&mut stream, &pod);
    assert!(!load.wait().unwrap().success());
    assert_holds(
        &requested["data"],
        &json!({"outcome": "accepted", "action": "evict", "uid": kube::uid(&pod)}),
    );
    scene.wait_until_terminating(&pod);
    assert_eq!(known(&daemon, &all), names, "a pod is lost");

    drop(stopped);
    scene.wait_for_end(&pod);
    stream.wait_for_pod("eviction.confirmed", &subject(&pod), PATIENCE).unwrap();
    let fresh = scene.running("hog");
    assert_ne!(kube::uid(&fresh), kube::uid(&pod));
    wait_for("a node that is ready", || Ok((ready(&scene) == "True").then_some(()))).unwrap();
    let after = scene.running("calm");
    assert_eq!(
        (kube::uid(&after), kube::restarts(&after)),
        (kube::uid(&calm), kube::restarts(&calm)),
        "{after}"
    );
    assert_eq!(kube::container_id(&after, "app"), kube::container_id(&calm, "app"));
    assert_eq!(scene.evictions(), evictions + 1);
    for kind in ["eviction.decided", "eviction.signalled", "eviction.requested", "eviction.confirmed"] {
        assert_eq!(stream.of(kind).count(), 1, "{kind}");
    }
    assert!(stream.of("pod.removed").all(|event| event["subject"] != subject(&calm)));
    daemon.stop().unwrap();
}
