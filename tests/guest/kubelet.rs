//! Beside a kubelet: its pods are known by their cgroups, named by the container runtime, and evicted without harm to what
//! is not known.
//!
//! The cgroups are made here as a kubelet and a runtime make them, and the runtime is a fake.

use std::{collections::BTreeSet, fs, path::Path, thread, time::Duration};

use enforcer::{
    model::QosClass,
    policy::CgroupDriver::{Cgroupfs, Systemd},
};
use enforcer_tests::{
    expect::assert_holds,
    kernel,
    load::Load,
    random::Random,
    stream::is,
    wait::{TIMEOUT, wait_until},
};
use serde_json::{Value, json};

mod acting;
mod arriving;
mod brief;
mod contain;
mod cpus;
mod hanging;
mod named;
mod node;
mod restarted;
mod rivals;
#[path = "../../enforcer/src/cri/fake.rs"]
#[expect(dead_code, reason = "the client's own tests use more of it")]
mod runtime;
mod scores;
mod soft;
mod specs;
mod terminating;

use node::{Node, Placed};

const MIB: u64 = 1 << 20;

/// The sandbox's place among a pod's cgroups.
const SANDBOX: usize = 0;

#[guest_test(daemon)]
fn pods_are_known_by_their_cgroups_and_named_once_the_runtime_answers() {
    for driver in [Cgroupfs, Systemd] {
        let mut node = Node::new("known", driver);
        let web = node.pod(QosClass::Burstable, "shop", "web", &["app", "proxy"]);
        let daemon = node.start("unknownPodGrace: 0s");
        let mut stream = daemon.follow().unwrap();
        let is_of =
            |event: &Value, kind: &str, source: &str| is(event, kind) && event["data"]["source"] == source;
        stream.wait_for("no runtime", TIMEOUT, |event| is_of(event, "source.down", "runtime")).unwrap();
        // The kubelet admits the pods, and does not know what would be reserved here.
        let reserve = ["reserve", "batch", "--memory", "1Mi", "--ttl", "1h", "--reason", "batch work"];
        let refused = daemon.verb(&reserve).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(refused.status.code() == Some(77) && said.contains("a kubelet admits the pods"), "{said}");
        let unnamed = format!("(unknown)/{}", web.uid);
        stream.wait_for_pod("pod.added", &unnamed, TIMEOUT).unwrap();

        node.serve();
        stream.wait_for("the runtime", TIMEOUT, |event| is_of(event, "source.up", "runtime")).unwrap();
        stream.wait_for_pod("pod.changed", "shop/web", TIMEOUT).unwrap();
        let web_of = |view: &[Value]| view.iter().find(|pod| pod["name"] == "web").cloned();
        wait_until("the pod's name in the view", || web_of(&node::pods(&daemon)).is_some());
        let pod = &web_of(&node::pods(&daemon)).unwrap();
        assert_holds(
            pod,
            &json!({
                "namespace": "shop",
                "name": "web",
                "uid": web.uid,
                "qosClass": "Burstable",
                "state": "active",
                "cgroup": web.path(),
                "containers": [
                    {"name": "app", "cgroup": web.container_path(1), "cgroupId": web.container_id(1)},
                    {"name": "proxy", "cgroup": web.container_path(2), "cgroupId": web.container_id(2)},
                ],
            }),
        );
        // One that comes while all are named is named as well.
        let mut late = node.pod(QosClass::BestEffort, "shop", "late", &[]);
        stream.wait_for_pod("pod.added", "shop/late", TIMEOUT).unwrap();
        // As on a node, whose sandbox has a name before its containers have cgroups.
        node.add_container(&mut late, "app");
        let shown = || {
            node::pods(&daemon)
                .iter()
                .any(|pod| pod["name"] == "late" && pod["containers"][0]["cgroup"] == late.container_path(1))
        };
        wait_until("the container of the late pod", shown);
        drop((web, late));
        for name in ["shop/web", "shop/late"] {
            stream.wait_for_pod("pod.removed", name, TIMEOUT).unwrap();
        }
        let strangers = stream.of("degraded.entered").filter(|event| event["data"]["what"] == "stranger");
        assert_eq!(strangers.count(), 0);
        daemon.stop().unwrap();
    }
}

