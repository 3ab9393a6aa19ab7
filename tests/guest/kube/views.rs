//! What an operator sees of the node's pods.

use std::{collections::BTreeSet, time::SystemTime};

use enforcer_tests::{
    daemon::Daemon,
    expect::assert_holds,
    kube::{self, wait_for},
};
use serde_json::{Value, json};

use super::{shown, subject, view};

/// Asserts that each verb lists exactly these pods, that each has a spec of the source that answers, read after `since_ms`,
/// that `why` names the pod that it is asked about, and that the node is known to have room on its disk.
pub(super) fn assert_listed(daemon: &Daemon, pods: &[&Value], since_ms: u128) {
    let now_ms = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
    let events = daemon.events().unwrap();
    let up = events.iter().rev().find(|event| event["data"]["source"] == "specs").unwrap();
    let source = up["data"]["message"].as_str().unwrap().split(':').next().unwrap();
    for pod in pods {
        let known = shown(daemon, pod).unwrap();
        assert_holds(&known, &json!({"state": "active", "spec": {"source": source, "provenance": "live"}}));
        let read_ms = u128::from(known["spec"]["readMs"].as_u64().unwrap());
        assert!((since_ms..=now_ms).contains(&read_ms), "{since_ms} to {now_ms}: {known}");
    }
    let expected: BTreeSet<String> = pods.iter().map(|pod| subject(pod)).collect();
    let names = |rows: &[Value]| -> BTreeSet<String> {
        let name = |row: &Value| Some(format!("{}/{}", row["namespace"].as_str()?, row["name"].as_str()?));
        rows.iter().filter_map(name).collect()
    };
    let next = answer(daemon, &["next", "--number", "100"]);
    let ranked = [&next["order"], &next["excluded"]].map(|rows| rows.as_array().unwrap().clone()).concat();
    assert_eq!(names(&ranked), expected, "{next}");
    let assert_fresh = |row: &Value| {
        assert_holds(&row["spec"], &json!({"source": source, "provenance": "live"}));
        assert!(row["spec"]["ageMs"].is_u64(), "{row}");
    };
    next["order"].as_array().unwrap().iter().for_each(assert_fresh);
    let top = answer(daemon, &["top"]);
    let classes = top["classes"].as_array().unwrap().iter();
    let shown: Vec<Value> = classes.flat_map(|class| class["pods"].as_array().unwrap().clone()).collect();
    assert_eq!(names(&shown), expected, "{top}");
    shown.iter().for_each(assert_fresh);
    let last = pods.last().unwrap();
    let why = daemon.verb(&["why", &subject(last)]).output().unwrap();
    let why = String::from_utf8_lossy(&why.stdout).into_owned();
    assert!(why.contains(kube::name(last)) && why.contains("OOM"), "{why}");
    // It is asked for within half a minute of the start.
    wait_for("the kubelet's DiskPressure", || Ok((view(daemon)["diskPressure"] == false).then_some(())))
        .unwrap();
}

/// What a verb says as JSON.
fn answer(daemon: &Daemon, verb: &[&str]) -> Value {
    let output = daemon.verb(&[&["-o", "json"], verb].concat()).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{verb:?}: {error}: {output:?}"))
}
