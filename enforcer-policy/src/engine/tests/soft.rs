//! Soft thresholds, several of them at once, conditions, and process ids.

use super::rig::{GIB, MIB, MINUTE, MS, Rig, SECOND, candidate, evicts, using};
use crate::{
    engine::{
        Action, Actions, BreakerSettings, CandidateFacts, Candidates, EngineSettings, Exclusion,
        FailureReason, Input, KillReason, Level, Mode, NodeSample, Outcome, RankKey, Reading, Refusal,
        Resource, Suppression, Usage, followed,
    },
    model::CgroupId,
    rank::DecidedBy,
    threshold::{NodeCondition, Signal, Threshold, ThresholdValue},
};

fn threshold(signal: Signal, amount: u64, grace_ms: u64) -> Threshold {
    Threshold { grace_period_ms: grace_ms, ..Threshold::hard(signal, ThresholdValue::Amount(amount)) }
}

/// Hard below 1 GiB, soft below 2 GiB for a minute; pods get at the most 10 s.
pub(super) fn both() -> EngineSettings {
    EngineSettings {
        mode: Mode::Enforce,
        thresholds: followed(&[
            threshold(Signal::MemoryAvailable, GIB, 0),
            threshold(Signal::MemoryAvailable, 2 * GIB, 60_000),
        ]),
        pressure_transition_period_ms: 300_000,
        max_pod_grace_period_ns: 10 * SECOND,
        ..EngineSettings::default()
    }
}

/// A rig whose soft threshold is due, with the decision made, and the actions of the deciding look.
pub(super) fn decided() -> (Rig, Vec<Action>) {
    let mut rig = Rig::upstream(&both());
    assert!(!evicts(&rig.look(1_500 * MIB)));
    assert!(!evicts(&rig.pass(MINUTE - 1).look(1_500 * MIB)), "its grace period has not passed");
    let reported = rig.pass(1).look(1_500 * MIB);
    (rig, reported)
}

fn asked() -> Rig {
    let (mut rig, _) = decided();
    let (number, now_ns) = (rig.number(), rig.now_ns);
    rig.on_outcome(Outcome::Terminated { number, now_ns });
    rig
}

pub(super) fn killed_for(actions: &[Action]) -> Option<KillReason> {
    actions.iter().find_map(|action| match action {
        Action::Kill { reason, .. } => Some(*reason),
        _ => None,
    })
}

#[test]
fn a_soft_threshold_asks_after_its_grace_and_kills_after_the_pods() {
    let (mut rig, reported) = decided();
    assert!(evicts(&reported));
    let decision = *rig.engine.decision().unwrap();
    assert_eq!((decision.shortage.hard, decision.grace_ns), (false, 10 * SECOND), "the smaller of the two");
    assert_eq!(decision.shortage.threshold, 2 * GIB);
    assert_eq!(decision.decided_ns - decision.crossed_ns, MINUTE);
    let (number, now_ns) = (rig.number(), rig.now_ns);
    let reported = rig.on_outcome(Outcome::Terminated { number, now_ns });
    assert!(matches!(reported[..], [Action::LookAgainWithin(within)] if within <= 100 * MS), "{reported:?}");
    for _ in 0..99 {
        let reported = rig.pass(100 * MS).look(1_500 * MIB);
        assert_eq!((killed_for(&reported), evicts(&reported)), (None, false));
    }
    let reported = rig.pass(100 * MS).look(1_500 * MIB);
    assert_eq!(killed_for(&reported), Some(KillReason::GracePassed));
    assert_eq!(killed_for(&rig.pass(MS).look(1_500 * MIB)), None, "once");
    rig.signalled();
    rig.pass(MS);
    let [Action::Completed(completion)] = rig.progress(false, 0)[..] else { panic!("not completed") };
    assert_eq!(completion.moments.terminated_ns, Some(now_ns));
    assert!(completion.moments.signalled_ns.is_some());
}

/// The threshold was crossed a second before.
#[test]
fn the_time_for_which_the_machine_is_suspended_is_no_part_of_a_grace_period() {
    let mut rig = Rig::upstream(&both());
    rig.look(1_500 * MIB);
    let suspended_ns = 60 * MINUTE;
    let resumed =
        |rig: &Rig| NodeSample { suspended_ns, ..NodeSample::memory(rig.now_ns, 1_500 * MIB, 16 * GIB) };
    let node = resumed(rig.pass(SECOND + suspended_ns));
    assert!(!evicts(&rig.see(node)), "it has been met for a second");
    let node = resumed(rig.pass(MINUTE - SECOND - 1));
    assert!(!evicts(&rig.see(node)));
    let node = resumed(rig.pass(1));
    assert!(evicts(&rig.see(node)));
}

