use std::collections::BTreeSet;

use rstest::rstest;
use rustix::thread::CapabilitySet;

use super::{super::tests::everything, *};
use crate::sense::{Hierarchy, MarkArgument, PidNamespace, Psi, choose};

fn whole_host() -> HostFacts {
    HostFacts {
        root: Some(true),
        capabilities: Some(CapabilitySet::all()),
        memlock: Some(false),
        seccomp: Some(false),
        filters: Some(true),
        landlock: Some(true),
        hierarchy: Some(Hierarchy::Unified),
        controllers: Some(["cpuset", "cpu", "memory", "hugetlb", "pids"].map(str::to_owned).to_vec()),
        kill: Some(true),
        reclaim: Some(true),
        local_events: Some(true),
        oom_group: Some(true),
        swap_max: Some(true),
        huge_pages: Some(true),
        psi: Some(Psi::Full),
        pidfd_open: Some(true),
        process_mrelease: Some(true),
    }
}

fn table(facts: &Facts, host: &HostFacts) -> Vec<Facility> {
    ladder(facts, host, &choose(facts))
}

/// The rows that are not in full, with their state.
fn worse_than_full(table: &[Facility]) -> Vec<(&str, State)> {
    table
        .iter()
        .filter(|facility| facility.state != State::Full)
        .map(|facility| (facility.name.as_str(), facility.state))
        .collect()
}

#[test]
fn a_whole_host_has_everything() {
    let table = table(&everything(), &whole_host());
    assert_eq!(worse_than_full(&table), []);
    for facility in &table {
        assert!(facility.lost.is_none() && facility.remedy.is_none(), "{facility:?}");
        assert!(facility.uses.is_some() && !facility.found.is_empty(), "{facility:?}");
    }
    assert_eq!(host_lost(&whole_host()), []);
}

/// Takes a controller away.
fn take_away(host: &mut HostFacts, controller: &str) {
    host.controllers.as_mut().unwrap().retain(|one| one != controller);
}

type Flip = fn(&mut Facts, &mut HostFacts);

#[rstest]
#[case::no_ring(|f: &mut Facts, _: &mut HostFacts| f.ring_buffer = Some(false), &[
    ("ebpf", State::Missing), ("oomVictims", State::Lesser), ("oomKills", State::Lesser), ("limitOwner", State::Lesser),
    ("memoryBack", State::Lesser), ("cgroupLife", State::Lesser), ("victimDetails", State::Lesser), ("scoreEdge", State::Lesser),
    ("writeEdge", State::Lesser), ("reclaimEdges", State::Lesser), ("stalls", State::Lesser), ("reclaimLimit", State::Lesser),
    ("memoryHigh", State::Missing)])]
#[case::old_event(|f: &mut Facts, _: &mut HostFacts| f.mark_argument = Some(MarkArgument::Pid), &[("oomVictims", State::Lesser)])]
#[case::no_fentry(|f: &mut Facts, _: &mut HostFacts| f.fentry = Some(false), &[
    ("limitOwner", State::Lesser), ("memoryBack", State::Lesser), ("writeEdge", State::Lesser), ("memoryHigh", State::Missing)])]
