//! A container that runs into its own limit.
use enforcer_tests::plan::Planned;
use serde_json::json;

use super::{
    Scene, assert_holds,
    scene::{MIB, kills, merged, place},
};

/// Where the container `app` of a pod with limits but no CPU stands.
fn app(pod: &str) -> String {
    format!("/kubepods/burstable/pod{pod}/app")
}

#[guest_test(kernel)]
fn over_its_own_limit() {
    let mut scene = Scene::open("own-limit", "");
    scene.pod("web", &[("app", "32Mi"), ("log", "32Mi")]);
    let cgroup = app("web");
    let score = Planned::of(&scene.daemon).unwrap().scores[&cgroup];
    let mut log = scene.ready("default/web/log", &["workload", "hold", "--size", "4Mi"]);
    let mut hog = scene.run("default/web/app", &["workload", "spike", "--size", "128Mi"]);

    let incident = scene.incident("default/web");
    hog.killed();
    let whose = place("web", "app", &cgroup);
    let task = merged(&json!({"pid": hog.pid(), "comm": "workload"}), &whose);
    assert_holds(
        &incident,
        &json!({
            "scope": "container",
            "limitOwner": cgroup,
            "limitSource": "traced",
            "trigger": merged(&task, &json!({"tid": hog.pid()})),
            "victims": [merged(&task, &json!({
                "userId": 0, "oomScoreAdj": score, "containerInit": false, "exitCode": 9,
            }))],
            "counters": kills(&cgroup),
            "countersBefore": {"oomKill": 0, "oomGroupKill": 0},
            "countersAfter": kills(&cgroup),
            "reconciled": true,
            "reconciliation": "matched",
            "reconstructed": false,
        }),
    );
    assert_eq!(incident["counters"]["oomGroupKill"], 1, "containers die as a whole by default");
    let victim = &incident["victims"][0];
    hog.assert_is(victim);
    let anon_mib = victim["anonBytes"].as_u64().unwrap() / MIB;
    assert!((24..=32).contains(&anon_mib), "{victim:#}");
    // What is mapped of its program may count as shared memory: that depends on the file system.
    assert!(victim["shmemBytes"].as_u64().unwrap() < 8 * MIB && victim["swapBytes"] == 0, "{victim:#}");
    assert_eq!(incident["timelineMs"]["firstReclaim"], 0, "{incident:#}");
    assert!(incident["timelineMs"]["memoryBack"].is_u64(), "{incident:#}");
    assert!(log.process.lives().unwrap(), "its neighbour has a limit of its own");

    let answer = scene.daemon.get("/metrics").unwrap();
    let counted = answer.lines().filter(|line| line.starts_with("enforcer_oom_kills_total{"));
    let counted: Vec<_> = counted.filter(|line| !line.ends_with(" 0")).collect();
    // The container dies as a whole, so nothing of it survives.
    let row = format!(
        "enforcer_oom_kills_total{{scope=\"container\",namespace=\"default\",init_survived=\"false\"}} {}",
        incident["kills"]
    );
    assert_eq!(counted, [row], "{incident:#}");
    scene.close(0);
}

#[guest_test(daemon)]
fn by_a_process_whose_main_thread_has_ended() {
    let mut scene = Scene::open("headless", "");
    scene.pod("web", &[("app", "32Mi"), ("side", "32Mi")]);
    let mut hog = scene.run("default/web/app", &["workload", "headless", "--size", "128Mi"]);
    let incident = scene.incident("default/web");
    hog.killed();
    // The kernel marks a thread: the process is reported.
    let task = merged(&json!({"pid": hog.pid(), "comm": "workload"}), &place("web", "app", &app("web")));
    assert_holds(
        &incident,
        &json!({
            "scope": "container",
            "limitOwner": app("web"),
            "trigger": task,
            "victims": [merged(&task, &json!({"exitCode": 9, "containerInit": false}))],
            "counters": kills(&app("web")),
            "reconciled": true,
            "reconstructed": false,
        }),
    );
    assert_ne!(incident["trigger"]["tid"], hog.pid(), "the main thread allocates nothing any more");
    assert!(incident["victims"][0]["anonBytes"].as_u64().unwrap() > 24 * MIB, "{incident:#}");
    scene.close(0);
}

#[guest_test(daemon)]
fn whose_init_goes_down_with_it() {
    let mut scene = Scene::open("init", "singleProcessOOMKill: true");
    scene.pod("web", &[("app", "32Mi"), ("side", "32Mi")]);
    let command = ["unshare", "-p", "-f", "workload", "spike", "--size", "128Mi"];
    let mut outside = scene.run("default/web/app", &command);
    let incident = scene.incident("default/web");
    outside.process.wait_for_end(enforcer_tests::wait::TIMEOUT).unwrap();
    assert_holds(
        &incident,
        &json!({
            "scope": "container",
            "limitOwner": app("web"),
            "victims": [merged(
                &json!({"comm": "workload", "containerInit": true, "exitCode": 9}),
                &place("web", "app", &app("web")),
            )],
            "counters": {"oomKill": 1, "oomGroupKill": 0},
            "reconciled": true,
        }),
    );
    let pid = incident["victims"][0]["pid"].as_u64().unwrap();
    assert!(
        pid > 1 && pid != u64::from(outside.pid()),
        "the machine's process id of the inner process: {pid}"
    );
    scene.close(0);
}
