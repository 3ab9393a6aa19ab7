//! A dry run decides as in earnest, where nothing is freed.

use super::{rig::*, shared::with_shared, soft::holding};
use crate::{
    engine::{Action, CandidateFacts, EngineSettings, Exclusion, Level, Mode, NodeSample, Reading, followed},
    model::CgroupId,
    threshold::{Signal, Threshold, ThresholdValue},
};

fn hard(signal: Signal, amount: u64) -> Threshold {
    Threshold::hard(signal, ThresholdValue::Amount(amount))
}

fn settings(mode: Mode, thresholds: &[Threshold]) -> EngineSettings {
    // So long that no decision is repeated.
    let dry_run_cool_down_ns = 10 * MINUTE;
    EngineSettings { mode, thresholds: followed(thresholds), dry_run_cool_down_ns, ..enforcing(GIB, 0) }
}

/// Who is chosen, for which signal, by a hard threshold or a soft one, while so much of the node's memory, of the pods' limit
/// and of process ids is left. In earnest each victim dies at once.
fn course(
    settings: &EngineSettings,
    pods: &[(CandidateFacts, Reading)],
    (mut memory, mut limit, ids): (u64, u64, u64),
) -> Vec<(Signal, bool, u64)> {
    let mut rig = Rig::new(settings, pods);
    let mut chosen = Vec::new();
    // Long enough for a soft threshold.
    for ns in [MS, MINUTE].into_iter().chain([10 * MS; 20]) {
        let level = |available| Some(Level { available, capacity: 32_768 * GIB });
        let now_ns = rig.pass(ns).now_ns;
        let node = NodeSample {
            allocatable: level(limit),
            pids: level(ids),
            ..NodeSample::memory(now_ns, memory, 32_768 * GIB)
        };
        if evicts(&rig.see(node)) {
            let decision = *rig.engine.decision().unwrap();
            assert_eq!(decision.dry_run, settings.mode == Mode::DryRun);
            chosen.push((decision.shortage.signal, decision.shortage.hard, decision.cgroup.0));
            if !decision.dry_run {
                rig.dies();
                rig.readings[decision.index.0] = Reading::Gone;
                memory += decision.predicted_freed_bytes;
                limit +=
                    if pods[decision.index.0].0.in_kubepods { decision.predicted_freed_bytes } else { 0 };
            }
        }
    }
    chosen
}

/// The same in a dry run and in earnest.
fn both_ways(
    thresholds: &[Threshold],
    pods: &[(CandidateFacts, Reading)],
    left: (u64, u64, u64),
) -> Vec<(Signal, bool, u64)> {
    let [dry, earnest] =
        [Mode::DryRun, Mode::Enforce].map(|mode| course(&settings(mode, thresholds), pods, left));
    assert_eq!(dry, earnest);
    dry
}

#[test]
fn another_resource_does_not_wait_for_a_decision_that_was_only_reported() {
    let thresholds = [hard(Signal::MemoryAvailable, GIB), hard(Signal::PidAvailable, 1_000)];
    let mut rig = Rig::new(
        &settings(Mode::DryRun, &thresholds),
        &[(candidate(1, 0, 0), using(4 * GIB)), (candidate(2, 0, 0), holding(500))],
    );
    let node = |rig: &Rig, available, pids| NodeSample {
        pids: Some(Level { available: pids, capacity: 32_768 }),
        ..NodeSample::memory(rig.now_ns, available, 16 * GIB)
    };
    let look = node(&rig, MIB, 2_000);
    assert!(evicts(&rig.see(look)));
    assert_eq!(rig.engine.decision().unwrap().cgroup, CgroupId(1));
    let look = node(rig.pass(SECOND), MIB, 900);
    assert!(evicts(&rig.see(look)));
    let decision = *rig.engine.decision().unwrap();
    assert_eq!((decision.shortage.signal, decision.cgroup), (Signal::PidAvailable, CgroupId(2)));
    // What is decided is not repeated, for either.
    for _ in 0..58 {
        let look = node(rig.pass(SECOND), MIB, 900);
        let reported = rig.see(look);
        assert!(!reported.iter().any(|action| matches!(action, Action::Evict | Action::Suppressed { .. })));
    }
}

