//! A soft eviction whose victim has no grace period, where another is asked first: a kubelet, through the API server.
use super::{
    rig::*,
    soft::{both, killed_for},
};
use crate::{
    engine::{
        Action, CandidateFacts, Candidates, EngineSettings, FailureReason, KillReason, NodeSample, Outcome,
        Refusal,
    },
    model::CgroupId,
};

/// A rig with such a decision: the administrator gives no pod a grace period, or this one requests none.
fn decided(is_own: bool) -> Rig {
    let max_pod_grace_period_ns = if is_own { 10 * SECOND } else { 0 };
    let settings = EngineSettings { asks_first: true, max_pod_grace_period_ns, ..both() };
    let mut rig = Rig::upstream(&settings);
    if is_own {
        let facts = rig.engine.candidates().known().map(|(facts, _)| match facts.cgroup {
            CgroupId(5) => CandidateFacts { grace_period_ns: 0, ..*facts },
            _ => *facts,
        });
        let facts: Vec<_> = facts.collect();
        drop(rig.engine.replace(Candidates::new(&facts)));
    }
    rig.look(1_500 * MIB);
    assert!(evicts(&rig.pass(MINUTE).look(1_500 * MIB)));
    let decision = *rig.engine.decision().unwrap();
    assert_eq!((decision.cgroup, decision.shortage.hard), (CgroupId(5), false));
    rig
}

fn unrequested(rig: &mut Rig) -> Vec<Action> {
    let (number, now_ns) = (rig.number(), rig.now_ns);
    rig.on_outcome(Outcome::Unrequested { number, now_ns })
}

#[test]
fn another_is_asked_to_end_it_within_a_second() {
    for is_own in [false, true] {
        let mut rig = decided(is_own);
        let decision = *rig.engine.decision().unwrap();
        assert_eq!((decision.grace_ns, decision.graceless), (SECOND, true), "{is_own}");
        let (number, now_ns) = (rig.number(), rig.now_ns);
        rig.on_outcome(Outcome::Requested { number, now_ns });
        // It hears of that a little later.
        assert_eq!(killed_for(&rig.pass(SECOND).look(1_500 * MIB)), None);
        rig.pass(MS);
        let [Action::Completed(completion)] = rig.progress(false, 0)[..] else { panic!("not completed") };
        assert_eq!((completion.moments.requested_ns, completion.moments.signalled_ns), (Some(now_ns), None));
    }
}

#[test]
fn one_that_no_one_else_ends_is_killed_at_once() {
    let mut rig = decided(true);
    assert_eq!(killed_for(&rig.pass(SECOND).look(1_500 * MIB)), None, "the API server takes its time");
    let reported = unrequested(rig.pass(MS));
    assert_eq!(killed_for(&reported), Some(KillReason::Unanswered));
    assert!(!evicts(&reported), "it is the same victim");
    assert_eq!(unrequested(&mut rig), [], "once");
    let completion = rig.dies();
    assert_eq!(completion.moments.asked_ns(), None);
    assert!(completion.moments.signalled_ns.is_some());
}

#[test]
fn a_disruption_budget_spares_it_like_any_other() {
    let mut rig = decided(false);
    let (number, now_ns) = (rig.number(), rig.now_ns);
    let reported = rig.on_outcome(Outcome::Refused { number, now_ns, reason: Refusal::Budget });
    assert!(matches!(reported[..], [Action::Failed(_), Action::Suppressed { .. }]), "{reported:?}");
    assert!(!evicts(&rig.pass(SECOND).look(1_500 * MIB)));
    assert!(evicts(&rig.look(GIB - 1)), "a hard threshold asks no budget");
    let decision = *rig.engine.decision().unwrap();
    assert_eq!((decision.grace_ns, decision.graceless), (0, false));
}

#[test]
fn a_disruption_budget_spares_no_pod_once_memory_is_nearly_exhausted() {
    let mut rig = decided(false);
    let (number, now_ns) = (rig.number(), rig.now_ns);
    rig.on_outcome(Outcome::Refused { number, now_ns, reason: Refusal::Budget });
    let node = NodeSample::memory(rig.pass(SECOND).now_ns, 1_500 * MIB, 16 * GIB);
    assert!(!evicts(&rig.see(node)));
    assert!(evicts(&rig.see(NodeSample { fill_bytes_per_second: 100 * GIB, ..node })));
    let decision = *rig.engine.decision().unwrap();
    assert_eq!((decision.grace_ns, decision.shortage.hard), (0, false));
}

#[test]
fn a_hard_threshold_does_not_wait_for_the_answer() {
    let mut rig = decided(true);
    let reported = rig.pass(MS).look(GIB - 1);
    assert_eq!(killed_for(&reported), Some(KillReason::HardThreshold));
    rig.signalled();
    assert_eq!(unrequested(&mut rig), [], "it is dying already");
}

/// The answer comes before whoever asks could see that the shortage has ended.
#[test]
fn one_whose_shortage_has_ended_is_not_killed_for_the_lack_of_an_answer() {
    let mut rig = decided(true);
    rig.pass(MS).look(3 * GIB);
    let reported = unrequested(&mut rig);
    assert_eq!(killed_for(&reported), None);
    let reason = reported.iter().find_map(|action| match action {
        Action::Failed(failure) => Some(failure.reason),
        _ => None,
    });
    assert_eq!(reason, Some(FailureReason::Relieved));
    assert_eq!(rig.engine.victim(), None);
}

#[test]
fn without_anyone_to_ask_it_is_killed_at_once() {
    let mut rig = Rig::upstream(&EngineSettings { max_pod_grace_period_ns: 0, ..both() });
    rig.look(1_500 * MIB);
    assert!(evicts(&rig.pass(MINUTE).look(1_500 * MIB)));
    let decision = rig.engine.decision().unwrap();
    assert_eq!((decision.grace_ns, decision.graceless), (0, false));
}

#[test]
fn a_pod_with_a_grace_period_keeps_it() {
    let mut rig = Rig::upstream(&EngineSettings { asks_first: true, ..both() });
    rig.look(1_500 * MIB);
    assert!(evicts(&rig.pass(MINUTE).look(1_500 * MIB)));
    let decision = rig.engine.decision().unwrap();
    assert_eq!((decision.grace_ns, decision.graceless), (10 * SECOND, false));
}
