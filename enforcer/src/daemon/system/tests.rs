use super::*;
use crate::{policy::Settings, sample};

fn path(text: &str) -> CgroupPath {
    CgroupPath::parse(text).unwrap()
}

fn list(amounts: &[(&str, &str)]) -> ResourceList {
    amounts.iter().map(|(name, text)| (ResourceName::new(name), text.parse().unwrap())).collect()
}

fn config(system: Option<&str>, kube: Option<&str>) -> Config {
    Config {
        settings: Settings {
            system_reserved: list(&[("memory", "64Mi"), ("pid", "100"), ("cpu", "1")]),
            kube_reserved: list(&[("memory", "32Mi")]),
            ..Settings::default()
        },
        system_reserved_cgroup: system.map(path),
        kube_reserved_cgroup: kube.map(path),
        ..Config::default()
    }
}

fn reserved(system: Option<&str>, kube: Option<&str>) -> Vec<(&'static str, String, u64)> {
    let scopes = scopes(&config(system, kube), &sample::node());
    let of = |scope: Scope| (scope.name, scope.path.to_string(), scope.memory_bytes.unwrap_or(0) >> 20);
    scopes.into_iter().map(of).collect()
}

#[test]
fn each_reservation_is_for_its_cgroup_and_one_without_counts_with_the_systems() {
    let text = |path: &str| path.to_owned();
    assert_eq!(reserved(None, None), [("system", text("/system.slice"), 96)]);
    assert_eq!(reserved(Some("/sys"), None), [("system", text("/sys"), 96)]);
    assert_eq!(
        reserved(Some("/sys"), Some("/kube")),
        [("system", text("/sys"), 64), ("kube", text("/kube"), 32)]
    );
    // The cgroup of the system contains that of Kubernetes' daemons.
    assert_eq!(reserved(None, Some("/system.slice/kube.slice"))[0], ("system", text("/system.slice"), 96));
}

fn used(memory_mib: u64, tasks: u64) -> Vec<(Scope, Usage)> {
    let usage = Usage { cpu_us: Some(1), memory_bytes: Some(memory_mib << 20), tasks: Some(tasks) };
    scopes(&config(Some("/sys"), None), &sample::node()).into_iter().map(|scope| (scope, usage)).collect()
}

#[test]
fn what_is_exceeded_is_reported_once_until_it_was_kept() {
    let mut exceeded = Exceeded::default();
    assert!(exceeded.look(used(96, 100)).is_empty(), "all of it is not too much");
    let reports = exceeded.look(used(97, 100));
    assert_eq!(reports.len(), 1);
    assert_eq!((&*reports[0].scope, &*reports[0].resource), ("system", "memory"));
    assert_eq!((reports[0].used_bytes, reports[0].reserved_bytes), (Some(97 << 20), Some(96 << 20)));
    assert!(exceeded.look(used(98, 100)).is_empty(), "it is known");
    let reports = exceeded.look(used(98, 101));
    assert_eq!((reports.len(), reports[0].used_count), (1, Some(101)));
    // A little below is not kept yet.
    exceeded.look(used(95, 100));
    assert!(exceeded.look(used(97, 101)).is_empty());
    exceeded.look(used(80, 10));
    assert_eq!(exceeded.look(used(97, 101)).len(), 2);
    // The cgroup is gone, and comes back.
    exceeded.look(vec![(used(1, 1).remove(0).0, Usage::default())]);
    assert_eq!(exceeded.look(used(97, 1)).len(), 1);
}

#[test]
fn a_cgroup_is_read_as_the_kernel_writes_it() {
    let temp = tempfile::tempdir().unwrap();
    for (file, content) in [
        ("memory.current", "3000\n"),
        ("memory.stat", "anon 1000\nfile 2000\nactive_file 500\ninactive_file 1500\n"),
        ("cpu.stat", "usage_usec 42\nuser_usec 40\n"),
        ("pids.current", "7\n"),
    ] {
        fs::write(temp.path().join(file), content).unwrap();
    }
    let usage = of_cgroup(&CgroupDir::unchecked(temp.path()).unwrap());
    assert_eq!(usage, Usage { cpu_us: Some(42), memory_bytes: Some(1_500), tasks: Some(7) });
    fs::remove_file(temp.path().join("memory.stat")).unwrap();
    let usage = of_cgroup(&CgroupDir::unchecked(temp.path()).unwrap());
    assert_eq!(usage.memory_bytes, None, "not more than it can be");
}

#[test]
fn components_are_the_sum_of_their_processes_and_no_other_with_the_same_id() {
    let own = std::process::id();
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let start_ticks: u64 =
        stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(19).unwrap().parse().unwrap();
    let member = |start_ticks, name: &str| Member { pid: own, start_ticks, name: name.to_owned() };
    let one = of_members(Path::new("/proc"), &[member(start_ticks, "enforcer")]);
    let [(name, usage)] = &one[..] else { panic!("{one:?}") };
    assert_eq!(name, "enforcer");
    assert!(usage.memory_bytes.is_some_and(|bytes| bytes > 100_000), "{usage:?}");
    assert!(usage.tasks.is_some_and(|tasks| tasks > 0) && usage.cpu_us.is_some(), "{usage:?}");
    let two = of_members(Path::new("/proc"), &[member(start_ticks, "a"), member(start_ticks, "a")]);
    assert!(two.len() == 1 && two[0].1.memory_bytes > usage.memory_bytes, "{two:?}");
    assert!(of_members(Path::new("/proc"), &[member(start_ticks + 1, "a")]).is_empty(), "its id is reused");
}

#[test]
fn the_kernels_own_memory_is_read_as_it_writes_it() {
    let text = "MemTotal:       16 kB\nSlab:            3 kB\nSReclaimable:    1 kB\nKernelStack:     2 kB\n\
                PageTables:      5 kB\nSecPageTables:   1 kB\n";
    let expected = KernelMemory { slab_bytes: 3 << 10, stack_bytes: 2 << 10, page_table_bytes: 6 << 10 };
    assert_eq!(parse_kernel_memory(text), Some(expected));
    assert_eq!(parse_kernel_memory("Slab: 3 kB\n"), None);
    assert!(kernel_memory().is_some_and(|kernel| kernel.slab_bytes > 0));
}

#[test]
fn statistics_are_read_only_near_the_reservation() {
    let temp = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| fs::write(temp.path().join(file), text).unwrap();
    let dir = CgroupDir::unchecked(temp.path()).unwrap();
    let scope = Scope {
        name: "system",
        path: path("/system.slice"),
        cpu_milli: None,
        memory_bytes: Some(1_000),
        tasks: None,
    };
    write("memory.current", "950\n");
    write("pids.current", "7\n");
    let used = |scope: &Scope| {
        let Usage { cpu_us, memory_bytes, tasks } = of_reserved(&dir, scope);
        assert_eq!(cpu_us, None, "no reservation of it is exceeded");
        (memory_bytes, tasks)
    };
    assert_eq!(used(&scope), (Some(950), None), "without memory.stat");
    write("memory.current", "1500\n");
    assert_eq!(used(&scope), (None, None), "which it needs now");
    write("memory.stat", "anon 1\ninactive_file 600\n");
    assert_eq!(used(&scope), (Some(900), None));
    assert_eq!(used(&Scope { memory_bytes: None, tasks: Some(9), ..scope }), (None, Some(7)));
}
