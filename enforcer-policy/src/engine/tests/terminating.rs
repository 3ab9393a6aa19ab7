//! Pods that are being deleted by others.

use super::rig::{GIB, MIB, MS, Rig, SECOND, candidate, enforcing, evicts, using};
use crate::{
    engine::{Action, CandidateFacts, Candidates, Exclusion, NodeSample, Reading, Usage, Waiting},
    model::CgroupId,
};

/// A terminating pod that the ranking has first, and another.
fn rig(terminating_bytes: u64) -> Rig {
    let terminating = CandidateFacts { terminating: true, ..candidate(1, -1, 0) };
    Rig::new(&enforcing(GIB, 0), &[(terminating, using(terminating_bytes)), (candidate(2, 0, 0), using(GIB))])
}

fn victim(rig: &Rig) -> CgroupId {
    rig.engine.decision().unwrap().cgroup
}

#[test]
fn what_it_releases_counts_as_available_while_its_memory_falls() {
    let mut rig = rig(600 * MIB);
    let mut left_mib = 600;
    for _ in 0..30 {
        assert!(!evicts(&rig.look(500 * MIB + (600 - left_mib) * MIB)));
        assert_eq!(rig.engine.waiting(rig.now_ns), Waiting::Terminating);
        rig.pass(100 * MS);
        left_mib -= 2;
        rig.readings[0] = using(left_mib * MIB);
    }
    // What it has left does not suffice, and it is spared as long as its memory falls.
    rig.readings[0] = using(300 * MIB);
    assert!(evicts(&rig.look(500 * MIB)));
    assert_eq!(victim(&rig), CgroupId(2));
    let excluded = rig.engine.decision().unwrap().excluded;
    assert_eq!(excluded.iter().next().unwrap().reason, Exclusion::Terminating);
}

#[test]
fn one_whose_memory_stops_falling_is_a_candidate_again() {
    let mut rig = rig(600 * MIB);
    assert!(!evicts(&rig.look(500 * MIB)));
    for _ in 0..9 {
        assert!(!evicts(&rig.pass(100 * MS).look(500 * MIB)));
    }
    assert!(evicts(&rig.pass(100 * MS).look(500 * MIB)));
    assert_eq!(victim(&rig), CgroupId(1));
}

#[test]
fn a_machine_that_was_paused_gives_it_the_rest_of_its_time() {
    let mut rig = rig(600 * MIB);
    assert!(!evicts(&rig.look(500 * MIB)));
    assert!(!evicts(&rig.pass(5 * SECOND).look(500 * MIB)));
    for _ in 0..6 {
        assert!(!evicts(&rig.pass(100 * MS).look(500 * MIB)));
    }
    assert!(evicts(&rig.pass(100 * MS).look(500 * MIB)));
}

#[test]
fn one_that_grows_is_a_candidate_at_once() {
    let mut rig = rig(600 * MIB);
    assert!(!evicts(&rig.look(500 * MIB)));
    rig.readings[0] = using(650 * MIB);
    assert!(evicts(&rig.pass(100 * MS).look(450 * MIB)));
    assert_eq!(victim(&rig), CgroupId(1));
}

/// An operator's order can fail, and be given again.
#[test]
fn one_that_was_let_off_is_awaited_anew_when_it_is_ended_again() {
    let mut rig = rig(600 * MIB);
    let set = |rig: &mut Rig, terminating| {
        let facts = CandidateFacts { terminating, ..candidate(1, -1, 0) };
        drop(rig.engine.replace(Candidates::new(&[facts, candidate(2, 0, 0)])));
    };
    assert!(!evicts(&rig.look(500 * MIB)));
    set(&mut rig, false);
    // Above the threshold, but near it: usages are read.
    assert!(!evicts(&rig.pass(20 * SECOND).look(1_100 * MIB)));
    set(&mut rig, true);
    assert!(!evicts(&rig.pass(SECOND).look(500 * MIB)));
    assert_eq!(rig.engine.waiting(rig.now_ns), Waiting::Terminating);
}

#[test]
fn one_that_falls_slowly_is_a_candidate_after_ten_seconds() {
    let mut rig = rig(2 * GIB);
    let mut left_bytes = 2 * GIB;
    let start_ns = rig.now_ns;
    while !evicts(&rig.look(500 * MIB)) {
        assert!(rig.now_ns - start_ns < 10 * SECOND);
        left_bytes -= 40 * MIB / 4;
        rig.readings[0] = using(left_bytes);
        rig.pass(100 * MS);
    }
    assert_eq!(rig.now_ns - start_ns, 10 * SECOND);
    assert_eq!(victim(&rig), CgroupId(1));
}

