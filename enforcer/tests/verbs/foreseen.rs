//! `next` and `headroom`, over a fake daemon with set answers.
use serde_json::{Value, json};

use crate::{Scene, daemon::Answers};

const MIB: u64 = 1 << 20;

fn row(rank: u64, name: &str, priority: i64, usage_mib: u64, request_mib: u64, by: Option<&str>) -> Value {
    let above = i64::try_from(usage_mib * MIB).unwrap() - i64::try_from(request_mib * MIB).unwrap();
    let mut row = json!({
        "rank": rank, "namespace": "default", "name": name, "uid": "u", "qosClass": "Burstable", "evictable": true,
        "statsMissing": false, "exceedsRequest": above > 0, "priority": priority, "usageBytes": usage_mib * MIB,
        "requestBytes": request_mib * MIB, "aboveRequestBytes": above, "anonBytes": usage_mib * MIB, "fileBytes": 4_096,
        "shmemBytes": 0, "currentBytes": usage_mib * MIB, "processCount": rank * 3,
        "growthBytesPerSecond": 12 * MIB, "cgroupId": rank,
    });
    if let Some(by) = by {
        row["decidedBy"] = json!(by);
    }
    row
}

pub(crate) fn ranking() -> Value {
    json!({
        "signal": "memory.available",
        "order": [
            row(1, "hog", 0, 1_250, 0, Some("aboveRequest")), row(2, "cache", 0, 500, 400, Some("priority")),
            row(3, "web", 2_000, 500, 400, Some("exceedsRequest")), row(4, "db", 0, 900, 1_000, Some("aboveRequest")),
            row(5, "queue-with-a-rather-long-name-7d9f8c6b5-x2x4z", 0, 10, 1_000, None),
        ],
        "excluded": [
            {"namespace": "kube-system", "name": "dns", "reason": "critical"},
            {"namespace": "default", "name": "billing", "reason": "protected"},
        ],
    })
}

pub(crate) fn headroom() -> Value {
    json!({
        "signals": [
            {"signal": "memory.available", "availableBytes": 900 * MIB, "capacityBytes": 8_192 * MIB,
             "fillBytesPerSecond": 100 * MIB, "thresholds": [
                {"hard": true, "value": "200Mi", "met": false, "thresholdBytes": 200 * MIB, "headroomBytes": 700 * MIB,
                 "crossedInMs": 7_000},
                {"hard": false, "value": "1Gi", "met": true, "gracePeriodMs": 90_000, "thresholdBytes": 1_024 * MIB,
                 "headroomBytes": -124 * i64::try_from(MIB).unwrap()}]},
            {"signal": "allocatableMemory.available", "availableBytes": 800 * MIB, "capacityBytes": 8_000 * MIB,
             "fillBytesPerSecond": 0, "thresholds": [
                {"hard": true, "value": "200Mi", "met": false, "thresholdBytes": 200 * MIB, "headroomBytes": 600 * MIB}]},
            {"signal": "pid.available", "availableCount": 31_000, "capacityCount": 32_768, "thresholds": [
                {"hard": true, "value": "10%", "met": false, "thresholdCount": 3_276, "headroomCount": 27_724}]},
        ],
        "slices": [
            {"name": "kubepods", "cgroup": "/kubepods", "currentBytes": 7_000 * MIB, "limitBytes": 8_000 * MIB,
             "someAvg10Percent": 12.5, "fullAvg10Percent": 3.25},
            {"name": "burstable", "cgroup": "/kubepods/burstable", "currentBytes": 5_000 * MIB},
        ],
    })
}

pub(crate) fn answers(ranking: &Value, headroom: &Value, mode: &str, orders: &Value) -> Answers {
    let view = json!({"mode": mode, "memoryPressure": false, "pods": []});
    let answers = [
        ("/v1/ranking", ranking.to_string()),
        ("/v1/headroom", headroom.to_string()),
        ("/v1/pods", view.to_string()),
        ("/v1/orders", orders.to_string()),
    ];
    answers.into_iter().map(|(path, body)| (path, body.into_bytes())).collect()
}

fn pause() -> Value {
    json!([{"order": "pause", "reason": "r", "uid": 0, "given": "", "until": "", "leftMs": 1_000}])
}

#[test]
fn who_is_next_is_reported_key_by_key() {
    let scene = Scene::new();
    scene.answer(answers(&ranking(), &headroom(), "enforce", &json!([])));
    let mut reported = scene.run(&["next"]).whole();
    reported.push_str(&scene.run(&["next", "--number", "1"]).whole());
    let pids = Scene::new();
    let ranked = json!({"signal": "pid.available", "order": [row(1, "forks", 0, 1, 0, Some("onlyCandidate"))], "excluded": []});
    pids.answer(answers(&ranked, &headroom(), "enforce", &pause()));
    reported.push_str(&pids.run(&["next", "--signal", "pid.available"]).whole());
    let no_candidate = Scene::new();
    no_candidate.answer(answers(
        &json!({"signal": "memory.available", "order": [], "excluded": []}),
        &headroom(),
        "dry-run",
        &json!([]),
    ));
    reported.push_str(&no_candidate.run(&["next"]).whole());
    insta::assert_snapshot!(reported);
    let json: Value = serde_json::from_str(&scene.run(&["-o", "json", "next"]).out).unwrap();
    assert_eq!(json, ranking());
}

#[test]
fn what_is_left_before_each_threshold_is_reported() {
    let scene = Scene::new();
    scene.answer(answers(&ranking(), &headroom(), "enforce", &json!([])));
    insta::assert_snapshot!(scene.run(&["headroom"]).whole());
    let json: Value = serde_json::from_str(&scene.run(&["-o", "jsonl", "headroom"]).out).unwrap();
    assert_eq!(json, headroom());
}

#[test]
fn without_a_daemon_they_say_what_to_do() {
    let scene = Scene::new();
    let mut reported = String::new();
    for arguments in [&["next"][..], &["headroom"], &["next", "--signal", "memory.availabel"]] {
        reported.push_str(&scene.run(arguments).whole());
    }
    insta::assert_snapshot!(reported);
}
