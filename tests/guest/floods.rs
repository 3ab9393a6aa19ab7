//! Endless changes are answered a few times a second, and hide no other change.
//!
//! No test judges a rate: what counts is how often the daemon's loop woke for so many writes.

use std::{
    fs,
    path::{Path, PathBuf},
};

use enforcer_tests::{
    cgroup::Cgroup,
    daemon::Daemon,
    flood::{self, Flood},
    plan::{Planned, folder},
    pods::{Container, pod},
    process::Process,
    stream::{Stream, is},
    wait::{TIMEOUT, wait_until},
};
use serde_json::Value;

const LIMIT: &str = "67108864";

/// A daemon with two pods, whose kubepods stands in a cgroup of its own.
struct Scene {
    daemon: Daemon,
    stream: Stream,
    _cgroup: Cgroup,
}

impl Scene {
    fn open(name: &str) -> Self {
        let cgroup = Cgroup::create(name).unwrap();
        let daemon = Daemon::start(
            &Path::new("/tmp/floods").join(name),
            &format!("mode: enforce\ncgroupRoot: /{name}"),
        )
        .unwrap();
        let stream = daemon.follow().unwrap();
        for pod in ["web", "other"] {
            let container = Container { name: "app", requests: "", limits: "memory: 64Mi" };
            daemon.manifest(&format!("{pod}.yaml"), &self::pod(pod, 0, &[container])).unwrap();
            daemon.wait_until_decided(&format!("default/{pod}")).unwrap();
        }
        Planned::of(&daemon).unwrap().wait_until_held().unwrap();
        Self { daemon, stream, _cgroup: cgroup }
    }

    /// The container of a pod.
    fn app(&self, pod: &str) -> PathBuf {
        let answer = self.daemon.get("/v1/pods").unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let view: Value = serde_json::from_str(body).unwrap();
        let mut pods = view["pods"].as_array().unwrap().iter();
        let pod = pods.find(|view| view["name"] == pod).unwrap();
        folder(pod["containers"][0]["cgroup"].as_str().unwrap())
    }

    /// How often the daemon's loop has woken.
    fn turns(&self) -> u64 {
        let metrics = self.daemon.get("/metrics").unwrap();
        let turns =
            metrics.lines().find_map(|line| line.strip_prefix("enforcer_loop_duration_seconds_count "));
        turns.unwrap().trim().parse().unwrap()
    }
}

fn holds_the_limit(app: &Path) -> bool {
    fs::read_to_string(app.join("memory.max")).unwrap().trim_end() == LIMIT
}

#[guest_test(daemon)]
fn who_writes_a_limit_without_end_is_undone_for_ever_and_named() {
    let mut scene = Scene::open("floods-writes");
    let (web, other) = (scene.app("web"), scene.app("other"));
    let limit = web.join("memory.max");
    let flood = Flood::start(move || drop(fs::write(&limit, "max"))).unwrap();
    let is_contest = |event: &Value| {
        let place = event["data"]["place"].as_str().unwrap_or_default();
        event["data"]["what"] == "drift"
            && web.ends_with(place.trim_start_matches('/').trim_end_matches("/memory.max"))
    };
    let entered = scene
        .stream
        .wait_for("the contest", TIMEOUT, |event| is(event, "degraded.entered") && is_contest(event));
    let entered = entered.unwrap();
    let writer = format!("process {} ({})", std::process::id(), flood::NAME);
    assert!(entered["data"]["message"].as_str().unwrap().contains(&writer), "{entered}");

    let before = (scene.turns(), flood.done());
    wait_until("thousands of writes", || flood.done() >= before.1 + 5_000);
    let (turns, done) = (scene.turns() - before.0, flood.done() - before.1);
    assert!(turns < done / 2, "the daemon woke {turns} times for {done} writes");

    // Another's limit is kept as ever.
    fs::write(other.join("memory.max"), "max").unwrap();
    wait_until("another's limit", || holds_the_limit(&other));

    drop(flood);
    wait_until("the limit", || holds_the_limit(&web));
    scene
        .stream
        .wait_for("the end of the contest", TIMEOUT, |event| is(event, "degraded.left") && is_contest(event))
        .unwrap();
    assert!(holds_the_limit(&web));
    let events = scene.daemon.events().unwrap();
    let drifts = events.iter().filter(|event| {
        is(event, "limits.drifted")
            && event["subject"] == "default/web"
            && event["data"]["file"] == "memory.max"
    });
    let actions: Vec<&str> = drifts.filter_map(|event| event["data"]["action"].as_str()).collect();
    assert_eq!(actions.get(..4), Some(&["restored", "restored", "restored", "delayed"][..]), "{actions:?}");
    assert_eq!(actions.last(), Some(&"restored"), "{actions:?}");
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn cgroups_made_and_removed_without_end_hide_no_kill() {
    let mut scene = Scene::open("floods-cgroups");
    let inner = scene.app("web").join("inner");
    let flood = Flood::start(move || {
        drop(fs::create_dir(&inner));
        drop(fs::remove_dir(&inner));
    })
    .unwrap();
    wait_until("the first of them", || flood.done() >= 100);
    let (turns, made) = (scene.turns(), flood.done());
    wait_until("hundreds of them", || flood.done() >= made + 2_000);
    let (turns, made) = (scene.turns() - turns, flood.done() - made);
    assert!(turns < made, "the daemon woke {turns} times for {made} cgroups made and removed");

    let mut hog =
        Process::new(scene.daemon.exec("default/other", &["workload", "spike", "--size", "256Mi"]).unwrap());
    let incident = scene
        .stream
        .wait_for("the kill", TIMEOUT, |event| {
            is(event, "oom.incident") && event["subject"] == "default/other"
        })
        .unwrap();
    assert_eq!(incident["data"]["reconstructed"], false, "{incident}");
    assert_eq!(incident["data"]["victims"][0]["container"], "app", "{incident}");
    hog.wait_for_end(TIMEOUT).unwrap();
    drop(flood);
    scene.daemon.stop().unwrap();
}
