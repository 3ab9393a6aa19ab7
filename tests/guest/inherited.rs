//! A state directory that version 0.2 left, as after an upgrade.

use std::{fs, path::Path};

use enforcer_tests::{daemon::Daemon, stream::is};

/// The files, below the repository's recording of that state.
macro_rules! recorded {
    ($($name:literal),+ $(,)?) => {
        [$(($name, &include_bytes!(concat!("../../enforcer/tests/golden/", $name))[..])),+]
    };
}

/// An eviction's recording in a format that is no longer read.
const RECORDING: &str = "state/recordings/01M89NE90JW5D7R2NC3VEQGYKY.rec";

/// How many events its journal has.
const EVENTS: u64 = 48;

#[guest_test(daemon)]
fn a_daemon_goes_on_in_the_state_of_version_0_2_and_leaves_its_evicted_pod_ended() {
    let folder = Path::new("/tmp/inherited");
    for (name, content) in recorded![
        "pods/hog.yaml",
        "pods/web.yaml",
        "state/ended.json",
        "state/journal/00000000000000000001.index",
        "state/journal/00000000000000000001.ndjson",
        "state/journal/clean",
        "state/orders.json",
        "state/recordings/01M89NE90JW5D7R2NC3VEQGYKY.rec",
    ] {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let daemon = Daemon::start(folder, "mode: enforce").unwrap();
    daemon.wait_until_decided("default/web").unwrap();
    let hog = daemon.verb(&["exec", "default/hog", "--", "true"]).output().unwrap();
    let said = String::from_utf8_lossy(&hog.stderr);
    assert!(hog.status.code() == Some(77) && said.contains("evicted"), "{:?}: {said}", hog.status);

    // None is lost or numbered twice, which `events` checks. Old ones may be too old to be kept.
    let events = daemon.events().unwrap();
    let sequence = |event: &serde_json::Value| event["sequence"].as_str().unwrap().parse::<u64>().unwrap();
    let first = events.iter().find(|event| sequence(event) > EVENTS).unwrap();
    assert_eq!((sequence(first), is(first, "config.loaded")), (EVENTS + 1, true), "{first}");
    let of = |kind: &str| {
        events.iter().filter(|event| sequence(event) > EVENTS && is(event, kind)).collect::<Vec<_>>()
    };
    assert_eq!((of("stream.gap").len(), of("degraded.entered").len()), (0, 0), "{events:?}");
    // The recording is kept, and `replay` says which versions it reads.
    let replay = daemon.verb(&["replay", "01M89NE90JW5D7R2NC3VEQGYKY"]).output().unwrap();
    let said = String::from_utf8_lossy(&replay.stderr);
    assert!(
        !replay.status.success() && said.contains("its format is version 1, written by enforcer \"0.2.0\""),
        "{said}"
    );
    fs::remove_file(folder.join(RECORDING)).unwrap();
    daemon.stop().unwrap();
}
