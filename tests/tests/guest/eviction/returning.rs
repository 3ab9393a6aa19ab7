//! A pod that comes back by itself: whoever runs it starts it anew in a cgroup that the pod has adopted.

use std::{thread, time::Duration};

use enforcer_tests::{
    cgroup::Cgroup,
    kernel,
    load::Load,
    stream::is,
    wait::{PATIENCE, wait_until},
};

use super::{MIB, Scene, THRESHOLD_BYTES, to_leave};

/// More often than the breaker lets pods be evicted within its window.
const RETURNS: u64 = 24;

fn adopt(scene: &Scene, name: &str, priority: i32) -> Cgroup {
    let cgroup = Cgroup::create(&format!("returning-{name}")).unwrap();
    let manifest = format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  annotations: {{enforcer.dev/cgroup: /returning-{name}}}\n\
         spec:\n  priority: {priority}\n  containers:\n  - name: app\n"
    );
    scene.daemon.manifest(&format!("{name}.yaml"), &manifest).unwrap();
    cgroup
}

#[test]
fn a_hog_that_comes_back_at_once_is_evicted_each_time_and_the_breaker_stays_closed() {
    let mut scene = Scene::open("eviction-returning");
    let killed_by_kernel = kernel::vmstat("oom_kill").unwrap();
    let cgroup = adopt(&scene, "hog", -10);
    scene.wait("pod.added", "hog");
    let mut filler = scene.fill(&to_leave(THRESHOLD_BYTES + 150 * MIB));
    for before in 0..RETURNS {
        let mut hog = Load::start(&cgroup, &["ramp", "--rate", "400Mi"]).unwrap();
        let decided = scene.wait("eviction.decided", "hog");
        scene.wait("eviction.completed", "hog");
        hog.wait().unwrap();
        let data = &decided["data"];
        assert_eq!(data["dryRun"], false, "the breaker has opened: {decided}");
        if before > 0 {
            assert_eq!(data["evictedBefore"], before, "{decided}");
            assert!(data["backOffLeftMs"].as_u64().unwrap() > 0, "{decided}");
        }
        assert!(filler.lives().unwrap(), "a pod within its request died: {decided}");
        scene.stream.seen.clear();
    }
    assert_eq!(scene.stream.of("eviction.suppressed").count(), 0);
    assert_eq!(kernel::vmstat("oom_kill").unwrap(), killed_by_kernel, "the kernel's OOM killer was faster");
    drop(filler);
    scene.clear(&["hog", "filler"]);
    scene.daemon.stop_and_replay().unwrap();
}

#[test]
fn one_that_is_back_and_small_does_not_die_in_place_of_who_fills_the_node() {
    // So much more is wanted that what the small one holds does not do, however early the shortage is seen.
    let settings =
        "evictionHard: {memory.available: 200Mi}\nevictionMinimumReclaim: {memory.available: 64Mi}";
    let mut scene = Scene::open_with("eviction-back", settings);
    let cgroup = adopt(&scene, "small", -10);
    scene.wait("pod.added", "small");
    let filler = scene.fill(&to_leave(THRESHOLD_BYTES + 150 * MIB));
    let mut first = Load::start(&cgroup, &["ramp", "--rate", "400Mi"]).unwrap();
    scene.wait("eviction.completed", "small");
    first.wait().unwrap();

    let mut back = Load::start(&cgroup, &["hold", "--size", "4Mi"]).unwrap();
    back.wait_for("ready").unwrap();
    // Its eviction must have been seen as over, and its return.
    wait_until("its return", || {
        cgroup.number("cgroup.events", "populated").is_ok_and(|populated| populated == 1)
    });
    thread::sleep(Duration::from_millis(500));
    scene.stream.seen.clear();
    let mut hog = scene.start("hog", &["workload", "spike", "--size", "260Mi"]);
    let decided =
        scene.stream.wait_for("a decision", PATIENCE, |event| is(event, "eviction.decided")).unwrap();
    scene.wait("eviction.completed", "hog");
    hog.wait_for_end(PATIENCE).unwrap();
    assert_eq!(decided["subject"], "default/hog", "{decided}");
    assert_eq!(decided["data"]["decidedBy"], "backOff", "{decided}");
    let told: Vec<_> = scene.stream.of("eviction.suppressed").collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(
        (&told[0]["subject"], &told[0]["data"]["reason"], &told[0]["data"]["evictedBefore"]),
        (&"default/small".into(), &"backOff".into(), &1.into()),
    );
    assert_eq!(cgroup.number("cgroup.events", "populated").unwrap(), 1, "it died too");
    drop((filler, back));
    scene.clear(&["hog", "filler", "small"]);
    scene.daemon.stop_and_replay().unwrap();
}
