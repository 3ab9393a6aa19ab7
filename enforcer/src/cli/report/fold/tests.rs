use enforcer_events::{Event, Payload};
use serde_json::{Value, json};

use super::{Fold, Range, Report};

mod behind;

/// 2026-01-31T12:00:00Z.
const NOON_MS: i64 = 1_769_860_800_000;
const MIB: u64 = 1 << 20;
const MINUTE_MS: i64 = 60_000;

/// The ids of evictions and incidents.
const FIRST: &str = "01J8Z3NDEKTSV4RRFFQ69G5FA1";
const SECOND: &str = "01J8Z3NDEKTSV4RRFFQ69G5FB2";

/// The hour from noon.
const HOUR: Range = Range { from_ms: NOON_MS, to_ms: NOON_MS + 60 * MINUTE_MS };

/// A journal whose events are appended one by one.
struct Journal {
    fold: Fold,
    sequence: u64,
}

impl Journal {
    fn new() -> Self {
        Self { fold: Fold::new(HOUR), sequence: 0 }
    }

    /// An event that many milliseconds after noon.
    fn add(mut self, after_ms: i64, kind: &str, data: &Value) -> Self {
        self.sequence += 1;
        let kind = enforcer_events::EventType::parse(kind).unwrap();
        let event = Event {
            id: String::from("e"),
            source: String::from("urn:enforcer:n1:b1"),
            subject: String::from("n1"),
            time: super::time(NOON_MS + after_ms),
            sequence: format!("{:020}", self.sequence),
            payload: Payload::parse(kind, data).unwrap(),
        };
        self.fold.take(self.sequence, NOON_MS + after_ms, Some(&event));
        self
    }

    fn report(self) -> Report {
        self.fold.finish(Some(HOUR.to_ms))
    }
}

fn with(mut data: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        data[key.as_str()] = value.clone();
    }
    data
}

fn ranked(rank: u64, name: &str, usage_mib: u64, request_mib: u64) -> Value {
    let above = i64::try_from(usage_mib * MIB).unwrap() - i64::try_from(request_mib * MIB).unwrap();
    json!({
        "rank": rank, "namespace": "default", "name": name, "evictable": true, "statsMissing": false,
        "exceedsRequest": above > 0, "priority": 0, "usageBytes": usage_mib * MIB,
        "requestBytes": request_mib * MIB, "aboveRequestBytes": above,
    })
}

fn decided(id: &str, name: &str) -> Value {
    json!({
        "evictionId": id, "dryRun": false, "signal": "memory.available", "hard": true,
        "thresholdBytes": 200 * MIB, "observedBytes": 199 * MIB, "graceMs": 0,
        "victim": {
            "namespace": "default", "name": name, "uid": "u1", "qosClass": "BestEffort", "priority": 0,
            "cgroup": "/kubepods/besteffort/podu1", "cgroupId": 77, "requestBytes": 0, "statsMissing": false,
            "growthBytesPerSecond": 100 * MIB, "usageBytes": 1_250 * MIB,
            "controller": {"kind": "ReplicaSet", "name": "hog-7d9f"},
        },
        "decidedBy": "exceedsRequest", "rankedCount": 3,
        "ranking": [ranked(1, name, 1_250, 0), ranked(2, "cache", 500, 400), ranked(3, "web", 100, 400)],
        "excluded": [{"namespace": "kube-system", "name": "dns", "reason": "critical"}], "excludedCount": 1,
        "predictedFreedBytes": 1_240 * MIB, "crossedToDecidedMs": 1.204, "message": "m", "configHash": "c",
    })
}

fn ended(id: &str, more: &Value) -> Value {
    let own = json!({"evictionId": id, "namespace": "default", "name": "hog", "uid": "u1", "signal": "memory.available"});
    with(own, more)
}

fn completed(id: &str) -> Value {
    let more = json!({"crossedToSignalledMs": 2.0, "crossedToDeadMs": 34.5, "freedBytes": 1_231 * MIB});
    ended(id, &more)
}

fn shortage(hard: bool) -> Value {
    json!({"signal": "memory.available", "hard": hard, "thresholdBytes": 200 * MIB, "observedBytes": 199 * MIB})
}

