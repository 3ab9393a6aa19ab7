//! An eviction by order: its events. The cgroup is not real.
use std::{sync::Arc, thread, time::Duration};

use serde_json::{Value, json};

use super::node::{MIB, Node, Pod};
use crate::evict::{Ending, ManualEviction, Operator};

fn by_hand(node: &Node, pod: &Pod, grace: Duration) -> ManualEviction {
    let operator = Operator { uid: 7, pid: 8, reason: String::from("it hangs") };
    ManualEviction::new(Arc::new(node.open(pod).unwrap()), operator, grace)
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
