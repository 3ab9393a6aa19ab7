//! The API server is away while a pod is evicted.

use std::process::Command;

use enforcer_tests::{
    kube::{self, PATIENCE, documented_roles},
    stream::is,
};
use serde_json::Value;

use super::{Scene, degraded, hog, subject, two};

/// A component of the node that is stopped; it is started again when this is dropped.
struct Stopped(&'static str);

impl Stopped {
    fn unit(unit: &'static str) -> Self {
        systemctl("stop", unit).unwrap();
        Self(unit)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // A scene that fails is unwinding here: another panic would end the whole run.
        drop(systemctl("start", self.0));
    }
}

fn systemctl(verb: &str, unit: &str) -> std::io::Result<()> {
    let status = Command::new("systemctl").args([verb, unit]).status()?;
    if status.success() { Ok(()) } else { Err(std::io::Error::other(format!("{verb} {unit}: {status}"))) }
}

/// The memory does not wait for it, and it is asked until it answers, for one eviction.
#[guest_test(kube_by_hand)]
fn an_api_server_that_is_away_delays_no_kill_and_is_asked_once_it_answers() {
    let mut scene = Scene::open("outage", &documented_roles());
    scene.begin("hog", &kube::deployment("hog", &two()));
    let pod = scene.running("hog");
    let (daemon, mut stream) = scene.evicting(&[&pod], "");

    let stopped = Stopped::unit("kube-apiserver.service");
    let mut load = hog(&pod);
    let decided = stream.wait_for("a decision", PATIENCE, |event| is(event, "eviction.decided")).unwrap();
    assert_eq!(decided["subject"], subject(&pod), "{decided}");
    stream.wait_for_pod("eviction.completed", &subject(&pod), PATIENCE).unwrap();
    assert!(!load.wait_for_end(PATIENCE).unwrap().success());
    degraded(&mut stream, "apiServer");
    assert_eq!(stream.of("eviction.requested").count(), 0);

    drop(stopped);
    let requested = stream.wait_for_pod("eviction.requested", &subject(&pod), PATIENCE).unwrap();
    assert_eq!(requested["data"]["outcome"], "accepted", "{requested}");
    let is_back = |event: &Value| is(event, "degraded.left") && event["data"]["what"] == "apiServer";
    stream.wait_for("the API server", PATIENCE, is_back).unwrap();
    scene.wait_for_end(&pod);
    stream.wait_for_pod("eviction.confirmed", &subject(&pod), PATIENCE).unwrap();
    let fresh = scene.running("hog");
    assert_ne!(kube::uid(&fresh), kube::uid(&pod));
    // It counts from its start, which was after the kill.
    assert_eq!(scene.evictions(), 1, "evictions carried out by the API server");
    for kind in ["eviction.requested", "eviction.confirmed"] {
        assert_eq!(stream.of(kind).count(), 1, "{kind}");
    }
    scene.wait_until_reported(&pod, "Evicted");
    daemon.stop().unwrap();
}