#[test]
fn none_is_awaited_when_memory_is_nearly_exhausted() {
    let mut rig = rig(600 * MIB);
    let fast =
        NodeSample { fill_bytes_per_second: 10 * GIB, ..NodeSample::memory(rig.now_ns, 500 * MIB, 16 * GIB) };
    assert!(evicts(&rig.see(fast)));
    assert_eq!(victim(&rig), CgroupId(1));
}

fn with_volume(anon_bytes: u64, volume_bytes: u64) -> Reading {
    let bytes = anon_bytes + volume_bytes;
    Reading::Usage(Usage {
        current_bytes: bytes,
        working_set_bytes: bytes,
        anon_bytes,
        shmem_bytes: volume_bytes,
        file_bytes: volume_bytes,
        ..Usage::default()
    })
}

/// A pod with 600 MiB in a memory-backed volume and 100 MiB in processes has died, beside a kubelet or not.
fn dead_with_volume(torn_down: bool) -> Rig {
    let hog = CandidateFacts { torn_down, ..candidate(1, -1, 0) };
    let pods = [(hog, with_volume(100 * MIB, 600 * MIB)), (candidate(2, 0, 0), using(GIB))];
    let mut rig = Rig::new(&enforcing(GIB, 0), &pods);
    assert!(evicts(&rig.look(500 * MIB)));
    assert_eq!(rig.engine.decision().unwrap().predicted_freed_bytes, 100 * MIB);
    rig.signalled();
    rig.pass(5 * MS);
    // Its own eviction is over once its processes' memory is back.
    assert!(matches!(rig.progress(false, 600 * MIB)[..], [Action::Completed(_)]));
    rig.readings[0] = with_volume(0, 600 * MIB);
    rig
}

#[test]
fn no_second_victim_is_taken_for_a_volume_that_a_kubelet_is_removing() {
    let mut rig = dead_with_volume(true);
    for _ in 0..10 {
        assert!(!evicts(&rig.pass(100 * MS).look(600 * MIB)));
        assert_eq!(rig.engine.waiting(rig.now_ns), Waiting::Terminating);
    }
    rig.readings[0] = with_volume(0, 0);
    assert!(!evicts(&rig.pass(100 * MS).look(1_200 * MIB)));
    // It is gone, and does not come a second time.
    assert!(evicts(&rig.pass(100 * MS).look(600 * MIB)));
    assert_eq!(victim(&rig), CgroupId(2));
}

#[test]
fn a_volume_that_stays_is_awaited_only_until_the_victims_deadline() {
    let mut rig = dead_with_volume(true);
    let mut passed_ns = 0;
    while !evicts(&rig.pass(100 * MS).look(600 * MIB)) {
        passed_ns += 100 * MS;
        assert!(passed_ns < 3 * SECOND);
    }
    assert!(passed_ns >= 2 * SECOND);
    // Alone, none is removed.
    assert!(evicts(&dead_with_volume(false).pass(MS).look(600 * MIB)));
}

/// A container that the kubelet starts again does not count as memory that is still coming.
#[test]
fn what_a_container_takes_that_is_started_again_is_not_awaited() {
    let mut rig = dead_with_volume(true);
    rig.readings[0] = with_volume(5 * GIB, 600 * MIB);
    assert!(evicts(&rig.pass(100 * MS).look(300 * MIB)));
    assert_eq!(victim(&rig), CgroupId(1));
}

#[test]
fn a_victim_that_is_deleted_meanwhile_counts_once() {
    let mut rig = rig(100 * MIB);
    rig.readings[1] = using(0);
    rig.pass(2 * SECOND);
    assert!(!evicts(&rig.look(950 * MIB)), "100 MiB are coming");
    // It no longer falls: it is the only one left.
    let mut looks = 0;
    while !evicts(&rig.pass(100 * MS).look(950 * MIB)) {
        looks += 1;
        assert!(looks < 11);
    }
    rig.signalled();
    rig.pass(5 * MS);
    rig.progress(false, 100 * MIB);
    assert!(!evicts(&rig.pass(5 * MS).look(950 * MIB)));
}
