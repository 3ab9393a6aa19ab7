//! Kills of which no record came: what the kernel counted is reported all the same.
use std::{path::Path, thread};

use enforcer_tests::{cgroup::Cgroup, daemon::Daemon, stream::is, wait::TIMEOUT};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use serde_json::json;

use super::{
    Scene, assert_holds,
    scene::{counters, kills, merged, place, start},
};

/// What eBPF takes; without them the kernel refuses every program.
const FOR_BPF: [CapabilitySet; 3] = [CapabilitySet::BPF, CapabilitySet::PERFMON, CapabilitySet::SYS_ADMIN];

#[guest_test(daemon)]
fn where_no_program_can_be_loaded() {
    // What a thread may not have, the processes that it starts may not either.
    let daemon = thread::spawn(|| {
        for capability in FOR_BPF {
            remove_capability_from_bounding_set(capability).unwrap();
        }
        Daemon::start(Path::new("/tmp/ooms/untraced"), "mode: enforce").unwrap()
    })
    .join()
    .unwrap();
    let mut scene = Scene::of(daemon);
    let said = |what: &'static str| {
        move |event: &serde_json::Value| is(event, "degraded.entered") && event["data"]["what"] == what
    };
    scene.stream.wait_for("the lack of eBPF", TIMEOUT, said("ebpf")).unwrap();
    scene.pod("web", &[("app", "32Mi"), ("log", "32Mi")]);
    let cgroup = "/kubepods/burstable/podweb/app";
    for before in [0, 1] {
        let mut hog = scene.run("default/web/app", &["workload", "spike", "--size", "128Mi"]);
        hog.killed();
        let incident = scene.incident("default/web");
        let now = counters(cgroup);
        assert_eq!(now["oomGroupKill"], before + 1, "one OOM at a time");
        // The container is known, the process is not: no victim is made up.
        let expected = json!({
            "reconstructed": true,
            "scope": "container",
            "limitOwner": cgroup,
            "limitSource": "counters",
            "trigger": null,
            "victims": [],
            "counters": {"oomGroupKill": 1},
            "countersBefore": {"oomGroupKill": before},
            "countersAfter": kills(cgroup),
        });
        assert_holds(&incident, &merged(&expected, &place("web", "app", cgroup)));
    }
    // A cgroup that the container made meanwhile is found by itself, and is the container's.
    let inner = Cgroup::create("kubepods/burstable/podweb/app/inner").unwrap();
    start(&inner, "exec workload spike --size 128Mi").killed();
    let incident = scene.incident("default/web");
    let nested = format!("{cgroup}/inner");
    let expected = json!({"reconstructed": true, "scope": "container", "limitOwner": cgroup, "countersAfter": kills(&nested)});
    let place = place("web", "app", &nested);
    assert_holds(&incident, &merged(&json!({"countersBefore": {"oomKill": 0}}), &merged(&expected, &place)));
    scene.close(0);
    drop(inner);
}
