use std::fs::{create_dir_all, write};

use super::*;
use crate::sense::host_lost;

fn error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.raw_os_error())
}

#[test]
fn a_tree_without_cgroups_is_reported_from_one_of_v1() {
    let root = tempfile::tempdir().unwrap();
    let cgroups = root.path().join("sys/fs/cgroup");
    assert_eq!(hierarchy(&cgroups), Some(Hierarchy::Absent));
    create_dir_all(cgroups.join("memory")).unwrap();
    assert_eq!(hierarchy(&cgroups), Some(Hierarchy::Absent));
    write(cgroups.join("memory/tasks"), "").unwrap();
    assert_eq!(hierarchy(&cgroups), Some(Hierarchy::Legacy));
    let facts = HostFacts::below(root.path());
    assert_eq!((facts.hierarchy, facts.controllers, facts.kill), (Some(Hierarchy::Legacy), None, None));
}

#[test]
fn a_file_is_looked_for_where_the_controller_is() {
    let root = tempfile::tempdir().unwrap();
    let make = |path: &str, kind: &str, files: &[&str]| {
        let path = root.path().join(path);
        create_dir_all(&path).unwrap();
        write(path.join("cgroup.type"), format!("{kind}\n")).unwrap();
        for file in files {
            write(path.join(file), "").unwrap();
        }
    };
    let reclaim = || has_file(root.path(), "memory.reclaim", Some("memory.current"));
    write(root.path().join("memory.reclaim"), "").unwrap();
    assert_eq!(reclaim(), None, "the root is not like others");
    make("a", "domain", &[]);
    assert_eq!(reclaim(), None);
    assert_eq!(has_file(root.path(), "cgroup.kill", None), Some(false));
    make("a/threads", "threaded", &["memory.current"]);
    assert_eq!(reclaim(), None);
    make("a/b", "domain", &["memory.current"]);
    assert_eq!(reclaim(), Some(false));
    make("a/b", "domain", &["memory.current", "memory.reclaim"]);
    assert_eq!(reclaim(), Some(true));
    let swap = || has_file(root.path(), "memory.swap.max", Some("memory.current"));
    assert_eq!(swap(), Some(false), "a kernel without the files of swap");
    make("a/b", "domain", &["memory.swap.max"]);
    assert_eq!(swap(), Some(true));
}

/// A machine without systemd has no cgroup but the root until the daemon makes some.
#[test]
fn what_cgroups_show_is_known_once_there_is_one() {
    let root = tempfile::tempdir().unwrap();
    let mount = root.path().join("sys/fs/cgroup");
    create_dir_all(&mount).unwrap();
    let start = HostFacts { hierarchy: Some(Hierarchy::Unified), ..HostFacts::below(root.path()) };
    let facts = start.clone().filled_in_below(root.path());
    assert_eq!((facts.kill, facts.swap_max, facts.local_events), (None, None, None));
    let pods = mount.join("kubepods");
    create_dir_all(&pods).unwrap();
    write(pods.join("cgroup.type"), "domain\n").unwrap();
    for file in ["cgroup.kill", "memory.current", "memory.events.local", "memory.oom.group"] {
        write(pods.join(file), "").unwrap();
    }
    let facts = start.filled_in_below(root.path());
    assert_eq!((facts.kill, facts.swap_max, facts.local_events), (Some(true), Some(false), Some(true)));
    assert_eq!((facts.oom_group, facts.reclaim), (Some(true), Some(false)));
    let names: Vec<_> = host_lost(&facts).iter().map(|lost| lost.what).collect();
    assert!(names.contains(&"swapLimit") && names.contains(&"reclaim"), "{names:?}");
    // What was known stays as it was.
    fs::remove_file(pods.join("cgroup.kill")).unwrap();
    assert_eq!(facts.filled_in_below(root.path()).kill, Some(true));
}

#[test]
fn a_kernel_without_huge_pages_has_none_to_limit() {
    let root = tempfile::tempdir().unwrap();
    let pools = root.path().join("hugepages");
    assert_eq!(huge_pages(&pools), Some(false));
    create_dir_all(&pools).unwrap();
    assert_eq!(huge_pages(&pools), Some(false));
    create_dir_all(pools.join("hugepages-2048kB")).unwrap();
    assert_eq!(huge_pages(&pools), Some(true));
    write(root.path().join("file"), "").unwrap();
    assert_eq!(huge_pages(&root.path().join("file")), None);
}

