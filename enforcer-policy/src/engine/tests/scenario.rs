//! The kubelet's own scenarios, as far as they concern hard thresholds of memory, and the course of an eviction.

use super::rig::{GIB, MIB, MINUTE, MS, Rig, SECOND, candidate, enforcing, evicts, using};
use crate::{
    engine::{
        Action, BreakerSettings, CandidateFacts, Candidates, Completion, Decision, EngineSettings, Exclusion,
        FailureReason, Mode, NodeSample, Outcome, Reading, Refusal, Suppression, Usage,
    },
    model::CgroupId,
    rank::DecidedBy,
    threshold::Signal,
};

/// `TestMemoryPressure` from its hard part on.
#[test]
fn memory_pressure_evicts_the_lowest_that_exceeds_its_request() {
    let mut rig = Rig::upstream(&enforcing(GIB, 0));
    assert_eq!(rig.look(2 * GIB), []);
    let reported = rig.pass(MINUTE).look(500 * MIB);
    assert!(matches!(reported[0], Action::Crossed { shortage, .. } if shortage.observed == 500 * MIB));
    assert!(evicts(&reported));
    let decision = rig.engine.decision().unwrap();
    assert_eq!((decision.cgroup, decision.decided_by), (CgroupId(5), Some(DecidedBy::Priority)));
    let order: Vec<_> = decision.ranking.iter().map(|ranked| ranked.cgroup.0).collect();
    assert_eq!(order, [5, 3, 4, 1, 2]);
    rig.dies();
    let reported = rig.pass(MINUTE).look(2 * GIB);
    assert!(matches!(reported[..], [Action::Cleared { .. }]), "{reported:?}");
}

#[test]
fn exactly_the_threshold_is_not_below_it() {
    let mut rig = Rig::upstream(&enforcing(GIB, 0));
    assert_eq!(rig.look(GIB).iter().filter(|action| !matches!(action, Action::ReadUsages(_))).count(), 0);
    assert!(evicts(&rig.look(GIB - 1)));
}

/// `TestMinReclaim`.
#[test]
fn minimum_reclaim_goes_on_until_enough_came_back() {
    let mut rig = Rig::upstream(&enforcing(GIB, 500 * MIB));
    assert!(!evicts(&rig.look(1_200 * MIB)), "not met yet");
    assert!(evicts(&rig.pass(MINUTE).look(500 * MIB)));
    rig.dies();
    assert!(evicts(&rig.pass(MINUTE).look(1_200 * MIB)), "short of the minimum reclaim");
    rig.dies();
    assert!(!evicts(&rig.pass(MINUTE).look(2 * GIB)));
    assert!(!evicts(&rig.pass(MINUTE).look(1_200 * MIB)), "a new episode begins below the threshold itself");
}

/// `TestMemoryPressure_VerifyPodStatus`.
#[test]
fn verify_pod_status() {
    let pods = [(candidate(1, 0, GIB), using(900 * MIB)), (candidate(2, 0, 100 * MIB), using(700 * MIB))];
    let mut rig = Rig::new(&enforcing(2 * GIB, 0), &pods);
    assert!(evicts(&rig.look(1_500 * MIB)));
    let decision = rig.engine.decision().unwrap();
    assert_eq!((decision.cgroup, decision.decided_by), (CgroupId(2), Some(DecidedBy::ExceedsRequest)));
    assert_eq!((decision.shortage.threshold, decision.shortage.observed), (2 * GIB, 1_500 * MIB));
}