#[case::a_member_is_missing(|f: &mut Facts, _: &mut HostFacts| f.resolved.as_mut().unwrap().absent.push("task_mm"), &[("victimDetails", State::Lesser)])]
#[case::in_a_container(|f: &mut Facts, _: &mut HostFacts| f.pid_namespace = Some(PidNamespace::new(4, 7)), &[("processIds", State::Lesser)])]
#[case::no_bpffs(|f: &mut Facts, _: &mut HostFacts| f.bpffs = Some(false), &[("bpffs", State::Missing)])]
#[case::rights_unknown(|f: &mut Facts, _: &mut HostFacts| f.cap_bpf = None, &[("ebpf", State::Unknown)])]
#[case::not_root(|_: &mut Facts, h: &mut HostFacts| h.root = Some(false), &[("root", State::Missing)])]
#[case::short_windows(|_: &mut Facts, h: &mut HostFacts| h.psi = Some(Psi::Limited), &[("psi", State::Lesser)])]
#[case::no_triggers(|_: &mut Facts, h: &mut HostFacts| h.psi = Some(Psi::ReadOnly), &[("psi", State::Missing)])]
#[case::pressure_off(|_: &mut Facts, h: &mut HostFacts| h.psi = Some(Psi::Off), &[("psi", State::Missing)])]
#[case::no_pressure(|_: &mut Facts, h: &mut HostFacts| h.psi = Some(Psi::Absent), &[("psi", State::Missing)])]
#[case::pressure_unknown(|_: &mut Facts, h: &mut HostFacts| h.psi = None, &[("psi", State::Unknown)])]
#[case::hybrid(|_: &mut Facts, h: &mut HostFacts| h.hierarchy = Some(Hierarchy::Hybrid), &[("cgroup2", State::Missing)])]
#[case::v1(|_: &mut Facts, h: &mut HostFacts| h.hierarchy = Some(Hierarchy::Legacy), &[("cgroup2", State::Missing)])]
#[case::no_cgroups(|_: &mut Facts, h: &mut HostFacts| h.hierarchy = Some(Hierarchy::Absent), &[("cgroup2", State::Missing)])]
#[case::memory_elsewhere(|_: &mut Facts, h: &mut HostFacts| take_away(h, "memory"), &[("controllers", State::Lesser)])]
#[case::no_pids(|_: &mut Facts, h: &mut HostFacts| take_away(h, "pids"), &[("controllers", State::Lesser)])]
#[case::neither(|_: &mut Facts, h: &mut HostFacts| { take_away(h, "memory"); take_away(h, "pids") }, &[("controllers", State::Lesser)])]
#[case::no_cpu(|_: &mut Facts, h: &mut HostFacts| take_away(h, "cpu"), &[("controllers", State::Lesser)])]
#[case::no_cpuset(|_: &mut Facts, h: &mut HostFacts| take_away(h, "cpuset"), &[("cpuset", State::Missing)])]
#[case::no_hugetlb(|_: &mut Facts, h: &mut HostFacts| take_away(h, "hugetlb"), &[("hugetlb", State::Missing)])]
#[case::no_huge_pages(|_: &mut Facts, h: &mut HostFacts| { take_away(h, "hugetlb"); h.huge_pages = Some(false) }, &[])]
#[case::no_swap_files(|_: &mut Facts, h: &mut HostFacts| h.swap_max = Some(false), &[("swapLimit", State::Missing)])]
#[case::controllers_unknown(|_: &mut Facts, h: &mut HostFacts| h.controllers = None, &[
    ("controllers", State::Unknown), ("cpuset", State::Unknown), ("hugetlb", State::Unknown)])]
