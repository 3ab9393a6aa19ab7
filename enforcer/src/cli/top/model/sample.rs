//! A sample node for tests.

use serde_json::{Value, json};

use crate::cli::top::picture::Look;

const MIB: u64 = 1 << 20;

/// A possible answer of the daemon: pods of every class and kind, one that grows in the later look.
pub(in crate::cli::top) fn look(at_ms: u64) -> Look {
    let grown = at_ms / 1_000;
    let pods = json!({"mode": "dry-run", "memoryPressure": true, "pods": [
        pod("default", "batch", "u1", "BestEffort", &json!({}), &[("app", "app")]),
        pod("default", "web", "u2", "Burstable", &json!({"requestBytes": 200 * MIB, "limitBytes": 400 * MIB}),
            &[("setup", "init"), ("app", "app"), ("proxy", "sidecar")]),
        pod("shop", "cart", "u3", "Burstable", &json!({"requestBytes": 300 * MIB}), &[("app", "app")]),
        pod("shop", "a-pod-with-a-rather-long-name-7d9f8b6c5-x2x4z", "u4", "Burstable", &json!({"state": "rejected"}), &[]),
        pod("kube-system", "dns", "u5", "Guaranteed", &json!({"requestBytes": 70 * MIB, "limitBytes": 70 * MIB, "critical": true}), &[("app", "app")]),
        pod("shop", "db", "u6", "Guaranteed", &json!({"requestBytes": 1_024 * MIB, "limitBytes": 1_024 * MIB}), &[("app", "app")]),
    ]});
    let memories = json!({"nodeStall": {"someAvg10Percent": 12.34, "fullAvg10Percent": 0.5}, "omitted": 0, "pods": [
        memory("u1", (900 + grown) * MIB, None, 21.5, &[("app", (899 + grown) * MIB, None)]),
        memory("u2", 380 * MIB, Some(400 * MIB), 0.0, &[("app", 300 * MIB, None), ("proxy", 80 * MIB, Some(100 * MIB))]),
        memory("u3", 100 * MIB, None, 0.0, &[("app", 100 * MIB, None)]),
        memory("u5", (40 + grown) * MIB, Some(70 * MIB), 0.1, &[("app", 40 * MIB, Some(70 * MIB))]),
        memory("u6", 512 * MIB, Some(1_024 * MIB), 0.0, &[("app", 512 * MIB, Some(1_024 * MIB))]),
    ]});
    let ranking = json!({"signal": "memory.available", "order": [
        ranked(1, "default", "batch", "u1", 900 * MIB, 0, 104_857_600),
        ranked(2, "default", "web", "u2", 350 * MIB, 200 * MIB, 0),
        ranked(3, "shop", "cart", "u3", 90 * MIB, 300 * MIB, -1_048_576),
    ], "excluded": [
        {"namespace": "kube-system", "name": "dns", "reason": "critical"},
        {"namespace": "shop", "name": "db", "reason": "protected"},
    ]});
    let headroom = json!({"signals": [
        {"signal": "memory.available", "availableBytes": 300 * MIB, "capacityBytes": 8_192 * MIB, "fillBytesPerSecond": 2 * MIB, "thresholds": [
            {"hard": true, "value": "200Mi", "met": false, "thresholdBytes": 200 * MIB, "headroomBytes": 100 * MIB, "crossedInMs": 50_000},
            {"hard": false, "value": "500Mi", "gracePeriodMs": 30_000, "met": true, "thresholdBytes": 500 * MIB},
        ]},
        {"signal": "pid.available", "availableCount": 30_000, "thresholds": [
            {"hard": true, "value": "10%", "met": false, "thresholdCount": 3_200}]},
    ], "slices": [
        {"name": "kubepods", "cgroup": "/kubepods"},
        {"name": "besteffort", "cgroup": "/kubepods/besteffort", "someAvg10Percent": 21.5},
        {"name": "burstable", "cgroup": "/kubepods/burstable", "someAvg10Percent": 0.0},
    ]});
    let orders = json!([
        {"order": "protect", "namespace": "shop", "name": "db", "reason": "a migration", "uid": 0, "given": "g", "until": "u", "leftMs": 3_600_000},
        {"order": "pause", "reason": "an upgrade\u{1b}[31m", "uid": 0, "given": "g", "until": "u", "leftMs": 723_000},
    ]);
    reported(at_ms, pods, memories, ranking, headroom, orders)
}