fn cleared(hard: bool, after_ms: f64) -> Value {
    with(shortage(hard), &json!({"crossedToClearedMs": after_ms}))
}

fn approach() -> Value {
    json!({
        "kind": "headroom", "signal": "memory.available", "hard": true, "thresholdBytes": 200 * MIB,
        "availableBytes": 900 * MIB, "fillBytesPerSecond": 100 * MIB,
    })
}

fn warned() -> Value {
    let pod = json!({"namespace": "default", "name": "hog", "uid": "u1", "requestBytes": 0});
    with(approach(), &json!({"crossedInMs": 7_000, "pods": [pod], "message": "m"}))
}

fn back() -> Value {
    with(approach(), &json!({"lastedMs": 60_000}))
}

fn started(mode: &str) -> Value {
    json!({
        "mode": mode, "configHash": "c", "staticPodPath": "/p", "memoryAvailableThresholdBytes": null,
        "memoryBytes": 1, "message": "m",
    })
}

fn place(container: &str) -> Value {
    json!({"namespace": "default", "pod": "p", "uid": "u1", "container": container, "cgroup": format!("/kubepods/podu1/{container}")})
}

fn process(pid: u64, container: &str) -> Value {
    let memory = json!({
        "pid": pid, "comm": "workload", "anonBytes": 45 * MIB, "fileBytes": 0, "shmemBytes": MIB, "swapBytes": 0,
        "pgtablesBytes": 0,
    });
    with(place(container), &memory)
}

fn incident(more: &Value) -> Value {
    let counts = json!({"oom": 1, "oomKill": 2, "oomGroupKill": 0});
    let own = json!({
        "incidentId": SECOND, "scope": "pod", "limitOwner": "/kubepods/podu1", "limitSource": "traced",
        "trigger": with(place("c2"), &json!({"pid": 412, "tid": 412, "comm": "allocator"})),
        "kills": 2, "victims": [process(398, "c1"), process(399, "c1")], "timelineMs": {}, "counters": counts,
        "countersBefore": counts, "countersAfter": counts, "reconciled": true, "reconciliation": "matched",
        "reconstructed": false,
    });
    with(own, more)
}

fn stalling(window_ms: u64) -> Value {
    let more = json!({
        "cgroupId": 9, "kind": "memcgReclaim", "stallMs": 120, "windowStallMs": window_ms,
        "limitOwner": "/kubepods/podu1", "limitSource": "argument", "pid": 1, "tid": 1, "comm": "c", "lastingMs": 0,
    });
    with(place("c1"), &more)
}

fn stalls_over() -> Value {
    let more = json!({
        "cgroupId": 9, "lastedMs": 5_000, "stalledMs": {"memcgReclaim": 900, "directReclaim": 50, "throttled": 0},
        "longestStallMs": 140, "records": 3,
    });
    with(place("c1"), &more)
}

/// A report with something of everything.
pub(in super::super) fn everything() -> Report {
    let long = "queue-with-a-rather-long-name-7d9f8c6b5-x2x4z-in-a-namespace";
    let suppressed =
        json!({"signal": "memory.available", "reason": "noCandidate", "message": "no pod may be evicted"});
    let failed = ended(
        "01J8Z3NDEKTSV4RRFFQ69G5FC3",
        &json!({"reason": "stillPopulated", "message": "it still holds processes"}),
    );
    let mut journal = Journal::new();
    journal.sequence = 40;
    journal
        .add(1_000, "config.loaded", &started("dry-run"))
        .add(2_000, "pressure.rising", &warned())
        .add(9_000, "threshold.crossed", &shortage(true))
        .add(9_001, "eviction.decided", &with(decided(SECOND, "hog"), &json!({"dryRun": true})))
        .add(10_000, "pressure.cleared", &cleared(true, 1_000.0))
        .add(11_000, "config.loaded", &started("enforce"))
        .add(60_000, "threshold.crossed", &shortage(true))
        .add(60_001, "eviction.decided", &decided(FIRST, long))
        .add(
            60_040,
            "eviction.completed",
            &ended(FIRST, &json!({"crossedToDeadMs": 34.5, "freedBytes": 1_231 * MIB})),
        )
        .add(61_000, "eviction.failed", &failed)
        .add(62_000, "eviction.suppressed", &suppressed)
        .add(65_000, "oom.incident", &incident(&json!({})))
        .add(70_000, "pressure.rising", &stalling(150))
        .add(80_000, "pressure.cleared", &stalls_over())
        .report()
}