#[test]
fn who_ends_within_its_grace_is_not_killed() {
    let mut rig = asked();
    rig.pass(3 * SECOND);
    let [Action::Completed(completion)] = rig.progress(false, 0)[..] else { panic!("not completed") };
    assert_eq!(completion.moments.signalled_ns, None);
    assert_eq!(killed_for(&rig.pass(10 * SECOND).look(3 * GIB)), None);
}

#[test]
fn a_hard_threshold_cuts_the_grace_short() {
    let mut rig = asked();
    assert_eq!(killed_for(&rig.pass(MS).look(GIB)), None, "not below it yet");
    let reported = rig.pass(MS).look(GIB - 1);
    assert_eq!(killed_for(&reported), Some(KillReason::HardThreshold));
    assert!(!evicts(&reported), "it is the same victim");
}

/// The order that the refused one was first of has gone with its set.
#[test]
fn a_refusal_after_the_candidates_were_exchanged_does_not_mean_that_none_is_left() {
    let (mut rig, _) = decided();
    let facts: Vec<_> = rig.engine.candidates().known().map(|(facts, _)| *facts).collect();
    drop(rig.engine.replace(Candidates::new(&facts)));
    let (number, now_ns) = (rig.number(), rig.now_ns);
    let reported = rig.on_outcome(Outcome::Refused { number, now_ns, reason: Refusal::Empty });
    assert!(matches!(reported[..], [Action::Failed(_)]), "{reported:?}");
    assert!(evicts(&rig.pass(MS).look(1_500 * MIB)), "the next of a fresh order");
    assert_eq!(rig.engine.decision().unwrap().cgroup, CgroupId(3));
}

/// The disk takes its time, and usages are read meanwhile: the next in an order of before need not be the next by now.
#[test]
fn after_a_refusal_that_took_long_the_next_one_is_chosen_by_fresh_readings() {
    let (mut rig, _) = decided();
    rig.readings[2] = using(MIB);
    rig.readings[3] = using(GIB);
    rig.pass(2 * SECOND).look(1_500 * MIB);
    let (number, now_ns) = (rig.number(), rig.now_ns);
    let reported = rig.on_outcome(Outcome::Refused { number, now_ns, reason: Refusal::Kernel(95) });
    assert!(matches!(reported[..], [Action::Failed(_)]), "{reported:?}");
    assert!(evicts(&rig.pass(MS).look(1_500 * MIB)));
    assert_eq!(rig.engine.decision().unwrap().cgroup, CgroupId(4), "the other one is within its request now");
}

/// Until the decision is on the disk no pod is asked to end, and that disk may be what stalls.
#[test]
fn a_hard_threshold_does_not_wait_for_a_soft_decision_to_be_recorded() {
    let (mut rig, _) = decided();
    assert_eq!(killed_for(&rig.pass(MINUTE).look(1_500 * MIB)), None, "it has not been asked yet");
    let reported = rig.pass(MS).look(GIB - 1);
    assert_eq!(killed_for(&reported), Some(KillReason::HardThreshold));
    assert!(!evicts(&reported), "it is the same victim");
    rig.signalled();
    // What comes of the asking after all is late.
    let (number, now_ns) = (rig.number(), rig.now_ns);
    for late in [
        Outcome::Terminated { number, now_ns },
        Outcome::Refused { number, now_ns, reason: Refusal::Unrecorded },
    ] {
        assert_eq!(rig.on_outcome(late), [], "{late:?}");
    }
    assert_eq!(rig.engine.victim().map(|(number, _)| number), Some(number));
    rig.pass(MS);
    let [Action::Completed(completion)] = rig.progress(false, 0)[..] else { panic!("not completed") };
    assert_eq!((completion.moments.terminated_ns, completion.moments.signalled_ns), (None, Some(now_ns)));
}

