//! The node's own memory, and what pods may have of it together.
use enforcer_tests::kernel;
use serde_json::json;

use super::{
    Scene, assert_holds,
    scene::{MIB, counters, kills, merged, place},
};

#[guest_test(daemon)]
fn that_runs_out() {
    let mut scene =
        Scene::open("node", "singleProcessOOMKill: true\nevictionHard: {memory.available: \"0%\"}");
    scene.pod("hog", &[("app", "")]);
    let cgroup = "/kubepods/besteffort/podhog/app";
    let mut hog = scene.run("default/hog", &["workload", "spike", "--size", "16Gi"]);
    let incident = scene.incident("default/hog");
    hog.killed();
    // Whoever asked for memory at the wrong moment is the trigger: it may be anybody.
    assert_holds(
        &incident,
        &json!({
            "scope": "node",
            "limitOwner": "/",
            "limitSource": "traced",
            "victims": [merged(&json!({"comm": "workload", "oomScoreAdj": 1000}), &place("hog", "app", cgroup))],
            "reconciled": true,
            "reconstructed": false,
        }),
    );
    // Nearly all of the node's memory may take longer to be given back than an end is waited for.
    let (exit_code, exited) = (&incident["victims"][0]["exitCode"], &incident["timelineMs"]["exited"]);
    assert!(*exit_code == 9 || exit_code.is_null() && exited.is_null(), "{incident:#}");
    hog.assert_is(&incident["victims"][0]);
    assert!(incident["trigger"]["pid"].is_u64() && incident["trigger"]["comm"].is_string(), "{incident:#}");
    let total = kernel::meminfo_bytes("MemTotal").unwrap();
    assert!(incident["victims"][0]["anonBytes"].as_u64().unwrap() > total / 2, "{incident:#}");
    // No cgroup's limit was hit, and the kill is counted where the victim was.
    assert_eq!(counters(cgroup), json!({"oom": 0, "oomKill": 1, "oomGroupKill": 0}));
    scene.close(0);
}

#[guest_test(kernel)]
fn that_is_used_up_as_far_as_pods_may() {
    let total_mib = kernel::meminfo_bytes("MemTotal").unwrap() / MIB;
    // No pod is evicted before.
    let settings = format!(
        "singleProcessOOMKill: true\nsystemReserved: {{memory: {}Mi}}\nevictionHard: {{memory.available: \"0%\"}}",
        total_mib - 300
    );
    let mut scene = Scene::open("kubepods", &settings);
    scene.pod("hog", &[("app", "")]);
    let cgroup = "/kubepods/besteffort/podhog/app";
    let mut hog = scene.run("default/hog", &["workload", "spike", "--size", "1Gi"]);
    let incident = scene.incident("default/hog");
    hog.killed();
    let task = merged(&json!({"pid": hog.pid(), "comm": "workload"}), &place("hog", "app", cgroup));
    assert_holds(
        &incident,
        &json!({
            "scope": "node",
            "limitOwner": "/kubepods",
            "limitSource": "traced",
            "trigger": task,
            "victims": [merged(&task, &json!({"exitCode": 9}))],
            "counters": {"oomKill": 1, "oomGroupKill": 0},
            "reconciled": true,
            "reconstructed": false,
        }),
    );
    assert!(counters("/kubepods")["oom"].as_u64().unwrap() >= 1);
    assert_eq!(kills("/kubepods"), json!({"oomKill": 0, "oomGroupKill": 0}));
    scene.close(0);
}