/// A name that would be markup.
pub(in super::super) const HOSTILE: &str = "<script>alert(1)</script><img onerror=\"b\"'><b>\u{1b}[2J";

/// A report whose every name is hostile.
pub(in super::super) fn hostile() -> Report {
    let victim = with(decided(FIRST, HOSTILE)["victim"].clone(), &json!({"namespace": HOSTILE}));
    let ranking = json!([with(ranked(1, HOSTILE, 5, 0), &json!({"namespace": HOSTILE}))]);
    let excluded = json!([{"namespace": HOSTILE, "name": HOSTILE, "reason": HOSTILE}]);
    let more = json!({"victim": victim, "ranking": ranking, "excluded": excluded, "decidedBy": HOSTILE});
    let failed = ended(FIRST, &json!({"message": HOSTILE}));
    let suppressed = json!({"signal": HOSTILE, "reason": HOSTILE, "message": HOSTILE});
    let killed = with(process(1, HOSTILE), &json!({"namespace": HOSTILE, "pod": HOSTILE}));
    let dead = json!({"victims": [killed], "limitOwner": HOSTILE});
    let stalling = with(stalling(150), &json!({"limitOwner": HOSTILE, "kind": HOSTILE}));
    let lost = json!({"what": "journal", "message": HOSTILE, "lostEvents": 1});
    Journal::new()
        .add(0, "config.loaded", &started(HOSTILE))
        .add(1, "eviction.decided", &with(decided(FIRST, HOSTILE), &more))
        .add(2, "eviction.failed", &failed)
        .add(3, "eviction.suppressed", &suppressed)
        .add(4, "oom.incident", &incident(&dead))
        .add(5, "pressure.rising", &stalling)
        .add(6, "degraded.entered", &lost)
        .report()
}

#[test]
fn an_eviction_is_one_from_its_decision_to_its_end() {
    let report = Journal::new()
        .add(0, "eviction.decided", &decided(FIRST, "hog"))
        .add(40, "eviction.completed", &completed(FIRST))
        .add(41, "eviction.completed", &completed(FIRST))
        .report();
    let [eviction] = report.evictions.items.as_slice() else { panic!("{:?}", report.evictions.items) };
    assert_eq!((eviction.outcome, eviction.victim().as_str()), ("completed", "default/hog"));
    assert_eq!((eviction.crossed_to_dead_ms, eviction.freed_bytes), (Some(34.5), Some(1_231 * MIB)));
    assert_eq!(eviction.crossed_to_decided_ms, Some(1.204));
    assert_eq!(eviction.workload.as_deref(), Some("ReplicaSet/hog-7d9f"));
    assert_eq!(report.evictions.freed_bytes, 1_231 * MIB);
    let [workload] = report.evictions.workloads.items.as_slice() else { panic!("one workload") };
    assert_eq!((workload.name.as_str(), workload.evicted), ("default/ReplicaSet/hog-7d9f", 1));
}

#[test]
fn what_was_only_decided_freed_nothing() {
    let mut journal = Journal::new();
    for more in [
        json!({"dryRun": true}),
        json!({"dryRun": true, "paused": true}),
        json!({"dryRun": true, "unarmed": true}),
    ] {
        journal = journal.add(0, "eviction.decided", &with(decided(FIRST, "hog"), &more));
    }
    let report = journal.report();
    let outcomes: Vec<_> =
        report.evictions.outcomes.iter().map(|(outcome, count)| (*outcome, *count)).collect();
    assert_eq!(outcomes, [("dryRun", 1), ("paused", 1), ("unarmed", 1)]);
    assert_eq!((report.evictions.freed_bytes, report.evictions.workloads.items[0].would_have), (0, 3));
}

