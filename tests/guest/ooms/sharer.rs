//! Processes that share the victim's memory without being threads of it.
use serde_json::{Value, json};

use super::{
    Scene, assert_holds,
    scene::{kills, merged, place, victims},
};

const CGROUP: &str = "/kubepods/burstable/podshared/app";

/// The kernel kills both, and marks and counts but one of them.
#[guest_test(kernel)]
fn dies_with_the_victim_and_is_reported() {
    let (mut scene, incident, parent) = at_the_limit("sharer", "singleProcessOOMKill: true");
    let reported = victims(&incident);
    assert_eq!(reported.len(), 2, "parent and child: {incident:#}");
    assert!(reported.contains(&parent), "{reported:?} without the parent {parent}");
    let child = incident["trigger"]["pid"].as_u64().unwrap();
    assert!(reported.contains(&child) && child != parent, "the child hits the limit: {incident:#}");
    let whose = place("shared", "app", CGROUP);
    assert_holds(
        &incident,
        &json!({
            "scope": "container",
            "limitOwner": CGROUP,
            "limitSource": "traced",
            "trigger": merged(&json!({"comm": "workload"}), &whose),
            "victims": vec![merged(&json!({"comm": "workload", "exitCode": 9}), &whose); 2],
            "counters": {"oomKill": 1, "oomGroupKill": 0},
            "reconciled": true,
            "reconciliation": "matched",
            "reconstructed": false,
        }),
    );
    let sharers: Vec<&Value> = incident["victims"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|victim| !victim["sharesMemoryWith"].is_null())
        .collect();
    assert_eq!(sharers.len(), 1, "one was marked, and one dies for sharing its memory: {incident:#}");
    let marked = reported.iter().find(|pid| sharers[0]["pid"] != **pid).unwrap();
    assert_eq!(sharers[0]["sharesMemoryWith"], *marked, "{incident:#}");
    assert_eq!(
        kills(CGROUP),
        json!({"oomKill": 1, "oomGroupKill": 0}),
        "the kernel counts but the marked one"
    );
    scene.assert_nothing_else(0);
    scene.close(0);
}

/// Killed as a group, each is a victim in its own right, or dies as a sharer of the other; reported once in any case.
#[guest_test(daemon)]
fn is_reported_once_where_the_group_dies() {
    let (scene, incident, parent) = at_the_limit("sharer-group", "");
    let mut reported = victims(&incident);
    let all = reported.len();
    reported.dedup();
    assert_eq!((all, reported.len()), (2, 2), "{incident:#}");
    assert!(reported.contains(&parent), "{incident:#}");
    assert_holds(
        &incident,
        &json!({"scope": "container", "limitOwner": CGROUP, "reconciled": true, "counters": kills(CGROUP)}),
    );
    assert_eq!(incident["counters"]["oomGroupKill"], 1);
    scene.close(0);
}

/// A process that starts children until one of them hits the limit, before it has left its parent's memory.
fn at_the_limit(name: &str, settings: &str) -> (Scene, Value, u64) {
    let mut scene = Scene::open(name, settings);
    scene.pod("shared", &[("app", "16Mi"), ("side", "16Mi")]);
    let mut parent = scene.run("default/shared/app", &["workload", "spawn", "--size", "64Mi"]);
    let incident = scene.incident("default/shared");
    parent.killed();
    (scene, incident, u64::from(parent.pid()))
}
