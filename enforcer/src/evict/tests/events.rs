use std::sync::Arc;

use serde_json::{Value, json};
use ulid::Ulid;

use super::node::{MIB, Node, Pod, guard};
use crate::{
    evict::{Blindness, Candidate, EventBuilder, Report},
    journal::{Event, EventType, Journal},
    metrics::{Counts, Format, Gauges, expose},
    model::{
        CgroupId, Freshness, Knowledge, OwnerReference, Quantity, ResourceList, ResourceName, SpecOrigin,
    },
    policy::{
        CgroupPlan, ContainerPlan, PodPlan,
        engine::{
            Action, BrakeCause, BrakeRefusal, CandidateIndex, Candidates, Completion, Containment, Engine,
            EngineSettings, Failure, FailureReason, Input, KillReason, Mode, Moments, NodeSample, Outcome,
            Reading, Refusal, Resource, Shortage, Suppression, Usage, followed,
        },
        threshold::{Signal, Threshold, ThresholdValue},
    },
    sense::{MeminfoError, snapshot::Missing},
};

const MS: u64 = 1_000_000;

/// Text of the event, without the cgroup ids, which differ from run to run.
fn show(event: &Event) -> String {
    let mut data = event.data();
    if let Some(id) = data.pointer_mut("/victim/cgroupId") {
        assert!(id.as_u64().is_some_and(|id| id > 0));
        *id = Value::String("[id]".into());
    }
    format!("{} {:?}\n{data:#}", event.kind(), event.subject)
}

pub(super) fn shortage(observed: u64) -> Shortage {
    Shortage { signal: Signal::MemoryAvailable, hard: true, threshold: 200 * MIB, observed }
}

pub(super) fn candidates() -> (Node, Arc<[Arc<Candidate>]>) {
    let node = Node::new(0);
    let pods = [
        Pod { critical: true, ..Pod::new("dns") },
        Pod::new("hog"),
        Pod { request_bytes: 100 * MIB, priority: 10, ..Pod::new("web") },
    ];
    for (pod, mib) in pods.iter().zip([50, 1250, 80]) {
        node.add(pod, mib * MIB);
    }
    let members = pods.iter().map(|pod| node.candidate(pod)).collect();
    (node, members)
}

fn events() -> EventBuilder {
    EventBuilder::new("sha256:0123".into())
}

/// A decision against the second of the candidates.
pub(super) fn decided(members: Arc<[Arc<Candidate>]>) -> Report {
    let mut buffer = [0; crate::evict::stat::BUFFER_BYTES];
    let readings: Vec<Reading> =
        members.iter().map(|member| member.read_usage(Resource::Memory, &mut buffer)).collect();
    decided_by(members, &[(2_345_678, &readings)])
}

/// The decision by these readings, each at its time; before the last, memory was not short.
fn decided_by(members: Arc<[Arc<Candidate>]>, readings: &[(u64, &[Reading])]) -> Report {
    let mut engine = Engine::new(&EngineSettings {
        mode: Mode::Enforce,
        thresholds: followed(&[Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(200 * MIB))]),
        ..EngineSettings::default()
    });
    engine.remember_armed(|_| true);
    let facts: Vec<_> = members.iter().map(|member| member.facts()).collect();
    drop(engine.replace(Candidates::new(&facts)));
    let (last, before) = readings.split_last().unwrap();
    for (now_ns, readings) in before {
        let node = NodeSample::memory(*now_ns, 4 << 30, 8 << 30);
        engine.step(Input::Usages { node, readings });
    }
    let (now_ns, readings) = *last;
    let node = NodeSample::memory(now_ns / MS * MS - MS, 203_776 * 1024, 8 << 30);
    engine.step(Input::Node(node));
    let actions = engine.step(Input::Usages { node: NodeSample { now_ns, ..node }, readings });
    assert!(actions.iter().any(|action| *action == Action::Evict));
    let decision = *engine.decision().unwrap();
    engine.step(Input::Outcome(Outcome::Refused { number: 1, now_ns: 0, reason: Refusal::Gone }));
    let id = Ulid::from_parts(1_700_000_000_000, 7);
    Report::Decided { id, decision, members, containers: Vec::new() }
}

#[test]
fn decided_carries_the_whole_decision() {
    let (_node, members) = candidates();
    insta::assert_snapshot!(show(&events().event(&decided(members)).unwrap()));
}

