#![expect(clippy::float_cmp, reason = "what is counted here is whole, and what is divided is exact")]

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
    sync::Arc,
};

use enforcer_events::Payload;
use serde_json::{Value, json};

use super::{
    counts::{Counts, NAMESPACES},
    *,
};
use crate::{
    journal::{EventType, Journal, Observer as _, Subject},
    model::{PodName, QosClass},
};

/// Every family that there is, whatever has happened.
const FAMILIES: &[&str] = &[
    "enforcer_log_lines_dropped",
    "enforcer_evictions",
    "enforcer_evictions_dry_run",
    "enforcer_evictions_repeated",
    "enforcer_eviction_restarts_killed",
    "enforcer_eviction_failures",
    "enforcer_eviction_suppressed",
    "enforcer_eviction_duration_seconds",
    "enforcer_eviction_freed_bytes",
    "enforcer_eviction_prediction_error_ratio",
    "enforcer_oom_kills",
    "enforcer_memory_available_bytes",
    "enforcer_eviction_threshold_bytes",
    "enforcer_memory_headroom_bytes",
    "enforcer_time_to_threshold_seconds",
    "enforcer_pressure_waiting_seconds",
    "enforcer_pressure_stalled_seconds",
    "enforcer_candidates",
    "enforcer_protected_pods",
    "enforcer_system_cpu_seconds",
    "enforcer_system_memory_bytes",
    "enforcer_system_tasks",
    "enforcer_kernel_memory_bytes",
    "enforcer_reserved_cpus",
    "enforcer_reserved_memory_bytes",
    "enforcer_reserved_tasks",
    "enforcer_reservation_exceeded",
    "enforcer_next_victim",
    "enforcer_events_written",
    "enforcer_events_lost",
    "enforcer_event_log_bytes",
    "enforcer_queue_records",
    "enforcer_event_sink_failures",
    "enforcer_event_sink_lag_records",
    "enforcer_event_sink_last_success_timestamp_seconds",
    "enforcer_bpf_ringbuf_lost",
    "enforcer_bpf_recursion_misses",
    "enforcer_bpf_programs_attached",
    "enforcer_source_up",
    "enforcer_source_last_sync_timestamp_seconds",
    "enforcer_degraded",
    "enforcer_reflex_looks",
    "enforcer_reflex_usage_failures",
    "enforcer_reflex_edges",
    "enforcer_reflex_wake_duration_seconds",
    "enforcer_reflex_edge_sources",
    "enforcer_loop_duration_seconds",
    "enforcer_loop_lateness_seconds",
    "enforcer_loop_stall_seconds_max",
    "enforcer_build",
    "enforcer_config_hash",
    "process_resident_memory_bytes",
    "process_virtual_memory_bytes",
    "process_locked_memory_bytes",
    "process_cpu_seconds",
    "process_open_fds",
    "process_max_fds",
    "process_threads",
    "process_start_time_seconds",
];

/// A page, read as `OpenMetrics` says.
#[derive(Debug, Default)]
struct Read {
    types: BTreeMap<String, String>,
    /// Rows by name and labels as they stand.
    rows: BTreeMap<String, f64>,
}

impl Read {
    /// Fails on anything that is not as it should be.
    fn of(text: &str) -> Self {
        let mut read = Self::default();
        let body = text.strip_suffix("# EOF\n").expect("it ends as it should");
        let mut family = String::new();
        for line in body.lines() {
            if let Some(rest) = line.strip_prefix("# ") {
                let words: Vec<_> = rest.splitn(3, ' ').collect();
                match words[..] {
                    ["HELP", name, help] => {
                        assert!(!help.is_empty());
                        name.clone_into(&mut family);
                    }
                    ["TYPE", name, kind] => {
                        assert_eq!(name, family);
                        assert!(read.types.insert(name.into(), kind.into()).is_none(), "{name} comes twice");
                    }
                    ["UNIT", name, unit] => assert!(name == family && name.ends_with(&format!("_{unit}"))),
                    _ => panic!("{line}"),
                }
                continue;
            }
            let (row, value) = line.rsplit_once(' ').unwrap();
            let name = row.split('{').next().unwrap();
            let suffix = name.strip_prefix(&*family).unwrap_or_else(|| panic!("{name} in {family}"));
            let kind = &read.types[&family];
            let suffixes: &[&str] = match kind.as_str() {
                "counter" => &["_total"],
                "gauge" => &[""],
                "info" => &["_info"],
                "histogram" => &["_bucket", "_sum", "_count"],
                other => panic!("{other}"),
            };
            assert!(suffixes.contains(&suffix), "{line} in a {kind}");
            let value: f64 = value.parse().unwrap();
            assert!(read.rows.insert(row.into(), value).is_none(), "{row} comes twice");
        }
        read
    }

