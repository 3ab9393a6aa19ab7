//! A threshold that is crossed when it is loaded, or cannot be reached, kills no pod.
use super::rig::*;
use crate::{
    engine::{
        Action, Actions, CandidateFacts, Candidates, Engine, EngineSettings, Input, Level, Mode, NodeSample,
        Reading, Suppression, followed,
    },
    threshold::{Signal, Threshold, ThresholdValue},
};

fn hard(signal: Signal, amount: u64) -> Threshold {
    Threshold::hard(signal, ThresholdValue::Amount(amount))
}

fn of(thresholds: &[Threshold]) -> EngineSettings {
    EngineSettings { thresholds: followed(thresholds), ..enforcing(0, 0) }
}

/// A rig whose thresholds were just loaded.
fn loaded(settings: &EngineSettings) -> Rig {
    let mut rig = Rig::upstream(settings);
    let fresh = Engine::new(settings);
    let candidates = rig.engine.replace(Candidates::default());
    rig.engine = fresh;
    drop(rig.engine.replace(candidates));
    rig
}

fn is_dry(rig: &Rig) -> (bool, bool) {
    let decision = rig.engine.decision().unwrap();
    (decision.dry_run, decision.unarmed)
}

fn is_out_of_reach(reported: &[Action]) -> bool {
    reported.iter().any(|action| matches!(action, Action::Suppressed { reason: Suppression::OutOfReach, .. }))
}

#[test]
fn a_threshold_that_is_crossed_when_it_is_loaded_decides_as_in_dry_run_until_it_was_not() {
    let mut rig = loaded(&enforcing(GIB, 0));
    assert!(evicts(&rig.look(GIB - 1)));
    assert_eq!(is_dry(&rig), (true, true));
    assert_eq!((rig.engine.unarmed().len(), rig.engine.armed().len(), rig.arming), (1, 0, 1));
    // Reported again as in dry-run, and no more than that.
    assert!(!evicts(&rig.pass(59 * SECOND).look(GIB - 1)));
    assert!(evicts(&rig.pass(SECOND).look(GIB - 1)));
    assert_eq!(is_dry(&rig), (true, true));
    rig.pass(MS).look(GIB);
    assert_eq!((rig.engine.unarmed().len(), rig.engine.armed().len(), rig.arming), (0, 1, 2));
    assert!(evicts(&rig.pass(MS).look(GIB - 1)), "its pause is over with it");
    assert_eq!(is_dry(&rig), (false, false));
}

#[test]
fn a_changed_threshold_is_new_and_one_that_stays_is_armed() {
    let (low, typo) = (hard(Signal::MemoryAvailable, GIB / 2), hard(Signal::MemoryAvailable, 2 * GIB));
    let mut rig = Rig::upstream(&of(&[low]));
    rig.look(GIB);
    rig.engine.configure(&of(&[typo]));
    assert!(evicts(&rig.pass(SECOND).look(GIB)));
    assert_eq!((is_dry(&rig), rig.engine.unarmed().len()), ((true, true), 1));
    rig.engine.configure(&of(&[low]));
    rig.pass(SECOND).look(GIB);
    assert_eq!(rig.engine.armed().len(), 1);
    rig.engine.configure(&of(&[low, hard(Signal::PidAvailable, 5)]));
    assert!(evicts(&rig.pass(SECOND).look(GIB / 2 - 1)));
    assert_eq!(is_dry(&rig), (false, false), "another threshold beside it changes nothing");
}

#[test]
fn an_operator_arms_it_at_once() {
    let mut rig = loaded(&enforcing(GIB, 0));
    assert!(evicts(&rig.look(GIB - 1)));
    let now_ns = rig.now_ns;
    let actions: Actions = rig.engine.step(Input::Arm { now_ns });
    assert!(actions.iter().any(|action| *action == Action::Arming));
    assert!(evicts(&rig.pass(MS).look(GIB - 1)));
    assert_eq!(is_dry(&rig), (false, false));
    assert!(rig.engine.unarmed().is_empty());
}

#[test]
fn one_that_is_not_armed_keeps_none_that_is_from_acting() {
    let soft = Threshold { grace_period_ms: 1_000, ..hard(Signal::MemoryAvailable, 2 * GIB) };
    let low = hard(Signal::MemoryAvailable, GIB / 2);
    let mut rig = loaded(&of(&[low, soft]));
    rig.look(GIB);
    assert!(evicts(&rig.pass(SECOND).look(GIB)));
    assert_eq!(is_dry(&rig), (true, true));
    assert!(evicts(&rig.pass(MS).look(GIB / 2 - 1)), "its pause is no other's");
    assert_eq!((is_dry(&rig), rig.engine.decision().unwrap().shortage.hard), ((false, false), true));
    // While that one dies the soft threshold decides nothing.
    rig.signalled();
    assert!(!evicts(&rig.pass(MINUTE).look(GIB)));
}