#[test]
fn an_old_reading_that_stands_in_for_one_that_failed_is_reported_as_such() {
    let (_node, members) = candidates();
    let using = |mib| {
        let (current_bytes, working_set_bytes) = (mib * MIB, mib * MIB);
        Reading::Usage(Usage { current_bytes, working_set_bytes, ..Usage::default() })
    };
    let all = [using(50), using(1250), using(80)];
    let one_failed = [using(50), Reading::Missing, using(90)];
    let reported =
        events().event(&decided_by(members, &[(100 * MS, &all), (3_100 * MS, &one_failed)])).unwrap();
    let data = reported.data();
    let ranking = data["ranking"].as_array().unwrap();
    let shown = |ranked: &Value| {
        (ranked["name"].clone(), ranked["usageBytes"].clone(), ranked.get("readAgoMs").cloned())
    };
    let expected =
        [(json!("hog"), json!(1250 * MIB), Some(json!(3_000.0))), (json!("web"), json!(90 * MIB), None)];
    assert_eq!(ranking.iter().map(shown).collect::<Vec<_>>(), expected);
}

/// As the kubelet's, by what each uses at that moment.
#[test]
fn of_several_containers_those_are_blamed_that_use_more_than_they_request() {
    let (node, pod) = (Node::new(0), Pod::new("hog"));
    node.add(&pod, 1250 * MIB);
    let mut plan = pod.plan();
    let (app, request) = (plan.containers[0].clone(), Quantity::from_units(300 * MIB));
    for (name, mib) in [("app", 900), ("side", 250), ("idle", 0)] {
        let path = plan.cgroup.path.child(name).unwrap();
        let bytes = mib * MIB;
        std::fs::create_dir_all(node.dir("hog").join(name)).unwrap();
        node.write("hog", &format!("{name}/memory.current"), &format!("{bytes}\n"));
        let stat = format!("anon {bytes}\nfile 0\nshmem 0\ninactive_file 0\n");
        node.write("hog", &format!("{name}/memory.stat"), &stat);
        if name != "app" {
            let cgroup = CgroupPlan { path, ..app.cgroup.clone() };
            plan.containers.push(ContainerPlan { name: name.into(), cgroup, ..app.clone() });
        }
    }
    let requests = ResourceList::from([(ResourceName::new(ResourceName::MEMORY), request)]);
    let requested = [("app", requests.clone()), ("side", requests), ("idle", ResourceList::new())];
    Arc::make_mut(&mut plan.requested).containers =
        requested.map(|(name, list)| (name.to_owned(), list)).into();
    let candidate = Arc::new(Candidate::open(&node.root(), &guard(), &plan).unwrap());
    let mut decided = decided(vec![candidate].into());
    decided.read_victim();
    let reported = events().event(&decided).unwrap().data();
    let blamed = "available: 199Mi. Container app was using 900Mi, request is 300Mi, has larger consumption of memory. ";
    assert!(reported["message"].as_str().unwrap().ends_with(blamed), "{reported:#}");
    assert_eq!(reported["annotations"]["offending_containers"], "app");
    assert_eq!(reported["annotations"]["offending_containers_usage"], "900Mi");
}

#[test]
fn a_decision_is_reported_with_the_pressure_at_that_moment() {
    let (_node, members) = candidates();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("memory");
    std::fs::write(
        &file,
        "some avg10=12.50 avg60=0.00 avg300=0.00 total=9\nfull avg10=3.25 avg60=0.00 avg300=0.00 total=4\n",
    )
    .unwrap();
    let reported = events().with_pressure(&file).event(&decided(Arc::clone(&members))).unwrap();
    assert_eq!(reported.data()["pressure"], json!({"someAvg10Percent": 12.5, "fullAvg10Percent": 3.25}));
    // A kernel without it is no reason to tell nothing.
    let reported = events().with_pressure(&dir.path().join("none")).event(&decided(members)).unwrap();
    assert_eq!(reported.data().get("pressure"), None);
}

