//! Page cache that was just read: above the cgroup that it is charged to, new kernels count it late.

use std::fs;

use enforcer_tests::{disk::Disk, kernel, rounds::Rounds, wait::wait_until};
use serde_json::Value;

use super::{MIB, Scene};

/// What is charged to the reader when it has read most of its file.
const FULL_BYTES: u64 = 275 * MIB;

/// How often the ranking is read after that: the kernel counts at the latest two seconds later, and a wait's looks come every
/// 50 ms.
const LOOKS: u32 = 40;

/// A pod reads a large file again and again. What it reads is idle page cache at any moment: the pod does not count as one that
/// uses it, and the pods' own share of the node does not run short of it.
#[guest_test(kernel, repeats)]
fn what_a_pod_has_just_read_is_not_what_it_uses() {
    let total_bytes = kernel::meminfo_bytes("MemTotal").unwrap();
    let settings = format!(
        "evictionHard: {{memory.available: 0%, allocatableMemory.available: 250Mi}}\nsystemReserved: {{memory: \"{}\"}}",
        total_bytes - 500 * MIB
    );
    let mut scene = Scene::open_with("eviction-cache", &settings);
    let disk = Disk::new(512 * MIB).unwrap();
    let mut idle = scene.hold("idle", 0, "", "", "64Mi");
    let mut reader = scene.start("reader", &["workload", "cache", "--file", &disk.path(), "--size", "350Mi"]);
    let (mut most_bytes, mut most_charged_bytes) = (0, 0);
    // Each fills the cache again.
    let mut rounds = Rounds::new(2, 6);
    while rounds.next().is_some() {
        let mut looks = 0;
        wait_until("a cache that is full", || {
            let answer = scene.daemon.get("/v1/ranking").unwrap();
            let (_, body) = answer.split_once("\r\n\r\n").unwrap();
            let ranking: Value = serde_json::from_str(body).unwrap();
            let order = ranking["order"].as_array().unwrap();
            let Some(row) = order.iter().find(|row| row["name"] == "reader") else { return false };
            let charged_bytes = row["currentBytes"].as_u64().unwrap();
            most_bytes = most_bytes.max(row["usageBytes"].as_u64().unwrap());
            most_charged_bytes = most_charged_bytes.max(charged_bytes);
            looks += u32::from(charged_bytes >= FULL_BYTES);
            looks >= LOOKS
        });
        rounds.note(&scene.daemon).unwrap();
        fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
    }
    scene.catch_up();
    for kind in ["eviction.decided", "threshold.crossed", "oom.incident"] {
        assert_eq!(scene.stream.of(kind).count(), 0, "{kind}: {:?}", scene.stream.of(kind).next());
    }
    assert!(idle.lives().unwrap() && reader.lives().unwrap());
    assert!(most_bytes < 100 * MIB, "what it has read counted as used: {most_bytes} of {most_charged_bytes}");
    drop((idle, reader));
    scene.clear(&["idle", "reader"]);
    scene.daemon.stop().unwrap();
}