#[test]
fn memory_that_would_be_exhausted_before_it_came_back_cuts_the_grace_short() {
    let mut rig = asked();
    let filling = |rig: &Rig, fill_bytes_per_second| NodeSample {
        fill_bytes_per_second,
        ..NodeSample::memory(rig.now_ns, 1_500 * MIB, 16 * GIB)
    };
    // The victim's 100 MiB take some 220 ms to come back.
    let node = filling(rig.pass(MS), 5 * GIB);
    assert_eq!(killed_for(&rig.see(node)), None);
    let node = filling(rig.pass(MS), 8 * GIB);
    assert_eq!(killed_for(&rig.see(node)), Some(KillReason::Exhausting));
}

#[test]
fn a_hard_threshold_does_not_wait_until_it_has_been_asked() {
    let (mut rig, _) = decided();
    assert_eq!(killed_for(&rig.pass(MS).look(1_500 * MIB)), None);
    let reported = rig.pass(MS).look(GIB - 1);
    assert_eq!(killed_for(&reported), Some(KillReason::HardThreshold));
    rig.signalled();
    // The answer comes all the same, and is no second eviction.
    let (number, now_ns) = (rig.number(), rig.now_ns);
    assert!(!rig.on_outcome(Outcome::Terminated { number, now_ns }).contains(&Action::Evict));
    assert_eq!(rig.engine.moments().unwrap().asked_ns(), None);
    rig.pass(MS);
    let [Action::Completed(completion)] = rig.progress(false, 0)[..] else { panic!("not completed") };
    assert_eq!((completion.moments.terminated_ns, completion.moments.signalled_ns), (None, Some(now_ns)));
}

#[test]
fn what_is_asked_too_late_counts_once_for_the_breaker() {
    let breaker = BreakerSettings { max_kills: 2, window_ns: 600 * SECOND, max_share_permille: 1_000 };
    let mut rig = Rig::upstream(&EngineSettings { breaker, ..both() });
    for cgroup in [5, 4] {
        rig.look(1_500 * MIB);
        assert!(evicts(&rig.pass(MINUTE).look(1_500 * MIB)), "{cgroup} is not beyond the breaker");
        assert!(!rig.engine.decision().unwrap().dry_run);
        assert!(killed_for(&rig.pass(MS).look(GIB - 1)).is_some());
        rig.signalled();
        let (number, now_ns) = (rig.number(), rig.now_ns);
        rig.on_outcome(Outcome::Terminated { number, now_ns });
        rig.pass(MS);
        rig.progress(false, 0);
        rig.pass(2 * SECOND).look(3 * GIB);
    }
    rig.look(1_500 * MIB);
    assert!(evicts(&rig.pass(MINUTE).look(1_500 * MIB)));
    assert!(rig.engine.decision().unwrap().dry_run, "the third");
}

/// To write it down, ask it and look on while it ends takes longer than there is.
#[test]
fn who_could_not_end_before_memory_is_exhausted_is_not_asked_to() {
    let mut rig = Rig::upstream(&both());
    rig.look(1_500 * MIB);
    let filling = |rig: &Rig, fill_bytes_per_second| NodeSample {
        fill_bytes_per_second,
        ..NodeSample::memory(rig.now_ns, 1_500 * MIB, 16 * GIB)
    };
    let mut slow = rig.clone();
    let node = filling(slow.pass(MINUTE), GIB);
    assert!(evicts(&slow.see(node)));
    assert_eq!(slow.engine.decision().unwrap().grace_ns, 10 * SECOND, "it may slow down yet");
    let node = filling(rig.pass(MINUTE), 8 * GIB);
    assert!(evicts(&rig.see(node)));
    let decision = *rig.engine.decision().unwrap();
    assert_eq!((decision.grace_ns, decision.shortage.hard), (0, false));
}

/// What kubepods may still take can be less than what the node has, and what fills the node need not be pods.
#[test]
fn the_limit_of_kubepods_can_be_exhausted_first_by_the_pods_in_it() {
    let mut rig = asked();
    let see = |rig: &mut Rig| {
        let node = NodeSample {
            fill_bytes_per_second: GIB,
            allocatable: Some(Level { available: 100 * MIB, capacity: 4 * GIB }),
            ..NodeSample::memory(rig.pass(2 * SECOND).now_ns, 1_500 * MIB, 16 * GIB)
        };
        rig.see(node)
    };
    assert_eq!(killed_for(&see(&mut rig)), None, "no pod grows");
    rig.readings[0] = using(900 * MIB + 2 * GIB);
    let mut outside = rig.clone();
    let facts = rig.engine.candidates().known().map(|(facts, _)| match facts.cgroup {
        CgroupId(1) => CandidateFacts { in_kubepods: false, ..*facts },
        _ => *facts,
    });
    drop(outside.engine.replace(Candidates::new(&facts.collect::<Vec<_>>())));
    assert_eq!(killed_for(&see(&mut outside)), None, "it grows outside of kubepods");
    assert_eq!(killed_for(&see(&mut rig)), Some(KillReason::Exhausting));
}

