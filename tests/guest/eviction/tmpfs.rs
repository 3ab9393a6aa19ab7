//! Memory that lies in a tmpfs, which no eviction gives back.

use std::{fs, path::Path, process::Command};

use enforcer_tests::{
    process::Process,
    stream::is,
    wait::{TIMEOUT, wait_until},
};
use serde_json::Value;

use super::{LEFT_BYTES, MIB, Scene, THRESHOLD_BYTES, to_leave};

const MOUNT: &str = "/tmp/eviction-tmpfs-files";

/// What is left when the file is written.
const RUN_UP_BYTES: u64 = THRESHOLD_BYTES + 200 * MIB;

/// A tmpfs for as long as this lives.
struct Tmpfs(());

impl Tmpfs {
    fn mount() -> Self {
        fs::create_dir_all(MOUNT).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=90%", "files", MOUNT]).status();
        assert!(mounted.unwrap().success());
        Self(())
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        drop(Command::new("umount").arg(MOUNT).status());
    }
}

/// A pod fills a tmpfs, and another one within its request takes the rest. The first is evicted, and gives nothing back: that is
/// predicted and reported, and the other is spared as configured. Once the file is removed, it is over.
#[guest_test(daemon)]
fn what_a_tmpfs_holds_is_reported_and_costs_no_pod_within_its_request() {
    let settings =
        format!("evictionHard: {{memory.available: {}Mi}}\nevictWithinRequest: false", THRESHOLD_BYTES / MIB);
    let mut scene = Scene::open_with("eviction-tmpfs", &settings);
    let _tmpfs = Tmpfs::mount();
    let file = Path::new(MOUNT).join("file");
    // A busybox that copies a kilobyte at a time takes minutes for this on a busy machine.
    let blocks = to_leave(RUN_UP_BYTES).parse::<u64>().unwrap() / MIB;
    let bytes = blocks * MIB;
    let work = format!("dd if=/dev/zero of={} bs=1M count={blocks}; sleep 100000", file.display());
    let mut writer = scene.start("writer", &["sh", "-c", &work]);
    wait_until("the file", || fs::metadata(&file).is_ok_and(|file| file.len() == bytes));

    scene.manifest("within", 0, "memory: 600Mi", "");
    let to = to_leave(LEFT_BYTES);
    let ramp = ["workload", "ramp", "--no-catch-up", "--rate", "100Mi", "--to", &to];
    let mut within = Process::new(scene.daemon.exec("default/within", &ramp).unwrap());

    let is_shared = |event: &Value| event["data"]["what"] == "sharedMemory";
    let entered = scene
        .stream
        .wait_for("shared memory", TIMEOUT, |event| is(event, "degraded.entered") && is_shared(event))
        .unwrap();
    let decided = scene.wait("eviction.decided", "writer");
    writer.wait_for_end(TIMEOUT).unwrap();
    scene
        .stream
        .wait_for("that no candidate is left", TIMEOUT, |event| {
            is(event, "eviction.suppressed") && event["data"]["reason"] == "noCandidate"
        })
        .unwrap();
    for held in [&decided["data"]["sharedMemory"], &entered["data"]["sharedMemory"]] {
        // At the least: what is mapped of files is taken off.
        assert!(held["unmappedBytes"].as_u64().unwrap() > bytes / 2, "{decided} {entered}");
        assert_eq!(held["mounts"][0]["path"], MOUNT, "{held}");
        assert_eq!(held["cgroups"][0]["pod"], "default/writer", "{held}");
        assert!(held["cgroups"][0]["bytes"].as_u64().unwrap() > bytes - 64 * MIB, "{held}");
    }
    assert!(decided["data"]["predictedFreedBytes"].as_u64().unwrap() < 32 * MIB, "{decided}");
    let why = scene.daemon.verb(&["why", "default/writer"]).output().unwrap();
    let why = String::from_utf8(why.stdout).unwrap();
    assert!(why.contains("in tmpfs") && why.contains(MOUNT), "{why}");

    fs::remove_file(&file).unwrap();
    scene.wait_for_end_of_shortage();
    assert!(within.lives().unwrap(), "a pod within its request died for a file");
    assert_eq!(scene.stream.of("eviction.decided").count(), 1);
    drop(within);
    scene.clear(&["writer", "within"]);
    assert_eq!(scene.daemon.stop_and_replay().unwrap(), 1);
}