    fn get(&self, row: &str) -> f64 {
        *self.rows.get(row).unwrap_or_else(|| panic!("no {row} in {:#?}", self.rows.keys()))
    }

    fn sum(&self, name: &str) -> f64 {
        self.rows.iter().filter(|(row, _)| row.split('{').next() == Some(name)).map(|(_, value)| value).sum()
    }
}

fn gauges() -> Gauges {
    Gauges {
        available_bytes: Some(1_000),
        headroom: vec![Headroom { level: Level::Hard, threshold_bytes: 1_500 }],
        pressure: vec![Pressure {
            resource: Resource::Memory,
            slice: Slice::Node,
            waiting_us: 1_500_000,
            stalled_us: None,
        }],
        system: vec![SystemPart {
            name: String::from("system"),
            cpu_us: Some(0),
            memory_bytes: Some(1),
            tasks: Some(1),
        }],
        reserved: vec![ReservedPart {
            scope: "system",
            cpu_milli: Some(1),
            memory_bytes: Some(1),
            tasks: Some(1),
            memory_exceeded: Some(false),
            tasks_exceeded: Some(false),
        }],
        kernel: Some(KernelMemory::default()),
        candidates: vec![QosClass::BestEffort; 3],
        mode: String::from("enforce"),
        config_hash: String::from("abc"),
        process: Process::read(),
        sinks: vec![SinkState { name: "journald", ..SinkState::default() }],
        ..Gauges::default()
    }
}

fn read(journal: &Counted) -> Read {
    Read::of(&expose(journal.counts(), gauges(), Format::OpenMetrics).unwrap())
}

/// A journal and what is counted of it.
struct Counted {
    journal: Journal,
    counts: Counts,
}

impl Counted {
    fn counts(&self) -> &Counts {
        &self.counts
    }
}

impl Deref for Counted {
    type Target = Journal;

    fn deref(&self) -> &Journal {
        &self.journal
    }
}

fn journal() -> Counted {
    let counts = Counts::default();
    Counted { journal: Journal::new("n", "b").observed_by(Arc::new(counts.clone())), counts }
}

/// Emits an event with what it is about in `data`, and the least for the rest.
fn emit(journal: &Journal, kind: EventType, namespace: Option<&str>, data: Value) {
    let pod = |namespace: &str| PodName { namespace: namespace.into(), name: "p".into() };
    let subject = namespace.map_or(Subject::Node, |namespace| Subject::Pod(pod(namespace)));
    let mut whole = least(kind);
    merge(&mut whole, data);
    journal.emit(subject, Payload::parse(kind, &whole).unwrap());
}

