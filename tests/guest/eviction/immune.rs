//! What a pod does to itself does not save it.

use enforcer_tests::wait::TIMEOUT;

use super::{LEFT_BYTES, Scene, THRESHOLD_BYTES, to_leave};

/// With `CAP_SYS_RESOURCE` each process can take a score of -1000, and a runtime's conmon has it.
#[guest_test(daemon)]
fn a_pod_whose_process_has_a_score_of_minus_1000_is_evicted() {
    const NAME: &str = "immune";
    // Otherwise the score is put right.
    let settings = "onDrift: report\nevictionHard: {memory.available: 200Mi}";
    let scene = Scene::open_with("eviction-immune", settings);
    let work = "echo -1000 > /proc/self/oom_score_adj && exec workload hold --size 300Mi";
    scene.manifest(NAME, -10, "", "");
    let mut immune = scene.daemon.exec_until_ready(&format!("default/{NAME}"), &["sh", "-c", work]).unwrap();
    // The next daemon finds the process with that score when it opens its candidates.
    drop(scene);
    let mut scene = Scene::open_with("eviction-immune", settings);
    let mut filler = scene.fill(&to_leave(u64::midpoint(THRESHOLD_BYTES, LEFT_BYTES)));
    scene.wait("eviction.completed", NAME);
    immune.wait_for_end(TIMEOUT).unwrap();
    assert!(filler.lives().unwrap());
    drop(filler);
    scene.clear(&[NAME, "filler"]);
    scene.daemon.stop().unwrap();
}