#[test]
fn an_end_without_a_decision_says_that_the_decision_is_not_kept() {
    let report = Journal::new().add(40, "eviction.completed", &completed(FIRST)).report();
    let [eviction] = report.evictions.items.as_slice() else { panic!("one eviction") };
    assert!(!eviction.decision_kept && eviction.decided_by.is_none(), "{eviction:?}");
    assert_eq!((eviction.outcome, eviction.victim().as_str()), ("completed", "default/hog"));
}

#[test]
fn a_decision_without_an_end_is_open_and_neither_evicted_nor_failed() {
    let report = Journal::new().add(0, "eviction.decided", &decided(FIRST, "hog")).report();
    assert_eq!(report.evictions.items[0].outcome, "open");
    let workload = &report.evictions.workloads.items[0];
    assert_eq!((workload.evicted, workload.failed, workload.open), (0, 0, 1));
}

#[test]
fn what_was_decided_before_the_range_is_not_of_it() {
    let report = Journal::new()
        .add(-1, "eviction.decided", &decided(FIRST, "hog"))
        .add(40, "eviction.completed", &completed(FIRST))
        .report();
    assert!(report.evictions.items.is_empty() && report.evictions.outcomes.is_empty(), "{report:?}");
    assert!(report.exceeded.requests.items.is_empty(), "{report:?}");
}

#[test]
fn shortages_without_an_eviction_are_counted_by_reason() {
    let suppressed =
        |reason: &str| json!({"signal": "memory.available", "reason": reason, "message": reason});
    let report = Journal::new()
        .add(1, "eviction.suppressed", &suppressed("noCandidate"))
        .add(2, "eviction.suppressed", &suppressed("breakerOpen"))
        .add(3, "eviction.suppressed", &suppressed("noCandidate"))
        .report();
    let found: Vec<_> = report
        .suppressed
        .items
        .iter()
        .map(|one| (one.reason.as_str(), one.count, one.time.as_str()))
        .collect();
    let expected =
        [("noCandidate", 2, "2026-01-31T12:00:00.003Z"), ("breakerOpen", 1, "2026-01-31T12:00:00.002Z")];
    assert_eq!(found, expected);
}

#[test]
fn pods_above_their_request_are_named_also_if_another_was_chosen() {
    let report = Journal::new()
        .add(0, "eviction.decided", &decided(FIRST, "hog"))
        .add(1, "eviction.decided", &decided(SECOND, "hog"))
        .report();
    let above: Vec<_> = report
        .exceeded
        .requests
        .items
        .iter()
        .map(|one| (one.pod.as_str(), one.decisions, one.others_chosen, one.most_above_bytes / MIB))
        .collect();
    // web stays within its request.
    assert_eq!(above, [("default/hog", 2, 0, 1_250), ("default/cache", 2, 2, 100)]);
}

#[test]
fn kills_are_counted_by_limit_and_by_victim_without_what_shared_its_memory() {
    let sharer = with(process(400, "c1"), &json!({"sharesMemoryWith": 398, "sharedBy": "kill"}));
    let victims = json!([process(398, "c1"), process(399, "c3"), sharer]);
    let report = Journal::new()
        .add(0, "oom.detected", &json!({"incidentId": SECOND, "reconstructed": false}))
        .add(5, "oom.incident", &incident(&json!({"victims": victims})))
        .report();
    let oom = &report.oom;
    assert_eq!((oom.incidents, oom.kills, oom.open), (1, 2, 0));
    assert_eq!(oom.scopes["pod"].kills, 2);
    assert_eq!(oom.limits.items[0].limit_owner.as_deref(), Some("/kubepods/podu1"));
    let victims: Vec<_> = oom.victims.items.iter().map(|one| (one.name.as_str(), one.kills)).collect();
    assert_eq!(victims, [("default/p/c1", 1), ("default/p/c3", 1)]);
    assert_eq!(oom.victims.items[0].most_bytes, Some(46 * MIB));
    assert_eq!((oom.namespaces.items[0].name.as_str(), oom.namespaces.items[0].kills), ("default", 2));
    let pairs: Vec<_> = report
        .exceeded
        .triggers
        .items
        .iter()
        .map(|one| (one.trigger.as_str(), one.victim.as_str(), one.same_pod))
        .collect();
    assert_eq!(pairs, [("default/p/c2", "default/p/c1", true), ("default/p/c2", "default/p/c3", true)]);
}