/// `TestStaticCriticalPodsAreNotEvicted`.
#[test]
fn critical_and_protected_pods_are_left_out_with_the_reason() {
    let critical = CandidateFacts { critical: true, ..candidate(1, 0, 0) };
    let protected = CandidateFacts { protected: true, ..candidate(2, 0, 0) };
    let pods = [
        (critical, using(GIB)),
        (protected, using(GIB)),
        (candidate(3, 0, 0), using(0)),
        (candidate(4, 0, 0), Reading::Gone),
        (candidate(5, 0, GIB), using(MIB)),
    ];
    let mut rig = Rig::new(&enforcing(GIB, 0), &pods);
    assert!(evicts(&rig.look(GIB - 1)));
    let decision = rig.engine.decision().unwrap();
    assert_eq!((decision.cgroup, decision.decided_by), (CgroupId(5), None));
    let excluded: Vec<_> = decision.excluded.iter().map(|left_out| left_out.reason).collect();
    assert_eq!(excluded, [Exclusion::Critical, Exclusion::Protected, Exclusion::Empty, Exclusion::Gone]);
    assert_eq!((decision.excluded_count, decision.ranked_count), (4, 1));
}

/// The kubelet puts a pod without stats first; who is promised to be spared within its request may be within it.
#[test]
fn who_may_be_within_its_request_is_spared_with_those_that_are() {
    let settings = EngineSettings { evict_within_request: false, ..enforcing(GIB, 0) };
    let pods = |request| [(candidate(1, -1, request), Reading::Missing), (candidate(2, 0, 0), using(MIB))];
    let chosen = |settings: &EngineSettings, request| {
        let mut rig = Rig::new(settings, &pods(request));
        assert!(evicts(&rig.look(MIB)));
        rig.engine.decision().unwrap().cgroup
    };
    assert_eq!(chosen(&settings, 1), CgroupId(2));
    assert_eq!(chosen(&settings, 0), CgroupId(1), "without a request it is above it, whatever it uses");
    assert_eq!(chosen(&enforcing(GIB, 0), 1), CgroupId(1));
}

#[test]
fn pods_within_their_request_can_be_spared() {
    let settings = EngineSettings { evict_within_request: false, ..enforcing(GIB, 0) };
    let mut rig = Rig::new(&settings, &[(candidate(1, 0, GIB), using(GIB))]);
    let reported = rig.look(MIB);
    assert!(!evicts(&reported));
    assert!(reported.contains(&Action::Suppressed {
        now_ns: SECOND,
        signal: Signal::MemoryAvailable,
        reason: Suppression::NoCandidate,
    }));
    // Reported once, tried again after a pause.
    assert!(!rig.pass(MS).look(MIB).iter().any(|action| matches!(action, Action::Suppressed { .. })));
    rig.readings = vec![using(GIB + 1)];
    assert!(evicts(&rig.pass(100 * MS).look(MIB)));
}

#[test]
fn a_pod_without_stats_goes_first() {
    let pods = [(candidate(1, 0, 0), using(GIB)), (candidate(2, 5, GIB), Reading::Missing)];
    let mut rig = Rig::new(&enforcing(GIB, 0), &pods);
    assert!(evicts(&rig.look(MIB)));
    let decision = rig.engine.decision().unwrap();
    assert_eq!((decision.cgroup, decision.decided_by), (CgroupId(2), Some(DecidedBy::StatsMissing)));
    assert_eq!(decision.predicted_freed_bytes, 0);
}

/// kubernetes#128339: shared memory stays charged until its mount goes.
#[test]
fn shared_memory_is_neither_predicted_nor_waited_for() {
    let with_shmem = |bytes: u64, shmem_bytes: u64| {
        let Reading::Usage(usage) = using(bytes) else { panic!() };
        Reading::Usage(Usage {
            anon_bytes: bytes - shmem_bytes,
            file_bytes: shmem_bytes,
            shmem_bytes,
            file_mapped_bytes: 0,
            ..usage
        })
    };
    let pods = [(candidate(1, 0, 0), with_shmem(8 * GIB, 3 * GIB)), (candidate(2, 0, 0), using(6 * GIB))];
    let mut rig = Rig::new(&enforcing(GIB, 0), &pods);
    assert!(evicts(&rig.look(MIB)));
    let decision = rig.engine.decision().unwrap();
    assert_eq!(
        (decision.cgroup, decision.predicted_freed_bytes),
        (CgroupId(1), 5 * GIB),
        "ranked by all of it"
    );
    rig.signalled();
    rig.pass(5 * MS);
    let reported = rig.progress(false, 3 * GIB);
    let [Action::Completed(completion)] = reported[..] else { panic!("{reported:?}") };
    assert_eq!(completion.freed_bytes, Some(5 * GIB));
}

