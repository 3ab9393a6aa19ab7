//! `memory.available` by the kubelet's reckoning: what a victim held is seen to be back once it is.
use std::time::Duration;

use enforcer_tests::{kernel, wait::PATIENCE};

use super::{MIB, ROUNDS, Scene, at_rest_bytes, to_leave};

/// The kernel's own use is not in it, so that it lies some 150 MiB above the kernel's estimate.
const THRESHOLD_BYTES: u64 = 450 * MIB;

#[guest_test(kernel)]
fn a_shortage_by_the_kubelets_reckoning_costs_one_pod_each_time() {
    let settings = format!(
        "memoryAvailableSource: kubelet\nevictionHard: {{memory.available: {}Mi}}\nbreaker: {{maxKills: 50, maxShare: 1}}",
        THRESHOLD_BYTES / MIB
    );
    let mut scene = Scene::open_with("eviction-reckoned", &settings);
    let killed_by_kernel = kernel::vmstat("oom_kill").unwrap();
    for round in 1..=ROUNDS {
        let mut next = scene.hold("next", 0, "memory: 50Mi", "", "100Mi");
        let size = to_leave(THRESHOLD_BYTES + 800 * MIB);
        let mut filler = scene.fill(&size);
        at_rest_bytes();
        let mut hog = scene.start("hog", &["workload", "ramp", "--no-catch-up", "--rate", "300Mi"]);
        scene.wait("eviction.completed", "hog");
        hog.wait_for_end(PATIENCE).unwrap();
        // By a reading of before its death it would not be enough. The root cgroup's memory.stat is up to two seconds behind.
        scene.stream.drain(Duration::from_secs(3));

        assert_eq!(scene.stream.of("eviction.decided").count(), 1, "round {round}");
        assert!(next.lives().unwrap() && filler.lives().unwrap(), "round {round}");
        drop((next, filler));
        scene.clear(&["next", "filler", "hog"]);
    }
    assert_eq!(kernel::vmstat("oom_kill").unwrap(), killed_by_kernel, "the kernel's OOM killer was faster");
}