/// Ten pods with three containers each: every kill at a container's limit is reported with that container.
#[guest_test(daemon)]
fn every_kill_names_its_container() {
    let mut node = Node::new("named", Systemd);
    node.serve();
    let class = |number: usize| [QosClass::BestEffort, QosClass::Burstable, QosClass::Guaranteed][number % 3];
    let names = ["a", "b", "c"];
    let pods: Vec<Placed> =
        (0..10).map(|number| node.pod(class(number), "ns", &format!("p{number}"), &names)).collect();
    let daemon = node.start("");
    let mut stream = daemon.follow().unwrap();
    for number in 0..10 {
        // On a slow machine the programs attach for longer than a pod may be without a name: then the name is a change.
        let name = format!("ns/p{number}");
        let has_name = |event: &Value| {
            event["subject"] == name.as_str() && (is(event, "pod.added") || is(event, "pod.changed"))
        };
        stream.wait_for(&name, TIMEOUT, has_name).unwrap();
    }
    let mut random = Random::of_this_run();
    let mut chosen = BTreeSet::new();
    while chosen.len() < 6 {
        chosen.insert((random.below(10), random.below(3)));
    }
    for (number, (pod, container)) in chosen.into_iter().enumerate() {
        let (pod, container) = (usize::try_from(pod).unwrap(), usize::try_from(container).unwrap());
        let placed = &pods[pod];
        let cgroup = placed.cgroup(container + 1);
        cgroup.write("memory.max", "16M").unwrap();
        let mut hog = Load::start(cgroup, &["spike", "--size", "64Mi"]).unwrap();
        // As systemd does with a scope: as soon as it is empty, before its counters can be read.
        let removal = (number % 2 == 0).then(|| {
            let path = cgroup.path().to_owned();
            wait_until("the load in its cgroup", || peak_bytes(&path) >= 8 * MIB);
            thread::spawn(move || while fs::remove_dir(&path).is_err() {})
        });
        assert!(!hog.wait().unwrap().success(), "{}", random.seed());
        if let Some(removal) = removal {
            removal.join().unwrap();
        }
        let path = placed.container_path(container + 1);
        let is_it = |event: &Value| is(event, "oom.incident") && event["data"]["limitOwner"] == path.as_str();
        let incident = stream.wait_for(&format!("the kill in {path}"), TIMEOUT, is_it).unwrap();
        let place = json!({"namespace": "ns", "pod": format!("p{pod}"), "container": names[container]});
        assert_eq!(incident["subject"], format!("ns/p{pod}"), "{incident}");
        assert_holds(
            &incident["data"],
            &json!({"scope": "container", "trigger": place, "victims": [place], "reconciled": true}),
        );
    }
    assert_eq!(stream.of("oom.incident").count(), 6, "{}", random.seed());

    // A pod that was made a moment ago, with its kill.
    let young = node.pod(QosClass::BestEffort, "ns", "young", &["app"]);
    young.cgroup(1).write("memory.max", "16M").unwrap();
    drop(Load::start(young.cgroup(1), &["spike", "--size", "64Mi"]).unwrap().wait());
    let incident = stream.wait_for_pod("oom.incident", "ns/young", TIMEOUT).unwrap();
    assert_eq!(incident["data"]["victims"][0]["container"], "app", "{incident}");
    daemon.stop().unwrap();
}

/// The most memory that a cgroup has used, also after its processes' end.
fn peak_bytes(cgroup: &Path) -> u64 {
    fs::read_to_string(cgroup.join("memory.peak")).unwrap().trim().parse().unwrap()
}

/// The pod that fills the node is BestEffort. One that holds more may have a request, one is of kube-system, one is the
/// kubelet's own, one has the score of a critical pod.
#[guest_test(daemon)]
fn an_eviction_spares_the_sandbox_and_every_pod_that_is_not_known_enough() {
    let available_bytes = kernel::meminfo_bytes("MemAvailable").unwrap();
    let threshold_bytes = available_bytes.saturating_sub(700 * MIB);
    let mut node = Node::new("evicted", Systemd);
    node.serve();
    let spared = [
        node.pod(QosClass::Burstable, "shop", "large", &["app"]),
        node.pod(QosClass::BestEffort, "kube-system", "proxy", &["app"]),
        node.static_pod(QosClass::BestEffort, "shop", "own", &["app"]),
        node.pod(QosClass::BestEffort, "storage", "driver", &["app"]),
    ];
    let hog = node.pod(QosClass::BestEffort, "shop", "hog", &["app", "side"]);
    let hold = |placed: &Placed, container: usize, size: &str| {
        let mut load = Load::start(placed.cgroup(container), &["hold", "--huge", "--size", size]).unwrap();
        load.wait_for("ready").unwrap();
        load
    };
    let score = |load: &Load, score: &str| {
        fs::write(format!("/proc/{}/oom_score_adj", load.pid()), score).unwrap();
    };
    let mut others: Vec<Load> = spared.iter().map(|placed| hold(placed, 1, "120Mi")).collect();
    for (load, of) in others.iter().zip(["990", "1000", "1000", "-997"]) {
        score(load, of);
    }
    others.push(hold(&hog, SANDBOX, "1Mi"));
    let mut side = hold(&hog, 2, "1Mi");
    score(&side, "1000");

    let daemon = node.start(&format!(
        "mode: enforce\nunknownPodGrace: 1s\nevictionPressureTransitionPeriod: 1ms\n\
         evictionHard: {{memory.available: {threshold_bytes}}}"
    ));
    let mut stream = daemon.follow().unwrap();
    // It is the only one that may be evicted.
    let next = || {
        let answer = daemon.verb(&["-o", "json", "next"]).output().unwrap();
        serde_json::from_slice::<Value>(&answer.stdout).unwrap_or_default()
    };
    wait_until("a candidate", || next().to_string().contains("hog"));
    let mut filling =
        Load::start(hog.cgroup(1), &["ramp", "--huge", "--no-catch-up", "--rate", "100Mi", "--to", "500Mi"])
            .unwrap();
    score(&filling, "1000");
    let decided = stream.wait_for("a decision", TIMEOUT, |event| is(event, "eviction.decided")).unwrap();
    assert_eq!(decided["subject"], "shop/hog", "{decided}");
    assert_eq!(decided["data"]["annotations"]["offending_containers"], "app,side", "{decided}");
    stream.wait_for_pod("eviction.completed", "shop/hog", TIMEOUT).unwrap();
    assert!(!filling.wait().unwrap().success() && !side.wait().unwrap().success());
    thread::sleep(Duration::from_millis(500));
    for (load, what) in others.iter_mut().zip(["large", "proxy", "own", "driver", "the sandbox"]) {
        assert!(load.lives().unwrap(), "{what} died");
    }
    assert_eq!(stream.of("eviction.decided").count(), 1);
    daemon.stop().unwrap();
}
