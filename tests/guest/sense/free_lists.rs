//! The kernel's per-CPU lists of free pages, which hold what a process gave back.
use std::{fs, path::Path};

use enforcer::sense::FreeLists;
use enforcer_tests::{cgroup::Cgroup, load::Load};

const MIB: u64 = 1 << 20;

/// Up to Linux 6.6 they are short at any time. Since 6.7 they grow, and become short again when each CPU brings its counters up to
/// date a few times: then what lies on them is in `MemAvailable`.
#[guest_test(kernel)]
fn lists_become_short_when_counters_are_brought_up_to_date() {
    let pod = Cgroup::create("free-lists").unwrap();
    let mut load = Load::start(&pod, &["hold", "--size", "600Mi", "--touch-every", "60s"]).unwrap();
    load.wait_for("ready").unwrap();
    drop(load);
    let mut lists = FreeLists::open(Path::new("/proc")).unwrap();
    let before = lists.read().unwrap();
    for _ in 0..52 {
        fs::write("/proc/sys/vm/stat_refresh", "1").unwrap();
    }
    let after = lists.read().unwrap();
    assert!(after.most_bytes < 64 * MIB && after.free_bytes < 64 * MIB, "{before:?} {after:?}");
}