#[test]
fn a_refusal_to_kill_who_has_ended_meanwhile_is_no_failure() {
    let mut rig = asked();
    let reported = rig.pass(MS).look(MIB);
    assert_eq!(killed_for(&reported), Some(KillReason::HardThreshold));
    let (number, now_ns) = (rig.number(), rig.now_ns);
    let reported = rig.on_outcome(Outcome::Refused { number, now_ns, reason: Refusal::Gone });
    assert!(matches!(reported[..], [Action::Completed(_)]), "{reported:?}");
}

#[test]
fn what_cannot_be_recorded_is_not_begun_and_tried_again_later() {
    let (mut rig, _) = decided();
    let (number, now_ns) = (rig.number(), rig.now_ns);
    let reported = rig.on_outcome(Outcome::Refused { number, now_ns, reason: Refusal::Unrecorded });
    assert!(
        matches!(reported[..], [Action::Failed(failure)] if failure.reason == FailureReason::Refused(Refusal::Unrecorded))
    );
    assert!(!evicts(&rig.pass(9 * SECOND).look(1_500 * MIB)));
    // A hard threshold waits for no disk.
    let mut hard = rig.clone();
    assert!(evicts(&hard.look(MIB)));
    assert!(evicts(&rig.pass(SECOND).look(1_500 * MIB)));
    assert_eq!(rig.engine.decision().unwrap().cgroup, CgroupId(5), "no pod is passed over for it");
}

/// The kubelet ends it, and hears of that a little later than the API server.
#[test]
fn who_is_evicted_at_the_api_server_is_killed_only_if_it_outlives_its_grace_by_far() {
    let (mut rig, _) = decided();
    let (number, now_ns) = (rig.number(), rig.now_ns);
    rig.on_outcome(Outcome::Requested { number, now_ns });
    for _ in 0..199 {
        let reported = rig.pass(100 * MS).look(1_500 * MIB);
        assert_eq!((killed_for(&reported), evicts(&reported)), (None, false));
    }
    let mut ended = rig.clone();
    let [Action::Completed(completion)] = ended.progress(false, 0)[..] else { panic!("not completed") };
    let moments = completion.moments;
    assert_eq!(
        (moments.requested_ns, moments.terminated_ns, moments.signalled_ns),
        (Some(now_ns), None, None)
    );
    assert_eq!(killed_for(&rig.pass(100 * MS).look(1_500 * MIB)), Some(KillReason::GracePassed));
}

#[test]
fn a_hard_threshold_kills_who_is_evicted_at_the_api_server_at_once() {
    let (mut rig, _) = decided();
    let (number, now_ns) = (rig.number(), rig.now_ns);
    let mut unanswered = rig.clone();
    rig.on_outcome(Outcome::Requested { number, now_ns });
    for rig in [&mut rig, &mut unanswered] {
        let reported = rig.pass(SECOND).look(GIB - 1);
        assert_eq!((killed_for(&reported), evicts(&reported)), (Some(KillReason::HardThreshold), false));
        rig.signalled();
    }
    // An answer that comes after that changes nothing.
    for late in
        [Outcome::Requested { number, now_ns }, Outcome::Refused { number, now_ns, reason: Refusal::Budget }]
    {
        assert_eq!(unanswered.on_outcome(late), [], "{late:?}");
    }
}