#[case::no_kill(|_: &mut Facts, h: &mut HostFacts| h.kill = Some(false), &[("cgroupKill", State::Missing)])]
#[case::kill_unknown(|_: &mut Facts, h: &mut HostFacts| h.kill = None, &[("cgroupKill", State::Unknown)])]
#[case::no_reclaim(|_: &mut Facts, h: &mut HostFacts| h.reclaim = Some(false), &[("reclaim", State::Lesser)])]
#[case::no_local_events(|_: &mut Facts, h: &mut HostFacts| h.local_events = Some(false), &[("localEvents", State::Missing)])]
#[case::no_group(|_: &mut Facts, h: &mut HostFacts| h.oom_group = Some(false), &[("oomGroup", State::Missing)])]
#[case::no_release(|_: &mut Facts, h: &mut HostFacts| h.process_mrelease = Some(false), &[("release", State::Lesser)])]
#[case::no_pidfd(|_: &mut Facts, h: &mut HostFacts| { h.pidfd_open = Some(false); h.process_mrelease = None }, &[("release", State::Lesser)])]
#[case::no_sys_resource(|_: &mut Facts, h: &mut HostFacts| h.capabilities.as_mut().unwrap().remove(CapabilitySet::SYS_RESOURCE), &[("capSysResource", State::Missing)])]
#[case::no_kill_right(|_: &mut Facts, h: &mut HostFacts| h.capabilities.as_mut().unwrap().remove(CapabilitySet::KILL), &[("capKill", State::Missing)])]
#[case::no_override(|_: &mut Facts, h: &mut HostFacts| h.capabilities.as_mut().unwrap().remove(CapabilitySet::DAC_OVERRIDE), &[("capDacOverride", State::Missing)])]
#[case::no_search(|_: &mut Facts, h: &mut HostFacts| h.capabilities.as_mut().unwrap().remove(CapabilitySet::DAC_READ_SEARCH), &[("capDacReadSearch", State::Missing)])]
#[case::no_ptrace(|_: &mut Facts, h: &mut HostFacts| h.capabilities.as_mut().unwrap().remove(CapabilitySet::SYS_PTRACE), &[("capSysPtrace", State::Missing)])]
#[case::no_lock(|_: &mut Facts, h: &mut HostFacts| h.capabilities.as_mut().unwrap().remove(CapabilitySet::IPC_LOCK), &[("memoryLock", State::Missing)])]
#[case::lock_by_limit(|_: &mut Facts, h: &mut HostFacts| { h.capabilities.as_mut().unwrap().remove(CapabilitySet::IPC_LOCK); h.memlock = Some(true) }, &[])]
#[case::no_filters(|_: &mut Facts, h: &mut HostFacts| h.filters = Some(false), &[("callFilters", State::Missing)])]
#[case::no_landlock(|_: &mut Facts, h: &mut HostFacts| h.landlock = Some(false), &[("landlock", State::Missing)])]
#[case::a_filter_alone(|_: &mut Facts, h: &mut HostFacts| h.seccomp = Some(true), &[])]
fn one_fact_flipped(#[case] flip: Flip, #[case] expected: &[(&str, State)]) {
    let (mut facts, mut host) = (everything(), whole_host());
    flip(&mut facts, &mut host);
    let table = table(&facts, &host);
    assert_eq!(worse_than_full(&table), expected);
    for facility in table.iter().filter(|facility| matches!(facility.state, State::Lesser | State::Missing)) {
        assert!(facility.lost.is_some() && facility.remedy.is_some(), "{facility:?}");
    }
    // What the daemon reports at its start is what the table shows, in the same words.
    let reported: Vec<_> = host_lost(&host).into_iter().chain(choose(&facts).lost).collect();
    for lost in &reported {
        let row = rows::of_word(lost.what).unwrap_or_else(|| panic!("{lost:?} has no row"));
        let facility = table.iter().find(|facility| facility.name == row.name).unwrap();
        assert_ne!(facility.state, State::Full, "{lost:?}");
        assert!(facility.found.contains(&lost.why), "{lost:?}, {facility:?}");
        assert_eq!(facility.lost.as_deref(), Some(lost.consequence));
    }
    let names: BTreeSet<_> = reported.iter().map(|lost| rows::of_word(lost.what).unwrap().name).collect();
    let lost = table.iter().filter(|facility| matches!(facility.state, State::Lesser | State::Missing));
    for facility in lost {
        // Without eBPF one event says it for all that is made of it.
        assert!(
            names.contains(facility.name.as_str()) || names.contains("ebpf"),
            "{facility:?} is not reported"
        );
    }
}

#[test]
fn what_is_unknown_is_not_lost() {
    let table = table(&Facts { btf: None, ..Facts::default() }, &HostFacts::default());
    let host: Vec<_> =
        table.iter().filter(|facility| rows::TRACING.iter().all(|row| row.name != facility.name)).collect();
    assert!(host.iter().all(|facility| facility.state == State::Unknown), "{host:#?}");
    assert_eq!(host_lost(&HostFacts::default()), []);
}

#[test]
fn every_row_is_whole_and_no_word_has_two() {
    let mut words = BTreeSet::new();
    for row in rows::all() {
        assert!(row.rungs.len() >= 2 && !row.remedy.is_empty(), "{}", row.name);
        assert!(
            row.rungs[0].1.is_empty() && row.rungs[1..].iter().all(|(_, lost)| !lost.is_empty()),
            "{}",
            row.name
        );
        assert!(words.insert(row.name), "{}", row.name);
        assert!(row.words.iter().all(|word| *word == row.name || words.insert(word)), "{}", row.name);
        assert!(!row.program_a_rung || row.programs.len() + 1 == row.rungs.len(), "{}", row.name);
    }
}

fn failure(program: &'static str) -> Failure {
    Failure {
        program,
        hook: "hook".into(),
        error: "refused".into(),
        verifier_tail: None,
        consequence: "something",
    }
}

