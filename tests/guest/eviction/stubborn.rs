//! A victim that SIGKILL does not end is reported and passed over.

use std::{fs, path::Path};

use enforcer_tests::wait::{TIMEOUT, wait_until};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::{MIB, Scene, THRESHOLD_BYTES, to_leave};

const FREEZER: &str = "/tmp/freezer";

/// The freezer of cgroup v1: what it holds dies of nothing until it is let go of, as if it waited for a broken disk. That of
/// cgroup v2 lets it die.
struct Freezer;

impl Freezer {
    /// Freezes every process of that list.
    fn freeze(processes: &str) -> Self {
        fs::create_dir_all(FREEZER).unwrap();
        mount("freezer", FREEZER, "cgroup", MountFlags::empty(), c"freezer").unwrap();
        let group = Path::new(FREEZER).join("stuck");
        fs::create_dir_all(&group).unwrap();
        for process in processes.split_whitespace() {
            fs::write(group.join("cgroup.procs"), process).unwrap();
        }
        fs::write(group.join("freezer.state"), "FROZEN").unwrap();
        Self
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        drop(fs::write(Path::new(FREEZER).join("stuck/freezer.state"), "THAWED"));
        // Busy as long as a process in it has not gone; the guest ends with the scenario.
        let _busy = unmount(FREEZER, UnmountFlags::DETACH);
    }
}

#[guest_test(daemon)]
fn a_victim_that_does_not_die_is_reported_and_passed_over() {
    let mut scene = Scene::open("eviction-stuck");
    let mut stuck = scene.hold("stuck", -10, "", "", "40Mi");
    let mut other = scene.hold("other", 0, "", "", "250Mi");
    let processes = scene.file("stuck", "app/cgroup.procs").unwrap();
    let freezer = Freezer::freeze(&processes);
    let mut filler = scene.fill(&to_leave(THRESHOLD_BYTES - 130 * MIB));
    let signalled = scene.wait("eviction.signalled", "stuck");
    assert_eq!(signalled["data"]["sent"], "SIGKILL");
    let failed = scene.wait("eviction.failed", "stuck");
    assert_eq!(failed["data"]["reason"], "stillPopulated", "{failed}");
    assert!(stuck.lives().unwrap());
    // Its memory may have been taken from it; that does not suffice.
    let decided = scene.wait("eviction.decided", "other");
    let ranking = decided["data"]["ranking"].as_array().unwrap();
    assert!(ranking.iter().all(|pod| pod["name"] != "stuck"), "{decided}");
    scene.wait("eviction.completed", "other");
    other.wait_for_end(TIMEOUT).unwrap();
    assert!(filler.lives().unwrap());
    drop(freezer);
    stuck.wait_for_end(TIMEOUT).unwrap();
    drop(filler);
    scene.clear(&["stuck", "other", "filler"]);
    scene.daemon.stop().unwrap();
}

/// The kernel lets those die that cgroup v2 has frozen.
#[guest_test(kernel)]
fn a_frozen_victim_dies_as_others_do() {
    let mut scene = Scene::open("eviction-frozen");
    let mut frozen = scene.hold("frozen", -10, "", "", "300Mi");
    let folder = scene.folder("frozen");
    fs::write(folder.join("cgroup.freeze"), "1").unwrap();
    wait_until("the frost", || scene.file("frozen", "cgroup.events").unwrap().contains("frozen 1"));
    let mut filler = scene.fill(&to_leave(THRESHOLD_BYTES - 50 * MIB));
    let decided = scene.wait("eviction.decided", "frozen");
    scene.wait("eviction.completed", "frozen");
    frozen.wait_for_end(TIMEOUT).unwrap();
    assert!(filler.lives().unwrap(), "{decided}");
    drop(filler);
    scene.clear(&["frozen", "filler"]);
    scene.daemon.stop().unwrap();
}
