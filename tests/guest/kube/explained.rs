//! Events of Kubernetes about pods that are not evicted, and a dry run, which explains and does nothing else.

use std::{fs, process::Command};

use enforcer_tests::{
    cgroup::Cgroup,
    expect::assert_holds,
    kernel,
    kube::{self, NAMESPACE, PATIENCE, documented_roles, wait_for},
    load::Load,
    process::Process,
    stream::is,
};
use serde_json::{Value, json};

use super::{MARGIN_BYTES, MIB, Scene, container_folder, hog, node, shown, small, subject, two};

/// The memory limit of a container, and the one that another writes over it.
const LIMIT_BYTES: u64 = 64 * MIB;
const FOREIGN_BYTES: u64 = 48 * MIB;

#[guest_test(kube_by_hand)]
fn a_dry_run_explains_what_happens_to_pods_and_changes_nothing_at_the_api_server() {
    let mut scene = Scene::open("explained", &documented_roles());
    scene.begin("hog", &kube::deployment("hog", &two()));
    let limited = json!({"requests": {"memory": "16Mi"}, "limits": {"memory": "64Mi"}});
    scene.begin("limited", &kube::pod("limited", &["app", "side"].map(|name| small(name, &limited))));
    let [first, limited] = ["hog", "limited"].map(|app| scene.running(app));
    let evictions = scene.evictions();
    let of_node = || ["EvictionThresholdMet", "SystemOOM"].map(|reason| scene.reported_of_node(reason).len());
    let [met, ooms] = of_node();
    let available_bytes = kernel::meminfo_bytes("MemAvailable").unwrap();
    let settings = |sink: &str| {
        format!(
            "mode: dry-run\n{}\nevictionPressureTransitionPeriod: 1ms\nevictionHard: {{memory.available: {}}}\n\
             sinks: {{kubernetes: {{enabled: true{sink}}}}}",
            node::SETTINGS,
            available_bytes.saturating_sub(MARGIN_BYTES)
        )
    };
    let daemon = scene.start(&settings(""));
    for pod in [&first, &limited] {
        let spec = || Ok(shown(&daemon, pod).filter(|known| !known["spec"].is_null()));
        wait_for("the pod's spec", spec).unwrap();
    }
    let mut stream = daemon.follow().unwrap();
    // Reported once it has lasted, which the rest takes longer than.
    let of_app = container_folder(&daemon, &limited, "app");
    fs::write(of_app.join("memory.max"), FOREIGN_BYTES.to_string()).unwrap();

    let mut load = hog(&first);
    let decided = stream.wait_for("a decision", PATIENCE, |event| is(event, "eviction.decided")).unwrap();
    assert_eq!((&decided["subject"], &decided["data"]["dryRun"]), (&json!(subject(&first)), &json!(true)));

    // The sink goes by the order of what happens: it has passed the decision when the last of these has arrived.
    let place = json!({
        "namespace": NAMESPACE, "pod": kube::name(&limited), "uid": kube::uid(&limited), "container": "app",
    });
    fs::write(of_app.join("memory.high"), (16 * MIB).to_string()).unwrap();
    let mut slow = kube::exec(&limited, "app", &["spike", "--size", "24Mi", "--for", "10s"]).unwrap();
    let is_stall = |event: &Value| is(event, "pressure.rising") && event["subject"] == subject(&limited);
    let stall = stream.wait_for("a stall", PATIENCE, is_stall).unwrap();
    assert_holds(&stall["data"], &place);
    // To reclaim may take longer than to sleep.
    let reason = match stall["data"]["kind"].as_str().unwrap() {
        "memoryHigh" | "throttled" => "MemoryThrottled",
        "memcgReclaim" => "MemoryStalled",
        kind => panic!("a stall of the kind {kind}: {stall}"),
    };
    // It would hardly get on below it.
    fs::write(of_app.join("memory.high"), "max").unwrap();
    slow.wait_for_end(PATIENCE).unwrap();
    // At its own limit, outside of pods: the node has memory.
    let outside = Cgroup::create("explained-outside").unwrap();
    outside.write("memory.max", "33554432").unwrap();
    assert!(!Load::start(&outside, &["spike", "--size", "128Mi"]).unwrap().wait().unwrap().success());
    let is_outside = |event: &Value| is(event, "oom.incident") && event["data"]["scope"] == "system";
    stream.wait_for("the kill outside", PATIENCE, is_outside).unwrap();
    // A process beside the container's own: the kubelet says nothing of it.
    let mut child = kube::exec(&limited, "app", &["spike", "--size", "128Mi"]).unwrap();
    assert!(!child.wait_for_end(PATIENCE).unwrap().success());
    scene.wait_until_reported(&limited, "OOMKilling");

    // Those of earlier scenes are kept. A dry run reclaims nothing.
    assert_eq!(of_node(), [met, ooms]);
    let about = json!({"kind": "Pod", "uid": kube::uid(&limited), "fieldPath": "spec.containers{app}"});
    for (reason, words) in [(reason, "Its tasks w"), ("OOMKilling", "The kernel killed process ")] {
        let event = scene.reported(&limited, reason).pop().unwrap_or_else(|| panic!("no {reason}"));
        assert_holds(&event, &json!({"type": "Warning", "involvedObject": about}));
        assert!(event["message"].as_str().unwrap().starts_with(words), "{event}");
    }
    assert_listed(&[(NAMESPACE, "OOMKilling"), (NAMESPACE, reason)]);
    let is_drift = |event: &Value| is(event, "limits.drifted") && event["subject"] == subject(&limited);
    let drifted = stream.wait_for("the foreign limit", PATIENCE, is_drift).unwrap();
    let [old, new] = [LIMIT_BYTES, FOREIGN_BYTES].map(|bytes| bytes.to_string());
    assert_holds(
        &drifted["data"],
        &json!({
            "namespace": NAMESPACE, "pod": kube::name(&limited), "container": "app", "file": "memory.max",
            "old": old, "new": new, "action": "audited",
        }),
    );
    assert_unchanged(&scene, (&first, &mut load), evictions, &["Evicted", "WouldEvict"]);
    let after = scene.running("limited");
    assert_eq!(kube::restarts(&after), 0, "{after}");
    daemon.stop().unwrap();

    // Where it is wanted, the decision is an Event as well.
    let daemon = scene.start(&settings(", dryRun: true"));
    let would = scene.wait_until_reported(&first, "WouldEvict");
    assert!(
        would["message"].as_str().unwrap().starts_with("The node was low on resource: memory."),
        "{would}"
    );
    assert_unchanged(&scene, (&first, &mut load), evictions, &["Evicted"]);
    // The next scene begins with its memory.
    fs::write(container_folder(&daemon, &first, "app").join("cgroup.kill"), "1").unwrap();
    load.wait_for_end(PATIENCE).unwrap();
    daemon.stop().unwrap();
}

