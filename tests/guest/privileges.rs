//! What the daemon's processes may do while they work, and what is lost without a right that they use.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

use enforcer_tests::{daemon::Daemon, wait::wait_until};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

fn folder(name: &str) -> PathBuf {
    Path::new("/tmp/privileges").join(name)
}

/// The capabilities in the table of the documentation, as a set of the kernel.
fn documented() -> u64 {
    let page = include_str!("../../docs/privileges.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `CAP_")?.split_once('`'));
    let bits =
        rows.map(|(name, _)| CapabilitySet::from_name(name).unwrap_or_else(|| panic!("CAP_{name}")).bits());
    bits.fold(0, |all, one| all | one)
}

/// A line of the status of each of its threads, without repetitions.
fn of_threads(pid: u32, key: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let status = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("status")).ok());
    let value = |text: String| {
        let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        value.unwrap_or_else(|| panic!("no {key} in {text}")).trim().to_owned()
    };
    let mut values: Vec<String> = status.map(value).collect();
    values.sort_unstable();
    values.dedup();
    values
}

#[guest_test(kernel)]
fn the_daemon_has_the_documented_capabilities_in_each_thread_and_gains_none() {
    let daemon = Daemon::start(&folder("kept"), "mode: enforce").unwrap();
    let kept = format!("{:016x}", documented());
    for set in ["CapEff", "CapPrm", "CapBnd"] {
        assert_eq!(of_threads(daemon.pid(), set), [kept.as_str()], "{set}");
    }
    for set in ["CapInh", "CapAmb"] {
        assert_eq!(of_threads(daemon.pid(), set), ["0000000000000000"], "{set}");
    }
    assert_eq!(of_threads(daemon.pid(), "NoNewPrivs"), ["1"]);
    // By a filter that is inherited, and a second one: what they refuse is tested where a call can be tried.
    assert_eq!(of_threads(daemon.pid(), "Seccomp"), ["2"]);
    assert_eq!(of_threads(daemon.pid(), "Seccomp_filters"), ["2"]);
    assert_eq!(of_threads(daemon.pid(), "Umask"), ["0022"]);
    daemon.stop().unwrap();
}

/// Starts a daemon that is not granted these.
fn start_without(capability: CapabilitySet, name: &str, settings: &str) -> Result<Daemon, String> {
    let (folder, settings) = (folder(name), settings.to_owned());
    // What a thread may not have, the processes that it starts may not either.
    let start = thread::spawn(move || {
        remove_capability_from_bounding_set(capability).unwrap();
        Daemon::start(&folder, &settings).map_err(|error| error.to_string())
    });
    start.join().unwrap()
}

/// The rows of the page for what `doctor` does not know.
#[guest_test(daemon)]
fn without_the_right_to_give_a_socket_away_a_daemon_that_should_does_not_start() {
    for (name, capability, settings) in [
        ("chown", CapabilitySet::CHOWN, "observeSocketGroup: \"4321\""),
        ("fowner", CapabilitySet::FOWNER, "adminSocketOwner: \"4321\""),
    ] {
        let refused = start_without(capability, name, settings).map(drop).unwrap_err();
        assert!(refused.contains("Operation not permitted"), "{name}: {refused}");
        // And with it, it does.
        Daemon::start(&folder(&format!("{name}-granted")), settings).unwrap().stop().unwrap();
    }
}

#[guest_test(daemon)]
fn without_the_right_to_be_another_user_no_process_reads_what_a_network_sends() {
    // There is no one to take anything, and no one is asked.
    let settings = "sinks: {webhook: [{name: w, url: \"http://127.0.0.1:9/\"}]}";
    for (name, capability, word) in
        [("setuid", CapabilitySet::SETUID, "its user"), ("setgid", CapabilitySet::SETGID, "its groups")]
    {
        let daemon = start_without(capability, name, settings).unwrap();
        let said = format!("cannot give up {word} (CAP_SETUID and CAP_SETGID are needed)");
        wait_until("what the log says", || daemon.log().contains(&said));
        daemon.stop().unwrap();
    }
}
