use std::sync::Arc;

use serde_json::Value;
use ulid::Ulid;

use super::node::{MIB, Node, Pod};
use crate::{
    evict::{Candidate, Report, Teller},
    journal::Event,
    policy::engine::{
        Action, Candidates, Completion, Engine, EngineSettings, Failure, FailureReason, HardThreshold, Input,
        Mode, Moments, NodeSample, Outcome, Reading, Refusal, Suppression,
    },
    sense::MeminfoError,
};

const MS: u64 = 1_000_000;

/// Text of the event, without the cgroup ids, which differ from run to run.
fn show(event: &Event) -> String {
    let mut data = event.data.clone();
    if let Some(id) = data.pointer_mut("/victim/cgroupId") {
        assert!(id.as_u64().is_some_and(|id| id > 0));
        *id = Value::String("[id]".into());
    }
    format!("{} {:?}\n{data:#}", event.kind, event.subject)
}

fn candidates() -> (Node, Arc<[Arc<Candidate>]>) {
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

fn teller() -> Teller {
    Teller::new("sha256:0123".into())
}

#[test]
fn decided_carries_the_whole_decision() {
    let (_node, members) = candidates();
    let mut engine = Engine::new(EngineSettings {
        mode: Mode::Enforce,
        memory_available: Some(HardThreshold { bytes: 200 * MIB, min_reclaim_bytes: 0 }),
        ..EngineSettings::default()
    });
    let facts: Vec<_> = members.iter().map(|member| member.facts()).collect();
    drop(engine.replace(Candidates::new(&facts)));
    let mut buffer = [0; crate::evict::stat::BUFFER_BYTES];
    let readings: Vec<Reading> = members.iter().map(|member| member.read_usage(&mut buffer)).collect();
    let node = NodeSample { now_ns: MS, available_bytes: 203_776 * 1024 };
    engine.step(Input::Node(node));
    let actions =
        engine.step(Input::Usages { node: NodeSample { now_ns: 2_345_678, ..node }, readings: &readings });
    assert!(actions.iter().any(|action| *action == Action::Evict));
    let decision = *engine.decision().unwrap();
    engine.step(Input::Outcome(Outcome::Refused { number: 1, now_ns: 0, reason: Refusal::Gone }));
    let report = Report::Decided { id: Ulid::from_parts(1_700_000_000_000, 7), decision, members };
    insta::assert_snapshot!(show(&teller().event(&report)));
}

fn moments() -> Moments {
    Moments {
        crossed_ns: MS,
        decided_ns: MS + 1_234_567,
        signalled_ns: Some(MS + 1_500_000),
        dead_ns: None,
        memory_back_ns: None,
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
    let failure = |reason| Failure { number: 1, cgroup, moments: moments(), given_up_ns: 3_001 * MS, reason };
    let failed = |reason| Report::Failed { id, candidate: Arc::clone(&candidate), failure: failure(reason) };
    let reports = [
        Report::Crossed { now_ns: MS, available_bytes: 199 * MIB, threshold_bytes: 200 * MIB },
        Report::Signalled {
            id,
            number: 1,
            candidate: Arc::clone(&candidate),
            moments: moments(),
            brakes_failed: 1,
        },
        Report::Completed { id, candidate: Arc::clone(&candidate), completion },
        failed(FailureReason::StillPopulated),
        failed(FailureReason::Refused(Refusal::Kernel(95))),
        Report::Suppressed { now_ns: MS, reason: Suppression::BreakerOpen },
        Report::Cleared {
            now_ns: 9 * MS,
            available_bytes: 900 * MIB,
            threshold_bytes: 200 * MIB,
            crossed_ns: MS,
        },
        Report::Blind(MeminfoError::Malformed),
        Report::Sighted,
    ];
    let told: Vec<_> = reports.iter().map(|report| show(&teller().event(report))).collect();
    insta::assert_snapshot!(told.join("\n\n"));
}
