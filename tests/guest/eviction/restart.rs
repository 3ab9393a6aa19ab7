//! What a daemon that is killed did and did not live to do counts for the next; and two of them are one too many.

use std::path::Path;

use enforcer_tests::{
    daemon::Daemon,
    kernel,
    random::Random,
    rounds::Rounds,
    stream::is,
    wait::{TIMEOUT, wait_until},
};
use serde_json::Value;

use super::{LEFT_BYTES, MIB, Scene, THRESHOLD_BYTES, to_leave};

const SOFT: &str = "evictionHard: {memory.available: 200Mi}\nevictionSoft: {memory.available: 600Mi}\n\
                    evictionSoftGracePeriod: {memory.available: 1s}\n";

#[guest_test(daemon)]
fn a_crash_loop_evicts_no_more_than_the_breaker_allows() {
    const KILLS: usize = 2;
    let settings = format!(
        "evictionHard: {{memory.available: {}Mi}}\nbreaker: {{maxKills: {KILLS}, window: 10m}}",
        THRESHOLD_BYTES / MIB
    );
    let mut filler = None;
    for life in 0..=KILLS {
        let mut scene = Scene::open_with("restart-loop", &settings);
        filler.get_or_insert_with(|| scene.fill(&to_leave(THRESHOLD_BYTES + 200 * MIB)));
        let name = format!("hog-{life}");
        let mut hog = scene.ramp(&name, "200Mi", LEFT_BYTES);
        let decided = scene.wait("eviction.decided", &name);
        assert_eq!(decided["data"]["dryRun"], life == KILLS, "{decided}");
        if life < KILLS {
            scene.wait("eviction.signalled", &name);
            // Dropping it is SIGKILL.
            drop(scene);
            hog.wait_for_end(TIMEOUT).unwrap();
            // What both held comes back little by little, and under pressure the next would not be let in.
            wait_until("room for the next", || {
                kernel::meminfo_bytes("MemAvailable").unwrap() > THRESHOLD_BYTES + 100 * MIB
            });
            continue;
        }
        let open =
            |event: &Value| is(event, "eviction.suppressed") && event["data"]["reason"] == "breakerOpen";
        scene.stream.wait_for("the breaker", TIMEOUT, open).unwrap();
        assert!(hog.lives().unwrap());
        drop(hog);
        assert!(filler.take().unwrap().lives().unwrap());
        scene.clear(&["hog-0", "hog-1", &name, "filler"]);
        assert!(scene.daemon.stop_and_replay().unwrap() > 0, "no decision was recorded");
    }
}

