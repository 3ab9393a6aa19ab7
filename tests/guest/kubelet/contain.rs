//! A kubelet's pod that is held back while a victim has time to end. Nothing else is written to the kubelet's cgroups.

use std::{
    fs,
    path::{Path, PathBuf},
};

use enforcer_tests::{
    cgroup::ROOT,
    daemon::Daemon,
    expect::assert_holds,
    load::Load,
    stream::{Stream, is},
    wait::TIMEOUT,
};
use serde_json::{Value, json};

use super::{
    MIB,
    acting::{Scene, fill, threshold_bytes},
    node::Placed,
};

/// What is limited in pods' cgroups, and in those above and below them.
const LIMITS: [&str; 7] =
    ["cpu.max", "cpu.weight", "memory.high", "memory.low", "memory.max", "memory.min", "pids.max"];

/// [`fill`] crosses the soft threshold, and both pods together do not cross the hard one. The victim has its own 30 s,
/// and the kubelet 10 s more: at its rate, the other pod would sooner fill what is left above the hard threshold.
fn thresholds() -> String {
    let soft_bytes = threshold_bytes();
    let hard_bytes = soft_bytes.saturating_sub(600 * MIB);
    format!(
        "mode: enforce\nevictionPressureTransitionPeriod: 1ms\n\
         evictionHard: {{memory.available: {hard_bytes}}}\nevictionSoft: {{memory.available: {soft_bytes}}}\n\
         evictionSoftGracePeriod: {{memory.available: 1s}}\nevictionMaxPodGracePeriod: 600"
    )
}

fn folder(placed: &Placed) -> PathBuf {
    Path::new(ROOT).join(placed.path().trim_start_matches('/'))
}

/// A file, and what it holds.
type Limit = (PathBuf, String);

const NONE: [Limit; 0] = [];

fn read(file: &Path) -> Limit {
    (file.to_owned(), fs::read_to_string(file).unwrap().trim().to_owned())
}

/// The limits of a pod, of its class, of kubepods, and of its container.
fn limits(placed: &Placed) -> Vec<Limit> {
    let pod = folder(placed);
    let folders = pod.ancestors().take(3).chain([placed.cgroup(1).path()]);
    folders.flat_map(|folder| LIMITS.map(|file| read(&folder.join(file)))).collect()
}

/// Those that are not as before.
fn changed(before: &[Limit]) -> Vec<Limit> {
    before.iter().map(|(file, _)| read(file)).filter(|now| !before.contains(now)).collect()
}

/// The `memory.high` of a pod that is held back, by the event of it.
fn lowered(placed: &Placed, reported: &Value) -> Limit {
    let bytes = reported["data"]["memoryHighBytes"].as_u64().unwrap();
    (folder(placed).join("memory.high"), (bytes / 4_096 * 4_096).to_string())
}

fn contained(stream: &mut Stream, state: &str) -> Value {
    let is_it = |event: &Value| is(event, "eviction.contained") && event["data"]["state"] == state;
    stream.wait_for(state, TIMEOUT, is_it).unwrap()
}

/// A victim that the kubelet has time to end, and a pod that grows meanwhile and is held back for it.
struct Held {
    filling: Load,
    growing: Load,
    web: Placed,
    grower: Placed,
    /// The grower's limits before.
    before: Vec<Limit>,
    reported: Value,
    stream: Stream,
    daemon: Daemon,
    /// Dropped last, with all that is left in its cgroups.
    scene: Scene,
}

impl Held {
    fn begin(name: &str) -> Self {
        let mut scene = Scene::with(name, &thresholds());
        let web = scene.pod("web", Some("ReplicaSet"));
        let grower = scene.pod("grower", Some("ReplicaSet"));
        // By the kubelet: no spec says so.
        fs::write(folder(&grower).join("memory.max"), "734003200").unwrap();
        let before = limits(&grower);
        let (daemon, mut stream) = scene.start("grower");
        let filling = fill(&web);
        let requested = stream.wait_for_pod("eviction.requested", "shop/web", TIMEOUT).unwrap();
        assert_eq!(requested["data"]["outcome"], "accepted", "{requested}");
        let ramp = ["ramp", "--no-catch-up", "--rate", "40Mi", "--to", "200Mi"];
        let growing = Load::start(grower.cgroup(1), &ramp).unwrap();
        let reported = contained(&mut stream, "contained");
        assert_holds(&reported["data"], &json!({"cause": "grace", "cgroup": grower.path()}));
        assert_eq!(changed(&before), [lowered(&grower, &reported)]);
        Self { filling, growing, web, grower, before, reported, stream, daemon, scene }
    }
}

/// The kubelet ends the pod, and removes it.
fn end(scene: &Scene, placed: Placed, load: Load) {
    drop(load);
    scene.api.remove(&placed.uid);
    drop(placed);
}

#[guest_test(daemon)]
fn a_kubelets_pod_is_held_back_as_long_as_a_victim_has_time_to_end_and_is_as_before_then() {
    let mut held = Held::begin("contain");
    end(&held.scene, held.web, held.filling);
    let released = contained(&mut held.stream, "released");
    assert_eq!(released["data"]["evictionId"], held.reported["data"]["evictionId"], "{released}");
    assert_eq!(changed(&held.before), NONE);
    assert!(held.growing.lives().unwrap());
    held.daemon.stop().unwrap();
    assert_eq!(changed(&held.before), NONE);
}

#[guest_test(daemon)]
fn a_daemon_that_is_killed_meanwhile_leaves_no_kubelets_pod_held_back_after_the_next_start() {
    let held = Held::begin("contain-killed");
    // Dropping it is SIGKILL.
    drop((held.stream, held.daemon));
    assert_eq!(changed(&held.before), [lowered(&held.grower, &held.reported)], "the daemon was killed");
    // No pod is to be held back again.
    drop(held.growing);
    end(&held.scene, held.web, held.filling);
    let (daemon, mut stream) = held.scene.start("grower");
    let interrupted =
        |event: &Value| is(event, "limits.restored") && event["data"]["reason"] == "interrupted";
    let restored = stream.wait_for("word of it", TIMEOUT, interrupted).unwrap();
    let file = json!({"file": "memory.high", "new": "max"});
    assert_holds(&restored["data"], &json!({"cgroup": held.grower.path(), "files": [file]}));
    assert_eq!(changed(&held.before), NONE);
    daemon.stop().unwrap();
}
