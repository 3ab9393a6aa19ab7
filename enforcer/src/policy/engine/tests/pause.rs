//! Evicting is paused, and goes on.
use super::rig::*;
use crate::{
    model::CgroupId,
    policy::engine::{Action, BreakerSettings, EngineSettings, Mode, Suppression},
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
    let told = *rig.engine.decision().unwrap();
    assert!(told.dry_run && told.paused);
    assert_eq!(rig.engine.victim(), None);
    assert!(!evicts(&rig.pass(SECOND).look(MIB)), "told once a minute");
    rig.engine.configure(&running);
    // What was told does not put off what is to be done.
    assert!(evicts(&rig.pass(MS).look(MIB)));
    let done = *rig.engine.decision().unwrap();
    assert!(!done.dry_run && !done.paused);
    assert_eq!((done.cgroup, done.ranking), (told.cgroup, told.ranking));
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
    let opens = |told: &[Action]| {
        told.iter()
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
