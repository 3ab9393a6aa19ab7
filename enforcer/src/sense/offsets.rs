//! Resolves the kernel members that the programs read to offsets in the running kernel.
use enforcer_common::offsets::{ABSENT, Offsets};

use super::btf::{Btf, Kind, TypeId};

/// The offsets, and what the kernel lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The offsets for the programs.
    pub offsets: Offsets,
    /// Names of the fields of [`Offsets`] that could not be resolved.
    pub absent: Vec<&'static str>,
}

/// Which hierarchy the memory controller is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryHierarchy {
    /// cgroup v2.
    Unified,
    /// cgroup v1: a hierarchy of its own.
    Own,
}

/// Path to a member: structure, and members to follow within it. Members of anonymous structures and unions are
/// found as in C.
type Candidate = (&'static str, &'static [&'static str]);

/// Resolves every field of [`Offsets`]. If kernels name a member differently, the first name that exists is used.
#[must_use]
pub fn resolve(btf: &Btf, hierarchy: MemoryHierarchy, page_size_bytes: usize) -> Resolved {
    let one = |structure, member| -> u32 { first(btf, &[(structure, member)]) };
    let rss = |index| rss_counter(btf, index).unwrap_or(ABSENT);
    let offsets = Offsets {
        task_pid: one("task_struct", &["pid"]),
        task_tgid: one("task_struct", &["tgid"]),
        task_comm: one("task_struct", &["comm"]),
        // `real_start_time` until Linux 5.5 (cf25e24db61c).
        task_start_boottime: first(
            btf,
            &[("task_struct", &["start_boottime"]), ("task_struct", &["real_start_time"])],
        ),
        task_exit_code: one("task_struct", &["exit_code"]),
        task_signal: one("task_struct", &["signal"]),
        task_group_leader: one("task_struct", &["group_leader"]),
        task_mm: one("task_struct", &["mm"]),
        task_cgroups: one("task_struct", &["cgroups"]),
        task_thread_pid: one("task_struct", &["thread_pid"]),
        task_flags: one("task_struct", &["flags"]),
        task_pages_over_high: one("task_struct", &["memcg_nr_pages_over_high"]),
        signal_oom_score_adj: one("signal_struct", &["oom_score_adj"]),
        signal_live: one("signal_struct", &["live"]),
        signal_group_exit_code: one("signal_struct", &["group_exit_code"]),
        css_set_dfl_cgrp: one("css_set", &["dfl_cgrp"]),
        css_set_memory_css: match hierarchy {
            MemoryHierarchy::Unified => ABSENT,
            MemoryHierarchy::Own => memory_css(btf).unwrap_or(ABSENT),
        },
        css_cgroup: one("cgroup_subsys_state", &["cgroup"]),
        cgroup_kn: one("cgroup", &["kn"]),
        kernfs_node_id: one("kernfs_node", &["id"]),
        // `__parent` since Linux 6.15 (633488947ef6), protected by RCU.
        kernfs_node_parent: first(btf, &[("kernfs_node", &["__parent"]), ("kernfs_node", &["parent"])]),
        kernfs_node_name: one("kernfs_node", &["name"]),
        kernfs_open_file_kn: one("kernfs_open_file", &["kn"]),
        mem_cgroup_css: one("mem_cgroup", &["css"]),
        oom_control_memcg: one("oom_control", &["memcg"]),
        oom_control_constraint: one("oom_control", &["constraint"]),
        mm_anon_pages: rss("MM_ANONPAGES"),
        mm_file_pages: rss("MM_FILEPAGES"),
        mm_shmem_pages: rss("MM_SHMEMPAGES"),
        mm_swap_pages: rss("MM_SWAPENTS"),
        mm_pgtables_bytes: one("mm_struct", &["pgtables_bytes"]),
        pid_level: one("pid", &["level"]),
        pid_numbers: one("pid", &["numbers"]),
        upid_size: btf.find("upid", Kind::Struct).and_then(|upid| btf.size_bytes(upid)).unwrap_or(ABSENT),
        upid_ns: one("upid", &["ns"]),
        pid_namespace_child_reaper: one("pid_namespace", &["child_reaper"]),
        css_set_memory_any: memory_css(btf).unwrap_or(ABSENT),
        mm_owner: one("mm_struct", &["owner"]),
        cgroup_root: one("cgroup", &["root"]),
        cgroup_root_hierarchy_id: one("cgroup_root", &["hierarchy_id"]),
        mem_cgroup_oom: memory_event(btf, "MEMCG_OOM").unwrap_or(ABSENT),
        mem_cgroup_oom_kill: memory_event(btf, "MEMCG_OOM_KILL").unwrap_or(ABSENT),
        mem_cgroup_oom_group_kill: memory_event(btf, "MEMCG_OOM_GROUP_KILL").unwrap_or(ABSENT),
        page_shift: page_size_bytes.trailing_zeros(),
    };
    let expected_absent = |name| match name {
        "css_set_memory_css" => hierarchy == MemoryHierarchy::Unified,
        // Linux 5.17 (b6bf9abb0aa4); the file lacks the count too.
        "mem_cgroup_oom_group_kill" => offsets.mem_cgroup_oom_kill != ABSENT,
        _ => false,
    };
    let absent = offsets
        .table()
        .into_iter()
        .filter(|(name, offset)| *offset == ABSENT && !expected_absent(*name))
        .map(|(name, _)| name)
        .collect();
    Resolved { offsets, absent }
}

fn first(btf: &Btf, candidates: &[Candidate]) -> u32 {
    candidates.iter().find_map(|(structure, path)| follow(btf, structure, path)).unwrap_or(ABSENT)
}

fn follow(btf: &Btf, structure: &str, path: &[&str]) -> Option<u32> {
    let mut type_id = btf.find(structure, Kind::Struct)?;
    let mut offset = 0_u32;
    for name in path {
        let member = btf.member(type_id, name)?;
        offset = offset.checked_add(member.offset_bytes)?;
        type_id = member.type_id;
    }
    Some(offset)
}

/// Offset of a page counter in `mm_struct`. Since Linux 6.2 (f1a7941243c1) it is in an array of `percpu_counter`, whose
/// `count` is the approximate sum; before, in an array of `atomic_long_t` in `struct mm_rss_stat`.
fn rss_counter(btf: &Btf, enumerator: &str) -> Option<u32> {
    // The enumeration has no name, so BTF cannot be searched for its values. They are part of the kernel's interface
    // with its own tracepoints, and unchanged since 4.5 (eca56ff906bd).
    let index = match enumerator {
        "MM_FILEPAGES" => 0,
        "MM_ANONPAGES" => 1,
        "MM_SWAPENTS" => 2,
        "MM_SHMEMPAGES" => 3,
        _ => return None,
    };
    let mm = btf.find("mm_struct", Kind::Struct)?;
    let stat = btf.member(mm, "rss_stat")?;
    let (array, base) = if btf.array(stat.type_id).is_some() {
        (stat.type_id, stat.offset_bytes)
    } else {
        let count = btf.member(stat.type_id, "count")?;
        (count.type_id, stat.offset_bytes.checked_add(count.offset_bytes)?)
    };
    let (element, len) = btf.array(array)?;
    if index >= len {
        return None;
    }
    let stride = btf.size_bytes(element)?;
    base.checked_add(index.checked_mul(stride)?)?.checked_add(counter_within(btf, element)?)
}

/// Offset of the 64-bit count within an element of the array.
fn counter_within(btf: &Btf, element: TypeId) -> Option<u32> {
    // `percpu_counter.count`, `atomic64_t.counter`.
    ["count", "counter"].iter().find_map(|name| {
        let member = btf.member(element, name)?;
        (btf.size_bytes(member.type_id)? == 8).then_some(member.offset_bytes)
    })
}

/// Offset of a count in `mem_cgroup.memory_events_local`, an array of `atomic_long_t`.
fn memory_event(btf: &Btf, name: &str) -> Option<u32> {
    let memcg = btf.find("mem_cgroup", Kind::Struct)?;
    let events = btf.member(memcg, "memory_events_local")?;
    let (element, len) = btf.array(events.type_id)?;
    let index = btf.enumerator(btf.find("memcg_memory_event", Kind::Enum)?, name)?;
    let stride = btf.size_bytes(element).filter(|bytes| *bytes == 8)?;
    if index >= len {
        return None;
    }
    events.offset_bytes.checked_add(index.checked_mul(stride)?)
}

/// Offset of the memory controller's pointer in `css_set.subsys`.
fn memory_css(btf: &Btf) -> Option<u32> {
    let css_set = btf.find("css_set", Kind::Struct)?;
    let subsys = btf.member(css_set, "subsys")?;
    let (element, len) = btf.array(subsys.type_id)?;
    let index = btf.enumerator(btf.find("cgroup_subsys_id", Kind::Enum)?, "memory_cgrp_id")?;
    if index >= len {
        return None;
    }
    subsys.offset_bytes.checked_add(index.checked_mul(btf.size_bytes(element)?)?)
}

#[cfg(test)]
mod tests;