#[test]
fn a_disruption_budget_suppresses_a_soft_eviction_and_no_other_pod_takes_its_place() {
    let (mut rig, _) = decided();
    let first = rig.engine.decision().unwrap().cgroup;
    let (number, now_ns) = (rig.number(), rig.now_ns);
    let reported = rig.on_outcome(Outcome::Refused { number, now_ns, reason: Refusal::Budget });
    let [Action::Failed(failure), Action::Suppressed { signal, reason, .. }] = reported[..] else {
        panic!("{reported:?}")
    };
    assert_eq!(failure.reason, FailureReason::Refused(Refusal::Budget));
    assert_eq!((signal, reason), (Signal::MemoryAvailable, Suppression::DisruptionBudget));
    for _ in 0..59 {
        assert!(!evicts(&rig.pass(SECOND).look(1_500 * MIB)));
    }
    let mut hard = rig.clone();
    assert!(evicts(&hard.look(GIB - 1)), "a hard threshold asks no budget");
    assert_eq!(hard.engine.decision().unwrap().cgroup, first);
    assert!(evicts(&rig.pass(SECOND).look(1_500 * MIB)));
    assert_eq!(rig.engine.decision().unwrap().cgroup, first);
}

#[test]
fn without_a_grace_of_the_administrators_a_soft_eviction_kills_at_once() {
    let settings = EngineSettings { max_pod_grace_period_ns: 0, ..both() };
    let mut rig = Rig::upstream(&settings);
    rig.look(1_500 * MIB);
    assert!(evicts(&rig.pass(MINUTE).look(1_500 * MIB)));
    let decision = rig.engine.decision().unwrap();
    assert_eq!((decision.grace_ns, decision.shortage.hard), (0, false));
}

#[test]
fn a_condition_outlasts_its_threshold() {
    let mut rig = Rig::upstream(&EngineSettings { mode: Mode::Observe, ..both() });
    let has = |rig: &Rig| rig.conditions.map(|conditions| conditions.has(NodeCondition::MemoryPressure));
    rig.look(3 * GIB);
    assert_eq!(has(&rig), None, "nothing changed");
    rig.pass(SECOND).look(1_500 * MIB);
    assert_eq!(has(&rig), Some(true), "before the grace period has passed");
    rig.pass(SECOND).look(3 * GIB);
    rig.pass(300 * SECOND - 1 - SECOND).look(3 * GIB);
    assert_eq!(has(&rig), Some(true));
    rig.pass(1).look(3 * GIB);
    assert_eq!(has(&rig), Some(false));
}

#[test]
fn each_threshold_is_crossed_and_cleared_by_itself() {
    let mut rig = Rig::upstream(&EngineSettings { mode: Mode::Observe, ..both() });
    let crossed = |reported: &[Action]| -> Vec<bool> {
        reported
            .iter()
            .filter_map(|action| match action {
                Action::Crossed { shortage, .. } => Some(shortage.hard),
                _ => None,
            })
            .collect()
    };
    assert_eq!(crossed(&rig.look(1_500 * MIB)), [false]);
    assert_eq!(crossed(&rig.pass(SECOND).look(500 * MIB)), [true]);
    let reported = rig.pass(SECOND).look(1_500 * MIB);
    assert!(matches!(reported[0], Action::Cleared { shortage, .. } if shortage.hard), "{reported:?}");
    assert_eq!(rig.engine.next_threshold(Signal::MemoryAvailable), Some(GIB), "the soft one is met already");
}

/// `TestAllocatableMemoryPressure`, as far as the choice goes.
#[test]
fn kubepods_own_limit_is_a_shortage_of_memory() {
    let settings = EngineSettings {
        thresholds: followed(&[
            threshold(Signal::MemoryAvailable, GIB, 0),
            threshold(Signal::AllocatableMemoryAvailable, GIB, 0),
        ]),
        ..both()
    };
    let mut rig = Rig::upstream(&settings);
    let allocatable = Some(Level { available: 500 * MIB, capacity: 4 * GIB });
    let node = NodeSample { allocatable, ..NodeSample::memory(rig.now_ns, 8 * GIB, 16 * GIB) };
    assert!(evicts(&rig.see(node)));
    let decision = rig.engine.decision().unwrap();
    assert_eq!(
        (decision.cgroup, decision.shortage.signal),
        (CgroupId(5), Signal::AllocatableMemoryAvailable)
    );
}

pub(super) fn holding(processes: u64) -> Reading {
    let Reading::Usage(usage) = using(MIB) else { unreachable!() };
    Reading::Usage(Usage { process_count: Some(processes), ..usage })
}

