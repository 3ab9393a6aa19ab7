//! The kernel's text files: what is read of them is in them, and a file that is cut off or is something else is no reading.

use std::collections::BTreeSet;

use enforcer::{
    cgroup::CgroupDir,
    sense::{
        FreeLists, Tasks,
        snapshot::{Guarded, NodeFiles, NodePaths, Snapshots, Stalls},
    },
};

use super::scratch::Scratch;

/// Each file with a sound content, which the others have while one is the input's.
const FILES: [(&str, &str); 10] = [
    (
        "meminfo",
        "MemTotal: 2048 kB\nMemFree: 1024 kB\nMemAvailable: 1500 kB\nBuffers: 1 kB\nCached: 300 kB\nSwapCached: 0 kB\n\
         Inactive(file): 100 kB\nSwapTotal: 64 kB\nSwapFree: 32 kB\nAnonPages: 50 kB\n",
    ),
    (
        "pressure",
        "some avg10=1.25 avg60=0.40 avg300=0.09 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
    ),
    (
        "zoneinfo",
        "Node 0, zone   Normal\n  pages free     90\n        min      3\n        low      4\n        high     5\n        \
         managed  100\n  pagesets\n    cpu: 0\n              count:    6\n",
    ),
    ("loadavg", "0.20 0.18 0.12 1/80 11206\n"),
    ("sys/kernel/pid_max", "32768\n"),
    ("sys/kernel/threads-max", "15000\n"),
    ("memory.current", "4096\n"),
    ("memory.stat", "anon 5\nfile 6\nkernel 1\nshmem 2\ninactive_file 3\n"),
    ("memory.events", "low 0\nhigh 1\nmax 2\noom 3\noom_kill 4\noom_group_kill 5\n"),
    (
        "memory.pressure",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=9\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=8\n",
    ),
];

/// The first byte names the file, the others are its content.
pub fn check(bytes: &[u8]) {
    let Some((which, content)) = bytes.split_first() else { return };
    let place = usize::from(*which) % FILES.len();
    let scratch = Scratch::new("kernel-text");
    let mut numbers = BTreeSet::from([0]);
    for (other, (name, sound)) in FILES.iter().enumerate() {
        let content = if other == place { content } else { sound.as_bytes() };
        numbers.extend(numbers_in(content));
        scratch.write(name, content);
    }
    let is_in = |what: &str, number: u64| {
        assert!(number == u64::MAX || numbers.contains(&number), "{what} of {number} is in no file");
    };
    let path = scratch.path();
    if let Ok(count) = Tasks::open(path).and_then(|tasks| tasks.read()) {
        is_in("running", count.running);
        is_in("most", count.most);
    }
    if let Ok(mut lists) = FreeLists::open(path) {
        assert_eq!(lists.read(), lists.read());
    }
    let paths = NodePaths {
        meminfo: path.join("meminfo"),
        pressure: path.join("pressure"),
        zoneinfo: path.join("zoneinfo"),
    };
    let Ok(node) = NodeFiles::open(&paths) else { panic!("the files are there") };
    let Ok(dir) = CgroupDir::unchecked(path) else { panic!("the folder is there") };
    let mut snapshots = Snapshots::new(node);
    snapshots.guard(Guarded::open(&dir, 0).into_iter().collect());
    let first = snapshots.take(1).clone();
    if let Ok(memory) = first.node.memory {
        for (what, bytes) in [
            ("MemTotal", memory.total_bytes),
            ("MemFree", memory.free_bytes),
            ("MemAvailable", memory.available_bytes),
            ("SwapTotal", memory.swap_total_bytes),
            ("SwapFree", memory.swap_free_bytes),
        ] {
            is_in(what, bytes / 1_024);
        }
    }
    let stalls = [first.node.pressure.ok(), first.cgroups.first().and_then(|view| view.pressure.ok())];
    for Stalls { some, full } in stalls.into_iter().flatten() {
        is_in("some", some.total_us);
        is_in("full", full.total_us);
    }
    assert!(first.node.zones.each().len() <= 64);
    for view in &first.cgroups {
        if let Ok(bytes) = view.current_bytes {
            is_in("memory.current", bytes);
        }
        if let Ok(split) = view.split {
            is_in("anon", split.anon_bytes);
            is_in("file", split.file_bytes);
            is_in("shmem", split.shmem_bytes);
            is_in("inactive_file", split.inactive_file_bytes);
        }
        if let Ok(events) = view.events {
            is_in("oom", events.oom);
            is_in("oom_kill", events.oom_kill);
        }
    }
    // The same files read again say the same.
    let second = snapshots.take(2);
    assert_eq!((&first.node.memory, &first.node.zones), (&second.node.memory, &second.node.zones));
}

/// Every number that a text holds.
fn numbers_in(text: &[u8]) -> impl Iterator<Item = u64> {
    let digits = text.split(|byte| !byte.is_ascii_digit());
    digits.filter_map(|digits| str::from_utf8(digits).ok()?.parse().ok())
}
