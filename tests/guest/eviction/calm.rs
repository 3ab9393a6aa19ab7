//! Pressure alone evicts no pod.

use enforcer_tests::{disk::Disk, kernel, process::Process, wait::wait_until};

use super::{MIB, Scene, THRESHOLD_BYTES, to_leave};

/// So many pages are read again that this is no accident: 32 MiB.
const REFAULTS: u64 = 8_192;

#[guest_test(daemon)]
fn page_cache_and_a_container_at_its_own_limit_cost_their_neighbours_nothing() {
    let mut scene = Scene::open("eviction-calm");
    let killed_by_kernel = kernel::vmstat("oom_kill").unwrap();
    let (large, small) = (Disk::new(512 * MIB).unwrap(), Disk::new(160 * MIB).unwrap());
    let mut idle = scene.hold("idle", 0, "", "", "64Mi");
    let mut bank = scene.hold("bank", 0, "cpu: 100m, memory: 64Mi", "cpu: 100m, memory: 64Mi", "32Mi");
    // So little is left that the cache must be given up again and again.
    let mut filler = scene.fill(&to_leave(THRESHOLD_BYTES + 250 * MIB));
    let mut churn = scene.start("churn", &["workload", "cache", "--file", &large.path(), "--size", "512Mi"]);
    scene.manifest("thrash", 0, "", "memory: 64Mi");
    let thrash = ["workload", "cache", "--file", &small.path(), "--size", "160Mi"];
    let mut thrash = Process::new(scene.daemon.exec("default/thrash", &thrash).unwrap());

    // Pages that the kernel had given up are read again.
    let reads_again = |scene: &mut Scene, name: &str| {
        scene.counter(name, "memory.stat", "workingset_refault_file").is_some_and(|pages| pages > REFAULTS)
    };
    wait_until("churn", || reads_again(&mut scene, "churn"));
    wait_until("thrashing", || {
        scene.counter("thrash", "memory.events", "max").is_some_and(|count| count > 100)
            && reads_again(&mut scene, "thrash")
    });
    scene.catch_up();
    for kind in ["eviction.decided", "eviction.contained", "threshold.crossed", "oom.incident"] {
        assert_eq!(scene.stream.of(kind).count(), 0, "{kind}");
    }
    for (name, process) in [
        ("idle", &mut idle),
        ("bank", &mut bank),
        ("filler", &mut filler),
        ("churn", &mut churn),
        ("thrash", &mut thrash),
    ] {
        assert!(process.lives().unwrap(), "{name} died");
    }
    assert_eq!(kernel::vmstat("oom_kill").unwrap(), killed_by_kernel);
    drop((idle, bank, filler, churn, thrash));
    scene.clear(&["idle", "bank", "filler", "churn", "thrash"]);
    scene.daemon.stop().unwrap();
}