#[test]
fn no_other_is_chosen_while_the_victim_dies_and_its_memory_comes_back() {
    let mut rig = Rig::new(
        &enforcing(GIB, 0),
        &[(candidate(1, 0, 0), using(8 * GIB)), (candidate(2, 0, 0), using(GIB))],
    );
    assert!(evicts(&rig.look(MIB)));
    rig.signalled();
    for _ in 0..500 {
        rig.pass(10 * MS);
        assert_eq!(rig.progress(true, 8 * GIB), []);
        assert!(matches!(rig.look(MIB)[..], [Action::LookAgainWithin(_)]));
    }
    // Dead, and 7 GiB of it still to come: that counts as available.
    assert_eq!(rig.progress(false, 7 * GIB), []);
    assert!(!evicts(&rig.look(MIB)));
    rig.pass(20 * MS);
    let reported = rig.progress(false, 10 * MIB);
    let [Action::Completed(completion)] = reported[..] else { panic!("{reported:?}") };
    assert_eq!(completion.freed_bytes, Some(8 * GIB - 10 * MIB));
    assert_eq!(completion.predicted_freed_bytes, 8 * GIB);
    let moments = completion.moments;
    assert_eq!(moments.dead_ns, Some(rig.now_ns - 20 * MS));
    assert_eq!(moments.memory_back_ns, Some(rig.now_ns));
    assert!(evicts(&rig.look(MIB)), "still short: the next");
}

#[test]
fn once_dead_a_victim_that_gives_too_little_does_not_hold_the_next_one_up() {
    let mut rig = Rig::new(
        &enforcing(GIB, 0),
        &[(candidate(1, 0, 0), using(200 * MIB)), (candidate(2, 0, 0), using(100 * MIB))],
    );
    assert!(evicts(&rig.look(GIB - 250 * MIB)));
    rig.signalled();
    rig.pass(MS);
    rig.progress(false, 150 * MIB);
    // 150 MiB still to come are not enough for the 250 that are missing.
    let reported = rig.look(GIB - 250 * MIB);
    assert!(
        matches!(reported[0], Action::Completed(Completion { freed_bytes: Some(freed), .. }) if freed == 50 * MIB)
    );
    assert!(evicts(&reported));
}

#[test]
fn a_prediction_that_does_not_come_true_is_given_up_when_nothing_more_comes() {
    let mut rig = Rig::new(&enforcing(GIB, 0), &[(candidate(1, 0, 0), using(2 * GIB))]);
    assert!(evicts(&rig.look(MIB)));
    rig.signalled();
    assert_eq!(rig.progress(false, 2 * GIB), []);
    rig.pass(500 * MS - 1);
    assert_eq!(rig.progress(false, 2 * GIB), []);
    rig.pass(1);
    let reported = rig.progress(false, 2 * GIB);
    let [Action::Completed(completion)] = reported[..] else { panic!("{reported:?}") };
    assert_eq!((completion.freed_bytes, completion.moments.memory_back_ns), (Some(0), None));
}

#[test]
fn a_victim_that_does_not_die_is_reported_and_passed_over() {
    let mut rig = Rig::new(
        &enforcing(GIB, 0),
        &[(candidate(1, 0, 0), using(2 * GIB)), (candidate(2, 0, 0), using(GIB))],
    );
    assert!(evicts(&rig.look(MIB)));
    rig.signalled();
    for _ in 0..7 {
        rig.pass(500 * MS);
        assert_eq!(rig.progress(true, 2 * GIB), []);
    }
    rig.pass(500 * MS - 1);
    assert_eq!(rig.progress(true, 2 * GIB), []);
    rig.pass(1);
    let reported = rig.progress(true, 2 * GIB);
    let [Action::Failed(failure)] = reported[..] else { panic!("{reported:?}") };
    assert_eq!((failure.cgroup, failure.reason), (CgroupId(1), FailureReason::StillPopulated));
    assert!(evicts(&rig.look(MIB)));
    let decision = rig.engine.decision().unwrap();
    assert_eq!(decision.cgroup, CgroupId(2));
    assert_eq!(decision.excluded.iter().next().unwrap().reason, Exclusion::PassedOver);
}