#[test]
fn a_hard_threshold_that_is_not_armed_cuts_no_grace_short() {
    let soft = Threshold { grace_period_ms: 1_000, ..hard(Signal::MemoryAvailable, GIB) };
    let settings = EngineSettings { max_pod_grace_period_ns: 30 * SECOND, ..of(&[soft]) };
    let mut rig = Rig::upstream(&settings);
    rig.look(GIB - 1);
    assert!(evicts(&rig.pass(SECOND).look(GIB - 1)));
    rig.on_outcome(crate::engine::Outcome::Terminated { number: rig.number(), now_ns: rig.now_ns });
    let typo = hard(Signal::MemoryAvailable, 2 * GIB);
    rig.engine.configure(&EngineSettings { thresholds: followed(&[typo, soft]), ..settings });
    let reported = rig.pass(SECOND).look(GIB - 1);
    assert!(!reported.iter().any(|action| matches!(action, Action::Kill { .. })), "{reported:?}");
}

/// Where the pods' limit is lowered below what they use, they are not short of memory by what they do.
#[test]
fn a_limit_that_is_lowered_below_what_the_pods_use_disarms_its_threshold() {
    let mut rig = Rig::upstream(&of(&[hard(Signal::AllocatableMemoryAvailable, 100 * MIB)]));
    let see = |rig: &mut Rig, limit_mib: u64| {
        let capacity = limit_mib * MIB;
        let allocatable = Some(Level { available: capacity.saturating_sub(1_850 * MIB), capacity });
        let now_ns = rig.pass(SECOND).now_ns;
        rig.see(NodeSample { allocatable, ..NodeSample::memory(now_ns, 8 * GIB, 16 * GIB) })
    };
    see(&mut rig, 4_000);
    assert!(evicts(&see(&mut rig, 1_900)));
    assert_eq!(is_dry(&rig), (true, true));
    see(&mut rig, 4_000);
    assert!(rig.engine.unarmed().is_empty());
}

#[test]
fn a_threshold_that_cannot_be_reached_kills_no_pod() {
    // Of 1,850 MiB all but those of a protected pod can go.
    let pods = |protected| {
        let facts = CandidateFacts { protected, ..candidate(1, -1, GIB) };
        [(facts, using(900 * MIB)), (candidate(2, 0, 0), using(950 * MIB))]
    };
    let reported = |settings: &EngineSettings, protected| {
        let mut rig = Rig::new(settings, &pods(protected));
        let reported = rig.look(GIB);
        (evicts(&reported), is_out_of_reach(&reported))
    };
    let reach = GIB + 1_850 * MIB;
    assert_eq!(reported(&enforcing(reach, 0), false), (true, false));
    assert_eq!(reported(&enforcing(reach + 1, 0), false), (false, true));
    assert_eq!(reported(&enforcing(reach, 0), true), (false, true));
    let dry = EngineSettings { mode: Mode::DryRun, ..enforcing(reach + 1, 0) };
    assert_eq!(reported(&dry, false), (false, true), "as in earnest");
    // The threshold can be reached, and its minimum reclaim cannot: so much is fetched, and no more.
    assert_eq!(reported(&enforcing(reach, GIB), false), (true, false));
    let mut rig = Rig::new(&enforcing(GIB, 10 * GIB), &pods(false));
    assert!(evicts(&rig.look(GIB - 1)));
    rig.dies();
    rig.readings[1] = Reading::Gone;
    let reported = rig.pass(SECOND).look(GIB + 900 * MIB);
    assert!(!evicts(&reported) && is_out_of_reach(&reported), "{reported:?}");
    // What is not known may be enough.
    let mut rig = Rig::new(&enforcing(15 * GIB, 0), &[(candidate(1, 0, 0), Reading::Missing)]);
    assert!(evicts(&rig.look(GIB)));
}

#[test]
fn another_threshold_does_not_wait_for_what_cannot_be_reached() {
    let soft = Threshold { grace_period_ms: 1_000, ..hard(Signal::MemoryAvailable, 15 * GIB) };
    let mut rig = Rig::upstream(&of(&[hard(Signal::MemoryAvailable, GIB), soft]));
    rig.look(2 * GIB);
    assert!(is_out_of_reach(&rig.pass(SECOND).look(2 * GIB)));
    assert!(evicts(&rig.pass(MS).look(GIB - 1)));
}