/// `TestPIDPressure`: priority, then the number of processes; requests do not count.
#[test]
fn process_ids_are_short() {
    let settings =
        EngineSettings { thresholds: followed(&[threshold(Signal::PidAvailable, 1_200, 0)]), ..both() };
    let pods = [
        (candidate(1, 1, 0), holding(500)),
        (candidate(2, 0, GIB), holding(100)),
        (candidate(3, 0, 0), holding(300)),
        (candidate(4, 0, 0), holding(0)),
    ];
    let mut rig = Rig::new(&settings, &pods);
    let with = |rig: &Rig, available| NodeSample {
        pids: Some(Level { available, capacity: 32_768 }),
        ..NodeSample::memory(rig.now_ns, 8 * GIB, 16 * GIB)
    };
    let node = with(&rig, 1_200);
    assert_eq!(rig.see(node), []);
    let node = with(&rig, 1_000);
    let reported = rig.see(node);
    assert!(evicts(&reported));
    assert_eq!(rig.wished, Some(Resource::Pids));
    let decision = *rig.engine.decision().unwrap();
    assert_eq!((decision.cgroup, decision.decided_by), (CgroupId(3), Some(DecidedBy::ProcessCount)));
    assert!(decision.ranking.iter().all(|ranked| matches!(ranked.standing, RankKey::Pids(_))));
    assert_eq!(decision.ranked_count, 3);
    // What it held counts as available until it has come back, so that no other pod is chosen.
    rig.signalled();
    rig.pass(MS);
    let (number, now_ns) = (rig.number(), rig.now_ns);
    rig.on_outcome(Outcome::Progress {
        number,
        now_ns,
        populated: false,
        current_bytes: Some(100 * GIB),
        process_count: Some(300),
    });
    let node = with(&rig, 1_000);
    assert!(!evicts(&rig.see(node)), "300 are still to come back");
    let node = with(&rig, 899);
    assert!(evicts(&rig.see(node)), "they would not suffice");
}

/// Upstream's `processUsage` takes stats without a count for none, and evicts such a pod by its priority alone. A pod
/// without any stats goes first, as upstream.
#[test]
fn one_whose_processes_are_not_counted_is_not_evicted_for_them() {
    let settings =
        EngineSettings { thresholds: followed(&[threshold(Signal::PidAvailable, 1_200, 0)]), ..both() };
    let pods = |uncounted| {
        [
            (candidate(1, 0, 0), uncounted),
            (candidate(2, 0, 0), holding(2)),
            (candidate(3, 0, 0), holding(300)),
            (candidate(4, 1, 0), holding(999)),
        ]
    };
    let unknown = Reading::Uncounted { process_count: None };
    let cases = [
        (using(8 * GIB), vec![3, 2, 4], vec![(1, Exclusion::UsageUnknown)]),
        (unknown, vec![3, 2, 4], vec![(1, Exclusion::UsageUnknown)]),
        (Reading::Uncounted { process_count: Some(0) }, vec![3, 2, 4], vec![(1, Exclusion::Empty)]),
        (Reading::Missing, vec![1, 3, 2, 4], vec![]),
    ];
    for (uncounted, order, left_out) in cases {
        let mut rig = Rig::new(&settings, &pods(uncounted));
        let node = NodeSample {
            pids: Some(Level { available: 1_000, capacity: 32_768 }),
            ..NodeSample::memory(rig.now_ns, 8 * GIB, 16 * GIB)
        };
        assert!(evicts(&rig.see(node)));
        let decision = *rig.engine.decision().unwrap();
        let ranked: Vec<_> = decision.ranking.iter().map(|ranked| ranked.cgroup.0).collect();
        assert_eq!(ranked, order, "{uncounted:?}");
        let excluded: Vec<_> = decision.excluded.iter().map(|one| (one.cgroup.0, one.reason)).collect();
        assert_eq!(excluded, left_out, "{uncounted:?}");
    }
}

