//! What an earlier process of the daemon did, and who has died meanwhile.
use super::rig::*;
use crate::{
    engine::{
        Action, BreakerSettings, CandidateFacts, Candidates, EngineSettings, Exclusion, NodeSample, Past,
        PodKey, Reading, Suppression, Usage,
    },
    model::CgroupId,
};

const EMPTY: Reading = Reading::Usage(Usage {
    current_bytes: 0,
    working_set_bytes: 0,
    anon_bytes: 0,
    file_bytes: 0,
    shmem_bytes: 0,
    file_mapped_bytes: 0,
    process_count: Some(0),
});

fn past(pod: u64, at_ns: u64) -> Past {
    Past { pod: PodKey { hash: pod }, at_ns }
}

fn breaking(max_kills: u16) -> EngineSettings {
    let breaker = BreakerSettings { max_kills, window_ns: 10 * MINUTE, max_share_permille: 500 };
    EngineSettings { breaker, ..enforcing(GIB, 0) }
}

fn opens(reported: &[Action]) -> bool {
    reported
        .iter()
        .any(|action| matches!(action, Action::Suppressed { reason: Suppression::BreakerOpen, .. }))
}

/// A daemon that dies after each kill is one daemon to the breaker.
#[test]
fn a_crash_loop_evicts_no_more_than_one_life() {
    let mut before: Vec<Past> = Vec::new();
    let mut kills = 0;
    for life in 0..30 {
        let pods: Vec<_> = (0..90).map(|pod| (candidate(100 * life + pod, 0, 0), using(MIB))).collect();
        let mut rig = Rig::new(&breaking(20), &pods);
        rig.engine.remember(&before);
        rig.now_ns = (1 + life) * SECOND;
        let reported = rig.look(GIB - 1);
        assert!(evicts(&reported));
        let decision = *rig.engine.decision().unwrap();
        assert_eq!((opens(&reported), decision.dry_run), (life >= 20, life >= 20));
        if !decision.dry_run {
            rig.signalled();
            before.push(Past { pod: decision.pod, at_ns: rig.now_ns });
            kills += 1;
        }
    }
    assert_eq!(kills, 20);
}

#[test]
fn beyond_its_window_a_restart_closes_the_breaker() {
    let dry_run_at = |now_ns| {
        let mut rig = Rig::upstream(&breaking(2));
        rig.engine.remember(&[past(1_000, SECOND), past(1_001, 2 * SECOND)]);
        rig.now_ns = now_ns;
        assert!(evicts(&rig.look(MIB)));
        rig.engine.decision().unwrap().dry_run
    };
    assert!(dry_run_at(10 * MINUTE + SECOND - 1) && !dry_run_at(10 * MINUTE + SECOND));
}

/// A start looks at the node before it knows the pods.
#[test]
fn no_pod_that_is_known_yet_opens_no_breaker() {
    let mut rig = Rig::new(&breaking(20), &[]);
    let before: Vec<_> = (0..10).map(|pod| past(1_000 + pod, SECOND)).collect();
    rig.engine.remember(&before);
    rig.now_ns = 2 * SECOND;
    assert!(!opens(&rig.look(GIB - 1)));
    let facts: Vec<_> = (0..30).map(|pod| candidate(pod, 0, 0)).collect();
    drop(rig.engine.replace(Candidates::new(&facts)));
    rig.readings = vec![using(MIB); facts.len()];
    rig.pass(5 * SECOND);
    assert!(evicts(&rig.look(GIB - 1)));
    assert!(!rig.engine.decision().unwrap().dry_run, "ten of forty");
}

#[test]
fn a_back_off_goes_on_over_a_restart() {
    let pods = [(candidate(1, -10, 0), using(5 * MIB)), (candidate(2, 0, 0), using(600 * MIB))];
    let mut rig = Rig::new(&enforcing(GIB, 0), &pods);
    rig.engine.remember(&[past(1, SECOND), past(1, 2 * SECOND)]);
    rig.now_ns = 15 * SECOND;
    assert!(evicts(&rig.look(GIB - 50 * MIB)));
    let decision = rig.engine.decision().unwrap();
    assert_eq!((decision.cgroup, decision.returned.unwrap().evictions), (CgroupId(1), 2));
    // And the second one counted for the breaker no more than it did then.
    let mut rig = Rig::upstream(&breaking(2));
    rig.engine.remember(&[past(1_000, SECOND), past(1_000, 2 * SECOND)]);
    rig.now_ns = 3 * SECOND;
    assert!(evicts(&rig.look(MIB)) && !rig.engine.decision().unwrap().dry_run);
}

