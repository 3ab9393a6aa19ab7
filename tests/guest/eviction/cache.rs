//! Page cache that was just read: above the cgroup that it is charged to, new kernels count it late.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use enforcer_tests::{disk::Disk, kernel};
use serde_json::Value;

use super::{MIB, Scene};

/// Each fills the cache anew.
const FILLS: u32 = 6;

/// As long as one may take.
const A_FILL: Duration = Duration::from_secs(20);

/// A pod reads a large file again and again. What it reads is idle page cache at any moment: the pod does not count as one that
/// uses it, and the pods' own share of the node does not run short of it.
#[guest_test(kernel)]
fn what_a_pod_has_just_read_is_not_what_it_uses() {
    let total_bytes = kernel::meminfo_bytes("MemTotal").unwrap();
    let settings = format!(
        "evictionHard: {{memory.available: 0%, allocatableMemory.available: 500Mi}}\nsystemReserved: {{memory: \"{}\"}}",
        total_bytes - 1_000 * MIB
    );
    let mut scene = Scene::open_with("eviction-cache", &settings);
    let disk = Disk::new(1 << 30).unwrap();
    let mut idle = scene.hold("idle", 0, "", "", "64Mi");
    let mut reader = scene.start("reader", &["workload", "cache", "--file", &disk.path(), "--size", "700Mi"]);
    let (mut most_bytes, mut most_charged_bytes) = (0, 0);
    for _ in 0..FILLS {
        // As fast as this machine reads; once is enough.
        let begin = Instant::now();
        while begin.elapsed() < A_FILL
            && scene.number("reader", "memory.current").is_none_or(|bytes| bytes < 550 * MIB)
        {
            thread::sleep(Duration::from_millis(50));
        }
        for _ in 0..30 {
            thread::sleep(Duration::from_millis(100));
            let answer = scene.daemon.get("/v1/ranking").unwrap();
            let (_, body) = answer.split_once("\r\n\r\n").unwrap();
            let ranking: Value = serde_json::from_str(body).unwrap();
            let order = ranking["order"].as_array().unwrap();
            let Some(row) = order.iter().find(|row| row["name"] == "reader") else { continue };
            most_bytes = most_bytes.max(row["usageBytes"].as_u64().unwrap());
            most_charged_bytes = most_charged_bytes.max(row["currentBytes"].as_u64().unwrap());
        }
        fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
    }
    scene.stream.drain(Duration::from_secs(1));
    for kind in ["eviction.decided", "threshold.crossed", "oom.incident"] {
        assert_eq!(scene.stream.of(kind).count(), 0, "{kind}: {:?}", scene.stream.of(kind).next());
    }
    assert!(idle.lives().unwrap() && reader.lives().unwrap());
    assert!(
        most_charged_bytes > 500 * MIB,
        "it did not read much: {most_charged_bytes}, {:?}",
        scene.file("reader", "memory.stat")
    );
    assert!(most_bytes < 100 * MIB, "what it has read counted as used: {most_bytes} of {most_charged_bytes}");
    drop((idle, reader));
    scene.clear(&["idle", "reader"]);
    scene.daemon.stop().unwrap();
}
