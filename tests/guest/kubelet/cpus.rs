//! CPUs that a kubelet gives: where a container's differ from the kubelet's record, that is reported and nothing is written.

use std::{collections::BTreeMap, fs, thread, time::Duration};

use enforcer::{model::QosClass, policy::CgroupDriver::Systemd};
use enforcer_tests::{
    cgroup::ROOT,
    expect::assert_holds,
    stream::is,
    wait::{TIMEOUT, wait_until},
};
use serde_json::{Value, json};

use super::node::{self, Node, Placed};

/// Hands the controllers on to a pod's containers, as a runtime does.
fn hand_on(placed: &Placed) {
    let mut folder = String::from(ROOT);
    for part in placed.path().split('/') {
        folder = format!("{}/{part}", folder.trim_end_matches('/'));
        fs::write(format!("{folder}/cgroup.subtree_control"), "+cpuset").unwrap();
    }
}

/// What the files of these pods' cgroups hold that the daemon writes where the cgroups are its own.
fn held(pods: &[&Placed]) -> BTreeMap<String, String> {
    const FILES: [&str; 6] =
        ["cgroup.subtree_control", "cpu.max", "cpu.weight", "cpuset.cpus", "memory.max", "memory.oom.group"];
    let cgroups =
        pods.iter().flat_map(|placed| [placed.path(), placed.container_path(0), placed.container_path(1)]);
    let files = cgroups.flat_map(|path| FILES.map(|file| format!("{ROOT}{path}/{file}")));
    files.map(|file| (file.clone(), fs::read_to_string(&file).unwrap())).collect()
}

#[guest_test(daemon)]
fn cpus_other_than_those_of_the_kubelets_record_are_reported_once_and_left() {
    let mut node = Node::new("cpus", Systemd);
    node.serve();
    let own = node.pod(QosClass::Guaranteed, "shop", "own", &["app"]);
    let other = node.pod(QosClass::Burstable, "shop", "other", &["app"]);
    for placed in [&own, &other] {
        hand_on(placed);
    }
    let record = json!({
        "policyName": "static", "defaultCpuSet": "0", "entries": {&own.uid: {"app": "1"}}, "checksum": 0,
    });
    fs::create_dir_all(node.kubelet_root()).unwrap();
    fs::write(node.kubelet_root().join("cpu_manager_state"), record.to_string()).unwrap();
    own.cgroup(1).write("cpuset.cpus", "1").unwrap();
    // It is not kept off the CPU that is another's.
    other.cgroup(1).write("cpuset.cpus", "0-1").unwrap();
    let before = held(&[&own, &other]);

    let daemon = node.start("mode: enforce\ncpuManagerPolicy: static\nreservedSystemCPUs: \"0\"");
    let mut stream = daemon.follow().unwrap();
    wait_until("both pods by name", || {
        node::pods(&daemon).iter().filter(|pod| pod["namespace"] == "shop").count() == 2
    });
    let is_it = |event: &Value| is(event, "limits.drifted");
    let drifted = stream.wait_for("limits.drifted", TIMEOUT, is_it).unwrap();
    assert_eq!(drifted["subject"], "shop/other", "{drifted}");
    assert_holds(
        &drifted["data"],
        &json!({
            "cgroup": other.container_path(1), "container": "app", "file": "cpuset.cpus",
            "old": "0", "new": "0-1", "action": "audited",
        }),
    );
    let live = daemon.verb(&["-o", "json", "plan", "--live"]).output().unwrap();
    let live: Value = serde_json::from_slice(&live.stdout).unwrap();
    assert_holds(&live, &json!({"kubeletOwnsCgroups": true, "steps": []}));

    // The kubelet's record is read again and again, and what was reported is not reported again.
    thread::sleep(Duration::from_secs(11));
    let events = daemon.events().unwrap();
    let count = |kind: &str| events.iter().filter(|event| is(event, kind)).count();
    assert_eq!(["limits.drifted", "limits.applied", "limits.restored"].map(count), [1, 0, 0], "{events:#?}");
    assert_eq!(held(&[&own, &other]), before, "the daemon writes nothing");

    // The kubelet gives the CPU back to all: the plan follows its record.
    let record = json!({"policyName": "static", "defaultCpuSet": "0-1", "entries": {}, "checksum": 0});
    fs::write(node.kubelet_root().join("cpu_manager_state"), record.to_string()).unwrap();
    let of_own = |event: &Value| is(event, "limits.drifted") && event["subject"] == "shop/own";
    let drifted = stream.wait_for("limits.drifted of the other pod", TIMEOUT, of_own).unwrap();
    assert_holds(
        &drifted["data"],
        &json!({"file": "cpuset.cpus", "old": "0-1", "new": "1", "action": "audited"}),
    );
    assert_eq!(held(&[&own, &other]), before, "the daemon writes nothing");
    assert_eq!(stream.of("limits.drifted").count(), 2);
    daemon.stop().unwrap();
}
