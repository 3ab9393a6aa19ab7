//! Memory-backed volumes of victims, which a kubelet removes once they are dead.

use super::{rig::*, shared::with_shared};
use crate::{
    engine::{Action, CandidateFacts, Candidates, NodeSample, Reading, Usage, Waiting},
    model::CgroupId,
};

/// What is read of a pod without processes, whatever it is charged for.
fn empty() -> Reading {
    Reading::Usage(Usage { process_count: Some(0), ..Usage::default() })
}

fn hog(torn_down: bool) -> CandidateFacts {
    CandidateFacts { torn_down, ..candidate(1, -1, 0) }
}

/// A pod with 100 MiB of its own, whose processes map 600 MiB of shared memory, is killed, beside a kubelet or not.
fn chosen(torn_down: bool) -> Rig {
    let pods = [(hog(torn_down), with_shared(100, 600, 600)), (candidate(2, 0, 0), using(GIB))];
    let mut rig = Rig::new(&enforcing(GIB, 0), &pods);
    assert!(evicts(&rig.look(500 * MIB)));
    assert_eq!(rig.engine.decision().unwrap().predicted_freed_bytes, 700 * MIB);
    rig.signalled();
    rig.pass(5 * MS);
    rig
}

/// The same once it has died, and `held_mib` of the shared memory have turned out to be files.
fn dead(torn_down: bool, held_mib: u64) -> Rig {
    let mut rig = chosen(torn_down);
    assert_eq!(rig.progress(false, held_mib * MIB), []);
    assert!(matches!(rig.pass(50 * MS).progress(false, held_mib * MIB)[..], [Action::Completed(_)]));
    rig.readings[0] = empty();
    rig
}

/// The pod that is evicted first, and two more.
fn three(first: Reading, second: (CandidateFacts, Reading)) -> Rig {
    let pods = [(hog(true), first), second, (candidate(3, 1, 0), using(2 * GIB))];
    Rig::new(&enforcing(GIB, 0), &pods)
}

fn victim(rig: &Rig) -> CgroupId {
    rig.engine.decision().unwrap().cgroup
}

/// How long after that moment a pod is evicted, with so much available.
fn evicted_after_ns(rig: &mut Rig, since_ns: u64, available_mib: u64) -> u64 {
    while !evicts(&rig.pass(100 * MS).look(available_mib * MIB)) {
        assert!(rig.now_ns - since_ns < 10 * SECOND, "it is never evicted");
    }
    rig.now_ns - since_ns
}

#[test]
fn mapped_files_that_a_kubelet_removes_cost_no_second_pod() {
    let mut rig = dead(true, 600);
    for _ in 0..10 {
        assert!(!evicts(&rig.pass(100 * MS).look(600 * MIB)));
        assert_eq!(rig.engine.waiting(rig.now_ns), Waiting::Terminating);
    }
    // A container of it runs again, beside the files.
    rig.readings[0] = with_shared(0, 600, 0);
    assert!(!evicts(&rig.pass(100 * MS).look(600 * MIB)));
    rig.readings[0] = with_shared(0, 0, 0);
    assert!(!evicts(&rig.pass(100 * MS).look(1_200 * MIB)));
    // They are gone, and do not come a second time.
    assert!(evicts(&rig.pass(100 * MS).look(600 * MIB)));
    assert_eq!(victim(&rig), CgroupId(2));
    // Alone, none is removed.
    assert!(evicts(&dead(false, 600).pass(MS).look(600 * MIB)));
}

#[test]
fn mapped_files_that_stay_are_awaited_only_until_the_victims_deadline() {
    // A reading that fails leaves the one from before the death.
    for reading in [empty(), with_shared(0, 600, 0), Reading::Missing] {
        let mut rig = dead(true, 600);
        let dead_ns = rig.now_ns - 50 * MS;
        rig.readings[0] = reading;
        let after_ns = evicted_after_ns(&mut rig, dead_ns, 600);
        // 2 s, and 1 s for each GiB of 700 MiB.
        assert!((2_683 * MS..2_800 * MS).contains(&after_ns), "{reading:?}: {after_ns}");
    }
}

/// Beside a kubelet only a pod with containers is a candidate, and their cgroups go before its volumes do.
#[test]
fn a_pod_that_is_no_candidate_any_more_may_still_have_volumes() {
    let mut rig = dead(true, 600);
    let dead_ns = rig.now_ns - 50 * MS;
    drop(rig.engine.replace(Candidates::new(&[candidate(2, 0, 0)])));
    rig.readings.remove(0);
    let after_ns = evicted_after_ns(&mut rig, dead_ns, 600);
    assert!((2_683 * MS..2_800 * MS).contains(&after_ns), "{after_ns}");
    // One without a cgroup has none.
    let mut rig = dead(true, 600);
    rig.readings[0] = Reading::Gone;
    assert!(evicts(&rig.pass(100 * MS).look(600 * MIB)));
}

