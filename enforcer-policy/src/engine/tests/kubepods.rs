//! The pods' own limit is short: only what counts towards that can end the shortage.

use super::rig::*;
use crate::{
    engine::{
        Action, CandidateFacts, EngineSettings, Exclusion, Level, NodeSample, Outcome, Reading, Refusal,
        Suppression, followed,
    },
    model::CgroupId,
    threshold::{Signal, Threshold, ThresholdValue},
};

const NODE: Signal = Signal::MemoryAvailable;
const PODS: Signal = Signal::AllocatableMemoryAvailable;

fn hard(signal: Signal) -> Threshold {
    Threshold::hard(signal, ThresholdValue::Amount(GIB))
}

fn settings(thresholds: &[Threshold]) -> EngineSettings {
    EngineSettings { thresholds: followed(thresholds), ..enforcing(GIB, 0) }
}

/// The first in every order, outside of kubepods; and one within.
fn pods() -> [(CandidateFacts, Reading); 2] {
    let outside = CandidateFacts { in_kubepods: false, ..candidate(1, -1, 0) };
    [(outside, using(8 * GIB)), (candidate(2, 0, 0), using(2 * GIB))]
}

/// So much is left of the node's memory, and of the pods' limit.
fn see(rig: &mut Rig, node_mib: u64, pods_mib: u64) -> Vec<Action> {
    let allocatable = Some(Level { available: pods_mib * MIB, capacity: 16 * GIB });
    rig.see(NodeSample { allocatable, ..NodeSample::memory(rig.now_ns, node_mib * MIB, 32 * GIB) })
}

fn victim(rig: &Rig) -> (Signal, u64) {
    let decision = rig.engine.decision().unwrap();
    (decision.shortage.signal, decision.cgroup.0)
}

fn suppressed(reported: &[Action]) -> Vec<(Signal, Suppression)> {
    let of = |action: &Action| match action {
        Action::Suppressed { signal, reason, .. } => Some((*signal, *reason)),
        _ => None,
    };
    reported.iter().filter_map(of).collect()
}

#[test]
fn who_is_outside_does_not_die_for_it() {
    let mut rig = Rig::new(&settings(&[hard(NODE), hard(PODS)]), &pods());
    assert!(evicts(&see(&mut rig, 8_192, 500)));
    assert_eq!(victim(&rig), (PODS, 2));
    let excluded: Vec<_> = rig.engine.decision().unwrap().excluded.iter().copied().collect();
    assert_eq!((excluded.len(), excluded[0].cgroup), (1, CgroupId(1)));
    assert_eq!(excluded[0].reason, Exclusion::OutsideKubepods);
    // For the node's own memory it is ranked like any other.
    let mut rig = Rig::new(&settings(&[hard(NODE), hard(PODS)]), &pods());
    assert!(evicts(&see(&mut rig, 500, 8_192)));
    assert_eq!(victim(&rig), (NODE, 1));
}

#[test]
fn with_none_inside_the_node_is_not_kept_waiting() {
    let mut rig = Rig::new(&settings(&[hard(PODS), hard(NODE)]), &pods()[..1]);
    let reported = see(&mut rig, 500, 500);
    assert_eq!(suppressed(&reported), [(PODS, Suppression::NoCandidate)]);
    assert!(evicts(&reported), "{reported:?}");
    assert_eq!(victim(&rig), (NODE, 1));
}

#[test]
fn what_is_outside_does_not_bring_it_within_reach() {
    let target = 3 * GIB;
    let threshold = Threshold { value: ThresholdValue::Amount(target), ..hard(PODS) };
    let mut rig = Rig::new(&settings(&[threshold]), &pods());
    let reported = see(&mut rig, 8_192, 1_000);
    assert!(!evicts(&reported));
    assert_eq!(suppressed(&reported), [(PODS, Suppression::OutOfReach)]);
}

#[test]
fn what_comes_back_outside_is_not_awaited() {
    let mut rig = Rig::new(&settings(&[hard(NODE), hard(PODS)]), &pods());
    assert!(evicts(&see(&mut rig, 500, 8_192)));
    rig.signalled();
    rig.readings[0] = Reading::Gone;
    // It is dead, and none of its memory is back.
    rig.pass(5 * MS);
    assert!(rig.progress(false, 8 * GIB).is_empty());
    let mut later = rig.clone();
    assert!(!evicts(&see(&mut later, 500, 8_192)), "the node waits for it");
    assert!(evicts(&see(&mut rig, 2_048, 500)));
    assert_eq!(victim(&rig), (PODS, 2));
}

/// Its death would leave the pods' limit as it is, however soon that is exhausted.
#[test]
fn who_is_outside_keeps_its_grace_when_it_runs_out() {
    let is_killed = |first: CandidateFacts| {
        let mut rig = Rig::new(&super::soft::both(), &[(first, using(100 * MIB)), pods()[1]]);
        rig.look(1_500 * MIB);
        assert!(evicts(&rig.pass(MINUTE).look(1_500 * MIB)));
        assert_eq!(victim(&rig), (NODE, 1));
        let (number, now_ns) = (rig.number(), rig.now_ns);
        rig.on_outcome(Outcome::Terminated { number, now_ns });
        rig.readings[1] = using(4 * GIB);
        let node = NodeSample {
            fill_bytes_per_second: GIB,
            allocatable: Some(Level { available: 100 * MIB, capacity: 16 * GIB }),
            ..NodeSample::memory(rig.pass(2 * SECOND).now_ns, 1_500 * MIB, 32 * GIB)
        };
        rig.see(node).iter().any(|action| matches!(action, Action::Kill { .. }))
    };
    let within = candidate(1, -1, 0);
    assert!(is_killed(within));
    assert!(!is_killed(CandidateFacts { in_kubepods: false, ..within }));
}

#[test]
fn an_order_that_was_made_for_it_is_not_used_for_the_node() {
    let [outside, within] = pods();
    let third = (candidate(3, 1, 0), using(GIB));
    let mut rig = Rig::new(&settings(&[hard(NODE), hard(PODS)]), &[outside, within, third]);
    assert!(evicts(&see(&mut rig, 8_192, 500)));
    assert_eq!(victim(&rig), (PODS, 2));
    // Meanwhile the node runs short, and the victim is refused.
    see(rig.pass(MS), 500, 500);
    let (number, now_ns) = (rig.number(), rig.now_ns);
    let reported = rig.on_outcome(Outcome::Refused { number, now_ns, reason: Refusal::Gone });
    assert!(!evicts(&reported), "{reported:?}");
    assert!(evicts(&see(rig.pass(MS), 500, 500)));
    assert_eq!(victim(&rig), (NODE, 1));
}

#[test]
fn what_ends_outside_is_not_awaited_for_the_pods_limit() {
    let [(outside, held), inside] = pods();
    let ending = CandidateFacts { terminating: true, ..outside };
    let mut rig = Rig::new(&settings(&[hard(NODE), hard(PODS)]), &[(ending, held), inside]);
    assert!(evicts(&see(&mut rig, 8_192, 500)));
    assert_eq!(victim(&rig), (PODS, 2));
    // Its memory is the node's.
    let mut rig = Rig::new(&settings(&[hard(NODE), hard(PODS)]), &[(ending, held), inside]);
    assert!(!evicts(&see(&mut rig, 500, 8_192)));
}