/// The metrics count what events tell, by keys that both know.
#[test]
fn what_is_reported_is_what_the_metrics_count() {
    let (_node, members) = candidates();
    let counts = Counts::default();
    let journal = Journal::new("n", "b").observed_by(Arc::new(counts.clone()));
    let candidate = Arc::clone(&members[1]);
    let decided = decided(members);
    let Report::Decided { id, .. } = decided else { panic!() };
    let (signal, cgroup) = (Signal::MemoryAvailable, candidate.facts().cgroup);
    let completion = Completion {
        number: 1,
        cgroup,
        moments: Moments { dead_ns: Some(90 * MS), memory_back_ns: Some(95 * MS), ..moments() },
        predicted_freed_bytes: 1250 * MIB,
        freed_bytes: Some(1250 * MIB),
    };
    let failure = failure(cgroup, FailureReason::StillPopulated);
    let mut events = events();
    for report in [
        decided,
        Report::Signalled {
            id,
            signal,
            number: 1,
            candidate: Arc::clone(&candidate),
            cut_short: None,
            moments: moments(),
            brakes_failed: 0,
        },
        Report::Completed { id, signal, candidate: Arc::clone(&candidate), completion },
        Report::Failed { id, signal, candidate, failure },
        Report::Suppressed { now_ns: MS, signal, reason: Suppression::NoCandidate },
    ] {
        journal.append(events.event(&report).unwrap());
    }
    let page = expose(&counts, Gauges::default(), Format::OpenMetrics).unwrap();
    for row in [
        r#"enforcer_evictions_total{signal="memory.available",qos="BestEffort",namespace="default",method="sigkill",outcome="completed"} 1"#,
        r#"enforcer_evictions_total{signal="memory.available",qos="unknown",namespace="default",method="unknown",outcome="failed"} 1"#,
        r#"enforcer_eviction_failures_total{reason="stillPopulated"} 1"#,
        r#"enforcer_eviction_suppressed_total{reason="noCandidate"} 1"#,
        r#"enforcer_eviction_duration_seconds_count{phase="decide"} 2"#,
        r#"enforcer_eviction_duration_seconds_count{phase="signal"} 2"#,
        r#"enforcer_eviction_duration_seconds_count{phase="exit"} 1"#,
        r#"enforcer_eviction_duration_seconds_count{phase="freed"} 1"#,
        r#"enforcer_eviction_prediction_error_ratio_bucket{le="0.01"} 1"#,
    ] {
        assert!(page.lines().any(|line| line == row), "no {row} in {page}");
    }
    let freed = format!("enforcer_eviction_freed_bytes_total {}", 1350 * MIB);
    assert!(page.lines().any(|line| line == freed), "no {freed} in {page}");
}

fn moments() -> Moments {
    Moments {
        crossed_ns: MS,
        decided_ns: MS + 1_234_567,
        terminated_ns: None,
        requested_ns: None,
        signalled_ns: Some(MS + 1_500_000),
        dead_ns: None,
        memory_back_ns: None,
    }
}

fn failure(cgroup: CgroupId, reason: FailureReason) -> Failure {
    Failure {
        number: 1,
        cgroup,
        moments: moments(),
        given_up_ns: 3_001 * MS,
        predicted_freed_bytes: 1250 * MIB,
        freed_bytes: matches!(reason, FailureReason::StillPopulated).then_some(100 * MIB),
        reason,
    }
}

fn containment(cgroup: CgroupId) -> Containment {
    Containment {
        brake: 1,
        number: 1,
        index: CandidateIndex(2),
        cgroup,
        decided_ns: MS,
        cause: BrakeCause::Release,
        usage_bytes: 80 * MIB,
        high_bytes: 72 * MIB,
        fill_bytes_per_second: 100 * MIB,
        headroom_bytes: 40 * MIB,
        awaited_ns: 450 * MS,
    }
}

/// By these the API server is asked, or not.
#[test]
fn a_victims_controller_is_reported_and_how_current_that_is() {
    let (node, pod) = (Node::new(0), Pod::new("hog"));
    node.add(&pod, 1250 * MIB);
    let owner = OwnerReference {
        kind: String::from("ReplicaSet"),
        name: String::from("hog-1"),
        uid: String::from("u-r"),
        is_controller: true,
    };
    let of = |freshness| Knowledge::Spec {
        is_settled: true,
        origin: SpecOrigin { source: "kubelet", freshness },
        is_terminating: false,
    };
    let live = of(Freshness::Live);
    let kept = of(Freshness::Disk { read_ms: 5 });
    let named = json!({"kind": "ReplicaSet", "name": "hog-1"});
    for (placed, controller, spec, shown) in [
        (None, None, Value::Null, Value::Null),
        (Some(live), None, json!("live"), Value::Null),
        (Some(live), Some(owner.clone()), json!("live"), named.clone()),
        (Some(kept), Some(owner), json!("disk"), named),
        (Some(Knowledge::Names { is_settled: true }), None, Value::Null, Value::Null),
    ] {
        let plan = PodPlan { placed, controller: controller.map(Arc::new), ..pod.plan() };
        let candidate = Arc::new(Candidate::open(&node.root(), &guard(), &plan).unwrap());
        let decision = events().event(&decided(vec![Arc::clone(&candidate)].into())).unwrap().data();
        assert_eq!(decision["victim"]["controller"], shown, "{decision:#}");
        assert_eq!(decision["victim"]["spec"]["provenance"], spec, "{decision:#}");
        let signalled = Report::Signalled {
            id: Ulid::from_parts(1, 7),
            signal: Signal::MemoryAvailable,
            number: 1,
            candidate,
            cut_short: None,
            moments: moments(),
            brakes_failed: 0,
        };
        let signalled = events().event(&signalled).unwrap().data();
        assert_eq!((&signalled["controller"], &signalled["spec"]), (&shown, &spec), "{signalled:#}");
    }
}

