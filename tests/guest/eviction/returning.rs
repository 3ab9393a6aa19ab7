//! A pod that comes back by itself: whoever runs it starts it anew in a cgroup that the pod has adopted.

use std::time::{Duration, Instant};

use enforcer_tests::{cgroup::Cgroup, kernel, load::Load, stream::is};
use serde_json::Value;

use super::{MIB, Scene, THRESHOLD_BYTES, to_leave};

/// More often than the breaker lets pods be evicted within its window.
const RETURNS: u64 = 24;

/// How long a pod is kept from coming back after its first eviction, at the least.
const LEAST_BACK_OFF: Duration = Duration::from_secs(10);

fn adopt(scene: &Scene, name: &str, priority: i32) -> Cgroup {
    let cgroup = Cgroup::create(&format!("returning-{name}")).unwrap();
    let manifest = format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  annotations: {{enforcer.dev/cgroup: /returning-{name}}}\n\
         spec:\n  priority: {priority}\n  containers:\n  - name: app\n"
    );
    scene.daemon.manifest(&format!("{name}.yaml"), &manifest).unwrap();
    cgroup
}

#[guest_test(daemon)]
fn a_hog_that_comes_back_at_once_is_evicted_each_time_and_the_breaker_stays_closed() {
    let mut scene = Scene::open("eviction-returning");
    let killed_by_kernel = kernel::vmstat("oom_kill").unwrap();
    let cgroup = adopt(&scene, "hog", -10);
    scene.wait("pod.added", "hog");
    let mut filler = scene.fill(&to_leave(THRESHOLD_BYTES + 150 * MIB));
    let mut before_it = Vec::new();
    for before in 0..RETURNS {
        let begin = Instant::now();
        let mut hog = Load::start(&cgroup, &["ramp", "--no-catch-up", "--rate", "200Mi"]).unwrap();
        let decided = scene.wait("eviction.decided", "hog");
        scene.wait("eviction.completed", "hog");
        hog.wait().unwrap();
        let data = &decided["data"];
        assert_eq!(data["dryRun"], false, "the breaker has opened: {decided}");
        if before > 0 {
            assert_eq!(data["evictedBefore"], before, "{decided}");
            let left_ms = data["backOffLeftMs"].as_u64().unwrap();
            assert!(left_ms > 0 || begin.elapsed() > LEAST_BACK_OFF / 2, "{decided}");
        }
        let of_others = scene.stream.seen.iter().any(|event| {
            is(event, "eviction.suppressed")
                || is(event, "eviction.decided") && event["subject"] != "default/hog"
        });
        if of_others || !filler.lives().unwrap() {
            let told: Vec<_> = before_it.iter().chain(&scene.stream.seen).map(Value::to_string).collect();
            panic!("round {before}, and the one before:\n{}", told.join("\n"));
        }
        before_it = std::mem::take(&mut scene.stream.seen);
    }
    assert_eq!(kernel::vmstat("oom_kill").unwrap(), killed_by_kernel, "the kernel's OOM killer was faster");
    drop(filler);
    scene.clear(&["hog", "filler"]);
    scene.daemon.stop_and_replay().unwrap();
}