#[test]
fn without_a_cgroup_the_kernels_list_is_asked() {
    let root = tempfile::tempdir().unwrap();
    create_dir_all(root.path().join("sys/kernel/cgroup")).unwrap();
    write(root.path().join("sys/kernel/cgroup/delegate"), "cgroup.procs\nmemory.oom.group\n").unwrap();
    let facts = HostFacts::below(root.path());
    assert_eq!((facts.oom_group, facts.reclaim, facts.kill), (Some(true), None, None));
}

#[test]
fn pressure_that_is_off_is_reported_from_none() {
    let root = tempfile::tempdir().unwrap();
    let (pressure, line) = (root.path().join("memory"), root.path().join("cmdline"));
    assert_eq!(psi(&pressure, &line), Some(Psi::Absent));
    write(&line, "quiet psi=01 opsi=0\n").unwrap();
    assert_eq!(psi(&pressure, &line), Some(Psi::Absent));
    write(&line, "quiet psi=0\n").unwrap();
    assert_eq!(psi(&pressure, &line), Some(Psi::Off));
    let never = || panic!("it is there");
    assert_eq!(unreadable(&error(Errno::OPNOTSUPP), never), Some(Psi::Off));
    assert_eq!(unreadable(&error(Errno::ACCESS), never), None);
}

#[test]
fn windows_are_what_the_kernel_takes() {
    let taking = |fits: fn(u32) -> bool| {
        triggers(|stall_us, window_us| {
            // As in the kernel, whatever the windows.
            assert!(stall_us > 0 && stall_us <= window_us && (500_000..=10_000_000).contains(&window_us));
            if fits(window_us) { Ok(()) } else { Err(error(Errno::INVAL)) }
        })
    };
    assert_eq!(taking(|_| true), Psi::Full);
    assert_eq!(taking(|window_us| window_us.is_multiple_of(2_000_000)), Psi::Limited);
    assert_eq!(taking(|_| false), Psi::ReadOnly);
}

#[test]
fn only_a_missing_or_refused_call_is_no() {
    assert_eq!(released(Some(libc::EINVAL)), Some(true));
    assert_eq!((released(Some(libc::ENOSYS)), released(Some(libc::EPERM))), (Some(false), Some(false)));
    assert_eq!(released(Some(libc::ESRCH)), None);
}

#[test]
fn a_filter_is_seen() {
    let root = tempfile::tempdir().unwrap();
    let status = root.path().join("status");
    assert_eq!(seccomp(&status), None);
    write(&status, "Name:\tSeccomp:\nSeccomp:\t2\nSeccomp_filters:\t1\n").unwrap();
    assert_eq!(seccomp(&status), Some(true));
    write(&status, "Seccomp:\t0\n").unwrap();
    assert_eq!(seccomp(&status), Some(false));
}

#[test]
fn filters_are_there_if_they_can_refuse() {
    let root = tempfile::tempdir().unwrap();
    let actions = root.path().join("actions_avail");
    assert_eq!(filters(&actions), Some(false));
    write(&actions, "kill_process kill_thread trap errno user_notif trace log allow\n").unwrap();
    assert_eq!(filters(&actions), Some(true));
    write(&actions, "allow\n").unwrap();
    assert_eq!(filters(&actions), Some(false));
    assert_eq!(filters(root.path()), None);
}

#[test]
fn another_process_of_the_same_host_knows_only_what_all_do() {
    let facts = HostFacts {
        root: Some(false),
        capabilities: Some(CapabilitySet::empty()),
        memlock: Some(false),
        psi: Some(Psi::Limited),
        kill: Some(true),
        ..HostFacts::default()
    };
    assert_eq!(facts.of_the_host_alone(), HostFacts { kill: Some(true), ..HostFacts::default() });
}

#[test]
fn this_host_can_be_looked_at() {
    let facts = HostFacts::gather();
    assert!(facts.root.is_some() && facts.hierarchy.is_some() && facts.pidfd_open.is_some(), "{facts:?}");
}