#[test]
fn a_victim_is_not_given_up_as_long_as_it_dies() {
    let pods = [(candidate(1, 0, 0), using(2 * GIB)), (candidate(2, 0, 0), using(GIB))];
    let mut rig = Rig::new(&enforcing(GIB, 0), &pods);
    assert!(evicts(&rig.look(MIB)));
    rig.signalled();
    // A 64th at a time, each within a second of the one before: far beyond the 4 s that it is given.
    let mut held = 2 * GIB;
    for _ in 0..20 {
        held -= 2 * GIB / 64;
        rig.pass(900 * MS);
        assert_eq!(rig.progress(true, held), []);
    }
    // Less than a 64th is no progress.
    for _ in 0..2 {
        rig.pass(499 * MS);
        held -= MIB;
        assert_eq!(rig.progress(true, held), []);
    }
    rig.pass(2 * MS);
    let reported = rig.progress(true, held);
    assert!(
        matches!(reported[..], [Action::Failed(failure)] if failure.reason == FailureReason::StillPopulated),
        "{reported:?}"
    );
}

#[test]
fn a_machine_that_was_paused_gave_the_victim_no_time_to_die() {
    let mut rig = Rig::new(&enforcing(GIB, 0), &[(candidate(1, 0, 0), using(2 * GIB))]);
    assert!(evicts(&rig.look(MIB)));
    rig.signalled();
    rig.pass(MINUTE);
    assert_eq!(rig.progress(true, 2 * GIB), []);
    rig.pass(5 * MS);
    assert!(matches!(rig.progress(false, 0)[..], [Action::Completed(_)]));
}

#[test]
fn after_a_refusal_the_next_of_the_order_follows_at_once() {
    let mut rig = Rig::upstream(&enforcing(GIB, 0));
    assert!(evicts(&rig.look(MIB)));
    for next in [3, 4, 1, 2] {
        let (number, now_ns) = (rig.number(), rig.now_ns);
        let reported = rig.on_outcome(Outcome::Refused { number, now_ns, reason: Refusal::Kernel(95) });
        assert!(matches!(reported[0], Action::Failed(failure) if failure.number == number));
        assert!(evicts(&reported));
        assert_eq!(rig.engine.decision().unwrap().cgroup, CgroupId(next));
    }
    let (number, now_ns) = (rig.number(), rig.now_ns);
    let reported = rig.on_outcome(Outcome::Refused { number, now_ns, reason: Refusal::Gone });
    assert!(
        matches!(reported[1], Action::Suppressed { reason: Suppression::NoCandidate, .. }),
        "{reported:?}"
    );
    assert!(!evicts(&reported));
}

#[test]
fn an_answer_about_another_eviction_changes_nothing() {
    let mut rig = Rig::upstream(&enforcing(GIB, 0));
    assert!(evicts(&rig.look(MIB)));
    let stale = rig.number() - 1;
    let now_ns = rig.now_ns;
    assert_eq!(rig.on_outcome(Outcome::Signalled { number: stale, now_ns }), []);
    assert_eq!(rig.on_outcome(Outcome::Refused { number: stale, now_ns, reason: Refusal::Gone }), []);
    let dead = Outcome::Progress {
        number: stale,
        now_ns,
        populated: false,
        current_bytes: None,
        process_count: None,
    };
    assert_eq!(rig.on_outcome(dead), []);
    assert!(!evicts(&rig.pass(SECOND).look(MIB)));
}

