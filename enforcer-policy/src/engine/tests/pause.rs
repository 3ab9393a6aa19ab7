//! Evicting is paused, and goes on.
use super::rig::*;
use crate::{
    engine::{
        Action, BreakerSettings, CandidateFacts, Candidates, Decision, EngineSettings, FailureReason, Mode,
        Outcome, Reading, Refusal, Spared, Suppression,
    },
    model::CgroupId,
};

fn paused(settings: &EngineSettings) -> EngineSettings {
    EngineSettings { paused: true, ..*settings }
}

#[test]
fn while_paused_the_same_is_decided_and_nothing_done_and_then_it_is() {
    let running = enforcing(GIB, 0);
    let mut rig = Rig::upstream(&running);
    rig.engine.configure(&paused(&running));
    assert_eq!(rig.engine.mode(), Mode::DryRun);
    assert!(evicts(&rig.look(MIB)));
    let reported = *rig.engine.decision().unwrap();
    assert!(reported.dry_run && reported.paused);
    assert_eq!(rig.engine.victim(), None);
    assert!(!evicts(&rig.pass(SECOND).look(MIB)), "reported once a minute");
    rig.engine.configure(&running);
    // A decision that was only reported does not delay one that is acted on.
    assert!(evicts(&rig.pass(MS).look(MIB)));
    let done = *rig.engine.decision().unwrap();
    assert!(!done.dry_run && !done.paused);
    let order = |decision: &Decision| -> Vec<_> {
        decision.ranking.iter().map(|ranked| (ranked.cgroup, ranked.standing)).collect()
    };
    assert_eq!((done.cgroup, order(&done)), (reported.cgroup, order(&reported)));
}

#[test]
fn it_begins_paused_after_a_restart() {
    let mut rig = Rig::upstream(&paused(&enforcing(GIB, 0)));
    assert!(evicts(&rig.look(MIB)) && rig.engine.decision().unwrap().dry_run);
}

#[test]
fn a_pause_does_not_make_an_observer_decide() {
    let mut rig = Rig::upstream(&paused(&EngineSettings { mode: Mode::Observe, ..enforcing(GIB, 0) }));
    assert_eq!(rig.engine.mode(), Mode::Observe);
    assert!(!evicts(&rig.look(MIB)));
}

#[test]
fn an_eviction_under_way_goes_on() {
    let running = enforcing(GIB, 0);
    let mut rig = Rig::upstream(&running);
    assert!(evicts(&rig.look(MIB)));
    rig.engine.configure(&paused(&running));
    assert_eq!(rig.dies().cgroup, CgroupId(5));
    assert!(evicts(&rig.look(MIB)) && rig.engine.decision().unwrap().dry_run);
}

#[test]
fn a_pause_leaves_the_breaker_as_it_is() {
    let breaker = BreakerSettings { max_kills: 1, window_ns: MINUTE, max_share_permille: 1_000 };
    let running = EngineSettings { breaker, ..enforcing(GIB, 0) };
    let mut rig = Rig::upstream(&running);
    assert!(evicts(&rig.look(MIB)));
    rig.dies();
    let opens = |reported: &[Action]| {
        reported
            .iter()
            .any(|action| matches!(action, Action::Suppressed { reason: Suppression::BreakerOpen, .. }))
    };
    assert!(opens(&rig.look(MIB)));
    rig.engine.configure(&paused(&running));
    rig.engine.configure(&running);
    assert_eq!(rig.engine.mode(), Mode::DryRun);
    // Beyond its window it stays open until the configuration is loaded again.
    assert!(!opens(&rig.pass(2 * MINUTE).look(MIB)));
    assert!(rig.engine.decision().unwrap().dry_run);
}

/// A victim that was asked to end, with 10 s to do so.
fn asked() -> Rig {
    let mut rig = Rig::upstream(&super::soft::both());
    rig.look(1_500 * MIB);
    assert!(evicts(&rig.pass(MINUTE).look(1_500 * MIB)));
    let (number, now_ns) = (rig.number(), rig.now_ns);
    rig.on_outcome(Outcome::Terminated { number, now_ns });
    rig
}

fn with_victim(rig: &Rig, change: impl Fn(&mut CandidateFacts)) -> Candidates {
    let of = |(facts, _): (&CandidateFacts, &Reading)| {
        let mut facts = *facts;
        if facts.cgroup == CgroupId(5) {
            change(&mut facts);
        }
        facts
    };
    let facts: Vec<_> = rig.engine.candidates().known().map(of).collect();
    Candidates::new(&facts)
}

