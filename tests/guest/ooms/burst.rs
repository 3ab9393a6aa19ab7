//! Many containers at once.
use std::{
    collections::BTreeMap,
    fs::OpenOptions,
    io::Write as _,
    process::{Command, Stdio},
};

use enforcer_tests::{kernel_log::KernelLog, process::Process};
use serde_json::{Value, json};

use super::{
    Scene, assert_holds, pod_with,
    scene::{Running, counters, dir, kills, place},
};

const PODS: usize = 8;
const CONTAINERS: usize = 5;

#[guest_test(daemon)]
fn of_forty_containers_is_reported_in_full() {
    let mut scene = Scene::open("burst", "singleProcessOOMKill: true");
    let names: Vec<String> = (0..CONTAINERS).map(|number| format!("c{number}")).collect();
    // With all of them at their limits at once, and charges ahead, it could be the pod's that is hit: one more, in which
    // nothing runs, leaves it room.
    let room = [("room", "8Mi")];
    let containers: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "4Mi")).chain(room).collect();
    let manifests: Vec<_> = (0..PODS).map(|pod| pod_with(&format!("b{pod}"), "", &containers)).collect();
    scene.manifest("all", &manifests.join("---\n"));

    // All wait for one writer, whose end lets all go at once.
    let gate = "/tmp/ooms/burst/gate";
    assert!(Command::new("mkfifo").arg(gate).status().unwrap().success());
    let mut running: BTreeMap<String, Running> = BTreeMap::new();
    for pod in 0..PODS {
        for container in &names {
            let cgroup = format!("/kubepods/burstable/podb{pod}/{container}");
            let script = format!(
                "read line < {gate}; echo 0 > {}/cgroup.procs || exit 1; exec tail /dev/zero",
                dir(&cgroup).display()
            );
            let child = Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).spawn().unwrap();
            running.insert(cgroup, Running::new(Process::new(child)));
        }
    }
    let mut log = KernelLog::from_now_on().unwrap();
    // Held open: one that comes late must not wait for another opening.
    let mut opened = OpenOptions::new().write(true).open(gate).unwrap();
    opened.write_all("go\n".repeat(PODS * CONTAINERS).as_bytes()).unwrap();

    for (cgroup, hog) in &mut running {
        hog.killed();
        assert_eq!(counters(cgroup)["oomKill"], 1, "{cgroup}");
    }
    let mut reported: BTreeMap<String, Value> = BTreeMap::new();
    for pod in 0..PODS {
        for _ in &names {
            let incident = scene.incident(&format!("default/b{pod}"));
            let cgroup = incident["victims"][0]["cgroup"].as_str().unwrap().to_owned();
            assert_eq!(reported.insert(cgroup, incident), None, "reported twice");
        }
    }
    for (cgroup, hog) in &running {
        let mut parts = cgroup.rsplit('/');
        let (container, pod) = (parts.next().unwrap(), parts.next().unwrap().trim_start_matches("pod"));
        let incident = &reported[cgroup];
        let mut victim = place(pod, container, cgroup);
        victim["comm"] = json!("tail");
        assert_holds(
            incident,
            &json!({
                "scope": "container",
                "limitOwner": cgroup,
                "limitSource": "traced",
                "trigger": {"pid": hog.pid(), "container": container, "cgroup": cgroup},
                "victims": [victim],
                "counters": kills(cgroup),
                "reconciled": true,
                "reconstructed": false,
            }),
        );
        let victim = &incident["victims"][0];
        hog.assert_is(victim);
        // An incident closes a second after its mark, and among so many an end may come later.
        assert!(victim["exitCode"].is_null() || victim["exitCode"] == 9, "{victim:#}");
    }
    // The witness that others rely on; the kernel limits the rate of these lines.
    let logged = log.victims().unwrap();
    println!("reported: {} of {}; by the kernel's log: {}", reported.len(), running.len(), logged.len());
    assert!((1..=running.len()).contains(&logged.len()), "{logged:?}");
    assert!(logged.iter().all(|cgroup| running.contains_key(cgroup)), "{logged:?}");
    scene.close(0);
}