#[guest_test(daemon)]
fn what_is_left_of_a_pod_that_was_asked_to_end_is_a_candidate_of_the_next_daemon() {
    const NAME: &str = "restart-asked";
    let settings = format!("{SOFT}evictionMaxPodGracePeriod: 60");
    let mut scene = Scene::open_with(NAME, &settings);
    let mut stubborn = scene.stubborn("stubborn", -10, 200);
    let mut filler = scene.fill(&to_leave(450 * MIB));
    let asked = scene.wait("eviction.signalled", "stubborn");
    assert_eq!(asked["data"]["sent"], "SIGTERM", "{asked}");
    drop(scene);

    let mut scene = Scene::open_with(NAME, &settings);
    let failed = scene.wait("eviction.failed", "stubborn");
    assert_eq!(failed["data"]["reason"], "interrupted", "{failed}");
    assert!(stubborn.lives().unwrap());
    let again = |event: &Value| is(event, "eviction.decided") && event["data"]["evictedBefore"] == 1;
    let again = scene.stream.wait_for("the next decision", TIMEOUT, again).unwrap();
    assert_eq!(again["subject"], "default/stubborn", "{again}");
    // The threshold is crossed when it is loaded, and was armed before.
    assert_eq!(again["data"]["dryRun"], false, "{again}");
    assert!(filler.lives().unwrap());
    drop((stubborn, filler));
    scene.clear(&["stubborn", "filler"]);
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn a_pod_whose_manifest_has_gone_is_evicted_as_long_as_it_runs() {
    let mut scene = Scene::open("restart-deleted");
    let mut deleted = scene.hold("deleted", -10, "", "", "250Mi");
    scene.daemon.remove_manifest("deleted.yaml").unwrap();
    scene.wait("pod.removed", "deleted");
    assert!(deleted.lives().unwrap());
    let mut filler = scene.fill(&to_leave(THRESHOLD_BYTES - 80 * MIB));
    scene.wait("eviction.completed", "deleted");
    deleted.wait_for_end(TIMEOUT).unwrap();
    assert!(filler.lives().unwrap());
    drop(filler);
    scene.clear(&["filler"]);
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn who_is_protected_within_its_grace_is_not_killed_at_its_end() {
    let mut scene = Scene::open_with("restart-protected", &format!("{SOFT}evictionMaxPodGracePeriod: 10"));
    let mut stubborn = scene.stubborn("stubborn", -10, 200);
    let filler = scene.fill(&to_leave(450 * MIB));
    scene.wait("eviction.signalled", "stubborn");
    let protect = ["protect", "default/stubborn", "--for", "1h", "--reason", "it is needed"];
    assert!(scene.daemon.verb(&protect).status().unwrap().success());
    let failed = scene.wait("eviction.failed", "stubborn");
    assert_eq!(failed["data"]["reason"], "protected", "{failed}");
    assert!(stubborn.lives().unwrap());
    let killed = |event: &&Value| event["data"]["sent"] == "SIGKILL";
    assert_eq!(scene.stream.of("eviction.signalled").filter(killed).count(), 0);
    drop((stubborn, filler));
    scene.clear(&["stubborn", "filler"]);
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon, repeats)]
fn a_start_while_the_predecessor_is_dying_evicts_the_right_pod() {
    let settings = format!(
        "evictionHard: {{memory.available: {}Mi}}\nbreaker: {{maxKills: 50, maxShare: 1}}",
        THRESHOLD_BYTES / MIB
    );
    let mut scene = Scene::open_with("restart-at-once", &settings);
    let killed_by_kernel = kernel::vmstat("oom_kill").unwrap();
    let mut random = Random::of_this_run();
    // Shown if it fails.
    println!("{}", random.seed());
    let mut rounds = Rounds::new(2, 20);
    while let Some(round) = rounds.next() {
        let mut filler = scene.fill(&to_leave(THRESHOLD_BYTES + 200 * MIB));
        let name = format!("hog-{round}");
        let mut hog = scene.ramp(&name, "200Mi", LEFT_BYTES);
        // By chance a little before the crossing, at it, or with the decision made and the signal not sent.
        let moment_bytes = THRESHOLD_BYTES + random.below(16 * MIB);
        while kernel::meminfo_bytes("MemAvailable").unwrap() > moment_bytes {}
        let armed = scene.daemon.succeed().unwrap();
        println!("round {round}: ready {armed:?} after the end of the predecessor");
        scene.stream = scene.daemon.follow().unwrap();
        scene.wait("eviction.decided", &name);
        hog.wait_for_end(TIMEOUT).unwrap();
        wait_until("room for the next", || {
            kernel::meminfo_bytes("MemAvailable").unwrap() > THRESHOLD_BYTES + 100 * MIB
        });
        scene.catch_up();
        let is_hog = |event: &Value| event["subject"].as_str().unwrap().starts_with("default/hog-");
        assert!(scene.stream.of("eviction.decided").all(is_hog), "round {round}: {:?}", scene.stream.seen);
        assert!(filler.lives().unwrap(), "round {round}");
        drop(filler);
        scene.clear(&[&name, "filler"]);
        rounds.note(&scene.daemon).unwrap();
    }
    assert_eq!(
        kernel::vmstat("oom_kill").unwrap(),
        killed_by_kernel,
        "the kernel's OOM killer killed as well"
    );
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn a_second_daemon_may_report_and_not_evict() {
    let first = Daemon::start(Path::new("/tmp/restart-first"), "mode: enforce").unwrap();
    let second = Daemon::launch(Path::new("/tmp/restart-second"), "mode: enforce", &[]).unwrap();
    let refusal = format!("another enforcer evicts on this machine: process {} holds the lock", first.pid());
    wait_until("its refusal", || second.log().contains(&refusal));
    assert!(!second.is_ready().unwrap_or(false));
    drop(second);
    Daemon::start(Path::new("/tmp/restart-third"), "mode: dry-run").unwrap().stop().unwrap();
    // A daemon that is killed keeps no other from it.
    drop(first);
    Daemon::start(Path::new("/tmp/restart-second"), "mode: enforce").unwrap().stop().unwrap();
}