#[test]
fn kills_that_only_counters_show_belong_to_the_cgroup_and_say_so() {
    let counted = json!({
        "victims": [], "trigger": null, "reconstructed": true, "reconciled": false, "kills": 3, "scope": null,
        "limitOwner": null, "limitSource": "unknown", "cgroup": "/system.slice/a",
    });
    let report = Journal::new().add(5, "oom.incident", &incident(&counted)).report();
    let oom = &report.oom;
    assert_eq!((oom.kills, oom.reconstructed, oom.unreconciled), (3, 1, 1));
    assert_eq!(oom.scopes["unknown"].kills, 3);
    assert_eq!((oom.victims.items[0].name.as_str(), oom.victims.items[0].kills), ("/system.slice/a", 3));
    assert!(report.exceeded.triggers.items.is_empty());
}

#[test]
fn a_mark_that_killed_none_is_no_kill_and_one_without_an_end_is_open() {
    let trigger = with(place("c2"), &json!({"pid": 1, "tid": 1, "comm": "c"}));
    let averted = json!({"incidentId": FIRST, "cause": "ownEviction", "trigger": trigger, "victims": []});
    let report = Journal::new()
        .add(0, "oom.detected", &json!({"incidentId": FIRST, "reconstructed": false}))
        .add(1, "oom.averted", &averted)
        .add(2, "oom.detected", &json!({"incidentId": SECOND, "reconstructed": false}))
        .report();
    assert_eq!((report.oom.kills, report.oom.incidents, report.oom.open), (0, 0, 1));
    assert_eq!(report.oom.averted["ownEviction"], 1);
}

#[test]
fn a_killed_pod_has_the_workload_that_a_decision_named() {
    let report = Journal::new()
        .add(0, "eviction.decided", &with(decided(FIRST, "hog"), &json!({"dryRun": true})))
        .add(5, "oom.incident", &incident(&json!({})))
        .report();
    assert_eq!(report.oom.victims.items[0].workload.as_deref(), Some("ReplicaSet/hog-7d9f"));
}

#[test]
fn time_under_pressure_is_from_crossing_to_clearing() {
    let report = Journal::new()
        .add(1_000, "threshold.crossed", &shortage(true))
        .add(1_100, "threshold.crossed", &shortage(false))
        .add(3_000, "pressure.cleared", &cleared(true, 2_000.0))
        .add(5_100, "pressure.cleared", &cleared(false, 4_000.0))
        .add(9_000, "threshold.crossed", &shortage(true))
        .add(9_500, "pressure.cleared", &cleared(true, 500.0))
        .report();
    let found: Vec<_> = report
        .pressure
        .thresholds
        .iter()
        .map(|one| (one.hard, one.shortages, one.total_ms, one.longest_ms, one.at_least, one.open))
        .collect();
    assert_eq!(found, [(false, 1, 4_000, 4_000, false, false), (true, 2, 2_500, 2_000, false, false)]);
}

#[test]
fn pressure_at_the_end_is_counted_until_then_and_marked() {
    let report = Journal::new().add(1_000, "threshold.crossed", &shortage(true)).report();
    let found = &report.pressure.thresholds[0];
    assert!(found.open && found.at_least, "{found:?}");
    assert_eq!(found.total_ms, 60 * 60_000 - 1_000);
    assert_eq!(report.pressure.items[0].end, "open");
}

#[test]
fn without_a_daemon_pressure_is_known_until_the_last_event() {
    let journal = Journal::new().add(1_000, "threshold.crossed", &shortage(true)).add(
        4_000,
        "eviction.suppressed",
        &json!({"signal": "memory.available", "reason": "noCandidate", "message": "m"}),
    );
    let report = journal.fold.finish(None);
    assert_eq!(report.pressure.thresholds[0].total_ms, 3_000);
    assert!(losses(&report).contains(&("ends", None)), "{:?}", report.losses);
}

