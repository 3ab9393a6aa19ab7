//! The promise of a snapshot: once its files are open it allocates and frees nothing.

#![expect(clippy::unwrap_used, reason = "a test's helpers may panic like the test itself")]

mod counting;

use std::{fs, path::Path, sync::atomic::Ordering};

use counting::{COUNT, WATCHED};
use enforcer::{
    cgroup::CgroupDir,
    sense::snapshot::{Guarded, NodeFiles, NodePaths, Snapshots},
};

const PRESSURE: &str =
    "some avg10=1.25 avg60=0.00 avg300=0.00 total=5\nfull avg10=0.25 avg60=0.00 avg300=0.00 total=3\n";

fn pod(root: &Path, number: u64) -> Guarded {
    let dir = root.join(format!("pod{number}"));
    fs::create_dir(&dir).unwrap();
    for (file, text) in [
        ("memory.current", format!("{}\n", 100 + number)),
        ("memory.stat", String::from("anon 70\nfile 20\nshmem 3\ninactive_file 10\n")),
        ("memory.swap.current", String::from("11\n")),
        ("memory.events", String::from("low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\n")),
        ("memory.pressure", String::from(PRESSURE)),
    ] {
        fs::write(dir.join(file), text).unwrap();
    }
    // One of the later ones is malformed, and some are within their request.
    if number % 7 == 3 {
        fs::write(dir.join("memory.events"), "low\n").unwrap();
    }
    Guarded::open(&CgroupDir::unchecked(&dir).unwrap(), number * 3).unwrap()
}

#[test]
fn from_the_first_to_the_last() {
    let temp = tempfile::tempdir().unwrap();
    let path = |file: &str| temp.path().join(file);
    fs::write(path("meminfo"), "MemTotal: 8000 kB\nMemFree: 1 kB\nMemAvailable: 5 kB\nSwapTotal: 9 kB\n")
        .unwrap();
    fs::write(path("pressure"), PRESSURE).unwrap();
    let zone =
        |node| format!("Node {node}, zone Normal\n  pages free 9\n min 1\n low 2\n high 3\n managed 9\n");
    fs::write(path("zoneinfo"), (0..80).map(zone).collect::<String>()).unwrap();
    let paths =
        NodePaths { meminfo: path("meminfo"), pressure: path("pressure"), zoneinfo: path("zoneinfo") };
    let mut snapshots = Snapshots::new(NodeFiles::open(&paths).unwrap());
    snapshots.guard((0..100).map(|number| pod(temp.path(), number)).collect());
    WATCHED.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
    for second in 1..10 {
        let snapshot = snapshots.take(second * 1_000_000_000);
        assert_eq!((snapshot.cgroups.len(), snapshot.node.zones.each().len()), (100, 64));
    }
    WATCHED.store(0, Ordering::Relaxed);
    assert_eq!(COUNT.load(Ordering::Relaxed), 0, "allocations and frees in nine snapshots");
}
