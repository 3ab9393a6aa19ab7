//! Shared memory: what a death gives back of it, and what none does.

use super::rig::{GIB, MIB, MS, Rig, candidate, enforcing, evicts, using};
use crate::engine::{Action, EngineSettings, NodeSample, Reading, Suppression, Usage};

pub(super) fn with_shared(anon_mib: u64, shmem_mib: u64, mapped_mib: u64) -> Reading {
    let bytes = (anon_mib + shmem_mib) * MIB;
    Reading::Usage(Usage {
        current_bytes: bytes,
        working_set_bytes: bytes,
        anon_bytes: anon_mib * MIB,
        file_bytes: shmem_mib * MIB,
        shmem_bytes: shmem_mib * MIB,
        file_mapped_bytes: mapped_mib * MIB,
        process_count: None,
    })
}

fn with_unmapped(rig: &Rig, available_mib: u64, unmapped_mib: u64) -> NodeSample {
    let node = NodeSample::memory(rig.now_ns, available_mib * MIB, 16 * GIB);
    NodeSample { unmapped_shmem_bytes: unmapped_mib * MIB, ..node }
}

/// A pod of 1.2 GiB in a tmpfs, and one within its request.
fn scene(evict_within_request: bool) -> Rig {
    let settings = EngineSettings { evict_within_request, ..enforcing(200 * MIB, 0) };
    let pods =
        [(candidate(1, 0, 0), with_shared(1, 1_200, 2)), (candidate(2, 0, 150 * MIB), using(100 * MIB))];
    Rig::new(&settings, &pods)
}

#[test]
fn shared_memory_is_predicted_as_far_as_it_is_mapped() {
    let mut rig = scene(true);
    rig.readings[0] = with_shared(100, 600, 400);
    assert!(evicts(&rig.look(MIB)));
    assert_eq!(rig.engine.decision().unwrap().predicted_freed_bytes, 500 * MIB);
    // A file in a tmpfs held it after all: that is known soon after the death, and not waited for like anonymous memory.
    rig.signalled();
    rig.pass(5 * MS);
    assert_eq!(rig.progress(false, 600 * MIB), []);
    assert!(!evicts(&rig.pass(40 * MS).look(MIB)));
    assert!(matches!(rig.pass(10 * MS).progress(false, 600 * MIB)[..], [Action::Completed(_)]));
    // No kubelet removes the file.
    assert!(evicts(&rig.look(MIB)));
}

#[test]
fn memory_in_a_tmpfs_is_reported_as_what_no_eviction_gives_back() {
    let mut rig = scene(false);
    let node = with_unmapped(&rig, 199, 1_198);
    let reported = rig.see(node);
    let (now_ns, bytes) = (rig.now_ns, 1_198 * MIB);
    assert!(
        reported.contains(&Action::SharedMemoryHeld { now_ns, bytes, limit_bytes: 200 * MIB }),
        "{reported:?}"
    );
    let decision = *rig.engine.decision().unwrap();
    assert_eq!((decision.predicted_freed_bytes, decision.unmapped_shmem_bytes), (3 * MIB, bytes));
    rig.dies();
    // Nothing is left in it but the file.
    rig.readings[0] = Reading::Usage(Usage { process_count: Some(0), ..Usage::default() });
    let node = with_unmapped(rig.pass(MS), 199, 1_200);
    let reported = rig.see(node);
    let is_spared =
        |action: &Action| matches!(action, Action::Suppressed { reason: Suppression::NoCandidate, .. });
    assert!(!evicts(&reported) && reported.iter().any(is_spared), "{reported:?}");
    // Reported once, and over when it is less than half of the threshold.
    let node = with_unmapped(rig.pass(MS), 900, 101);
    assert!(!rig.see(node).iter().any(|action| matches!(action, Action::SharedMemoryFreed { .. })));
    let node = with_unmapped(rig.pass(MS), 900, 100);
    let reported = rig.see(node);
    assert!(
        reported.contains(&Action::SharedMemoryFreed { now_ns: rig.now_ns, bytes: 100 * MIB }),
        "{reported:?}"
    );
}

#[test]
fn a_pod_within_its_request_goes_for_a_tmpfs_only_as_configured() {
    for evict_within_request in [true, false] {
        let mut rig = scene(evict_within_request);
        let node = with_unmapped(&rig, 199, 1_198);
        assert!(evicts(&rig.see(node)));
        rig.dies();
        rig.readings[0] = Reading::Usage(Usage { process_count: Some(0), ..Usage::default() });
        let node = with_unmapped(rig.pass(MS), 199, 1_200);
        assert_eq!(evicts(&rig.see(node)), evict_within_request);
    }
}

#[test]
fn little_of_it_or_none_that_is_short_is_not_reported() {
    let mut rig = scene(true);
    let is_reported =
        |reported: &[Action]| reported.iter().any(|action| matches!(action, Action::SharedMemoryHeld { .. }));
    let node = with_unmapped(&rig, 900, 1_200);
    assert!(!is_reported(&rig.see(node)), "memory is not short");
    let node = with_unmapped(rig.pass(MS), 199, 200);
    assert!(!is_reported(&rig.see(node)), "no more than the threshold");
}