/// Asserts that `kubectl` lists Events of these namespaces and reasons.
fn assert_listed(reasons: &[(&str, &str)]) {
    let listed = Command::new("kubectl").args(["get", "events", "--all-namespaces"]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for (namespace, reason) in reasons {
        let is_it = |line: &str| line.starts_with(namespace) && line.contains(reason);
        assert!(listed.lines().any(is_it), "no {reason} in {namespace}:\n{listed}");
    }
}

/// Asserts that all Events of that reason are about the node, and begin with these words.
pub(super) fn assert_of_node(scene: &Scene, reason: &str, words: &str) {
    let all = scene.reported_of_node(reason);
    let is_it = |event: &Value| {
        event["involvedObject"]["kind"] == "Node"
            && event["involvedObject"]["name"] == kube::NODE
            && event["message"].as_str().is_some_and(|message| message.starts_with(words))
    };
    assert!(!all.is_empty() && all.iter().all(is_it), "{all:#?}");
}

/// Asserts that the pod that would be evicted runs, that nothing was requested, and that it has no Event of these reasons.
fn assert_unchanged(scene: &Scene, (pod, load): (&Value, &mut Process), evictions: u64, reasons: &[&str]) {
    assert!(load.lives().unwrap(), "it was killed");
    let present = scene.running("hog");
    assert_eq!((kube::uid(&present), kube::restarts(&present)), (kube::uid(pod), 0), "{present}");
    assert_eq!(scene.evictions(), evictions);
    node::assert_unmarked(scene);
    for reason in reasons {
        assert_eq!(scene.reported(pod, reason), [Value::Null; 0], "{reason}");
    }
}
