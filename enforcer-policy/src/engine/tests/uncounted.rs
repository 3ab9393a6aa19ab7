//! Pods whose cgroups have no memory controller: process ids are taken back from them, and memory never.

use super::rig::{GIB, MIB, MS, Rig, SECOND, candidate, enforcing, evicts, using};
use crate::{
    engine::{
        Action, EngineSettings, Exclusion, FailureReason, Level, NodeSample, Outcome, Reading, Resource,
        Suppression, Usage, followed,
    },
    model::CgroupId,
    rank::DecidedBy,
    threshold::{Signal, Threshold, ThresholdValue},
};

fn counting(processes: u64) -> Reading {
    Reading::Uncounted { process_count: Some(processes) }
}

fn short_of_pids(rig: &Rig, available: u64) -> NodeSample {
    NodeSample {
        pids: Some(Level { available, capacity: 32_768 }),
        ..NodeSample::memory(rig.now_ns, 8 * GIB, 16 * GIB)
    }
}

fn for_pids() -> EngineSettings {
    let threshold = Threshold::hard(Signal::PidAvailable, ThresholdValue::Amount(1_200));
    EngineSettings { thresholds: followed(&[threshold]), ..enforcing(0, 0) }
}

#[test]
fn memory_is_taken_from_no_pod_of_which_it_is_not_known_what_it_uses() {
    let pods = [(candidate(1, -5, 0), counting(900)), (candidate(2, 0, GIB), counting(1))];
    for evict_within_request in [true, false] {
        let mut rig = Rig::new(&EngineSettings { evict_within_request, ..enforcing(GIB, 0) }, &pods);
        let reported = rig.look(MIB);
        let reason = Suppression::NoCandidate;
        let none = Action::Suppressed { now_ns: rig.now_ns, signal: Signal::MemoryAvailable, reason };
        assert!(reported.contains(&none) && !evicts(&reported), "{reported:?}");
        let readings = rig.readings.clone();
        let ranking = rig.engine.rank(rig.now_ns, Signal::MemoryAvailable, &readings);
        let reasons: Vec<_> = ranking.excluded.iter().map(|one| one.reason).collect();
        assert_eq!((ranking.order.len(), reasons), (0, vec![Exclusion::UsageUnknown; 2]));
    }
}

#[test]
fn one_whose_memory_is_known_is_evicted_before_all_of_which_it_is_not() {
    let mut within = enforcing(GIB, 0);
    within.evict_within_request = true;
    let pods = [(candidate(1, -5, 0), counting(900)), (candidate(2, 9, 4 * GIB), using(2 * GIB))];
    let mut rig = Rig::new(&within, &pods);
    assert!(evicts(&rig.look(MIB)));
    let decision = *rig.engine.decision().unwrap();
    assert_eq!((decision.cgroup, decision.decided_by, decision.ranked_count), (CgroupId(2), None, 1));
    let excluded: Vec<_> = decision.excluded.iter().map(|one| (one.cgroup.0, one.reason)).collect();
    assert_eq!(excluded, [(1, Exclusion::UsageUnknown)]);
}

/// The usage of those that are left out does not make the goal look reachable.
#[test]
fn no_pod_is_evicted_in_vain_beside_those_whose_memory_is_not_counted() {
    let pods = [(candidate(1, 0, 0), counting(900)), (candidate(2, 0, 0), using(100 * MIB))];
    let mut rig = Rig::new(&enforcing(GIB, 0), &pods);
    let reported = rig.look(100 * MIB);
    assert!(
        reported
            .iter()
            .any(|action| matches!(action, Action::Suppressed { reason: Suppression::OutOfReach, .. })),
        "{reported:?}"
    );
}

#[test]
fn process_ids_are_taken_back_by_priority_and_count_and_awaited() {
    let pods = [
        (candidate(1, 1, 0), counting(500)),
        (candidate(2, 0, GIB), counting(100)),
        (candidate(3, 0, 0), counting(300)),
    ];
    let mut rig = Rig::new(&for_pids(), &pods);
    let node = short_of_pids(&rig, 1_000);
    assert!(evicts(&rig.see(node)));
    let decision = *rig.engine.decision().unwrap();
    assert_eq!((decision.cgroup, decision.decided_by), (CgroupId(3), Some(DecidedBy::ProcessCount)));
    assert_eq!(decision.predicted_freed_bytes, 0);
    rig.signalled();
    let look = |rig: &mut Rig, left| {
        rig.pass(MS);
        let (number, now_ns) = (rig.number(), rig.now_ns);
        let (populated, current_bytes, process_count) = (false, None, Some(left));
        let progress = Outcome::Progress { number, now_ns, populated, current_bytes, process_count };
        rig.on_outcome(progress)
    };
    // That its memory is not read does not mean that its cgroup is gone.
    assert_eq!(look(&mut rig, 200), []);
    let node = short_of_pids(&rig, 1_100);
    assert!(!evicts(&rig.see(node)), "200 are still to come back");
    let completed = look(&mut rig, 0);
    let [Action::Completed(completion)] = completed[..] else { panic!("{completed:?}") };
    assert_eq!((completion.predicted_freed_bytes, completion.freed_bytes), (0, None));
}