fn least(kind: EventType) -> Value {
    match kind {
        EventType::EvictionDecided => json!({
            "evictionId": "0", "dryRun": false, "hard": true, "graceMs": 0, "decidedBy": "priority", "ranking": [],
            "rankedCount": 1, "excluded": [], "excludedCount": 0, "predictedFreedBytes": 0, "message": "",
            "configHash": "",
            "victim": {
                "namespace": "n", "name": "p", "uid": "u", "qosClass": "", "priority": 0, "cgroup": "/", "cgroupId": 1,
                "requestBytes": 0, "statsMissing": true, "growthBytesPerSecond": 0,
            },
        }),
        EventType::EvictionSignalled => json!({"namespace": "n", "name": "p", "uid": "u"}),
        EventType::EvictionRepeated => json!({
            "namespace": "n", "name": "p", "uid": "u", "containers": [], "cgroupIds": [], "count": 1, "message": "",
        }),
        EventType::EvictionCompleted | EventType::EvictionFailed => json!({"evictionId": "0"}),
        EventType::OomIncident => {
            let (counts, none) = (json!({"oom": 0, "oomKill": 0, "oomGroupKill": 0}), json!({}));
            json!({
                "incidentId": "01J8Z3NDEKTSV4RRFFQ69G5FAV", "limitSource": "unknown", "kills": 0, "victims": [],
                "timelineMs": none, "counters": counts, "countersBefore": counts, "countersAfter": counts,
                "reconciled": true, "reconciliation": "matched", "reconstructed": false,
            })
        }
        EventType::PodAdded => json!({
            "namespace": "n", "name": "p", "uid": "u", "source": "static", "priority": 0, "containers": [],
        }),
        EventType::SourceUp | EventType::SourceDown => json!({"message": ""}),
        _ => json!({}),
    }
}

/// Puts `more` into a document, key by key.
fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}

/// The classic format has the same rows, each below a head with its name.
#[test]
fn both_formats_have_the_same_rows() {
    let journal = journal();
    let page = |format| expose(journal.counts(), gauges(), format).unwrap();
    let rows = |page: &str| -> Vec<String> {
        let rows = page.lines().filter(|line| !line.starts_with('#'));
        // A process's own figures change from one page to the next.
        rows.map(|row| row.rsplit_once(' ').unwrap().0.to_owned()).collect()
    };
    let (open, classic) = (page(Format::OpenMetrics), page(Format::Classic));
    assert!(rows(&open).len() > 100);
    assert_eq!(rows(&open), rows(&classic));
    assert!(!classic.contains("# EOF") && !classic.contains("# UNIT"));
    let types: BTreeSet<&str> = classic
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .map(|(name, _)| name)
        .collect();
    for row in rows(&classic) {
        let name = row.split(['{', ' ']).next().unwrap();
        let of_histogram = ["_bucket", "_sum", "_count"].iter().filter_map(|end| name.strip_suffix(end));
        assert!(std::iter::once(name).chain(of_histogram).any(|name| types.contains(name)), "{row}");
    }
}

