use enforcer_common::{
    offsets::{ABSENT, Offsets},
    plain::PlainFormat,
};
use rstest::rstest;

use super::{
    Choice, Explained, Facts, Lockdown, MarkArgument, MarkProgram, choose, mark_argument, memory_hierarchy,
};
use crate::sense::{
    AttachTypes, LimitArgument, PidNamespace, ReclaimChoice, ReclaimFacts, Sight,
    btf::{Btf, build::Builder},
    offsets::Resolved,
};

const FORMAT: PlainFormat = PlainFormat { pid: 8, ..PlainFormat::NONE };

pub(super) fn everything() -> Facts {
    let offsets = Offsets {
        oom_control_memcg: 16,
        task_tgid: 0,
        task_mm: 0,
        task_group_leader: 0,
        task_signal: 0,
        signal_oom_score_adj: 0,
        task_cgroups: 0,
        css_set_dfl_cgrp: 0,
        cgroup_kn: 0,
        kernfs_node_id: 0,
        kernfs_node_parent: 0,
        kernfs_node_name: 0,
        kernfs_open_file_kn: 0,
        ..Offsets::NONE
    };
    Facts {
        btf: Some(true),
        mark_argument: Some(MarkArgument::Task),
        out_of_memory: Some(true),
        cgroup_file_write: Some(true),
        exit_mmap: Some(true),
        reclaim: ReclaimFacts {
            event_argument: Some(2),
            function_argument: Some(true),
            over_high: Some("mem_cgroup_handle_over_high"),
        },
        pid_namespace: Some(PidNamespace::new(4, 0xEFFF_FFFC)),
        tracefs: Some(true),
        plain_format: Some(FORMAT),
        ring_buffer: Some(true),
        bpffs: Some(true),
        bpf_call: Some(true),
        fentry: Some(true),
        lockdown: Some(Lockdown::Off),
        cap_bpf: Some(true),
        cap_perfmon: Some(true),
        unified_memory: Some(true),
        resolved: Some(Resolved { offsets, absent: Vec::new() }),
        attach_types: AttachTypes::default(),
    }
}

fn words(choice: &Choice) -> Vec<&'static str> {
    choice.lost.iter().map(|lost| lost.what).collect()
}

#[test]
fn a_whole_kernel_loses_nothing() {
    let choice = choose(&everything());
    assert_eq!(choice.mark, Some(MarkProgram::Task));
    assert!(choice.limit_owner && choice.raw && choice.unified_memory);
    assert_eq!(choice.sight, Sight { scores: true, writes: true });
    assert_eq!(choice.explained, Explained { memory_back: true, life: true });
    assert_eq!(choice.lost, []);
}