/// That many pods of one class, ranked in their order.
pub(in crate::cli::top) fn crowd(count: usize) -> Look {
    let name = |number: usize| format!("pod-{number:04}");
    let uid = |number: usize| format!("uid-{number:04}");
    let pods: Vec<_> = (0..count)
        .map(|number| {
            pod(
                "default",
                &name(number),
                &uid(number),
                "Burstable",
                &json!({"requestBytes": 50 * MIB}),
                &[("app", "app")],
            )
        })
        .collect();
    let order: Vec<_> = (0..count)
        .map(|number| ranked(number + 1, "default", &name(number), &uid(number), 60 * MIB, 50 * MIB, 0))
        .collect();
    let ranking = json!({"signal": "memory.available", "order": order, "excluded": []});
    let pods = json!({"mode": "enforce", "memoryPressure": false, "pods": pods});
    reported(
        0,
        pods,
        json!({"nodeStall": null, "omitted": 0, "pods": []}),
        ranking,
        json!({"signals": [], "slices": []}),
        json!([]),
    )
}

/// A look made of these answers.
pub(in crate::cli::top) fn reported(
    at_ms: u64,
    pods: Value,
    memories: Value,
    ranking: Value,
    headroom: Value,
    orders: Value,
) -> Look {
    Look {
        at_ms,
        wall_ms: 1_000_000 + at_ms,
        view: serde_json::from_value(pods).unwrap(),
        memories: Ok(serde_json::from_value(memories).unwrap()),
        ranking: Ok(serde_json::from_value(ranking).unwrap()),
        headroom: Ok(serde_json::from_value(headroom).unwrap()),
        orders: serde_json::from_value(orders).unwrap(),
    }
}

/// A pod of the roster; `more` overrides the rest.
pub(in crate::cli::top) fn pod(
    namespace: &str,
    name: &str,
    uid: &str,
    class: &str,
    more: &Value,
    containers: &[(&str, &str)],
) -> Value {
    let containers: Vec<_> = containers
        .iter()
        .map(|(name, kind)| {
            json!({"name": name, "kind": kind, "oomScoreAdj": 0, "cgroup": "/x", "cgroupId": 1})
        })
        .collect();
    let mut pod = json!({"namespace": namespace, "name": name, "uid": uid, "qosClass": class, "priority": 0, "state": "active",
        "reason": null, "startsUnderMemoryPressure": true, "cgroup": "/x", "containers": containers});
    for (key, value) in more.as_object().unwrap() {
        pod[key] = value.clone();
    }
    pod
}

fn ranked(
    rank: usize,
    namespace: &str,
    name: &str,
    uid: &str,
    usage: u64,
    request: u64,
    growth: i64,
) -> Value {
    json!({"rank": rank, "namespace": namespace, "name": name, "uid": uid, "qosClass": "Burstable", "evictable": true,
        "statsMissing": false, "exceedsRequest": usage > request, "priority": 0, "usageBytes": usage, "requestBytes": request,
        "growthBytesPerSecond": growth, "currentBytes": usage + 10 * MIB, "anonBytes": usage, "fileBytes": 10 * MIB,
        "shmemBytes": MIB, "cgroupId": rank})
}

fn memory(
    uid: &str,
    current: u64,
    limit: Option<u64>,
    stall: f64,
    containers: &[(&str, u64, Option<u64>)],
) -> Value {
    let view = |current: u64, limit: Option<u64>| {
        json!({"currentBytes": current, "anonBytes": current, "fileBytes": 0, "shmemBytes": 0, "limitBytes": limit,
            "stall": {"someAvg10Percent": stall, "fullAvg10Percent": 0.0}})
    };
    let containers: Vec<_> = containers
        .iter()
        .map(|(name, current, limit)| {
            let mut container = view(*current, *limit);
            container["name"] = json!(name);
            container
        })
        .collect();
    let mut pod = view(current, limit);
    pod["uid"] = json!(uid);
    pod["containers"] = json!(containers);
    pod
}