#[test]
fn a_soft_threshold_decides_on_the_next_pod_if_the_first_would_not_do() {
    let soft = Threshold { grace_period_ms: 60_000, ..hard(Signal::MemoryAvailable, 2 * GIB) };
    let thresholds = [hard(Signal::MemoryAvailable, GIB), soft];
    let pods = |bytes| [(candidate(1, -1, 0), using(bytes)), (candidate(2, 0, 0), using(GIB))];
    let left = |memory| (memory, u64::MAX / 2, 9_999);
    let (signal, memory) = (Signal::MemoryAvailable, GIB / 2);
    // By the time that the soft one has lasted, the hard one has taken the first.
    assert_eq!(both_ways(&thresholds, &pods(GIB), left(memory)), [(signal, true, 1), (signal, false, 2)]);
    assert_eq!(both_ways(&thresholds, &pods(2 * GIB), left(memory)), [(signal, true, 1)]);
}

#[test]
fn the_pods_limit_and_the_node_are_short_at_once() {
    let (node, limit) = (Signal::MemoryAvailable, Signal::AllocatableMemoryAvailable);
    let thresholds = [hard(node, GIB), hard(limit, GIB)];
    let outside = CandidateFacts { in_kubepods: false, ..candidate(1, -1, 0) };
    let left = (GIB / 2, GIB / 2, 9_999);
    let within = [(candidate(1, -1, 0), using(2 * GIB)), (candidate(2, 0, 0), using(2 * GIB))];
    assert_eq!(both_ways(&thresholds, &within, left), [(node, true, 1)], "one suffices for both");
    let first_outside = [(outside, using(2 * GIB)), within[1]];
    assert_eq!(both_ways(&thresholds, &first_outside, left), [(node, true, 1), (limit, true, 2)]);
}

/// In earnest they are charged until a kubelet removes them, and awaited for as long.
#[test]
fn files_that_the_victim_maps_cost_no_second_pod_either_way() {
    let soft = Threshold { grace_period_ms: 1, ..hard(Signal::MemoryAvailable, 2 * GIB) };
    let all = |mode| {
        let hog = CandidateFacts { torn_down: true, ..candidate(1, -1, 0) };
        let pods = [(hog, with_shared(100, 1_500, 1_500)), (candidate(2, 0, 0), using(GIB))];
        let mut rig = Rig::new(&settings(mode, &[hard(Signal::MemoryAvailable, GIB), soft]), &pods);
        let (mut available_mib, mut chosen) = (512, Vec::new());
        for _ in 0..20 {
            if !evicts(&rig.pass(100 * MS).look(available_mib * MIB)) {
                continue;
            }
            chosen.push(rig.engine.decision().unwrap().cgroup);
            if mode == Mode::Enforce {
                rig.signalled();
                rig.pass(5 * MS).progress(false, 1_500 * MIB);
                rig.pass(50 * MS).progress(false, 1_500 * MIB);
                rig.readings[0] = with_shared(0, 1_500, 0);
                available_mib += 100;
            }
        }
        chosen
    };
    assert_eq!(all(Mode::DryRun), [CgroupId(1)]);
    assert_eq!(all(Mode::Enforce), [CgroupId(1)]);
}

#[test]
fn what_was_chosen_is_named_and_is_still_in_the_ranking() {
    let soft = Threshold { grace_period_ms: 1, ..hard(Signal::MemoryAvailable, 4 * GIB) };
    let mut rig = Rig::upstream(&settings(Mode::DryRun, &[hard(Signal::MemoryAvailable, GIB), soft]));
    assert!(evicts(&rig.look(GIB - 1)));
    assert_eq!(rig.engine.decision().unwrap().cgroup, CgroupId(5));
    // Of 1.8 GiB in all, 4 GiB are not within reach; a threshold that is lower is.
    rig.engine.configure(&settings(
        Mode::DryRun,
        &[hard(Signal::MemoryAvailable, GIB), Threshold { value: ThresholdValue::Amount(2 * GIB), ..soft }],
    ));
    assert!(evicts(&rig.pass(SECOND).look(GIB - 1)));
    assert!(evicts(&rig.pass(SECOND).look(GIB - 1)));
    let decision = *rig.engine.decision().unwrap();
    assert_eq!((decision.shortage.hard, decision.cgroup), (false, CgroupId(3)));
    let chosen: Vec<_> = decision.excluded.iter().map(|one| (one.cgroup, one.reason)).collect();
    assert_eq!(chosen, [(CgroupId(5), Exclusion::Chosen)]);
    let readings = rig.readings.clone();
    let ranking = rig.engine.clone().rank(rig.now_ns, Signal::MemoryAvailable, &readings);
    assert_eq!(ranking.order.first().map(|ranked| ranked.cgroup), Some(CgroupId(5)));
}
