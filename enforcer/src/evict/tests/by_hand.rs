//! An eviction by order: its events. The cgroup is not real.
use std::{sync::Arc, thread, time::Duration};

use serde_json::{Value, json};

use super::node::{MIB, Node, Pod, guard};
use crate::evict::{Candidate, Ending, ManualEviction, Operator};

fn by_hand(node: &Node, pod: &Pod, grace: Duration) -> ManualEviction {
    of(node.open(pod).unwrap(), grace)
}

fn of(candidate: Candidate, grace: Duration) -> ManualEviction {
    let operator = Operator { uid: 7, pid: 8, reason: String::from("it hangs") };
    ManualEviction::new(Arc::new(candidate), operator, grace)
}

/// What was reported, in short.
fn reported(events: &[crate::journal::Event]) -> Vec<(&'static str, Value)> {
    let short = |event: &crate::journal::Event| {
        let data = &event.data();
        let said =
            [&data["sent"], &data["endedBy"], &data["reason"]].into_iter().find(|said| !said.is_null());
        (event.kind().short(), said.cloned().unwrap_or_default())
    };
    events.iter().map(short).collect()
}

#[test]
fn each_step_is_reported_with_who_ordered_it_and_why() {
    let (node, pod) = (Node::new(0), Pod::new("a"));
    node.add(&pod, 3 * MIB);
    let by_hand = by_hand(&node, &pod, Duration::from_millis(50));
    let decided = by_hand.decided(false, "hash");
    assert_eq!(decided.data()["operator"], json!({"uid": 7, "pid": 8, "reason": "it hangs"}));
    assert_eq!(decided.data()["victim"]["name"], "a");
    assert_eq!(decided.data()["victim"]["currentBytes"], 3 * MIB);
    assert_eq!((&decided.data()["dryRun"], &decided.data()["graceMs"]), (&json!(false), &json!(50)));
    let mut events = Vec::new();
    let ending = thread::scope(|scope| {
        let ending = scope.spawn(|| by_hand.carry_out(|| None, |event| events.push(event)));
        while !node.killed("a") {
            thread::sleep(Duration::from_millis(5));
        }
        node.write("a", "memory.current", "0\n");
        node.write("a", "cgroup.events", "populated 0\nfrozen 0\n");
        ending.join().unwrap()
    });
    assert_eq!(ending.unwrap(), Ending::OnKill);
    assert_eq!(
        reported(&events),
        [
            ("eviction.signalled", json!("SIGTERM")),
            ("eviction.signalled", json!("SIGKILL")),
            ("eviction.completed", json!("SIGKILL")),
        ]
    );
    for event in &events {
        assert_eq!(event.data()["evictionId"], json!(by_hand.id.to_string()));
        assert_eq!(event.data()["operator"]["uid"], 7);
    }
    assert_eq!(events[2].data()["freedBytes"], 3 * MIB);
}

/// If the daemon is killed meanwhile, the next one must know where to look.
#[test]
fn a_decision_names_the_cgroups_that_are_killed_if_the_pods_own_lives_on() {
    let (node, pod) = (Node::new(0), Pod::new("a"));
    node.add(&pod, MIB);
    node.write("a", "app/cgroup.kill", "");
    node.write("a", "app/cgroup.events", "populated 1\nfrozen 0\n");
    let plan = pod.plan();
    let container = &plan.containers[0].cgroup.path;
    let targets = std::slice::from_ref(container);
    let apart = Candidate::open_with_targets(&node.root(), &guard(), &plan, targets).unwrap();
    let id = node.root().open(container).unwrap().id().0;
    let killed = |eviction: &ManualEviction| {
        eviction.decided(false, "hash").data()["victim"]["killedCgroupIds"].clone()
    };
    assert_eq!(killed(&of(apart, Duration::ZERO)), json!([id]));
    assert_eq!(killed(&by_hand(&node, &pod, Duration::ZERO)), Value::Null);
}

#[test]
fn a_cgroup_with_the_daemon_is_not_signalled() {
    let (node, pod) = (Node::new(0), Pod::new("a"));
    node.add(&pod, MIB);
    let by_hand = by_hand(&node, &pod, Duration::from_millis(50));
    // It came in after the decision.
    node.write("a", "cgroup.procs", &format!("{}\n", std::process::id()));
    let mut events = Vec::new();
    by_hand.carry_out(|| None, |event| events.push(event)).unwrap_err();
    assert_eq!(reported(&events), [("eviction.failed", json!("refused"))]);
    assert!(events[0].data()["message"].as_str().unwrap().contains("this daemon"));
    assert!(!node.killed("a"));
    assert_eq!(reported(&[by_hand.unrecorded()]), [("eviction.failed", json!("unrecorded"))]);
}
