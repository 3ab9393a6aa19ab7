use enforcer_common::offsets::ABSENT;

use super::{MemoryHierarchy, resolve};
use crate::sense::btf::{Btf, VMLINUX, build::Builder};

fn offsets(builder: &Builder, hierarchy: MemoryHierarchy) -> super::Resolved {
    resolve(&Btf::parse(builder.blob()).unwrap(), hierarchy, 4096)
}

#[test]
fn page_counters_of_older_kernels() {
    let mut b = Builder::default();
    let long = b.int("long", 8);
    let atomic = b.structure("atomic64_t", 8, &[("counter", long, 0)]);
    let alias = b.typedef("atomic_long_t", atomic);
    let array = b.array(alias, 4);
    let stat = b.structure("mm_rss_stat", 32, &[("count", array, 0)]);
    b.structure("mm_struct", 512, &[("pgtables_bytes", alias, 64), ("rss_stat", stat, 400)]);
    let resolved = offsets(&b, MemoryHierarchy::Unified).offsets;
    assert_eq!(resolved.mm_file_pages, 400);
    assert_eq!(resolved.mm_anon_pages, 408);
    assert_eq!(resolved.mm_swap_pages, 416);
    assert_eq!(resolved.mm_shmem_pages, 424);
    assert_eq!(resolved.mm_pgtables_bytes, 64);
}

#[test]
fn page_counters_of_newer_kernels() {
    let mut b = Builder::default();
    let (long, lock) = (b.int("s64", 8), b.int("raw_spinlock_t", 4));
    let counter = b.structure("percpu_counter", 40, &[("lock", lock, 0), ("count", long, 8)]);
    let array = b.array(counter, 4);
    let anonymous = b.structure("", 1000, &[("rss_stat", array, 600)]);
    b.structure("mm_struct", 1024, &[("", anonymous, 16)]);
    let resolved = offsets(&b, MemoryHierarchy::Unified).offsets;
    assert_eq!(resolved.mm_file_pages, 624);
    assert_eq!(resolved.mm_anon_pages, 664);
    assert_eq!(resolved.mm_shmem_pages, 744);
}

#[test]
fn the_older_name_of_a_member_is_found() {
    let mut b = Builder::default();
    let long = b.int("u64", 8);
    b.structure("task_struct", 64, &[("real_start_time", long, 24)]);
    assert_eq!(offsets(&b, MemoryHierarchy::Unified).offsets.task_start_boottime, 24);
}

#[test]
fn the_memory_controllers_state_only_where_it_has_a_hierarchy_of_its_own() {
    let mut b = Builder::default();
    let state = b.structure("cgroup_subsys_state", 8, &[]);
    let pointer = b.ptr(state);
    let array = b.array(pointer, 14);
    b.structure("css_set", 200, &[("subsys", array, 0), ("dfl_cgrp", pointer, 128)]);
    b.enumeration("cgroup_subsys_id", &[("cpuset_cgrp_id", 0), ("memory_cgrp_id", 4)]);
    let unified = offsets(&b, MemoryHierarchy::Unified);
    assert_eq!(unified.offsets.css_set_memory_css, ABSENT);
    assert!(!unified.absent.contains(&"css_set_memory_css"));
    assert_eq!(offsets(&b, MemoryHierarchy::Own).offsets.css_set_memory_css, 32);
}

#[test]
fn counts_of_kills_are_found_by_the_kernels_names() {
    let counts = |names: &[(&str, u32)]| {
        let mut b = Builder::default();
        let long = b.int("long", 8);
        let atomic = b.structure("atomic64_t", 8, &[("counter", long, 0)]);
        let alias = b.typedef("atomic_long_t", atomic);
        let array = b.array(alias, 9);
        b.structure("mem_cgroup", 4096, &[("memory_events_local", array, 1024)]);
        b.enumeration("memcg_memory_event", names);
        let resolved = offsets(&b, MemoryHierarchy::Unified);
        let found = resolved.offsets;
        let is_missed = resolved.absent.contains(&"mem_cgroup_oom_group_kill");
        ((found.mem_cgroup_oom, found.mem_cgroup_oom_kill, found.mem_cgroup_oom_group_kill), is_missed)
    };
    let all = [("MEMCG_OOM", 3), ("MEMCG_OOM_KILL", 4), ("MEMCG_OOM_GROUP_KILL", 5)];
    assert_eq!(counts(&all), ((1048, 1056, 1064), false));
    assert_eq!(counts(&all[..2]), ((1048, 1056, ABSENT), false), "before 5.17");
    assert_eq!(counts(&[("MEMCG_OOM", 9)]), ((ABSENT, ABSENT, ABSENT), true));
}

#[test]
fn an_empty_kernel_has_nothing_and_says_so() {
    let resolved = offsets(&Builder::default(), MemoryHierarchy::Own);
    assert_eq!(resolved.absent.len(), resolved.offsets.table().len() - 1, "all but the page size");
    assert_eq!(resolved.offsets.page_shift, 12);
}

#[test]
fn the_running_kernel_has_everything() {
    if !std::path::Path::new(VMLINUX).exists() {
        return;
    }
    let btf = Btf::read(VMLINUX.as_ref()).unwrap();
    if btf.find("mem_cgroup", crate::sense::btf::Kind::Struct).is_none() {
        return;
    }
    let resolved = resolve(&btf, MemoryHierarchy::Own, 4096);
    assert_eq!(resolved.absent, Vec::<&str>::new());
}