#[test]
fn every_family_is_there_at_once_and_every_counter_at_0() {
    let read = read(&journal());
    assert_eq!(
        read.types.keys().map(String::as_str).collect::<BTreeSet<_>>(),
        FAMILIES.iter().copied().collect()
    );
    for (family, kind) in &read.types {
        let rows: Vec<_> =
            read.rows.iter().filter(|(row, _)| row.starts_with(&format!("{family}_total"))).collect();
        let is_ours = family.starts_with("enforcer_") && !family.starts_with("enforcer_pressure");
        if kind == "counter" && is_ours && !family.starts_with("enforcer_reflex") {
            assert!(!rows.is_empty(), "{family} has no row");
            assert!(rows.iter().all(|(_, value)| **value == 0.0), "{rows:?}");
        }
    }
    let node = r#"enforcer_oom_kills_total{scope="node",namespace="",init_survived="unknown"}"#;
    assert_eq!(read.get(node), 0.0);
    assert_eq!(read.get(r#"enforcer_events_written_total{type="eviction.completed"}"#), 0.0);
    assert_eq!(read.get(r#"enforcer_memory_headroom_bytes{threshold="hard"}"#), -500.0);
    assert_eq!(read.get(r#"enforcer_events_lost_total{stage="recorder"}"#), 0.0);
    for queue in
        ["journal", "reflex_reports", "reflex_reaper", "reflex_closer", "reflex_brake", "reflex_hook"]
    {
        assert_eq!(read.get(&format!("enforcer_queue_records{{queue=\"{queue}\"}}")), 0.0);
    }
    assert_eq!(read.get(r#"enforcer_candidates{qos="BestEffort"}"#), 3.0);
    assert_eq!(read.get(r#"enforcer_pressure_waiting_seconds_total{resource="memory",slice="node"}"#), 1.5);
    assert!(read.get(r#"enforcer_time_to_threshold_seconds{threshold="hard"}"#).is_infinite());
    assert_eq!(read.get(r#"enforcer_config_hash_info{hash="abc",mode="enforce"}"#), 1.0);
    assert_eq!(read.sum("enforcer_next_victim_info"), 0.0);
}

#[test]
fn a_pods_namespace_has_its_counters_before_anything_happens_in_it() {
    let journal = journal();
    emit(&journal, EventType::PodAdded, Some("shop"), json!({"qosClass": "Burstable"}));
    let read = read(&journal);
    for row in [
        r#"enforcer_evictions_total{signal="memory.available",qos="Burstable",namespace="shop",method="sigkill",outcome="completed"}"#,
        r#"enforcer_evictions_dry_run_total{signal="pid.available",qos="Burstable",namespace="shop"}"#,
        r#"enforcer_oom_kills_total{scope="container",namespace="shop",init_survived="true"}"#,
        r#"enforcer_evictions_repeated_total{namespace="shop"}"#,
        r#"enforcer_eviction_restarts_killed_total{namespace="shop"}"#,
    ] {
        assert_eq!(read.get(row), 0.0);
    }
}

#[test]
fn an_eviction_is_counted_with_its_course() {
    let journal = journal();
    let emit = |kind, data| emit(&journal, kind, Some("shop"), data);
    emit(
        EventType::EvictionDecided,
        json!({"evictionId": "1", "dryRun": false, "signal": "memory.available", "victim": {"qosClass": "BestEffort"},
               "evictedBefore": 1}),
    );
    emit(EventType::EvictionSignalled, json!({"evictionId": "1", "sent": "SIGTERM"}));
    emit(EventType::EvictionSignalled, json!({"evictionId": "1", "sent": "SIGKILL"}));
    emit(
        EventType::EvictionCompleted,
        json!({"evictionId": "1", "signal": "memory.available", "crossedToDecidedMs": 2.0, "crossedToTerminatedMs": 5.0,
               "crossedToSignalledMs": 900.0, "crossedToDeadMs": 1005.0, "crossedToMemoryBackMs": 1012.5,
               "predictedFreedBytes": 1000, "freedBytes": 900}),
    );
    for outcome in ["killed", "spared", "killed", "exhausted"] {
        emit(EventType::EvictionRepeated, json!({"evictionId": "1", "outcome": outcome}));
    }
    // Of one that was decided before a restart little is known.
    emit(EventType::EvictionFailed, json!({"evictionId": "0", "reason": "interrupted"}));
    emit(
        EventType::EvictionDecided,
        json!({"evictionId": "2", "dryRun": true, "signal": "pid.available", "victim": {"qosClass": "Guaranteed"}}),
    );
    let read = read(&journal);
    let row = |labels: &str| read.get(&format!("enforcer_evictions_total{{{labels}}}"));
    assert_eq!(
        row(
            r#"signal="memory.available",qos="BestEffort",namespace="shop",method="sigterm_sigkill",outcome="completed""#
        ),
        1.0
    );
    assert_eq!(
        row(r#"signal="unknown",qos="unknown",namespace="shop",method="unknown",outcome="failed""#),
        1.0
    );
    assert_eq!(read.sum("enforcer_evictions_total"), 2.0);
    assert_eq!(
        read.get(
            r#"enforcer_evictions_dry_run_total{signal="pid.available",qos="Guaranteed",namespace="shop"}"#
        ),
        1.0
    );
    assert_eq!(read.get(r#"enforcer_eviction_failures_total{reason="interrupted"}"#), 1.0);
    assert_eq!(read.get(r#"enforcer_evictions_repeated_total{namespace="shop"}"#), 1.0);
    assert_eq!(read.get(r#"enforcer_eviction_restarts_killed_total{namespace="shop"}"#), 2.0);
    assert_eq!(read.get("enforcer_eviction_freed_bytes_total"), 900.0);
    assert_eq!(read.get("enforcer_eviction_prediction_error_ratio_sum"), 0.1);
    for (phase, sum) in [("decide", 0.002), ("signal", 0.003), ("exit", 1.0), ("freed", 0.0075)] {
        let of =
            |part: &str| read.get(&format!("enforcer_eviction_duration_seconds_{part}{{phase=\"{phase}\"}}"));
        assert_eq!(of("count"), 1.0, "{phase}");
        assert!((of("sum") - sum).abs() < 1e-9, "{phase}: {}", of("sum"));
    }
    let bucket = r#"enforcer_eviction_duration_seconds_bucket{le="0.0025",phase="decide"}"#;
    assert_eq!(read.get(bucket), 1.0);
    assert_eq!(read.get(&bucket.replace("0.0025", "0.001")), 0.0);
    assert_eq!(read.get(&bucket.replace("0.0025", "+Inf")), 1.0);
}

#[test]
fn what_an_operator_ordered_is_reported_apart() {
    let journal = journal();
    let decided = json!({"evictionId": "1", "dryRun": false, "decidedBy": "operator", "victim": {"qosClass": "Burstable"}});
    emit(&journal, EventType::EvictionDecided, Some("a"), decided);
    emit(&journal, EventType::EvictionSignalled, Some("a"), json!({"evictionId": "1", "sent": "SIGTERM"}));
    emit(&journal, EventType::EvictionCompleted, Some("a"), json!({"evictionId": "1"}));
    let row = r#"enforcer_evictions_total{signal="operator",qos="Burstable",namespace="a",method="sigterm",outcome="completed"}"#;
    assert_eq!(read(&journal).get(row), 1.0);
}

#[test]
fn each_process_that_the_kernel_killed_is_counted_once() {
    let journal = journal();
    let victim = |container: &str, init: bool| json!({"pid": 1, "comm": "c", "namespace": "shop", "uid": "u", "container": container, "containerInit": init});
    let mut sharer = victim("web", false);
    sharer["sharesMemoryWith"] = json!(7);
    // A group kill of one container, and a child of another whose init lives on.
    let victims = json!([victim("web", false), victim("web", true), victim("db", false), sharer]);
    emit(
        &journal,
        EventType::OomIncident,
        Some("shop"),
        json!({"scope": "pod", "kills": 3, "victims": victims}),
    );
    emit(
        &journal,
        EventType::OomIncident,
        None,
        json!({"scope": "system", "kills": 1, "victims": [{"pid": 1, "comm": "x"}]}),
    );
    // Killed as a group, without a process of its own that is the first.
    emit(
        &journal,
        EventType::OomIncident,
        Some("shop"),
        json!({"scope": "container", "victims": [victim("web", false)], "counters": {"oom": 1, "oomKill": 2, "oomGroupKill": 1}}),
    );
    let reconstructed = json!({"kills": 2, "victims": [], "namespace": "shop"});
    emit(&journal, EventType::OomIncident, Some("shop"), reconstructed);
    let read = read(&journal);
    let kills = |scope: &str, namespace: &str, survived: &str| {
        read.get(&format!(
            "enforcer_oom_kills_total{{scope=\"{scope}\",namespace=\"{namespace}\",init_survived=\"{survived}\"}}"
        ))
    };
    assert_eq!((kills("pod", "shop", "false"), kills("pod", "shop", "true")), (2.0, 1.0));
    assert_eq!(kills("container", "shop", "false"), 1.0);
    assert_eq!((kills("system", "", "unknown"), kills("unknown", "shop", "unknown")), (1.0, 2.0));
    assert_eq!(read.sum("enforcer_oom_kills_total"), 7.0);
}

#[test]
fn hostile_namespaces_are_bounded_and_their_labels_escaped() {
    let journal = journal();
    let hostile = "a\"b\\c\nd{}";
    emit(
        &journal,
        EventType::OomIncident,
        None,
        json!({"scope": "container", "victims": [{"pid": 1, "comm": "c", "namespace": hostile}]}),
    );
    emit(
        &journal,
        EventType::OomIncident,
        None,
        json!({"victims": [{"pid": 1, "comm": "c", "namespace": "x".repeat(10_000)}]}),
    );
    for number in 0..1_000 {
        let namespace = format!("tenant-{number}");
        emit(&journal, EventType::PodAdded, Some(&namespace), json!({"qosClass": "Guaranteed"}));
        emit(&journal, EventType::PodAdded, Some(&namespace), json!({"qosClass": namespace}));
        emit(&journal, EventType::EvictionCompleted, Some(&namespace), json!({"signal": namespace}));
        emit(&journal, EventType::DegradedEntered, None, json!({"what": namespace, "place": namespace}));
        emit(&journal, EventType::SourceUp, None, json!({"source": namespace}));
    }
    let text = expose(journal.counts(), gauges(), Format::OpenMetrics).unwrap();
    assert!(text.contains(r#"namespace="a\"b\\c\nd{}""#), "{text}");
    let read = Read::of(&text);
    let namespaces: BTreeSet<_> = read
        .rows
        .keys()
        .filter_map(|row| {
            row.split_once("namespace=\"")?.1.split_once("\",").map(|(value, _)| value.to_owned())
        })
        .collect();
    assert_eq!(namespaces.len(), NAMESPACES + 2, "those that are kept, the others, and none: {namespaces:?}");
    assert!(read.rows.len() < 3_000, "{}", read.rows.len());
    let evicted = read.sum("enforcer_evictions_total");
    assert_eq!(evicted, 1_000.0, "none is lost for want of a label");
    assert!(read.sum("enforcer_source_up") <= 9.0);
}

#[test]
fn sources_and_degradations_are_as_they_were_reported_last() {
    let journal = journal();
    emit(&journal, EventType::SourceUp, None, json!({"source": "static"}));
    journal.counts().source_was_read("static", 1_500);
    emit(&journal, EventType::DegradedEntered, None, json!({"what": "bpffs", "message": "m"}));
    emit(&journal, EventType::DegradedEntered, None, json!({"what": "limits", "place": "/a"}));
    emit(&journal, EventType::DegradedLeft, None, json!({"what": "limits", "place": "/a"}));
    emit(&journal, EventType::DegradedEntered, None, json!({"what": "recordsLost"}));
    emit(&journal, EventType::DegradedEntered, Some("shop"), json!({"what": "protect"}));
    let now = read(&journal);
    assert_eq!(now.get(r#"enforcer_source_up{source="static"}"#), 1.0);
    assert_eq!(now.get(r#"enforcer_source_last_sync_timestamp_seconds{source="static"}"#), 1.5);
    assert_eq!(now.get(r#"enforcer_degraded{reason="bpffs"}"#), 1.0);
    assert_eq!(now.get(r#"enforcer_degraded{reason="limits"}"#), 0.0);
    assert_eq!(now.rows.keys().filter(|row| row.starts_with("enforcer_degraded")).count(), 2);
    emit(&journal, EventType::SourceDown, None, json!({"source": "static"}));
    assert_eq!(read(&journal).get(r#"enforcer_source_up{source="static"}"#), 0.0);
}

#[test]
fn losses_sinks_and_what_lies_ahead_are_reported() {
    let journal = journal();
    let counts: &Counts = journal.counts();
    for (stage, lost) in [("stall", 3), ("edge", 3), ("stall", 1), ("of another version", 9)] {
        counts.lost_by_programs(stage, lost);
    }
    counts.on_lost_by_disk(2);
    counts.on_lost_to_reader(9);
    counts.set_left_ns(Level::Hard, Some(2_500_000_000));
    let sink = SinkState {
        name: "journald",
        is_on: true,
        lag_records: 12,
        last_success_ms: 3_000,
        failures: 4,
        lost: 1,
    };
    let read =
        Read::of(&expose(counts, Gauges { sinks: vec![sink], ..gauges() }, Format::OpenMetrics).unwrap());
    assert_eq!(read.get(r#"enforcer_event_sink_failures_total{sink="journald"}"#), 4.0);
    assert_eq!(read.get("enforcer_bpf_ringbuf_lost_total"), 7.0);
    for (stage, lost) in
        [("bpf_stall", 4.0), ("bpf_oom_map", 0.0), ("journal", 2.0), ("reader", 9.0), ("sink_journald", 1.0)]
    {
        assert_eq!(read.get(&format!("enforcer_events_lost_total{{stage=\"{stage}\"}}")), lost);
    }
    assert_eq!(read.get(r#"enforcer_event_sink_lag_records{sink="journald"}"#), 12.0);
    assert_eq!(read.get(r#"enforcer_event_sink_last_success_timestamp_seconds{sink="journald"}"#), 3.0);
    assert_eq!(read.get(r#"enforcer_time_to_threshold_seconds{threshold="hard"}"#), 2.5);
}

#[test]
fn times_that_make_no_sense_are_not_counted() {
    let journal = journal();
    let times = json!({"crossedToDecidedMs": 1.0, "crossedToDeadMs": -5.0, "crossedToSignalledMs": 1e300});
    emit(&journal, EventType::EvictionCompleted, None, times);
    let read = read(&journal);
    assert_eq!(read.get(r#"enforcer_events_written_total{type="eviction.completed"}"#), 1.0);
    for (phase, count) in [("decide", 1.0), ("signal", 0.0), ("exit", 0.0), ("freed", 0.0)] {
        let row = format!("enforcer_eviction_duration_seconds_count{{phase=\"{phase}\"}}");
        assert_eq!(read.get(&row), count, "{phase}");
    }
}

#[test]
fn the_next_are_three_at_the_most() {
    let victim = |name: &str| NextVictim { namespace: "shop".into(), pod: name.into() };
    let gauges = Gauges { next_victims: ["a", "b", "c", "d"].map(victim).into(), ..gauges() };
    let read = Read::of(&expose(&Counts::default(), gauges, Format::OpenMetrics).unwrap());
    assert_eq!(read.sum("enforcer_next_victim_info"), 3.0);
    assert_eq!(read.get(r#"enforcer_next_victim_info{rank="1",namespace="shop",pod="a"}"#), 1.0);
}

#[test]
fn the_systems_parts_are_shown_beside_what_is_reserved_for_them() {
    let part = |name: &str, memory_bytes| SystemPart {
        name: name.into(),
        cpu_us: Some(1_500_000),
        memory_bytes,
        tasks: Some(3),
    };
    let gauges = Gauges {
        system: vec![
            part("system", Some(200)),
            part("a\"b", Some(7)),
            part("a_b", Some(9)),
            part("kubelet", None),
        ],
        reserved: vec![ReservedPart {
            scope: "system",
            cpu_milli: Some(250),
            memory_bytes: Some(100),
            tasks: None,
            memory_exceeded: Some(true),
            tasks_exceeded: None,
        }],
        kernel: Some(KernelMemory { slab_bytes: 1, stack_bytes: 2, page_table_bytes: 3 }),
        ..gauges()
    };
    let page = expose(journal().counts(), gauges, Format::OpenMetrics).unwrap();
    for row in [
        "enforcer_system_memory_bytes{part=\"system\"} 200",
        "enforcer_system_memory_bytes{part=\"a_b\"} 7",
        "enforcer_system_cpu_seconds_total{part=\"kubelet\"} 1.5",
        "enforcer_system_tasks{part=\"system\"} 3",
        "enforcer_kernel_memory_bytes{kind=\"slab\"} 1",
        "enforcer_kernel_memory_bytes{kind=\"stacks\"} 2",
        "enforcer_kernel_memory_bytes{kind=\"pageTables\"} 3",
        "enforcer_reserved_cpus{scope=\"system\"} 0.25",
        "enforcer_reserved_memory_bytes{scope=\"system\"} 100",
        "enforcer_reservation_exceeded{scope=\"system\",resource=\"memory\"} 1",
    ] {
        assert!(page.lines().any(|line| line == row), "no {row} in {page}");
    }
    for row in ["part=\"kubelet\"} 0", "enforcer_reserved_tasks{", "resource=\"pid\""] {
        assert!(!page.contains(row), "{row} in {page}");
    }
    assert_eq!(page.matches("enforcer_system_memory_bytes{part=\"a_b\"}").count(), 1, "each row once");
}
