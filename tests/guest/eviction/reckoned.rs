//! `memory.available` by the kubelet's reckoning: what a victim held is seen to be back once it is.
use enforcer_tests::{kernel, rounds::Rounds, wait::TIMEOUT};

use super::{MIB, Scene, to_leave};

/// The kernel's own use is not in it, so that it lies some 150 MiB above the kernel's estimate.
const THRESHOLD_BYTES: u64 = 450 * MIB;

/// By the kernel's estimate; by the kubelet's reckoning it lies below the threshold as well.
const LEFT_BYTES: u64 = 150 * MIB;

#[guest_test(kernel, repeats)]
fn a_shortage_by_the_kubelets_reckoning_costs_one_pod_each_time() {
    let settings = format!(
        "memoryAvailableSource: kubelet\nevictionHard: {{memory.available: {}Mi}}\nbreaker: {{maxKills: 50, maxShare: 1}}",
        THRESHOLD_BYTES / MIB
    );
    let mut scene = Scene::open_with("eviction-reckoned", &settings);
    let killed_by_kernel = kernel::vmstat("oom_kill").unwrap();
    let mut rounds = Rounds::new(1, 10);
    while let Some(round) = rounds.next() {
        let mut next = scene.hold("next", 0, "memory: 50Mi", "", "100Mi");
        let size = to_leave(THRESHOLD_BYTES + 800 * MIB);
        let mut filler = scene.fill(&size);
        let mut hog = scene.ramp("hog", "300Mi", LEFT_BYTES);
        scene.wait("eviction.completed", "hog");
        hog.wait_for_end(TIMEOUT).unwrap();
        // Until the root cgroup's memory.stat, which is up to two seconds behind, shows what the hog gave back.
        scene.wait_for_end_of_shortage();

        assert_eq!(scene.stream.of("eviction.decided").count(), 1, "round {round}");
        assert!(next.lives().unwrap() && filler.lives().unwrap(), "round {round}");
        drop((next, filler));
        scene.clear(&["next", "filler", "hog"]);
        rounds.note(&scene.daemon).unwrap();
    }
    assert_eq!(
        kernel::vmstat("oom_kill").unwrap(),
        killed_by_kernel,
        "the kernel's OOM killer killed as well"
    );
}
