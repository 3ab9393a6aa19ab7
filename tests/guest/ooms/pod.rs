//! Limits above a container: the pod's and a class's.
use std::fs;

use serde_json::json;

use super::{
    Scene, assert_holds, pod_with,
    scene::{counters, dir, kills, merged, place},
};

#[guest_test(kernel)]
fn an_allocator_in_one_container_kills_in_the_other() {
    let mut scene = Scene::open("pod-limit", "singleProcessOOMKill: true");
    scene.manifest("p", &pod_with("p", "64Mi", &[("c1", ""), ("c2", "")]));
    let pod = "/kubepods/burstable/podp";
    let [c1, c2] = ["c1", "c2"].map(|container| format!("{pod}/{container}"));
    let mut victim = scene.ready("default/p/c1", &["workload", "hold", "--size", "40Mi"]);
    // Less than the victim has, and enough with it.
    let mut allocator = scene.run("default/p/c2", &["workload", "spike", "--size", "30Mi"]);

    let incident = scene.incident("default/p");
    victim.killed();
    assert_holds(
        &incident,
        &json!({
            "scope": "pod",
            "limitOwner": pod,
            "limitSource": "traced",
            "trigger": merged(&json!({"pid": allocator.pid(), "comm": "workload"}), &place("p", "c2", &c2)),
            "victims": [merged(
                &json!({"comm": "workload", "exitCode": 9, "containerInit": false}),
                &place("p", "c1", &c1),
            )],
            "counters": {"oomKill": 1, "oomGroupKill": 0},
            "reconciled": true,
            "reconstructed": false,
        }),
    );
    victim.assert_is(&incident["victims"][0]);
    // The kernel's own words: the limit was the pod's, and the kill is counted where the victim was.
    assert_eq!(counters(pod)["oomKill"], 0);
    assert_eq!(kills(&c1), json!({"oomKill": 1, "oomGroupKill": 0}));
    // A kernel that does not see the first victim's memory come back in time kills a second one, which is reported then.
    if counters(&c2)["oomKill"] == 1 {
        allocator.killed();
        let second = scene.incident("default/p");
        assert_holds(
            &second,
            &json!({"scope": "pod", "limitOwner": pod, "victims": [{"pid": allocator.pid(), "container": "c2"}]}),
        );
    } else {
        assert!(counters(pod)["oom"].as_u64().unwrap() >= 1);
        assert!(allocator.process.lives().unwrap());
    }
    scene.close(0);
}

#[guest_test(kernel)]
fn a_class_that_is_lowered_below_what_it_has() {
    let mut scene = Scene::open("class-limit", "");
    scene.pod("p", &[("app", "64Mi")]);
    let cgroup = "/kubepods/burstable/podp/app";
    let mut victim = scene.ready("default/p", &["workload", "hold", "--size", "40Mi"]);
    // The kernel kills in the writer's own call, before anybody can undo what it wrote.
    let class = dir("/kubepods/burstable").join("memory.max");
    let before = fs::read_to_string(&class).unwrap();
    fs::write(&class, "8388608").unwrap();
    let incident = scene.incident("default/p");
    victim.killed();
    fs::write(&class, before).unwrap();
    assert_holds(
        &incident,
        &json!({
            "scope": "qos",
            "limitOwner": "/kubepods/burstable",
            "limitSource": "traced",
            "trigger": {"pid": std::process::id(), "pod": null, "container": null},
            "victims": [merged(&json!({"comm": "workload", "exitCode": 9}), &place("p", "app", cgroup))],
            "reconciled": true,
            "reconstructed": false,
        }),
    );
    victim.assert_is(&incident["victims"][0]);
    assert_eq!(counters(cgroup)["oomKill"], incident["counters"]["oomKill"]);
    scene.close(0);
}