#[test]
fn observe_only_reports_the_crossing() {
    let mut rig = Rig::upstream(&EngineSettings { mode: Mode::Observe, ..enforcing(GIB, 0) });
    let reported = rig.look(MIB);
    assert!(matches!(reported[..], [Action::Crossed { .. }, Action::LookAgainWithin(_)]), "{reported:?}");
    for _ in 0..100 {
        assert!(matches!(rig.pass(SECOND).look(MIB)[..], [Action::LookAgainWithin(_)]));
    }
    assert!(matches!(rig.pass(SECOND).look(2 * GIB)[..], [Action::Cleared { .. }]));
}

#[test]
fn dry_run_decides_the_same_and_then_rests() {
    let mut rig = Rig::upstream(&EngineSettings { mode: Mode::DryRun, ..enforcing(GIB, 0) });
    assert!(evicts(&rig.look(MIB)));
    let decision = *rig.engine.decision().unwrap();
    assert!(decision.dry_run);
    assert_eq!(decision.cgroup, CgroupId(5));
    let mut earnest = Rig::upstream(&enforcing(GIB, 0));
    assert!(evicts(&earnest.look(MIB)));
    assert_eq!(Decision { dry_run: false, ..decision }, *earnest.engine.decision().unwrap());
    assert_eq!(rig.engine.victim(), None);
    for _ in 0..59 {
        assert!(!evicts(&rig.pass(SECOND).look(MIB)));
    }
    assert!(evicts(&rig.pass(SECOND).look(MIB)), "the cool-down has passed");
    // A new episode does not wait for it.
    rig.pass(SECOND).look(2 * GIB);
    assert!(evicts(&rig.pass(SECOND).look(MIB)));
}

#[test]
fn hovering_about_the_threshold_is_reported_once() {
    let mut rig = Rig::upstream(&EngineSettings { mode: Mode::Observe, ..enforcing(GIB, 0) });
    rig.look(MIB);
    for _ in 0..50 {
        assert_eq!(rig.pass(100 * MS).look(GIB), []);
        assert!(matches!(rig.pass(100 * MS).look(MIB)[..], [Action::LookAgainWithin(_)]));
    }
}

#[test]
fn the_breaker_steps_down_to_dry_run_and_says_so() {
    let breaker = BreakerSettings { max_kills: 2, window_ns: MINUTE, max_share_permille: 1_000 };
    let settings = EngineSettings { breaker, ..enforcing(GIB, 0) };
    let mut rig = Rig::upstream(&settings);
    for _ in 0..2 {
        assert!(evicts(&rig.look(MIB)));
        let decision = *rig.engine.decision().unwrap();
        assert!(!decision.dry_run);
        rig.dies();
        // Each time another: the same pod again would not count.
        rig.readings[decision.index.0] = using(0);
    }
    let reported = rig.look(MIB);
    assert!(
        reported
            .iter()
            .any(|action| matches!(action, Action::Suppressed { reason: Suppression::BreakerOpen, .. }))
    );
    assert!(evicts(&reported) && rig.engine.decision().unwrap().dry_run);
    assert_eq!(rig.engine.mode(), Mode::DryRun);
    rig.engine.configure(&settings);
    assert_eq!(rig.engine.mode(), Mode::Enforce);
}

