//! What is run before a victim is signalled, and how long that is waited for.

use super::{
    rig::{GIB, MIB, MS, Rig, SECOND},
    soft::{both, holding},
};
use crate::{
    engine::{
        Action, Candidates, EngineSettings, FailureReason, HookEnd, HookPlan, KillReason, Level, Mode,
        NodeSample, Outcome, Spared, followed,
    },
    threshold::{Signal, Threshold, ThresholdValue},
};

/// A rig whose hard threshold is crossed and whose victim is decided on, with a hook that may take 5 s.
fn hooked() -> Rig {
    let settings = EngineSettings { hook_timeout_ns: 5 * SECOND, ..both() };
    let mut rig = Rig::upstream(&settings);
    let reported = rig.look(GIB - 1);
    assert!(reported.contains(&Action::Evict), "{reported:?}");
    assert_eq!(rig.engine.decision().unwrap().hook, HookPlan::Awaited { for_ns: 5 * SECOND });
    rig
}

fn end(rig: &mut Rig) {
    let (number, now_ns) = (rig.number(), rig.now_ns);
    let reported = rig.on_outcome(Outcome::HookEnded { number, now_ns, end: HookEnd::Exited(1) });
    assert!(matches!(reported[..], [Action::LookAgainWithin(_)]), "{reported:?}");
}

fn killed_for(actions: &[Action]) -> Option<KillReason> {
    actions.iter().find_map(|action| match action {
        Action::Kill { reason, .. } => Some(*reason),
        _ => None,
    })
}

fn failed_for(actions: &[Action]) -> Option<FailureReason> {
    actions.iter().find_map(|action| match action {
        Action::Failed(failure) => Some(failure.reason),
        _ => None,
    })
}

#[test]
fn the_kill_follows_its_end_whatever_it_says() {
    let mut rig = hooked();
    assert_eq!(killed_for(&rig.pass(SECOND).look(GIB - 1)), None);
    end(&mut rig);
    assert_eq!(killed_for(&rig.pass(MS).look(GIB - 1)), Some(KillReason::HookOver));
}

#[test]
fn it_is_waited_for_no_longer_than_it_may_take() {
    let mut rig = hooked();
    for _ in 0..49 {
        assert_eq!(killed_for(&rig.pass(100 * MS).look(GIB - 1)), None);
    }
    assert_eq!(killed_for(&rig.pass(100 * MS).look(GIB - 1)), Some(KillReason::HookOver));
}

#[test]
fn it_is_waited_for_no_longer_once_half_of_what_was_left_has_gone() {
    // Too suddenly for a rate to be known.
    let mut rig = hooked();
    assert_eq!(killed_for(&rig.pass(MS).look(GIB / 2)), None);
    assert_eq!(killed_for(&rig.pass(MS).look(GIB / 2 - MIB)), Some(KillReason::HookOver));
    // A soft eviction goes on as one, if the hard threshold is not met.
    let settings = EngineSettings { hook_timeout_ns: 5 * SECOND, ..both() };
    let hard_at_a_quarter = followed(&[
        Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(GIB / 4)),
        Threshold {
            grace_period_ms: 1_000,
            ..Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(2 * GIB))
        },
    ]);
    let mut rig = Rig::upstream(&EngineSettings { thresholds: hard_at_a_quarter, ..settings });
    rig.look(1_500 * MIB);
    let reported = rig.pass(SECOND).look(1_500 * MIB);
    assert!(reported.contains(&Action::Evict), "{reported:?}");
    let reported = rig.pass(MS).look(700 * MIB);
    assert!(reported.iter().any(|action| matches!(action, Action::Ask { .. })), "{reported:?}");
}

#[test]
fn where_the_hook_has_ended_the_shortage_no_pod_is_signalled() {
    let mut rig = hooked();
    assert_eq!(failed_for(&rig.pass(MS).look(3 * GIB)), None, "it has not ended");
    end(&mut rig);
    let reported = rig.pass(MS).look(3 * GIB);
    assert_eq!((failed_for(&reported), killed_for(&reported)), (Some(FailureReason::Relieved), None));
    assert_eq!(rig.engine.victim(), None);
}

#[test]
fn who_is_spared_meanwhile_is_not_signalled() {
    // Paused, in another mode, or protected: as it runs, and not only at its end.
    let paused = |rig: &mut Rig| {
        let settings = EngineSettings { paused: true, ..*rig.engine.settings() };
        rig.engine.configure(&settings);
    };
    let dry = |rig: &mut Rig| {
        let settings = EngineSettings { mode: Mode::DryRun, ..*rig.engine.settings() };
        rig.engine.configure(&settings);
    };
    let protected = |rig: &mut Rig| {
        let victim = rig.engine.decision().unwrap().cgroup;
        let mut facts: Vec<_> = rig.engine.candidates().known().map(|(facts, _)| *facts).collect();
        for facts in &mut facts {
            facts.protected |= facts.cgroup == victim;
        }
        drop(rig.engine.replace(Candidates::new(&facts)));
    };
    let changes: [&dyn Fn(&mut Rig); 3] = [&paused, &dry, &protected];
    let reasons = [Spared::Paused, Spared::NotEnforcing, Spared::Protected];
    for (change, spared) in changes.into_iter().zip(reasons) {
        let mut rig = hooked();
        let first = rig.engine.decision().unwrap().cgroup;
        change(&mut rig);
        let reported = rig.pass(MS).look(GIB - MIB);
        assert_eq!(
            (failed_for(&reported), killed_for(&reported)),
            (Some(FailureReason::Spared(spared)), None)
        );
        assert!(rig.engine.victim().is_none_or(|(_, cgroup)| cgroup != first));
    }
}

#[test]
fn memory_that_runs_out_is_no_reason_to_kill_who_was_chosen_for_process_ids() {
    let thresholds = followed(&[
        Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(GIB / 4)),
        Threshold::hard(Signal::PidAvailable, ThresholdValue::Amount(100)),
    ]);
    let mut rig = Rig::upstream(&EngineSettings { hook_timeout_ns: 5 * SECOND, thresholds, ..both() });
    rig.readings.fill(holding(20));
    let node = |now_ns, pids, fill_bytes_per_second| NodeSample {
        pids: Some(Level { available: pids, capacity: 1_000 }),
        fill_bytes_per_second,
        ..NodeSample::memory(now_ns, GIB, 16 * GIB)
    };
    let reported = rig.see(node(rig.now_ns, 50, 0));
    assert!(reported.contains(&Action::Evict), "{reported:?}");
    rig.pass(MS);
    let reported = rig.see(node(rig.now_ns, 500, 100 * GIB));
    assert_eq!(failed_for(&reported), Some(FailureReason::Relieved), "{reported:?}");
    assert_eq!(killed_for(&reported), None);
}

#[test]
fn where_memory_would_be_exhausted_meanwhile_it_is_not_begun() {
    let settings = EngineSettings { hook_timeout_ns: 5 * SECOND, ..both() };
    let plan = |exhausted_in_ns| HookPlan::new(&settings, false, exhausted_in_ns, 500 * MIB);
    assert_eq!(plan(Some(200 * MS)), HookPlan::NoTime);
    assert_eq!(plan(None), HookPlan::Awaited { for_ns: 5 * SECOND });
    let HookPlan::Awaited { for_ns } = plan(Some(3 * SECOND)) else { panic!("there is time") };
    assert!((SECOND..3 * SECOND).contains(&for_ns), "{for_ns}");
    assert_eq!(HookPlan::new(&settings, true, None, 500 * MIB), HookPlan::Off);
}
