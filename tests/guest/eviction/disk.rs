//! A disk that takes nothing costs no eviction, and no event as long as the daemon lives.

use std::{
    ffi::CString,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use enforcer_tests::{stream::is, wait::TIMEOUT};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use serde_json::Value;

use super::{LEFT_BYTES, MIB, Scene, to_leave};

/// A state directory on a disk of its own.
struct State(PathBuf);

impl State {
    fn mount(scene: &str) -> Self {
        let path = Path::new("/tmp").join(scene).join("state");
        fs::create_dir_all(&path).unwrap();
        mount("state", &path, "tmpfs", MountFlags::empty(), c"size=6m,mode=0750").unwrap();
        Self(path)
    }

    /// Takes all the room that there is.
    fn fill(&self) -> PathBuf {
        let ballast = self.0.join("ballast");
        let mut file = fs::File::create(&ballast).unwrap();
        while file.write_all(&[7; 4_096]).is_ok() {}
        ballast
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let _busy = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// How many lines of the kernel's log report the disk in that folder, or that eviction.
fn in_kernel_log(of: &str) -> usize {
    let log = Command::new("dmesg").output().unwrap().stdout;
    let log = String::from_utf8_lossy(&log);
    log.lines().filter(|line| line.contains("the journal's disk takes nothing") && line.contains(of)).count()
}

fn entered(scene: &mut Scene) -> Value {
    let journals = |event: &Value| is(event, "degraded.entered") && event["data"]["what"] == "journal";
    scene.stream.wait_for("the disk's trouble", TIMEOUT, journals).unwrap()
}

/// Waits until the disk takes everything again.
fn left(scene: &mut Scene) {
    let journals = |event: &Value| is(event, "degraded.left") && event["data"]["what"] == "journal";
    let left = scene.stream.wait_for("the end of it", TIMEOUT, journals).unwrap();
    assert_eq!(left["data"]["lostEvents"], 0, "{left}");
}

/// The ids of all events, in their order, without a gap.
fn ids(scene: &Scene) -> Vec<String> {
    let events = scene.daemon.events().unwrap();
    events.iter().map(|event| event["id"].as_str().unwrap().to_owned()).collect()
}

const SETTINGS: &str = "evictionHard: {memory.available: 200Mi}\njournalMaxBytes: 4Mi";

fn evict(scene: &mut Scene) -> Value {
    let filler = scene.fill(&to_leave(500 * MIB));
    let mut hog = scene.ramp("hog", "200Mi", LEFT_BYTES);
    let signalled = scene.wait("eviction.signalled", "hog");
    scene.wait("eviction.completed", "hog");
    hog.wait_for_end(TIMEOUT).unwrap();
    drop(filler);
    signalled
}

#[guest_test(daemon)]
fn that_is_full_hinders_no_hard_eviction_and_gets_the_events_once_there_is_room() {
    let name = "eviction-full-disk";
    let state = State::mount(name);
    let ballast = state.fill();
    let mut scene = Scene::open_with(name, SETTINGS);
    let reported = entered(&mut scene);
    assert!(reported["data"]["message"].as_str().unwrap().contains("No space left on device"), "{reported}");
    assert_eq!(in_kernel_log(name), 1, "one line, however often it is tried");
    let signalled = evict(&mut scene);
    assert_eq!(in_kernel_log(signalled["data"]["evictionId"].as_str().unwrap()), 1);
    assert_eq!(in_kernel_log(name), 1);

    fs::remove_file(ballast).unwrap();
    left(&mut scene);
    let before = ids(&scene);
    assert!(before.contains(&signalled["id"].as_str().unwrap().to_owned()));
    scene.daemon.stop().unwrap();

    let mut scene = Scene::open_with(name, SETTINGS);
    let after = ids(&scene);
    assert_eq!(after.get(..before.len()), Some(&before[..]), "the events are on the disk");
    scene.clear(&["filler", "hog"]);
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn that_is_read_only_from_the_start_hinders_no_hard_eviction_and_is_read_from() {
    let name = "eviction-read-only-disk";
    let state = State::mount(name);
    let scene = Scene::open_with(name, SETTINGS);
    let before = ids(&scene);
    assert!(!before.is_empty());
    scene.daemon.stop().unwrap();

    mount_remount(&state.0, MountFlags::RDONLY, "").unwrap();
    let mut scene = Scene::open_with(name, SETTINGS);
    let reported = entered(&mut scene);
    assert!(reported["data"]["message"].as_str().unwrap().contains("Read-only file system"), "{reported}");
    assert_eq!(in_kernel_log(name), 1);
    let signalled = evict(&mut scene);
    assert_eq!(in_kernel_log(signalled["data"]["evictionId"].as_str().unwrap()), 1);
    assert_eq!(ids(&scene).get(..before.len()), Some(&before[..]), "what it held before can be read");

    mount_remount(&state.0, MountFlags::empty(), "").unwrap();
    left(&mut scene);
    scene.clear(&["filler", "hog"]);
    scene.daemon.stop().unwrap();
}

/// A store to a mapping of a file on a disk may wait for the disk: the page that says what is under way stays in memory.
#[guest_test(daemon)]
fn under_the_run_directory_hinders_no_hard_eviction_and_is_reported() {
    let name = "eviction-run-dir-on-a-disk";
    // For the daemon, as for a disk: neither tmpfs nor ramfs.
    let (layers, run) =
        (Path::new("/tmp").join(format!("{name}-layers")), Path::new("/tmp").join(name).join("run"));
    for folder in ["lower", "upper", "work"] {
        fs::create_dir_all(layers.join(folder)).unwrap();
    }
    fs::create_dir_all(&run).unwrap();
    let of = |layer: &str| layers.join(layer).display().to_string();
    let options = format!("lowerdir={},upperdir={},workdir={}", of("lower"), of("upper"), of("work"));
    let options = CString::new(options).unwrap();
    mount("overlay", &run, "overlay", MountFlags::empty(), options.as_c_str()).unwrap();
    let mut scene = Scene::open_with(name, SETTINGS);
    let intents = |event: &Value| is(event, "degraded.entered") && event["data"]["what"] == "intents";
    let reported = scene.stream.wait_for("what is lost by that", TIMEOUT, intents).unwrap();
    assert!(reported["data"]["message"].as_str().unwrap().contains("is on a disk"), "{reported}");
    evict(&mut scene);
    let page = fs::read(run.join("intent")).unwrap();
    // The first slot is the page's head.
    let slots = page.get(1_024..).unwrap();
    assert!(
        slots.len() > 1_024 && slots.iter().all(|byte| *byte == 0),
        "an eviction was written to the disk"
    );
    scene.clear(&["filler", "hog"]);
    scene.daemon.stop().unwrap();
    unmount(&run, UnmountFlags::DETACH).unwrap();
}