/// By how much less shared memory the node has: the pod itself shows nothing any more.
#[test]
fn a_volume_that_was_removed_is_not_awaited_although_its_pod_is_no_candidate_any_more() {
    let mut rig = dead(true, 600);
    drop(rig.engine.replace(Candidates::new(&[candidate(2, 0, 0)])));
    rig.readings.remove(0);
    let with = |rig: &mut Rig, available_mib: u64, shmem_mib: u64| {
        let node = NodeSample::memory(rig.pass(10 * MS).now_ns, available_mib * MIB, 16 * GIB);
        evicts(&rig.see(NodeSample { shmem_bytes: shmem_mib * MIB, ..node }))
    };
    assert!(!with(&mut rig, 600, 900));
    // Another has put a file into a tmpfs meanwhile, which says nothing.
    assert!(!with(&mut rig, 590, 910));
    // It has been removed, and the memory is taken by others at once.
    assert!(with(&mut rig, 600, 310));
}

#[test]
fn no_volume_is_awaited_when_memory_is_nearly_exhausted() {
    let mut rig = dead(true, 600);
    assert!(!evicts(&rig.pass(MS).look(600 * MIB)));
    let node = NodeSample::memory(rig.pass(MS).now_ns, 600 * MIB, 16 * GIB);
    assert!(evicts(&rig.see(NodeSample { fill_bytes_per_second: 10 * GIB, ..node })));
    assert_eq!(victim(&rig), CgroupId(2));
}

#[test]
fn what_has_come_back_of_the_mapped_memory_is_not_awaited() {
    // 200 MiB of it were files.
    let mut rig = dead(true, 200);
    assert!(!evicts(&rig.pass(MS).look(850 * MIB)));
    assert!(evicts(&rig.pass(MS).look(800 * MIB)));
    // None of it was.
    let mut rig = chosen(true);
    assert!(matches!(rig.progress(false, 0)[..], [Action::Completed(_)]));
    rig.readings[0] = empty();
    assert!(evicts(&rig.pass(MS).look(1_000 * MIB)));
}

/// All that the first releases would not suffice, so that the second is killed before that is back.
#[test]
fn mapped_files_of_a_first_victim_count_on_towards_a_third() {
    let mut rig = three(with_shared(100, 600, 600), (candidate(2, 0, 0), using(100 * MIB)));
    assert!(evicts(&rig.look(300 * MIB)));
    rig.signalled();
    assert_eq!(rig.pass(5 * MS).progress(false, 600 * MIB), []);
    let dead_ns = rig.now_ns;
    rig.readings[0] = empty();
    assert!(evicts(&rig.pass(MS).look(400 * MIB)));
    assert_eq!(victim(&rig), CgroupId(2));
    rig.dies();
    rig.readings[1] = empty();
    let after_ns = evicted_after_ns(&mut rig, dead_ns, 500);
    assert!((2_683 * MS..2_800 * MS).contains(&after_ns), "{after_ns}");
    assert_eq!(victim(&rig), CgroupId(3));
}

#[test]
fn the_death_of_a_second_victim_does_not_end_the_wait_for_the_volume_of_the_first() {
    let mut rig = three(with_shared(100, 300, 0), (candidate(2, 0, 0), using(100 * MIB)));
    assert!(evicts(&rig.look(500 * MIB)));
    rig.signalled();
    assert!(matches!(rig.pass(5 * MS).progress(false, 300 * MIB)[..], [Action::Completed(_)]));
    let dead_ns = rig.now_ns;
    rig.readings[0] = empty();
    // With the volume 100 MiB and more are still short.
    assert!(evicts(&rig.pass(MS).look(600 * MIB)));
    assert_eq!(victim(&rig), CgroupId(2));
    rig.dies();
    rig.readings[1] = empty();
    let after_ns = evicted_after_ns(&mut rig, dead_ns, 750);
    assert!((2_097 * MS..2_200 * MS).contains(&after_ns), "{after_ns}");
    assert_eq!(victim(&rig), CgroupId(3));
}

#[test]
fn the_volumes_of_two_victims_count_together_and_each_until_its_own_end() {
    let second = (CandidateFacts { torn_down: true, ..candidate(2, 0, 0) }, with_shared(100, 300, 0));
    let mut rig = three(with_shared(100, 300, 0), second);
    let die = |rig: &mut Rig, index: usize, available_mib: u64| {
        assert!(evicts(&rig.look(available_mib * MIB)));
        assert_eq!(rig.engine.decision().unwrap().index.0, index);
        rig.signalled();
        assert!(matches!(rig.pass(5 * MS).progress(false, 300 * MIB)[..], [Action::Completed(_)]));
        rig.readings[index] = empty();
        rig.now_ns
    };
    let first_ns = die(&mut rig, 0, 500);
    rig.pass(SECOND);
    let second_ns = die(&mut rig, 1, 600);
    let mut with_more = rig.clone();
    for (rig, dead_ns, available_mib) in [(&mut rig, first_ns, 500), (&mut with_more, second_ns, 750)] {
        let after_ns = evicted_after_ns(rig, dead_ns, available_mib);
        assert!((2_097 * MS..2_200 * MS).contains(&after_ns), "{available_mib} MiB: {after_ns}");
        assert_eq!(victim(rig), CgroupId(3));
    }
}