#[rstest]
#[case::old_event(|f: &mut Facts| f.mark_argument = Some(MarkArgument::Pid), Some(MarkProgram::Pid), true, &["markVictimTask"])]
#[case::no_function(|f: &mut Facts| f.out_of_memory = Some(false), Some(MarkProgram::Task), false, &["limitOwner"])]
#[case::no_ring(|f: &mut Facts| f.ring_buffer = Some(false), None, false, &["ringBuffer"])]
#[case::no_cap_bpf(|f: &mut Facts| f.cap_bpf = Some(false), None, false, &["capBpf"])]
#[case::no_cap_perfmon(|f: &mut Facts| f.cap_perfmon = Some(false), None, false, &["capPerfmon"])]
#[case::bpf_refused(|f: &mut Facts| f.bpf_call = Some(false), None, false, &["bpfCall"])]
#[case::locked_down(|f: &mut Facts| f.lockdown = Some(Lockdown::Confidentiality), None, false, &["lockdown"])]
#[case::locked_down_for_integrity(|f: &mut Facts| f.lockdown = Some(Lockdown::Integrity), Some(MarkProgram::Task), true, &[])]
#[case::no_fentry(|f: &mut Facts| f.fentry = Some(false), Some(MarkProgram::Task), false, &["limitOwner", "writeEdge", "memoryBack", "memoryHigh"])]
#[case::no_bpffs(|f: &mut Facts| f.bpffs = Some(false), Some(MarkProgram::Task), true, &["bpffs"])]
#[case::no_tracefs(|f: &mut Facts| { f.tracefs = Some(false); f.plain_format = None }, Some(MarkProgram::Task), true, &[])]
#[case::odd_event(|f: &mut Facts| f.mark_argument = None, Some(MarkProgram::Plain), true, &["btf"])]
#[case::nothing_known_of_the_event(|f: &mut Facts| { f.mark_argument = None; f.plain_format = None }, None, false, &["markVictim"])]
#[case::a_member_is_missing(
    |f: &mut Facts| f.resolved.as_mut().unwrap().absent.push("task_mm"), Some(MarkProgram::Task), true, &["offsets"]
)]
#[case::no_write_function(|f: &mut Facts| f.cgroup_file_write = Some(false), Some(MarkProgram::Task), true, &["writeEdge"])]
#[case::no_parents(
    |f: &mut Facts| f.resolved.as_mut().unwrap().offsets.kernfs_node_parent = ABSENT, Some(MarkProgram::Task), true,
    &["scoreEdge", "writeEdge", "cgroupLife"]
)]
#[case::no_exit_mmap(|f: &mut Facts| f.exit_mmap = Some(false), Some(MarkProgram::Task), true, &["memoryBack"])]
#[case::no_memory(
    |f: &mut Facts| f.resolved.as_mut().unwrap().offsets.task_mm = ABSENT, Some(MarkProgram::Task), true, &["memoryBack"]
)]
#[case::no_names(
    |f: &mut Facts| f.resolved.as_mut().unwrap().offsets.kernfs_node_name = ABSENT, Some(MarkProgram::Task), true,
    &["writeEdge", "cgroupLife"]
)]
#[case::in_a_container(
    |f: &mut Facts| f.pid_namespace = Some(PidNamespace::new(4, 7)), Some(MarkProgram::Task), true, &["pidNamespace"]
)]
#[case::no_memcg_member(
    |f: &mut Facts| f.resolved.as_mut().unwrap().offsets.oom_control_memcg = ABSENT, Some(MarkProgram::Task), false, &["limitOwner"]
)]
#[case::no_limit_of_reclaim(
    |f: &mut Facts| (f.reclaim.event_argument, f.reclaim.function_argument) = (None, Some(false)), Some(MarkProgram::Task),
    true, &["reclaimLimit"]
)]
#[case::no_sleeps(|f: &mut Facts| f.reclaim.over_high = None, Some(MarkProgram::Task), true, &["memoryHigh"])]
fn one_fact_flipped(
    #[case] flip: fn(&mut Facts),
    #[case] mark: Option<MarkProgram>,
    #[case] limit_owner: bool,
    #[case] lost: &[&str],
) {
    let mut facts = everything();
    flip(&mut facts);
    let choice = choose(&facts);
    assert_eq!(choice.mark, mark);
    assert_eq!(choice.limit_owner, limit_owner);
    assert_eq!(words(&choice), lost);
}

#[test]
fn a_kernel_without_btf_uses_the_classic_tracepoint() {
    let facts = Facts {
        btf: Some(false),
        mark_argument: None,
        out_of_memory: None,
        reclaim: ReclaimFacts::default(),
        resolved: None,
        ..everything()
    };
    let choice = choose(&facts);
    assert_eq!(choice.mark, Some(MarkProgram::Plain));
    assert_eq!(
        words(&choice),
        [
            "btf",
            "limitOwner",
            "scoreEdge",
            "writeEdge",
            "memoryBack",
            "cgroupLife",
            "reclaimLimit",
            "memoryHigh"
        ]
    );
    assert_eq!(choice.offsets, Offsets::NONE);
}

#[test]
fn what_is_unknown_is_tried() {
    let facts = Facts {
        ring_buffer: None,
        cap_bpf: None,
        cap_perfmon: None,
        bpf_call: None,
        fentry: None,
        lockdown: None,
        bpffs: None,
        pid_namespace: None,
        ..everything()
    };
    assert_eq!(choose(&facts).lost, []);
    assert!(choose(&facts).raw);
}