#[test]
fn the_breaker_stays_closed_where_nothing_is_left_to_be_killed() {
    let breaker = BreakerSettings { max_kills: 100, window_ns: 5 * MINUTE, max_share_permille: 500 };
    let settings = EngineSettings { breaker, ..enforcing(GIB, 0) };
    let critical = |cgroup| (CandidateFacts { critical: true, ..candidate(cgroup, 0, 0) }, using(MIB));
    let others = [4, 5, 6].map(critical);
    let mut pods: Vec<_> = (1..=3).map(|cgroup| (candidate(cgroup, 0, 0), using(600 * MIB))).collect();
    pods.extend(others);
    let mut rig = Rig::new(&settings, &pods);
    for _ in 0..3 {
        assert!((0..10).any(|_| evicts(&rig.pass(SECOND).look(500 * MIB))), "what it frees is not seen");
        let killed = rig.engine.decision().unwrap().index.0;
        rig.dies();
        rig.readings[killed] = Reading::Gone;
    }
    let reasons: Vec<_> = (0..20)
        .flat_map(|_| rig.pass(SECOND).look(500 * MIB))
        .filter_map(|action| match action {
            Action::Suppressed { reason, .. } => Some(reason),
            _ => None,
        })
        .collect();
    assert_eq!(reasons, [Suppression::NoCandidate]);
    assert_eq!(rig.engine.mode(), Mode::Enforce);
    // The shortage ends; in a later one a pod that came meanwhile is evicted.
    rig.pass(10 * SECOND).look(8 * GIB);
    rig.pass(10 * MINUTE).look(8 * GIB);
    let facts: Vec<_> = [candidate(9, 0, 0)].into_iter().chain(others.map(|(facts, _)| facts)).collect();
    drop(rig.engine.replace(Candidates::new(&facts)));
    rig.readings = vec![using(900 * MIB), using(MIB), using(MIB), using(MIB)];
    assert!(evicts(&rig.pass(SECOND).look(500 * MIB)));
    let decision = rig.engine.decision().unwrap();
    assert_eq!((decision.cgroup, decision.dry_run), (CgroupId(9), false));
}

#[test]
fn a_new_set_of_candidates_does_not_forget_the_victim() {
    let mut rig = Rig::upstream(&enforcing(GIB, 0));
    assert!(evicts(&rig.look(MIB)));
    rig.signalled();
    let old = rig.engine.replace(Candidates::new(&[candidate(9, 0, 0)]));
    assert_eq!(old.len(), 5);
    rig.readings = vec![using(GIB)];
    assert!(!evicts(&rig.pass(SECOND).look(MIB)));
    assert!(matches!(rig.progress(false, 0)[..], [Action::Completed(_)]));
    assert!(evicts(&rig.look(MIB)));
    assert_eq!(rig.engine.decision().unwrap().cgroup, CgroupId(9));
}

#[test]
fn a_new_candidate_is_not_kept_waiting_by_there_having_been_none() {
    let mut rig = Rig::new(&enforcing(GIB, 0), &[]);
    let no_candidate = Action::Suppressed {
        now_ns: SECOND,
        signal: Signal::MemoryAvailable,
        reason: Suppression::NoCandidate,
    };
    assert!(rig.look(MIB).contains(&no_candidate));
    drop(rig.engine.replace(Candidates::new(&[candidate(1, 0, 0)])));
    rig.readings = vec![using(GIB)];
    assert!(evicts(&rig.pass(MS).look(MIB)));
}

#[test]
fn memory_that_comes_back_slowly_is_counted_on_for_as_long_as_dying_may_take() {
    let mut rig = Rig::new(
        &enforcing(GIB, 0),
        &[(candidate(1, 0, 0), using(4 * GIB)), (candidate(2, 0, 0), using(GIB))],
    );
    assert!(evicts(&rig.look(MIB)));
    rig.signalled();
    assert_eq!(rig.progress(false, 4 * GIB), []);
    for step in 1..15 {
        rig.pass(400 * MS);
        assert_eq!(rig.progress(false, 4 * GIB - step * MIB), []);
        assert!(!evicts(&rig.look(MIB)));
    }
    // 2 s and 1 s for each of the 4 GiB.
    rig.pass(400 * MS);
    assert!(matches!(rig.progress(false, 4 * GIB - 15 * MIB)[..], [Action::Completed(_)]));
    assert!(evicts(&rig.look(MIB)));
}

