//! Pods that come back after they were evicted.

use super::rig::{GIB, MIB, MINUTE, MS, Rig, SECOND, candidate, enforcing, evicts, using};
use crate::{
    model::CgroupId,
    policy::{
        engine::{
            Action, BreakerSettings, CandidateFacts, Candidates, EngineSettings, Reading, Returned, Usage,
        },
        rank::DecidedBy,
    },
};

/// A pod that is back at once, and a larger one of higher priority that fills the node.
fn two(back_bytes: u64, other_bytes: u64) -> Rig {
    let mut rig = Rig::new(
        &enforcing(GIB, 0),
        &[(candidate(1, -10, 0), using(300 * MIB)), (candidate(2, 0, 0), using(other_bytes))],
    );
    assert!(evicts(&rig.look(GIB - 50 * MIB)));
    assert_eq!(rig.engine.decision().unwrap().cgroup, CgroupId(1));
    assert_eq!(rig.engine.decision().unwrap().returned, None);
    rig.dies();
    rig.readings[0] = using(back_bytes);
    rig
}

fn stands_back(actions: &[Action]) -> Vec<(CgroupId, Returned)> {
    let of = |action: &Action| match action {
        Action::StandsBack { cgroup, returned, .. } => Some((*cgroup, *returned)),
        _ => None,
    };
    actions.iter().filter_map(of).collect()
}

#[test]
fn one_that_is_back_and_small_is_not_killed_over_and_over_in_place_of_who_fills_the_node() {
    let mut rig = two(5 * MIB, 600 * MIB);
    let until_ns = rig.now_ns - 5 * MS + 10 * SECOND;
    let told = rig.pass(MS).look(GIB - 50 * MIB);
    assert_eq!(stands_back(&told), [(CgroupId(1), Returned { evictions: 1, until_ns })]);
    assert!(evicts(&told));
    let decision = *rig.engine.decision().unwrap();
    assert_eq!((decision.cgroup, decision.decided_by), (CgroupId(2), Some(DecidedBy::BackOff)));
    let ranking: Vec<_> = decision.ranking.iter().map(|one| (one.cgroup.0, one.stands_back)).collect();
    assert_eq!(ranking, [(2, false), (1, true)]);
    assert_eq!((decision.returned, decision.excluded_count), (None, 0));
}

#[test]
fn one_that_is_back_and_fills_the_node_again_is_evicted_again_each_time() {
    let mut rig = two(400 * MIB, 600 * MIB);
    for before in 1..50 {
        let told = rig.pass(SECOND).look(GIB - 50 * MIB);
        assert!(evicts(&told) && stands_back(&told).is_empty(), "{told:?}");
        let decision = *rig.engine.decision().unwrap();
        assert_eq!((decision.cgroup, decision.dry_run), (CgroupId(1), false), "not the breaker's");
        assert_eq!(decision.returned.unwrap().evictions, before);
        rig.dies();
    }
}

#[test]
fn those_who_are_back_count_together() {
    let mut rig = Rig::new(
        &enforcing(GIB, 0),
        &[
            (candidate(1, -10, 0), using(300 * MIB)),
            (candidate(2, -5, 0), using(300 * MIB)),
            (candidate(3, 0, GIB), using(500 * MIB)),
        ],
    );
    for cgroup in [1, 2] {
        assert!(evicts(&rig.pass(MS).look(GIB - 50 * MIB)));
        assert_eq!(rig.engine.decision().unwrap().cgroup, CgroupId(cgroup));
        rig.dies();
        rig.readings[0] = using(0);
    }
    rig.readings[0] = using(300 * MIB);
    // Neither alone would do, both do: the third keeps within its request, and is left alone.
    let told = rig.pass(MS).look(GIB - 500 * MIB);
    assert!(evicts(&told) && stands_back(&told).is_empty());
    assert_eq!(rig.engine.decision().unwrap().cgroup, CgroupId(1));
}

