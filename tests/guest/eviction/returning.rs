//! A pod that comes back by itself: it is started again in a cgroup that the pod has adopted.

use enforcer_tests::{cgroup::Cgroup, kernel, load::Load, rounds::Rounds, stream::is};
use serde_json::Value;

use super::{LEFT_BYTES, MIB, Scene, THRESHOLD_BYTES, to_leave};

/// So often one pod counts for the breaker within its window of ten minutes at the most, however slowly it comes back.
const COUNTS: u32 = 6;

/// How long the back-off after so many evictions lasts.
fn back_off_ms(evictions: u32) -> u64 {
    (10_000 << evictions.saturating_sub(1).min(8)).min(300_000)
}

/// The decision about a pod that comes back agrees with when it was evicted before, and has that until its back-off ends.
fn check(decided: &Value, before: u32, evicted_ms: u64, now_ms: u64) {
    /// The decision lies a moment before the signal that the times are of.
    const SLACK_MS: u64 = 1_000;
    let data = &decided["data"];
    let until_ms = evicted_ms + back_off_ms(before);
    if data["evictedBefore"].is_null() {
        assert!(now_ms + SLACK_MS >= until_ms, "{now_ms} is before {until_ms}: {decided}");
    } else {
        assert_eq!(data["evictedBefore"], before, "{decided}");
        let ends_ms = now_ms + data["backOffLeftMs"].as_u64().unwrap();
        assert!(ends_ms.abs_diff(until_ms) <= SLACK_MS, "{ends_ms}, and not {until_ms}: {decided}");
    }
}

fn adopt(scene: &Scene, name: &str, priority: i32) -> Cgroup {
    let cgroup = Cgroup::create(&format!("returning-{name}")).unwrap();
    let manifest = format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  annotations: {{enforcer.dev/cgroup: /returning-{name}}}\n\
         spec:\n  priority: {priority}\n  containers:\n  - name: app\n"
    );
    scene.daemon.manifest(&format!("{name}.yaml"), &manifest).unwrap();
    cgroup
}

#[guest_test(daemon, repeats)]
fn a_hog_that_comes_back_at_once_is_evicted_each_time_and_the_breaker_stays_closed() {
    let threshold = THRESHOLD_BYTES / MIB;
    let settings = format!(
        "evictionHard: {{memory.available: {threshold}Mi}}\nbreaker: {{maxKills: {COUNTS}, maxShare: 1}}"
    );
    let mut scene = Scene::open_with("eviction-returning", &settings);
    let killed_by_kernel = kernel::vmstat("oom_kill").unwrap();
    let cgroup = adopt(&scene, "hog", -10);
    scene.wait("pod.added", "hog");
    let mut filler = scene.fill(&to_leave(THRESHOLD_BYTES + 150 * MIB));
    // No further than the kernel lets it go.
    let to = to_leave(LEFT_BYTES);
    let (mut before_it, mut evicted_ms) = (Vec::new(), None);
    let mut rounds = Rounds::new(COUNTS + 2, 24);
    while let Some(round) = rounds.next() {
        let mut hog =
            Load::start(&cgroup, &["ramp", "--huge", "--no-catch-up", "--rate", "200Mi", "--to", &to])
                .unwrap();
        let decided = scene.wait("eviction.decided", "hog");
        assert_eq!(decided["data"]["dryRun"], false, "the breaker has opened: {decided}");
        let signalled = scene.wait("eviction.signalled", "hog");
        let now_ms = signalled["data"]["bootMs"].as_u64().unwrap();
        if let Some(evicted_ms) = evicted_ms.replace(now_ms) {
            check(&decided, round - 1, evicted_ms, now_ms);
        }
        scene.wait("eviction.completed", "hog");
        hog.wait().unwrap();
        scene.wait_for_end_of_shortage();
        let of_others = scene.stream.seen.iter().any(|event| {
            is(event, "eviction.suppressed")
                || is(event, "eviction.decided") && event["subject"] != "default/hog"
        });
        if of_others || !filler.lives().unwrap() {
            let reported: Vec<_> = before_it.iter().chain(&scene.stream.seen).map(Value::to_string).collect();
            panic!("round {round}, and the one before:\n{}", reported.join("\n"));
        }
        before_it = std::mem::take(&mut scene.stream.seen);
        rounds.note(&scene.daemon).unwrap();
    }
    assert_eq!(
        kernel::vmstat("oom_kill").unwrap(),
        killed_by_kernel,
        "the kernel's OOM killer killed as well"
    );
    drop(filler);
    scene.clear(&["hog", "filler"]);
    scene.daemon.stop_and_replay().unwrap();
}