/// A process frees its memory long before its id: of a thousand on busy CPUs the last may end much later.
#[test]
fn a_victim_whose_memory_is_back_is_not_given_up_as_long_as_its_processes_end() {
    let Reading::Usage(usage) = using(100 * MIB) else { unreachable!("it is counted") };
    let usage = Reading::Usage(Usage { process_count: Some(640), ..usage });
    let mut rig = Rig::new(&for_pids(), &[(candidate(1, 0, 0), usage)]);
    let node = short_of_pids(&rig, 1_000);
    assert!(evicts(&rig.see(node)));
    rig.signalled();
    let look = |rig: &mut Rig, left| {
        rig.pass(900 * MS);
        let (number, now_ns) = (rig.number(), rig.now_ns);
        let (populated, current_bytes, process_count) = (true, Some(0), Some(left));
        rig.on_outcome(Outcome::Progress { number, now_ns, populated, current_bytes, process_count })
    };
    // A 64th of its processes at a time, far beyond the 3.4 s that it is given.
    for step in 1..=20 {
        assert_eq!(look(&mut rig, 640 - 10 * step), []);
    }
    assert_eq!(look(&mut rig, 440), []);
    let reported = look(&mut rig, 440);
    assert!(
        matches!(reported[..], [Action::Failed(failure)] if failure.reason == FailureReason::StillPopulated),
        "{reported:?}"
    );
}

/// Another pod may be growing: with the memory back and the node still short, the next one is due.
#[test]
fn where_memory_is_short_a_victim_is_not_awaited_for_its_process_ids() {
    let Reading::Usage(usage) = using(2 * GIB) else { unreachable!("it is counted") };
    let usage = Reading::Usage(Usage { process_count: Some(640), ..usage });
    let mut rig = Rig::new(&enforcing(GIB, 0), &[(candidate(1, 0, 0), usage)]);
    assert!(evicts(&rig.look(MIB)));
    rig.signalled();
    let number = rig.number();
    let reported: Vec<_> = (1..=7)
        .flat_map(|step| {
            let now_ns = rig.pass(900 * MS).now_ns;
            let (populated, current_bytes, process_count) = (true, Some(0), Some(640 - 10 * step));
            rig.on_outcome(Outcome::Progress { number, now_ns, populated, current_bytes, process_count })
        })
        .collect();
    assert!(
        matches!(reported[..], [Action::Failed(failure), ..] if failure.reason == FailureReason::StillPopulated),
        "{reported:?}"
    );
}

#[test]
fn a_victim_whose_cgroup_is_gone_is_not_awaited() {
    let mut rig = Rig::new(&for_pids(), &[(candidate(1, 0, 0), counting(300))]);
    let node = short_of_pids(&rig, 1_000);
    assert!(evicts(&rig.see(node)));
    rig.signalled();
    rig.pass(SECOND);
    let (number, now_ns) = (rig.number(), rig.now_ns);
    let gone =
        Outcome::Progress { number, now_ns, populated: false, current_bytes: None, process_count: None };
    assert!(matches!(rig.on_outcome(gone)[..], [Action::Completed(_)]));
}

/// Each look comes when the pause after the last one without a candidate is just over.
#[test]
fn memory_without_a_candidate_does_not_keep_process_ids_from_being_taken_back() {
    let thresholds = [
        Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(GIB)),
        Threshold::hard(Signal::PidAvailable, ThresholdValue::Amount(1_200)),
    ];
    let settings = EngineSettings { thresholds: followed(&thresholds), ..enforcing(0, 0) };
    let mut rig = Rig::new(&settings, &[(candidate(1, 0, 0), counting(300))]);
    let look = |rig: &mut Rig, pids| {
        rig.pass(100 * MS);
        let node = NodeSample {
            pids: Some(Level { available: pids, capacity: 32_768 }),
            ..NodeSample::memory(rig.now_ns, MIB, 16 * GIB)
        };
        evicts(&rig.see(node))
    };
    assert!(!look(&mut rig, 2_000) && !look(&mut rig, 2_000), "process ids suffice");
    assert!((0..2).any(|_| look(&mut rig, 1_000)));
    assert_eq!(rig.engine.decision().unwrap().shortage.signal, Signal::PidAvailable);
}

/// Memory that is short by its hard threshold comes first again as soon as it has a candidate, also where process ids have
/// waited behind it.
#[test]
fn hard_memory_with_a_candidate_is_not_put_behind_soft_process_ids() {
    let thresholds = [
        Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(GIB)),
        Threshold {
            grace_period_ms: 250,
            ..Threshold::hard(Signal::PidAvailable, ThresholdValue::Amount(1_200))
        },
    ];
    let settings = EngineSettings { thresholds: followed(&thresholds), ..enforcing(0, 0) };
    let pods = [(candidate(1, 0, 0), counting(300)), (candidate(2, 9, 0), Reading::Gone)];
    let mut rig = Rig::new(&settings, &pods);
    let look = |rig: &mut Rig| {
        let node = NodeSample {
            pids: Some(Level { available: 1_000, capacity: 32_768 }),
            ..NodeSample::memory(rig.now_ns, MIB, 16 * GIB)
        };
        let evicted = evicts(&rig.see(node));
        rig.pass(100 * MS);
        evicted
    };
    assert!(!look(&mut rig) && !look(&mut rig), "no candidate for memory, and the grace of process ids runs");
    rig.readings[1] = using(4 * GIB);
    rig.pass(100 * MS);
    assert!(look(&mut rig));
    let decision = rig.engine.decision().unwrap();
    assert_eq!((decision.shortage.signal, decision.cgroup), (Signal::MemoryAvailable, CgroupId(2)));
    assert_eq!(rig.wished, Some(Resource::Pids), "read for both");
}