#[test]
fn a_program_that_was_refused_takes_its_row_down() {
    let whole = || table(&everything(), &whole_host());
    let owner = without(whole(), &["mark_victim_task"], &[failure("out_of_memory")], &[], None);
    assert_eq!(worse_than_full(&owner), [("limitOwner", State::Lesser)]);
    let row = owner.iter().find(|facility| facility.name == "limitOwner").unwrap();
    assert_eq!(row.found, "out_of_memory at hook: refused");
    // The classic event took over.
    let marks = without(whole(), &["mark_victim_plain"], &[failure("mark_victim_task")], &[], None);
    let row = marks.iter().find(|facility| facility.name == "oomVictims").unwrap();
    assert_eq!((row.state, row.uses.as_ref()), (State::Lesser, Some(&row.rungs[2].uses)));
    let none = without(whole(), &[], &[failure("mark_victim_task"), failure("mark_victim_plain")], &[], None);
    let row = none.iter().find(|facility| facility.name == "oomVictims").unwrap();
    assert_eq!(row.uses, Some(row.rungs[3].uses.clone()));
    // One of several, and one that the table does not know.
    let others = without(whole(), &["score_forked"], &[failure("score_executed"), failure("new")], &[], None);
    assert_eq!(worse_than_full(&others), [("scoreEdge", State::Lesser), ("new", State::Lesser)]);
}

/// Where the kernel passes the cgroup to the function and not to the event, the function's program has it.
#[test]
fn a_limit_owner_whose_program_was_refused_is_a_guess() {
    let whole = table(&everything(), &whole_host());
    let table = without(whole, &[], &[failure("memcg_reclaim_entered")], &[], None);
    let lost = [("reclaimEdges", State::Lesser), ("reclaimLimit", State::Lesser)];
    assert_eq!(worse_than_full(&table), lost);
}

#[test]
fn what_nothing_works_without_comes_first() {
    let table = table(&everything(), &whole_host());
    let place = |name: &str| table.iter().position(|facility| facility.name == name).unwrap();
    assert_eq!(place(CGROUP2), 0);
    assert!(place("cgroupKill") < place("ebpf") && place("ebpf") < place("landlock"));
}

/// A mount of cgroup v2 over `/sys/fs/cgroup` would hide cgroup v1 from whatever uses it.
#[test]
fn no_remedy_mounts_over_cgroup_v1() {
    let cgroup2 = rows::of_name(CGROUP2).unwrap().remedy;
    assert!(cgroup2.contains("without systemd and cgroup v1, mount -t cgroup2"), "{cgroup2}");
    for row in rows::all().filter(|row| row.name != CGROUP2) {
        assert!(!row.remedy.contains("cgroup_no_v1") && !row.remedy.contains("-t cgroup2"), "{}", row.name);
    }
}

#[test]
fn what_could_not_be_pinned_takes_its_row_down_though_bpffs_is_mounted() {
    let lost = Lost { what: "bpffs", why: "another daemon has the pins".into(), consequence: "no pins" };
    let table = without(table(&everything(), &whole_host()), &[], &[], &[lost], None);
    assert_eq!(worse_than_full(&table), [("bpffs", State::Missing)]);
    let row = table.iter().find(|facility| facility.name == "bpffs").unwrap();
    assert_eq!(row.found, "another daemon has the pins");
}

#[test]
fn without_a_loaded_object_all_that_needs_programs_is_gone() {
    let table = without(table(&everything(), &whole_host()), &[], &[], &[], Some("not built"));
    let gone = worse_than_full(&table);
    assert_eq!(gone[0], ("ebpf", State::Missing));
    assert_eq!(gone.len(), rows::TRACING.iter().filter(|row| row.needs_programs).count());
    assert!(table.iter().all(|facility| facility.state == State::Full || facility.found == "not built"));
}

#[test]
fn a_message_says_why_what_and_how() {
    let lost = Lost { what: "bpffs", why: "no bpffs at /sys/fs/bpf".into(), consequence: "no pins" };
    assert_eq!(lost.message(), "no bpffs at /sys/fs/bpf: no pins; to get it: mount -t bpf bpf /sys/fs/bpf");
    let unknown = Lost { what: "other", ..lost };
    assert_eq!(unknown.message(), "no bpffs at /sys/fs/bpf: no pins");
}

#[test]
fn what_is_not_evicted_for_follows_from_the_missing_controllers() {
    for (missing, lost) in [
        (&["cpu"][..], "limits of the missing controllers are not enforced"),
        (&["pids"], "no pod is evicted for pid.available"),
        (&["memory", "cpu"], "no pod is evicted for memory.available or allocatableMemory.available"),
        (&["memory", "pids"], "no pod is evicted except by order"),
    ] {
        let mut host = whole_host();
        for controller in missing {
            take_away(&mut host, controller);
        }
        let found = host_lost(&host);
        let [controllers] = &found[..] else { panic!("{found:?}") };
        assert!(
            controllers.what == "controllers" && controllers.consequence.ends_with(lost),
            "{controllers:?}"
        );
    }
}