#[test]
fn a_hybrid_host_is_reported_apart() {
    assert!(!choose(&Facts { unified_memory: Some(false), ..everything() }).unified_memory);
    assert_eq!(memory_hierarchy("memory\t7\t101\t1"), Some(7));
    assert_eq!(memory_hierarchy("memory\t0\t101\t1"), Some(0));
    assert_eq!(memory_hierarchy("#subsys_name\thierarchy\tnum_cgroups\tenabled"), None);
    assert_eq!(memory_hierarchy("memory"), None);
}

/// BTF with `btf_trace_mark_victim` that passes `argument` after the data pointer.
fn event(argument: impl FnOnce(&mut Builder) -> u32) -> Option<MarkArgument> {
    let mut b = Builder::default();
    let data = b.ptr(0);
    let argument = argument(&mut b);
    let proto = b.proto(&[data, argument]);
    let pointer = b.ptr(proto);
    b.typedef("btf_trace_mark_victim", pointer);
    mark_argument(&Btf::parse(b.blob()).unwrap())
}

#[test]
fn the_events_argument_is_read_from_btf() {
    let task = |b: &mut Builder| {
        let task = b.structure("task_struct", 8, &[]);
        b.ptr(task)
    };
    assert_eq!(event(task), Some(MarkArgument::Task));
    assert_eq!(event(|b| b.int("int", 4)), Some(MarkArgument::Pid));
    let other = |b: &mut Builder| {
        let other = b.structure("oom_control", 8, &[]);
        b.ptr(other)
    };
    assert_eq!(event(other), None);
    assert_eq!(mark_argument(&Btf::parse(Builder::default().blob()).unwrap()), None);
}

#[test]
fn whose_limit_is_reclaimed_is_asked_of_the_event_first() {
    let limit = |reclaim| choose(&Facts { reclaim, ..everything() }).reclaim.limit;
    let both = everything().reclaim;
    assert_eq!(limit(both), LimitArgument::Event(2));
    assert_eq!(limit(ReclaimFacts { event_argument: None, ..both }), LimitArgument::Function);
    assert_eq!(limit(ReclaimFacts::default()), LimitArgument::None);
    let blocked = Facts { cap_bpf: Some(false), ..everything() };
    assert_eq!(choose(&blocked).reclaim, ReclaimChoice::default());
}

#[test]
fn the_place_of_the_reclaimed_cgroup_is_read_from_btf() {
    // The event's arguments after the data pointer, where 'm' is the cgroup; and the function's first.
    let facts = |event: &str, function: &str, over_high: &str| {
        let mut b = Builder::default();
        let (data, int) = (b.ptr(0), b.int("int", 4));
        let memcg = b.structure("mem_cgroup", 8, &[]);
        let memcg = b.ptr(memcg);
        let types =
            |words: &str| words.chars().map(|c| if c == 'm' { memcg } else { int }).collect::<Vec<_>>();
        let proto = b.proto(&[vec![data], types(event)].concat());
        let pointer = b.ptr(proto);
        b.typedef("btf_trace_mm_vmscan_memcg_reclaim_begin", pointer);
        let proto = b.proto(&types(function));
        b.function("try_to_free_mem_cgroup_pages", proto);
        b.function(over_high, proto);
        ReclaimFacts::of(&Btf::parse(b.blob()).unwrap())
    };
    let old = facts("ii", "mii", "mem_cgroup_handle_over_high");
    assert_eq!((old.event_argument, old.function_argument), (None, Some(true)));
    assert_eq!(old.over_high, Some("mem_cgroup_handle_over_high"));
    let new = facts("iim", "imi", "__mem_cgroup_handle_over_high");
    assert_eq!((new.event_argument, new.function_argument), (Some(2), Some(false)));
    assert_eq!(new.over_high, Some("__mem_cgroup_handle_over_high"));
    assert_eq!(facts("iiim", "", "another").event_argument, None, "further back than the program can look");
    assert_eq!(
        facts("ii", "", "another"),
        ReclaimFacts { function_argument: Some(false), ..ReclaimFacts::default() }
    );
}
