//! Cgroups that die as a whole.
use std::time::Duration;

use enforcer_tests::cgroup::Cgroup;
use serde_json::json;

use super::{
    Scene, assert_holds,
    scene::{counters, kills, place, start, victims, wait_for_processes},
};

/// A container of that many processes, of which the last runs into the limit.
fn whole_container(name: &str, processes: usize, limit: &str, spike: &str) {
    let mut scene = Scene::open(name, "");
    scene.pod("many", &[("app", limit), ("side", "32Mi")]);
    let cgroup = "/kubepods/burstable/podmany/app";
    // None of them asks to die with its parent: each is there until the kernel comes to it.
    let script = format!("i=0; while [ $i -lt {} ]; do sleep 600 & i=$((i+1)); done; wait", processes - 2);
    let mut parent = scene.run("default/many/app", &["sh", "-c", &script]);
    let mut members = wait_for_processes(cgroup, processes - 1);
    let mut hog = scene.run("default/many/app", &["workload", "spike", "--size", spike]);
    members.push(u64::from(hog.pid()));
    members.sort_unstable();

    let incident = scene.incident("default/many");
    hog.killed();
    parent.killed();
    assert_eq!(victims(&incident), members, "one incident with every process of the container");
    // An incident closes a second after its mark, and among so many an end may come later.
    let ends = incident["victims"].as_array().unwrap().iter().map(|victim| &victim["exitCode"]);
    assert!(ends.clone().all(|end| end.is_null() || *end == 9), "{incident:#}");
    assert!(ends.clone().any(|end| *end == 9), "{incident:#}");
    let member = place("many", "app", cgroup);
    assert_holds(
        &incident,
        &json!({
            "scope": "container",
            "limitOwner": cgroup,
            "limitSource": "traced",
            "trigger": {"pid": hog.pid(), "container": "app"},
            "victims": vec![member; processes],
            "counters": kills(cgroup),
            "reconciled": true,
            "reconciliation": "matched",
            "reconstructed": false,
        }),
    );
    assert_eq!(incident["counters"]["oomGroupKill"], 1);
    let killed = incident["counters"]["oomKill"].as_u64().unwrap();
    let reported = u64::try_from(processes).unwrap();
    // The kernel counts the first one twice.
    assert!((reported..=reported + 1).contains(&killed), "{killed} of {reported}");
    scene.close(0);
}

#[guest_test(kernel)]
fn of_five_processes() {
    whole_container("five", 5, "32Mi", "128Mi");
}

#[guest_test(daemon)]
fn of_two_hundred_processes() {
    whole_container("two-hundred", 200, "192Mi", "512Mi");
}

/// The kernel counts the kills in the cgroup that the container made, the first of them twice, and the group above it.
#[guest_test(kernel)]
fn of_a_cgroup_that_the_container_made() {
    let mut scene = Scene::open("nested", "");
    scene.pod("nested", &[("app", "32Mi"), ("side", "32Mi")]);
    let container = "/kubepods/burstable/podnested/app";
    let inner = Cgroup::create(&format!("{container}/inner")[1..]).unwrap();
    let cgroup = format!("{container}/inner");
    let mut group = 0;
    for _ in 0..3 {
        let mut bystander = start(&inner, "exec sleep 600");
        wait_for_processes(&cgroup, 1);
        let mut hog = start(&inner, "exec workload spike --size 128Mi");
        group += 1;
        let incident = scene.incident("default/nested");
        hog.killed();
        bystander.killed();
        let mut members = vec![u64::from(hog.pid()), u64::from(bystander.pid())];
        members.sort_unstable();
        assert_eq!(victims(&incident), members);
        let member = place("nested", "app", &cgroup);
        assert_holds(
            &incident,
            &json!({
                "scope": "container",
                "limitOwner": container,
                "victims": vec![member; 2],
                "counters": {"oomGroupKill": 1},
                "countersAfter": {"oomKill": counters(&cgroup)["oomKill"], "oomGroupKill": group},
                "reconciliation": "matched",
                "reconstructed": false,
            }),
        );
    }
    assert_eq!(counters(container)["oomGroupKill"], 3);
    // What counters show is reported once their records are three seconds late.
    scene.stream.drain(Duration::from_secs(4));
    scene.close(0);
    drop(inner);
}