#[test]
fn a_range_that_the_journal_goes_beyond_is_known_to_its_end_without_a_daemon() {
    let journal = Journal::new().add(-1, "threshold.crossed", &shortage(true)).add(
        60 * MINUTE_MS + 1,
        "threshold.crossed",
        &shortage(true),
    );
    let report = journal.fold.finish(None);
    assert!(losses(&report).is_empty(), "{:?}", report.losses);
    // It was crossed until then, and longer.
    assert_eq!(report.pressure.thresholds[0].total_ms, 60 * 60_000);
}

#[test]
fn pressure_that_began_before_the_range_or_the_journal_counts_within_the_range() {
    let report = Journal::new()
        .add(-10_000, "threshold.crossed", &shortage(true))
        .add(3_000, "pressure.cleared", &cleared(true, 13_000.0))
        .add(4_000, "pressure.cleared", &cleared(false, 600_000.0))
        .report();
    let totals: Vec<_> = report.pressure.thresholds.iter().map(|one| (one.hard, one.total_ms)).collect();
    assert_eq!(totals, [(false, 4_000), (true, 3_000)]);
}

#[test]
fn what_was_open_when_another_daemon_started_is_known_until_the_last_event_before() {
    let report = Journal::new()
        .add(1_000, "threshold.crossed", &shortage(true))
        .add(1_500, "pressure.rising", &stalling(150))
        .add(30_000, "config.loaded", &started("enforce"))
        .report();
    let found = &report.pressure.thresholds[0];
    assert_eq!((found.total_ms, found.at_least, found.open), (500, true, false));
    assert_eq!(report.pressure.items[0].end, "restart");
    assert!(report.stalls.items[0].at_least, "{:?}", report.stalls);
    assert_eq!(report.journal.starts, 1);
    assert!(report.losses.iter().any(|loss| loss.what == "restart"), "{:?}", report.losses);
}

#[test]
fn stalls_have_who_waited_and_whose_limit_it_was() {
    let report = Journal::new()
        .add(1_000, "pressure.rising", &stalling(150))
        .add(61_000, "pressure.rising", &stalling(200))
        .add(80_000, "pressure.cleared", &stalls_over())
        .report();
    let found: Vec<_> = report
        .stalls
        .items
        .iter()
        .map(|one| (one.stalled.as_str(), one.limit_owner.as_deref(), one.stalled_ms, one.at_least))
        .collect();
    let expected = [
        ("default/p/c1", Some("/kubepods/podu1"), 900, false),
        // The node itself was short.
        ("default/p/c1", Some("/"), 50, false),
    ];
    assert_eq!(found, expected);
}

#[test]
fn stalls_that_are_not_over_are_a_lower_bound_and_without_a_begin_the_limit_is_unknown() {
    let open = Journal::new().add(1_000, "pressure.rising", &stalling(150)).report();
    assert_eq!((open.stalls.items[0].stalled_ms, open.stalls.items[0].at_least), (150, true));
    let ended = Journal::new().add(1_000, "pressure.cleared", &stalls_over()).report();
    assert_eq!(ended.stalls.items[0].limit_owner, None);
}

#[test]
fn a_warning_comes_true_if_its_threshold_is_crossed_before_it_is_over() {
    let report = Journal::new()
        .add(1_000, "pressure.rising", &warned())
        .add(9_000, "threshold.crossed", &shortage(true))
        // Again, before the warning is over.
        .add(12_000, "threshold.crossed", &shortage(true))
        .add(60_000, "pressure.cleared", &back())
        .add(100_000, "pressure.rising", &warned())
        .add(130_000, "pressure.cleared", &back())
        .add(140_000, "threshold.crossed", &shortage(true))
        .add(150_000, "pressure.rising", &warned())
        .report();
    let forecasts = &report.forecasts;
    let counts = (forecasts.warnings, forecasts.came_true, forecasts.did_not, forecasts.unknown);
    assert_eq!((counts, forecasts.unforeseen), ((3, 1, 1, 1), 1));
    let first = forecasts.items.last().unwrap();
    assert_eq!((first.crossed_in_ms, first.was_crossed_in_ms), (Some(7_000), Some(8_000)));
    assert_eq!(first.caused_by.as_deref(), Some("default/hog"));
}