/// Between the look that asked for memory and its answer: to rank by counts that were not read would be to guess.
#[test]
fn process_ids_that_run_short_while_memory_is_read_wait_for_their_own_reading() {
    let thresholds =
        followed(&[threshold(Signal::MemoryAvailable, GIB, 0), threshold(Signal::PidAvailable, 1_200, 0)]);
    let pods = [(candidate(1, 0, 0), using(MIB)), (candidate(2, 0, 0), holding(500))];
    let mut rig = Rig::new(&EngineSettings { thresholds, ..both() }, &pods);
    let node = |available| NodeSample {
        pids: Some(Level { available, capacity: 32_768 }),
        ..NodeSample::memory(SECOND, GIB + MIB, 16 * GIB)
    };
    let asked = |actions: Actions| {
        actions.iter().find_map(|action| match action {
            Action::ReadUsages(resource) => Some(*resource),
            _ => None,
        })
    };
    assert_eq!(
        asked(rig.engine.step(Input::Node(node(1_200)))),
        Some(Resource::Memory),
        "close to its threshold"
    );
    let uncounted = [using(MIB), using(MIB)];
    let reported = rig.engine.step(Input::Usages { node: node(1_000), readings: &uncounted });
    assert!(!reported.iter().any(|action| *action == Action::Evict));
    assert_eq!(asked(rig.engine.step(Input::Node(node(1_000)))), Some(Resource::Pids));
    let reported =
        rig.engine.step(Input::Usages { node: node(1_000), readings: &[holding(1), holding(500)] });
    assert!(reported.iter().any(|action| *action == Action::Evict));
    assert_eq!(rig.engine.decision().unwrap().cgroup, CgroupId(2));
}

/// Its memory may still be on its way back, and is no reason to take a second pod.
#[test]
fn who_ends_right_before_its_kill_is_counted_on_until_its_memory_is_back() {
    let mut rig = asked();
    assert_eq!(killed_for(&rig.pass(MS).look(GIB - 1)), Some(KillReason::HardThreshold));
    let (number, now_ns) = (rig.number(), rig.now_ns);
    let reported = rig.on_outcome(Outcome::Refused { number, now_ns, reason: Refusal::Empty });
    assert!(!reported.iter().any(|action| matches!(action, Action::Completed(_))), "{reported:?}");
    assert!(!evicts(&rig.pass(MS).look(2 * GIB - 50 * MIB)), "twice of that is still to come back");
    rig.pass(MS);
    let [Action::Completed(completion)] = rig.progress(false, 0)[..] else { panic!("not completed") };
    assert_eq!((completion.freed_bytes, completion.moments.signalled_ns), (Some(100 * MIB), None));
}

/// Hard thresholds of memory and of process ids; who is within its request is not evicted for memory.
fn sparing() -> EngineSettings {
    let thresholds = [threshold(Signal::MemoryAvailable, GIB, 0), threshold(Signal::PidAvailable, 100, 0)];
    EngineSettings { thresholds: followed(&thresholds), evict_within_request: false, ..both() }
}

fn short_of_both(now_ns: u64) -> NodeSample {
    NodeSample {
        pids: Some(Level { available: 50, capacity: 1_000 }),
        ..NodeSample::memory(now_ns, MIB, 16 * GIB)
    }
}

#[test]
fn without_a_candidate_for_memory_pods_are_evicted_for_process_ids() {
    let mut rig = Rig::new(&sparing(), &[(candidate(1, 0, GIB), holding(200))]);
    let reported = rig.see(short_of_both(rig.now_ns));
    let (signal, reason) = (Signal::MemoryAvailable, Suppression::NoCandidate);
    let none = Action::Suppressed { now_ns: rig.now_ns, signal, reason };
    assert!(reported.contains(&none), "it is within its request: {reported:?}");
    assert!(evicts(&reported), "at once: {reported:?}");
    assert_eq!(rig.engine.decision().unwrap().shortage.signal, Signal::PidAvailable);
}

/// Its processes are dead, and their ids come back once they are reaped.
#[test]
fn without_a_candidate_for_memory_the_credit_of_an_eviction_for_process_ids_stays() {
    let pods = [(candidate(1, 0, GIB), holding(500)), (candidate(2, 0, GIB), holding(300))];
    let mut rig = Rig::new(&sparing(), &pods);
    let look = |rig: &mut Rig, after_ns| {
        rig.pass(after_ns);
        rig.see(short_of_both(rig.now_ns))
    };
    assert!(evicts(&look(&mut rig, MS)));
    assert_eq!(rig.engine.decision().unwrap().cgroup, CgroupId(1));
    rig.signalled();
    rig.pass(95 * MS);
    let (number, now_ns) = (rig.number(), rig.now_ns);
    let process_count = Some(480);
    rig.on_outcome(Outcome::Progress {
        number,
        now_ns,
        populated: false,
        current_bytes: Some(0),
        process_count,
    });
    for _ in 0..10 {
        let reported = look(&mut rig, MS);
        assert!(
            !evicts(&reported) && !reported.iter().any(|action| matches!(action, Action::Completed(_))),
            "{reported:?}"
        );
    }
}