fn failures(reported: &[Action]) -> Vec<FailureReason> {
    let of = |action: &Action| match action {
        Action::Failed(failure) => Some(failure.reason),
        _ => None,
    };
    reported.iter().filter_map(of).collect()
}

fn kills(reported: &[Action]) -> bool {
    reported.iter().any(|action| matches!(action, Action::Kill { .. }))
}

#[test]
fn who_is_spared_within_its_grace_has_that_and_is_not_killed_at_its_end() {
    type Way<'a> = &'a dyn Fn(&mut Rig);
    let dry = EngineSettings { mode: Mode::DryRun, ..super::soft::both() };
    let ways: [(Spared, Way<'_>); 4] = [
        (Spared::Paused, &|rig| rig.engine.configure(&paused(&super::soft::both()))),
        (Spared::NotEnforcing, &|rig| rig.engine.configure(&dry)),
        (Spared::Protected, &|rig| {
            let set = with_victim(rig, |facts| facts.protected = true);
            drop(rig.engine.replace(set));
        }),
        (Spared::Critical, &|rig| {
            let set = with_victim(rig, |facts| facts.critical = true);
            drop(rig.engine.replace(set));
        }),
    ];
    for (spared, spare) in ways {
        // It is not waited for longer than the grace, nor while memory runs out.
        for (wait_ns, available) in [(10 * SECOND, 1_500 * MIB), (MS, GIB - 1)] {
            let mut rig = asked();
            spare(&mut rig);
            assert!(!kills(&rig.pass(MS).look(1_500 * MIB)) && rig.engine.victim().is_some());
            let reported: Vec<_> = (0..wait_ns / MS).flat_map(|_| rig.pass(MS).look(available)).collect();
            assert!(!kills(&reported), "{spared:?}");
            assert_eq!(failures(&reported), [FailureReason::Spared(spared)]);
            let decision = *rig.engine.decision().unwrap();
            let is_of_pod = matches!(spared, Spared::Protected | Spared::Critical);
            assert_eq!(decision.dry_run, !is_of_pod);
            assert_eq!(decision.cgroup == CgroupId(5), !is_of_pod, "the next one is");
        }
    }
}

#[test]
fn who_ends_within_its_grace_though_spared_since_has_made_room() {
    let mut rig = asked();
    rig.engine.configure(&paused(&super::soft::both()));
    rig.pass(SECOND).look(1_500 * MIB);
    assert!(matches!(rig.progress(false, 0)[..], [Action::Completed(_)]));
}

#[test]
fn a_pause_that_is_over_within_the_grace_changes_nothing() {
    let mut rig = asked();
    rig.engine.configure(&paused(&super::soft::both()));
    assert!(!kills(&rig.pass(SECOND).look(1_500 * MIB)));
    rig.engine.configure(&super::soft::both());
    let reported: Vec<_> = (0..10_000).flat_map(|_| rig.pass(MS).look(1_500 * MIB)).collect();
    assert!(kills(&reported) && failures(&reported).is_empty());
}

/// What is to be asked is not killed in place of it either, however urgent.
#[test]
fn who_is_spared_before_it_could_be_asked_is_not_killed() {
    let mut rig = Rig::upstream(&super::soft::both());
    rig.look(1_500 * MIB);
    assert!(evicts(&rig.pass(MINUTE).look(1_500 * MIB)));
    rig.engine.configure(&paused(&super::soft::both()));
    assert!(!kills(&rig.pass(MS).look(GIB - 1)));
    let (number, now_ns) = (rig.number(), rig.now_ns);
    rig.on_outcome(Outcome::Terminated { number, now_ns });
    assert_eq!(failures(&rig.pass(MS).look(GIB - 1)), [FailureReason::Spared(Spared::Paused)]);
}

/// As whoever asks sees it: the order was acknowledged, so SIGTERM must not follow it.
#[test]
fn who_is_spared_before_it_could_be_asked_is_not_asked() {
    let mut rig = Rig::upstream(&super::soft::both());
    rig.look(1_500 * MIB);
    assert!(evicts(&rig.pass(MINUTE).look(1_500 * MIB)));
    assert_eq!(rig.engine.withdrawn(), None);
    rig.engine.configure(&paused(&super::soft::both()));
    assert_eq!(rig.engine.withdrawn(), Some(rig.number()));
    let (number, now_ns) = (rig.number(), rig.now_ns);
    let reported = rig.on_outcome(Outcome::Refused { number, now_ns, reason: Refusal::Withdrawn });
    assert_eq!(failures(&reported), [FailureReason::Spared(Spared::Paused)]);
    assert_eq!(rig.engine.withdrawn(), None);
}