#[test]
fn it_is_told_once_in_a_shortage_that_one_stands_back() {
    let mut rig = two(5 * MIB, 600 * MIB);
    assert_eq!(stands_back(&rig.pass(MS).look(GIB - 50 * MIB)).len(), 1);
    rig.dies();
    rig.readings.push(using(GIB));
    drop(rig.engine.replace(Candidates::new(&[
        candidate(1, -10, 0),
        candidate(2, 0, 0),
        candidate(3, 1, 0),
    ])));
    let told = rig.pass(MS).look(GIB - 700 * MIB);
    assert!(evicts(&told) && stands_back(&told).is_empty(), "{told:?}");
    assert_eq!(rig.engine.decision().unwrap().cgroup, CgroupId(3));
    let mut later = rig;
    later.dies();
    // The shortage ends; in the next it is told anew.
    later.pass(2 * SECOND).look(3 * GIB);
    drop(later.engine.replace(Candidates::new(&[candidate(1, -10, 0), candidate(4, 1, 0)])));
    later.readings = vec![using(5 * MIB), using(GIB)];
    assert_eq!(stands_back(&later.pass(MS).look(GIB - 50 * MIB)).len(), 1);
}

#[test]
fn if_nobody_else_is_left_it_is_evicted_all_the_same() {
    let mut rig = two(5 * MIB, 600 * MIB);
    rig.readings[1] = using(0);
    let told = rig.pass(MS).look(GIB - 50 * MIB);
    assert!(evicts(&told) && stands_back(&told).is_empty());
    assert_eq!(rig.engine.decision().unwrap().cgroup, CgroupId(1));
}

#[test]
fn after_its_back_off_it_is_ranked_like_any_other() {
    let mut rig = two(5 * MIB, 600 * MIB);
    assert!(evicts(&rig.pass(10 * SECOND).look(GIB - 50 * MIB)));
    let decision = *rig.engine.decision().unwrap();
    assert_eq!((decision.cgroup, decision.returned), (CgroupId(1), None));
}

#[test]
fn a_pod_is_known_by_its_name_and_not_by_its_cgroup() {
    let mut rig = two(5 * MIB, 600 * MIB);
    let anew = CandidateFacts { cgroup: CgroupId(77), ..candidate(1, -10, 0) };
    drop(rig.engine.replace(Candidates::new(&[anew, candidate(2, 0, 0)])));
    let told = rig.pass(MS).look(GIB - 50 * MIB);
    assert_eq!(stands_back(&told).len(), 1);
    assert_eq!(rig.engine.decision().unwrap().cgroup, CgroupId(2));
}

#[test]
fn one_that_returns_every_second_leaves_the_breaker_for_others() {
    let breaker = BreakerSettings { max_kills: 2, window_ns: 10 * MINUTE, max_share_permille: 1_000 };
    let mut rig = Rig::new(
        &EngineSettings { breaker, ..enforcing(GIB, 0) },
        &[(candidate(1, 0, 0), using(400 * MIB)), (candidate(2, 1, 0), using(400 * MIB))],
    );
    for _ in 0..100 {
        assert!(evicts(&rig.pass(SECOND).look(GIB - MIB)));
        assert!(!rig.engine.decision().unwrap().dry_run);
        rig.dies();
    }
    rig.readings[0] = using(0);
    assert!(evicts(&rig.pass(SECOND).look(GIB - MIB)));
    let decision = *rig.engine.decision().unwrap();
    assert_eq!((decision.cgroup, decision.dry_run), (CgroupId(2), false));
}

#[test]
fn nobody_within_its_request_dies_in_place_of_one_that_is_back() {
    let mut rig = Rig::new(
        &enforcing(GIB, 0),
        &[(candidate(1, -10, 0), using(300 * MIB)), (candidate(2, 0, 2 * GIB), using(GIB))],
    );
    assert!(evicts(&rig.look(GIB - 50 * MIB)));
    rig.dies();
    rig.readings[0] = using(5 * MIB);
    let told = rig.pass(MS).look(GIB - 50 * MIB);
    assert!(evicts(&told) && stands_back(&told).is_empty(), "{told:?}");
    let decision = *rig.engine.decision().unwrap();
    assert_eq!((decision.cgroup, decision.decided_by), (CgroupId(1), Some(DecidedBy::ExceedsRequest)));
}

#[test]
fn one_that_is_back_and_fills_faster_than_its_pages_are_counted_does_not_stand_back() {
    let mut rig = two(5 * MIB, 600 * MIB);
    let charged = Usage { current_bytes: 400 * MIB, working_set_bytes: 400 * MIB, ..Usage::default() };
    rig.readings[0] = Reading::Usage(charged);
    let told = rig.pass(MS).look(GIB - 50 * MIB);
    assert!(evicts(&told) && stands_back(&told).is_empty(), "{told:?}");
    assert_eq!(rig.engine.decision().unwrap().cgroup, CgroupId(1));
}
