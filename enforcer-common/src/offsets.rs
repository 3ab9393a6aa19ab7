//! Offsets of the fields that the programs read in the running kernel's structures.
//!
//! rustc emits no CO-RE relocations, so the daemon resolves each offset from the kernel's own BTF and passes
//! them as one read-only global. The verifier knows the values, and prunes the branches of absent ones.
#![expect(
    missing_debug_implementations,
    reason = "fires for a helper type that zerocopy derives inside the macro; `Offsets` itself has it"
)]
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The value of an offset that the running kernel does not have, or that could not be resolved.
pub const ABSENT: u32 = u32::MAX;

macro_rules! offsets {
    ($($(#[$doc:meta])* $field:ident),+ $(,)?) => {
        /// Byte offsets into kernel structures; [`ABSENT`] if there is none.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
        #[repr(C)]
        pub struct Offsets {
            $($(#[$doc])* pub $field: u32,)+
        }

        impl Offsets {
            /// No offset resolved: the programs then use only data that needs none.
            pub const NONE: Self = Self { $($field: ABSENT),+ };

            /// Name and value of each field, in declaration order.
            #[must_use]
            pub const fn table(&self) -> [(&'static str, u32); [$(stringify!($field)),+].len()] {
                [$((stringify!($field), self.$field)),+]
            }
        }
    };
}

offsets! {
    /// `task_struct.pid`, the thread id.
    task_pid,
    /// `task_struct.tgid`, the process id.
    task_tgid,
    /// `task_struct.comm`.
    task_comm,
    /// `task_struct.start_boottime`, nanoseconds.
    task_start_boottime,
    /// `task_struct.exit_code`.
    task_exit_code,
    /// `task_struct.signal`.
    task_signal,
    /// `task_struct.group_leader`.
    task_group_leader,
    /// `task_struct.mm`.
    task_mm,
    /// `task_struct.cgroups`.
    task_cgroups,
    /// `task_struct.thread_pid`.
    task_thread_pid,
    /// `task_struct.flags`.
    task_flags,
    /// `task_struct.memcg_nr_pages_over_high`.
    task_pages_over_high,
    /// `signal_struct.oom_score_adj`, a `short`.
    signal_oom_score_adj,
    /// `signal_struct.live`, the number of threads that have not begun to exit.
    signal_live,
    /// `signal_struct.group_exit_code`.
    signal_group_exit_code,
    /// The pointer in `css_set` that leads to the task's cgroup in the unified hierarchy: `dfl_cgrp`.
    css_set_dfl_cgrp,
    /// The pointer in `css_set` to the memory controller's state: an element of `subsys`. Present only where
    /// the memory controller is on a hierarchy of its own (cgroup v1 or hybrid).
    css_set_memory_css,
    /// `cgroup_subsys_state.cgroup`.
    css_cgroup,
    /// `cgroup.kn`.
    cgroup_kn,
    /// `kernfs_node.id`.
    kernfs_node_id,
    /// `kernfs_node.parent`, or `__parent`.
    kernfs_node_parent,
    /// `kernfs_node.name`, a pointer.
    kernfs_node_name,
    /// `kernfs_open_file.kn`.
    kernfs_open_file_kn,
    /// `mem_cgroup.css`.
    mem_cgroup_css,
    /// `oom_control.memcg`.
    oom_control_memcg,
    /// `oom_control.constraint`.
    oom_control_constraint,
    /// The page counter of anonymous memory in `mm_struct`.
    mm_anon_pages,
    /// The page counter of mapped file pages in `mm_struct`.
    mm_file_pages,
    /// The page counter of shared memory in `mm_struct`.
    mm_shmem_pages,
    /// The page counter of swap in `mm_struct`.
    mm_swap_pages,
    /// `mm_struct.pgtables_bytes`.
    mm_pgtables_bytes,
    /// `pid.level`.
    pid_level,
    /// `pid.numbers`.
    pid_numbers,
    /// Size of `struct upid` in bytes, the stride of `pid.numbers`.
    upid_size,
    /// `upid.ns`.
    upid_ns,
    /// `pid_namespace.child_reaper`.
    pid_namespace_child_reaper,
    /// The pointer in `css_set` to the task's memory controller state, on any hierarchy: that of the nearest cgroup
    /// that has the controller.
    css_set_memory_any,
    /// `mm_struct.owner`, the task whose cgroup is charged for the memory.
    mm_owner,
    /// `cgroup.root`.
    cgroup_root,
    /// `cgroup_root.hierarchy_id`, 0 for the unified one.
    cgroup_root_hierarchy_id,
    /// The count `MEMCG_OOM` in `mem_cgroup.memory_events_local`.
    mem_cgroup_oom,
    /// The count `MEMCG_OOM_KILL` there.
    mem_cgroup_oom_kill,
    /// The count `MEMCG_OOM_GROUP_KILL` there (Linux 5.17).
    mem_cgroup_oom_group_kill,
    /// Base-two logarithm of the page size; not an offset, but just as constant.
    page_shift,
}

/// Bytes in `pages` pages. The kernel's counters can briefly be negative; that counts as 0.
#[must_use]
pub const fn pages_to_bytes(pages: i64, page_shift: u32) -> u64 {
    // All ones if negative. This avoids a branch: the verifier follows each one.
    let below_zero = pages >> 63;
    if page_shift >= 32 { 0 } else { (pages & !below_zero).cast_unsigned() << page_shift }
}

const _: () = assert!(size_of::<Offsets>() == 44 * 4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_page_counts_are_none() {
        assert_eq!(pages_to_bytes(-1, 12), 0);
        assert_eq!(pages_to_bytes(i64::MIN, 12), 0);
        assert_eq!(pages_to_bytes(0, 12), 0);
        assert_eq!(pages_to_bytes(3, 12), 12_288);
        assert_eq!(pages_to_bytes(3, ABSENT), 0);
    }

    #[test]
    fn the_table_names_every_field_once() {
        let table = Offsets::NONE.table();
        assert_eq!(table.len() * 4, size_of::<Offsets>());
        for (i, (name, value)) in table.iter().enumerate() {
            assert_eq!(*value, ABSENT);
            assert!(table.iter().skip(i + 1).all(|(other, _)| other != name), "{name} twice");
        }
    }
}
