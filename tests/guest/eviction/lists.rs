//! Per-CPU lists of free pages are short while pods are evicted, and the kernel's own again afterwards.

use std::fs;

use enforcer_tests::{
    process::Process,
    wait::{TIMEOUT, wait_until},
};

use super::{LEFT_BYTES, Scene};

const NAME: &str = "eviction-lists";
const SETTINGS: &str = "evictionHard: {memory.available: 200Mi}";
const SHORT: &str = "2147483647";
const BY_KERNEL: &str = "0";
const SETTING: &str = "/proc/sys/vm/percpu_pagelist_high_fraction";

fn is_held(value: &str) -> bool {
    fs::read_to_string(SETTING).unwrap().trim_ascii_end() == value
}

/// Has a pod evicted, up to the signal.
fn evict(scene: &mut Scene) -> Process {
    let hog = scene.ramp("hog", "200Mi", LEFT_BYTES);
    scene.wait("eviction.signalled", "hog");
    wait_until("short lists", || is_held(SHORT));
    hog
}

#[guest_test(daemon)]
fn are_short_after_a_kill_and_not_after_the_daemon() {
    let of_guest = fs::read_to_string(SETTING).unwrap();
    // Any other value is the operator's: the daemon leaves it.
    fs::write(SETTING, BY_KERNEL).unwrap();
    let mut scene = Scene::open_with(NAME, SETTINGS);
    assert!(is_held(BY_KERNEL), "nothing was killed");
    let mut hog = evict(&mut scene);
    scene.wait("eviction.completed", "hog");
    hog.wait_for_end(TIMEOUT).unwrap();
    scene.clear(&["hog"]);
    scene.daemon.stop().unwrap();
    assert!(is_held(BY_KERNEL), "a daemon that ends gives them back");

    let mut scene = Scene::open_with(NAME, SETTINGS);
    let mut hog = evict(&mut scene);
    // Dropping it is SIGKILL.
    drop(scene);
    assert!(is_held(SHORT));
    hog.wait_for_end(TIMEOUT).unwrap();
    let scene = Scene::open_with("eviction-lists-next", SETTINGS);
    assert!(is_held(BY_KERNEL), "so does the next one");
    scene.daemon.stop().unwrap();
    fs::write(SETTING, of_guest).unwrap();
}