/// The first victim is dead and its memory back, and most of it lies where `MemAvailable` does not count it.
fn buried() -> Rig {
    let pods = [(candidate(1, -1, 0), using(150 * MIB)), (candidate(2, 0, 2 * GIB), using(GIB))];
    let mut rig = Rig::new(&enforcing(200 * MIB, 0), &pods);
    assert!(evicts(&rig.look(199 * MIB)));
    assert_eq!(rig.engine.decision().unwrap().cgroup, CgroupId(1));
    rig.dies();
    rig.readings[0] = using(0);
    rig
}

fn with_free(rig: &Rig, available_mib: u64, free_lists_mib: u64) -> NodeSample {
    let node = NodeSample::memory(rig.now_ns, available_mib * MIB, 16 * GIB);
    NodeSample { free_lists_bytes: free_lists_mib * MIB, ..node }
}

#[test]
fn no_pod_dies_for_memory_that_the_first_gave_back_to_per_cpu_lists() {
    let mut rig = buried();
    assert!(rig.engine.counts_free_lists(rig.now_ns));
    let node = with_free(&rig, 198, 150);
    assert!(!evicts(&rig.pass(MS).see(node)));
    // Where that is not so, the shortage is real.
    let node = with_free(&rig, 198, 1);
    assert!(evicts(&rig.pass(MS).see(node)));
}

#[test]
fn no_more_than_half_of_the_threshold_is_trusted_to_per_cpu_lists() {
    let mut rig = buried();
    let node = with_free(&rig, 100, 1_000);
    assert!(!evicts(&rig.pass(MS).see(node)));
    let node = with_free(&rig, 99, 1_000);
    assert!(evicts(&rig.pass(MS).see(node)));
}

#[test]
fn the_node_is_looked_at_often_while_an_eviction_waits_for_per_cpu_lists() {
    let mut rig = buried();
    let node = with_free(&rig, 150, 60);
    let reported = rig.pass(MS).see(node);
    assert!(!evicts(&reported) && reported.contains(&Action::LookAgainWithin(5 * MS)), "{reported:?}");
    let node = with_free(&rig, 139, 60);
    assert!(evicts(&rig.pass(5 * MS).see(node)));
    assert_eq!(rig.engine.decision().unwrap().free_lists_bytes, 60 * MIB);
}

#[test]
fn per_cpu_lists_count_for_a_while_after_a_death_and_otherwise_not() {
    let mut rig = buried();
    let died_ns = rig.now_ns;
    rig.now_ns = died_ns + 20 * SECOND - MS;
    let node = with_free(&rig, 198, 150);
    assert!(!evicts(&rig.see(node)));
    assert!(rig.engine.counts_free_lists(rig.now_ns) && !rig.engine.counts_free_lists(died_ns + 20 * SECOND));
    rig.now_ns = died_ns + 20 * SECOND;
    let node = with_free(&rig, 198, 150);
    assert!(evicts(&rig.see(node)));
    let mut first = Rig::upstream(&enforcing(GIB, 0));
    let node = with_free(&first, 1_023, 500);
    assert!(evicts(&first.see(node)), "no pod has died");
    assert!(!first.engine.counts_free_lists(first.now_ns));
}

/// Whoever did not die is tried again in the next shortage, also where the threshold of this one is no more.
#[test]
fn a_shortage_that_ends_with_its_threshold_is_over_for_who_was_passed_over_too() {
    let mut rig = Rig::upstream(&enforcing(GIB, 0));
    assert!(evicts(&rig.look(MIB)));
    assert_eq!(rig.engine.decision().unwrap().cgroup, CgroupId(5));
    rig.signalled();
    let failed = (0..100).any(|_| {
        rig.pass(SECOND);
        let reported = rig.progress(true, 100 * MIB);
        reported.iter().any(|action| matches!(action, Action::Failed(_)))
    });
    assert!(failed, "it dies for ever");
    rig.engine.configure(&enforcing(2 * GIB, 0));
    rig.pass(MS).look(8 * GIB);
    assert!(evicts(&rig.pass(SECOND).look(GIB)));
    assert_eq!(rig.engine.decision().unwrap().cgroup, CgroupId(5));
}