#[test]
fn the_course_of_an_eviction() {
    let (_node, members) = candidates();
    let (id, candidate) = (Ulid::from_parts(1_700_000_000_000, 7), Arc::clone(&members[1]));
    let cgroup = candidate.facts().cgroup;
    let completion = Completion {
        number: 1,
        cgroup,
        moments: Moments { dead_ns: Some(90 * MS), memory_back_ns: Some(95 * MS), ..moments() },
        predicted_freed_bytes: 1250 * MIB,
        freed_bytes: Some(1249 * MIB),
    };
    let containment = containment(cgroup);
    let failed = |reason| Report::Failed {
        id,
        signal: Signal::MemoryAvailable,
        candidate: Arc::clone(&candidate),
        failure: failure(cgroup, reason),
    };
    let reports = vec![
        Report::Crossed { now_ns: MS, shortage: shortage(199 * MIB) },
        Report::Signalled {
            id,
            signal: Signal::MemoryAvailable,
            number: 1,
            candidate: Arc::clone(&candidate),
            cut_short: None,
            moments: moments(),
            brakes_failed: 1,
        },
        Report::Completed {
            id,
            signal: Signal::MemoryAvailable,
            candidate: Arc::clone(&candidate),
            completion,
        },
        failed(FailureReason::StillPopulated),
        failed(FailureReason::Refused(Refusal::Kernel(95))),
        Report::Contained { id, candidate: Arc::clone(&members[2]), containment, now_ns: 3 * MS },
        Report::Eased {
            id,
            candidate: Arc::clone(&members[2]),
            containment,
            since_ns: 3 * MS,
            now_ns: 200 * MS,
            given_back: true,
        },
        Report::Uncontained {
            id,
            candidate: Arc::clone(&members[2]),
            containment,
            now_ns: 3 * MS,
            reason: BrakeRefusal::Kernel(16),
        },
        Report::Suppressed { now_ns: MS, signal: Signal::MemoryAvailable, reason: Suppression::BreakerOpen },
        Report::Cleared { now_ns: 9 * MS, shortage: shortage(900 * MIB), crossed_ns: MS },
        Report::Crossed {
            now_ns: MS,
            shortage: Shortage { signal: Signal::PidAvailable, hard: false, threshold: 1_000, observed: 999 },
        },
        Report::Terminated {
            id,
            signal: Signal::PidAvailable,
            number: 2,
            candidate: Arc::clone(&candidate),
            grace_ns: 30_000 * MS,
            moments: Moments { terminated_ns: Some(MS + 1_400_000), signalled_ns: None, ..moments() },
        },
        Report::Signalled {
            id,
            signal: Signal::PidAvailable,
            number: 2,
            candidate: Arc::clone(&candidate),
            cut_short: Some(KillReason::HardThreshold),
            moments: Moments { terminated_ns: Some(MS + 1_400_000), ..moments() },
            brakes_failed: 0,
        },
        Report::Suppressed { now_ns: MS, signal: Signal::PidAvailable, reason: Suppression::NoCandidate },
        failed(FailureReason::Refused(Refusal::Unrecorded)),
        Report::Blind(Signal::MemoryAvailable, Blindness::Memory(MeminfoError::Malformed)),
        Report::Blind(Signal::PidAvailable, Blindness::Level(Missing::Failed(12))),
        Report::Sighted(Signal::PidAvailable),
    ];
    let reported: Vec<_> = reports.iter().map(|report| show(&events().event(report).unwrap())).collect();
    insta::assert_snapshot!(reported.join("\n\n"));
}

#[test]
fn what_is_not_armed_is_reported_when_it_changes() {
    let mut events = events();
    let threshold = |mib| Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(mib * MIB));
    let soft = Threshold { grace_period_ms: 1, ..threshold(1_900) };
    let mut reported = |unarmed: &[Threshold]| {
        let report = Report::Arming { armed: followed(&[threshold(100)]), unarmed: followed(unarmed) };
        events.event(&report).map(|event| (event.kind(), event.data()["thresholds"].clone()))
    };
    assert_eq!(reported(&[]), None, "all are");
    let entered = Some((EventType::DegradedEntered, json!(["memory.available<1900Mi (soft)"])));
    assert_eq!(reported(&[soft]), entered);
    assert_eq!(reported(&[soft]), None);
    assert_eq!(reported(&[]), Some((EventType::DegradedLeft, json!([]))));
}