#[test]
fn a_soft_threshold_does_not_make_the_hard_ones_warning_true() {
    let report = Journal::new()
        .add(1_000, "pressure.rising", &warned())
        .add(2_000, "threshold.crossed", &shortage(false))
        .add(60_000, "pressure.cleared", &back())
        .report();
    assert_eq!(
        (report.forecasts.came_true, report.forecasts.did_not, report.forecasts.unforeseen),
        (0, 1, 1)
    );
}

fn losses(report: &Report) -> Vec<(&str, Option<u64>)> {
    report.losses.iter().map(|loss| (loss.what, loss.events)).collect()
}

#[test]
fn a_journal_that_begins_within_the_range_says_so() {
    let fresh = Journal::new().add(1_000, "threshold.crossed", &shortage(true)).report();
    assert_eq!(losses(&fresh), [("begins", None)]);
    // Whether the state directory was removed is not known.
    assert!(fresh.losses[0].message.contains("or the state directory was another"), "{:?}", fresh.losses);
    let mut trimmed = Journal::new();
    trimmed.sequence = 41;
    let trimmed = trimmed.add(1_000, "threshold.crossed", &shortage(true)).report();
    assert!(
        trimmed.losses[0].message.ends_with("the 41 events before are no longer kept"),
        "{:?}",
        trimmed.losses
    );
    let whole = Journal::new().add(-1, "threshold.crossed", &shortage(true)).report();
    assert!(losses(&whole).is_empty(), "{:?}", whole.losses);
}

#[test]
fn missing_events_are_lost_and_one_that_a_slow_reader_missed_is_counted_once() {
    let mut journal = Journal::new().add(-1, "threshold.crossed", &shortage(true));
    journal.sequence += 5;
    let mut journal = journal.add(1_000, "threshold.crossed", &shortage(true));
    let gap =
        json!({"fromSequence": "00000000000000000008", "toSequence": "00000000000000000010", "count": 3});
    journal.sequence = 9;
    // It bears the time of the reading, which may be behind the range.
    let journal =
        journal.add(60 * MINUTE_MS + 5, "stream.gap", &gap).add(2_000, "threshold.crossed", &shortage(true));
    assert_eq!(losses(&journal.report()), [("gap", Some(5)), ("gap", Some(3))]);
}

#[test]
fn events_that_the_disk_did_not_take_and_a_degraded_daemon_are_losses_and_an_order_is_none() {
    let report = Journal::new()
        .add(-1, "threshold.crossed", &shortage(true))
        .add(1, "degraded.entered", &json!({"what": "journal", "message": "m", "lostEvents": 12}))
        .add(2, "degraded.entered", &json!({"what": "btf", "message": "m"}))
        .add(3, "degraded.entered", &json!({"what": "pause", "message": "m"}))
        .report();
    assert_eq!(losses(&report), [("degraded", None), ("journal", Some(12))]);
    assert!(report.losses[0].message.ends_with(": btf (1)"), "{:?}", report.losses);
}

#[test]
fn what_is_degraded_when_the_range_begins_is_a_loss_of_it() {
    let entered = |what: &str| json!({"what": what, "message": "m"});
    let open = Journal::new()
        .add(-3, "degraded.entered", &entered("btf"))
        .add(-2, "degraded.entered", &entered("psi"))
        .add(-1, "degraded.left", &entered("psi"));
    let pod = json!({
        "namespace": "default", "name": "web", "uid": "u", "source": "static", "priority": 0, "qosClass": null,
        "critical": null, "requests": null, "limits": null, "containers": [],
    });
    let report = open.add(9, "pod.added", &pod).report();
    let said = |report: &Report| report.losses.iter().map(|loss| loss.message.clone()).collect::<Vec<_>>();
    assert!(said(&report).iter().any(|message| message.ends_with(": btf (1)")), "{:?}", said(&report));
    // Nothing happens within the range.
    let report = Journal::new().add(-3, "degraded.entered", &entered("btf")).report();
    assert!(said(&report).iter().any(|message| message.ends_with(": btf (1)")), "{:?}", said(&report));
}
