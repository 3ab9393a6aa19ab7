//! Pods that come back after they were evicted.

use super::rig::{GIB, MIB, MINUTE, MS, Rig, SECOND, candidate, enforcing, evicts, using};
use crate::{
    engine::{BreakerSettings, CandidateFacts, Candidates, EngineSettings, Returned},
    model::CgroupId,
    rank::DecidedBy,
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

#[test]
fn one_that_is_back_is_evicted_again_each_time_and_who_does_so_is_reported() {
    let mut rig = two(400 * MIB, 600 * MIB);
    for before in 1..50 {
        let reported = rig.pass(SECOND).look(GIB - 50 * MIB);
        assert!(evicts(&reported), "{reported:?}");
        let decision = *rig.engine.decision().unwrap();
        assert_eq!((decision.cgroup, decision.dry_run), (CgroupId(1), false), "not the breaker's");
        assert_eq!(decision.returned.unwrap().evictions, before);
        rig.dies();
    }
}

#[test]
fn one_that_is_back_and_small_is_ranked_like_any_other_and_who_fills_the_node_is_next() {
    let mut rig = two(5 * MIB, 600 * MIB);
    let until_ns = rig.now_ns - 5 * MS + 10 * SECOND;
    assert!(evicts(&rig.pass(MS).look(GIB - 50 * MIB)));
    let decision = *rig.engine.decision().unwrap();
    assert_eq!((decision.cgroup, decision.decided_by), (CgroupId(1), Some(DecidedBy::Priority)));
    assert_eq!(decision.returned, Some(Returned { evictions: 1, until_ns }));
    rig.dies();
    rig.readings[0] = using(0);
    assert!(evicts(&rig.pass(MS).look(GIB - 50 * MIB)), "the shortage goes on");
    let decision = *rig.engine.decision().unwrap();
    assert_eq!((decision.cgroup, decision.returned), (CgroupId(2), None));
}

#[test]
fn after_its_back_off_it_has_not_returned() {
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
    assert!(evicts(&rig.pass(MS).look(GIB - 50 * MIB)));
    let decision = *rig.engine.decision().unwrap();
    assert_eq!((decision.cgroup, decision.returned.unwrap().evictions), (CgroupId(77), 1));
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
fn no_pod_within_its_request_dies_in_place_of_one_that_is_back() {
    let mut rig = Rig::new(
        &enforcing(GIB, 0),
        &[(candidate(1, -10, 0), using(300 * MIB)), (candidate(2, 0, 2 * GIB), using(GIB))],
    );
    assert!(evicts(&rig.look(GIB - 50 * MIB)));
    rig.dies();
    rig.readings[0] = using(5 * MIB);
    assert!(evicts(&rig.pass(MS).look(GIB - 50 * MIB)));
    let decision = *rig.engine.decision().unwrap();
    assert_eq!((decision.cgroup, decision.decided_by), (CgroupId(1), Some(DecidedBy::ExceedsRequest)));
}