/// Of twenty pods ten may be killed, though those that were are still in the set.
#[test]
fn the_dead_are_no_part_of_those_that_the_share_is_of() {
    let pods: Vec<_> = (1..=20).map(|pod| (candidate(pod, 0, 0), using(100 * MIB))).collect();
    let mut rig = Rig::new(&breaking(100), &pods);
    for kill in 0..10 {
        let reported = rig.pass(MS).look(GIB - 1);
        assert!(evicts(&reported) && !rig.engine.decision().unwrap().dry_run, "{kill}: {reported:?}");
        let index = rig.engine.decision().unwrap().index.0;
        rig.dies();
        rig.readings[index] = if kill % 2 == 0 { EMPTY } else { Reading::Gone };
    }
    assert!(opens(&rig.pass(MS).look(GIB - 1)) && rig.engine.decision().unwrap().dry_run);
}

/// By default, where no kill ends the shortage; each shortage counts its own.
#[test]
fn a_machine_of_ten_pods_keeps_half_of_them() {
    let killed = |ends: bool| {
        let pods: Vec<_> = (1..=10).map(|pod| (candidate(pod, 0, 0), using(100 * MIB))).collect();
        let mut rig = Rig::new(&enforcing(GIB, 0), &pods);
        let mut killed = 0;
        while evicts(&rig.pass(MINUTE).look(GIB - 1)) && !rig.engine.decision().unwrap().dry_run {
            let index = rig.engine.decision().unwrap().index.0;
            rig.dies();
            rig.readings[index] = Reading::Gone;
            killed += 1;
            if ends {
                rig.look(GIB);
                rig.pass(MINUTE).look(GIB);
            }
        }
        killed
    };
    assert_eq!([false, true].map(killed), [5, 10]);
}

/// The first has been killed, and does not die.
fn undead() -> Rig {
    let pods = [(candidate(1, -1, 0), using(MIB)), (candidate(2, 0, GIB), using(MIB))];
    let mut rig = Rig::new(&enforcing(GIB, 0), &pods);
    assert!(evicts(&rig.look(GIB - 1)));
    rig.signalled();
    rig
}

fn given_up(rig: &mut Rig) {
    let reported: Vec<_> = (0..30).flat_map(|_| rig.pass(100 * MS).progress(true, MIB)).collect();
    assert!(matches!(reported[..], [Action::Failed(_)]), "{reported:?}");
}

fn is_first(rig: &mut Rig) -> bool {
    assert!(evicts(&rig.pass(MS).look(GIB - 1)));
    let decision = *rig.engine.decision().unwrap();
    rig.dies();
    let mut excluded = decision.excluded.iter();
    let is_passed_over = excluded.any(|one| one.reason == Exclusion::PassedOver && one.index.0 == 0);
    assert_ne!(decision.cgroup == CgroupId(1), is_passed_over);
    !is_passed_over
}

#[test]
fn an_undead_one_that_dies_after_all_and_fills_again_is_one_as_any() {
    let mut rig = undead();
    given_up(&mut rig);
    assert!(!is_first(&mut rig));
    rig.readings[0] = EMPTY;
    rig.pass(MS).look(GIB - 1);
    rig.dies();
    rig.readings[0] = using(MIB);
    assert!(is_first(&mut rig), "while the shortage lasts");
}

#[test]
fn one_that_was_no_candidate_when_it_did_not_die_is_passed_over_when_it_is_back() {
    let both: Vec<CandidateFacts> = undead().engine.candidates().known().map(|(facts, _)| *facts).collect();
    let mut rig = undead();
    drop(rig.engine.replace(Candidates::new(&both[1..])));
    given_up(&mut rig);
    drop(rig.engine.replace(Candidates::new(&both)));
    assert!(!is_first(&mut rig));
    // A shortage later it is tried again.
    rig.pass(MINUTE).look(2 * GIB);
    rig.pass(2 * SECOND).look(2 * GIB);
    assert!(is_first(&mut rig));
}

#[test]
fn what_the_last_one_killed_gave_back_to_per_cpu_lists_counts_for_the_next() {
    let pods = [(candidate(2, 0, 2 * GIB), using(GIB))];
    let node = |rig: &Rig| {
        let node = NodeSample::memory(rig.now_ns, 190 * MIB, 16 * GIB);
        NodeSample { free_lists_bytes: 100 * MIB, ..node }
    };
    let mut rig = Rig::new(&enforcing(200 * MIB, 0), &pods);
    rig.engine.remember(&[past(1, rig.now_ns)]);
    rig.pass(SECOND);
    assert!(!evicts(&rig.see(node(&rig))));
    let mut rig = Rig::new(&enforcing(200 * MIB, 0), &pods);
    assert!(evicts(&rig.see(node(&rig))), "no pod has died");
}
