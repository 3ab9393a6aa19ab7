//! Containers of an evicted pod that the kubelet starts again before the API server has removed the pod.

use std::{thread, time::Duration};

use enforcer_tests::{
    daemon::Daemon,
    expect::assert_holds,
    load::Load,
    stream::{Stream, is},
    wait::TIMEOUT,
};
use serde_json::{Value, json};

use super::{
    SANDBOX,
    acting::{Scene, fake_api::Refusal, fill},
    node::Placed,
    specs::hold_in,
};

/// Longer than a container that is killed again could live.
const LONG: Duration = Duration::from_secs(4);

/// Starts the container anew, with a process.
fn start_again(scene: &Scene, placed: &mut Placed) -> Load {
    scene.node.restart(placed, 1, "app");
    Load::start(placed.cgroup(1), &["hold", "--size", "4Mi"]).unwrap()
}

/// Waits until the container is killed again, for the `count`th time.
fn killed_again(stream: &mut Stream, placed: &Placed, count: u64) -> Value {
    let is_it = |event: &Value| {
        is(event, "eviction.repeated") && event["subject"] == "shop/web" && event["data"]["count"] == count
    };
    let event = stream.wait_for("a container that is killed again", TIMEOUT, is_it).unwrap();
    let ids = [placed.container_id(1)];
    assert_holds(
        &event["data"],
        &json!({"outcome": "killed", "uid": placed.uid, "containers": ["app"], "cgroupIds": ids}),
    );
    event["data"]["evictionId"].clone()
}

fn count(daemon: &Daemon, kind: &str) -> usize {
    daemon.events().unwrap().iter().filter(|event| is(event, kind)).count()
}

/// Also by the next daemon after `kill -9`, under the same id; the sandbox, another pod, and the pod that has the name next
/// live on.
#[guest_test(daemon)]
fn a_container_that_is_started_again_is_killed_again_for_the_same_eviction() {
    let mut scene = Scene::new("restarted");
    let mut web = scene.pod("web", Some("ReplicaSet"));
    let other = scene.pod("other", Some("ReplicaSet"));
    let (mut daemon, mut stream) = scene.start("other");
    let mut sandbox = hold_in(web.cgroup(SANDBOX), "1Mi");
    let mut bystander = hold_in(other.cgroup(1), "4Mi");
    let mut filling = fill(&web);
    let requested = stream.wait_for_pod("eviction.requested", "shop/web", TIMEOUT).unwrap();
    assert_eq!(requested["data"]["outcome"], "accepted", "{requested}");
    assert!(!filling.wait().unwrap().success());
    let id = requested["data"]["evictionId"].clone();

    for count in 1..=2 {
        let mut again = start_again(&scene, &mut web);
        assert_eq!(killed_again(&mut stream, &web, count), id);
        assert!(!again.wait().unwrap().success());
    }
    // The pause after the second time is long enough for the next daemon to find it.
    let mut meanwhile = start_again(&scene, &mut web);
    daemon.succeed().unwrap();
    let mut stream = daemon.follow().unwrap();
    assert_eq!(killed_again(&mut stream, &web, 3), id);
    assert!(!meanwhile.wait().unwrap().success());
    let mut again = start_again(&scene, &mut web);
    assert_eq!(killed_again(&mut stream, &web, 4), id);
    assert!(!again.wait().unwrap().success());
    assert!(sandbox.lives().unwrap());

    let order = |arguments: &[&str]| {
        let done = daemon.verb(arguments).output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {done:?}");
    };
    order(&["protect", "shop/web", "--for", "1h", "--reason", "it is looked at"]);
    let mut protected = start_again(&scene, &mut web);
    let is_spared = |event: &Value| is(event, "eviction.repeated") && event["data"]["outcome"] == "spared";
    let spared = stream.wait_for("a container that is spared", TIMEOUT, is_spared).unwrap();
    assert_holds(&spared["data"], &json!({"evictionId": id, "reason": "protected", "count": 4}));
    assert!(protected.lives().unwrap());
    order(&["protect", "shop/web", "--end", "--reason", "it is done"]);
    assert_eq!(killed_again(&mut stream, &web, 5), id);
    assert!(!protected.wait().unwrap().success());

    let why = daemon.verb(&["why", "web"]).output().unwrap();
    let why = String::from_utf8(why.stdout).unwrap();
    assert!(why.contains("started app again"), "{why}");
    scene.api.remove(&web.uid);
    drop((sandbox, web));
    let next = scene.pod("web", Some("ReplicaSet"));
    let mut next_of_name = hold_in(next.cgroup(1), "4Mi");
    stream.wait_for_pod("eviction.confirmed", "shop/web", TIMEOUT).unwrap();
    thread::sleep(LONG);
    assert!(next_of_name.lives().unwrap() && bystander.lives().unwrap());
    let counts = ["eviction.decided", "eviction.repeated"].map(|kind| count(&daemon, kind));
    assert_eq!(counts, [1, 6], "five kills, and one that was spared");
    daemon.stop().unwrap();
}

/// Nothing removes a bare pod, nor the other one while the API server is away: to kill them without end would help
/// no pod once memory suffices.
#[guest_test(daemon)]
fn a_container_is_left_alone_as_long_as_its_pod_is_not_removed() {
    let mut scene = Scene::new("restarted-withheld");
    let mut bare = scene.pod("bare", None);
    let mut web = scene.pod("web", Some("ReplicaSet"));
    let (daemon, mut stream) = scene.start("web");
    let mut filling = fill(&bare);
    let withheld = stream.wait_for_pod("eviction.requested", "shop/bare", TIMEOUT).unwrap();
    assert_eq!(withheld["data"]["outcome"], "withheld", "{withheld}");
    assert!(!filling.wait().unwrap().success());
    let is_over =
        |event: &Value| is(event, "pressure.cleared") && event["data"]["crossedToClearedMs"].is_number();
    stream.wait_for("the end of the shortage", TIMEOUT, is_over).unwrap();
    let mut of_bare = start_again(&scene, &mut bare);

    scene.api.refuse(&Refusal::Status(503, None), 100_000);
    let mut filling = fill(&web);
    let is_away = |event: &Value| is(event, "degraded.entered") && event["data"]["what"] == "apiServer";
    stream.wait_for("no API server", TIMEOUT, is_away).unwrap();
    assert!(!filling.wait().unwrap().success());
    stream.wait_for_pod("eviction.completed", "shop/web", TIMEOUT).unwrap();
    let signalled = stream.wait_for_pod("eviction.signalled", "shop/web", TIMEOUT).unwrap();
    let is_after = |event: &Value| event["sequence"].as_str() > signalled["sequence"].as_str();
    let is_it = |event: &Value| is_over(event) && is_after(event);
    stream.wait_for("the end of the second shortage", TIMEOUT, is_it).unwrap();
    let mut of_web = start_again(&scene, &mut web);
    thread::sleep(LONG);
    assert!(of_bare.lives().unwrap() && of_web.lives().unwrap());
    assert_eq!(count(&daemon, "eviction.repeated"), 0);

    // From now on the API server removes it.
    scene.api.serve_again();
    killed_again(&mut stream, &web, 1);
    assert!(!of_web.wait().unwrap().success());
    assert!(of_bare.lives().unwrap());
    daemon.stop().unwrap();
}
