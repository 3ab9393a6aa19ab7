//! Reads the kernel's structures by offsets that the daemon resolved.
use core::mem::MaybeUninit;

use aya_ebpf::{
    bindings::bpf_pidns_info,
    helpers::{
        bpf_get_current_cgroup_id, bpf_get_current_task, bpf_ktime_get_boot_ns, bpf_probe_read_kernel,
        generated,
    },
};
use enforcer_common::{
    guard::{FILE_LEN, FileWords},
    offsets::ABSENT,
    record::COMM_LEN,
};

use crate::maps::{OWN, UNIFIED};

/// One offset. It is read separately, so that the verifier sees a constant instead of a copy of all offsets.
macro_rules! offset {
    ($field:ident) => {{
        let offsets = (&raw const $crate::maps::OFFSETS).cast::<enforcer_common::offsets::Offsets>();
        // SAFETY: `Global` is transparent over the structure; the read is volatile because the daemon writes
        // the value after compilation.
        unsafe { core::ptr::read_volatile(&raw const (*offsets).$field) }
    }};
}
pub(crate) use offset;

/// Reads the field at `offset` of the structure at `base`; `None` if either is absent or the read faults.
#[inline(always)]
pub(crate) fn read<T>(base: u64, offset: u32) -> Option<T> {
    if base == 0 || offset == ABSENT {
        return None;
    }
    // SAFETY: the helper checks the address and returns an error instead of faulting.
    unsafe { bpf_probe_read_kernel((base + u64::from(offset)) as *const T) }.ok()
}

/// Reads the field at `offset` of the structure at `base`; zero if either is absent or the read faults.
///
/// Without a branch: the verifier checks the code that follows once, and not once for each field that may be missing.
/// Older kernels reject a program with many such fields.
#[inline(always)]
pub(crate) fn read_or_zero<T: Copy>(base: u64, offset: u32) -> T {
    let mut value = MaybeUninit::<T>::zeroed();
    // The offset is a constant to the verifier, which prunes the branch that is not taken.
    if offset != ABSENT {
        // SAFETY: the helper writes at most the size passed, which is the value's, checks the address it reads from,
        // and leaves zeros if that faults, as it does near address 0.
        unsafe {
            generated::bpf_probe_read_kernel(
                value.as_mut_ptr().cast(),
                size_of::<T>() as u32,
                (base + u64::from(offset)) as *const _,
            )
        };
    }
    // SAFETY: the value was zeroed, and consists of integers.
    unsafe { value.assume_init() }
}

/// Like [`read`], for a pointer; `None` if it is null.
#[inline(always)]
pub(crate) fn pointer(base: u64, offset: u32) -> Option<u64> {
    read::<u64>(base, offset).filter(|pointer| *pointer != 0)
}

/// Reads a task's name.
#[inline(always)]
pub(crate) fn comm(base: u64, offset: u32) -> [u8; COMM_LEN] {
    // Two words instead of sixteen bytes, so that the compiler moves words and the stack stays small.
    let words: [u64; 2] = read_or_zero(base, offset);
    // SAFETY: both are sixteen bytes without invalid values.
    unsafe { core::mem::transmute::<[u64; 2], [u8; COMM_LEN]>(words) }
}

/// The current task's name.
#[inline(always)]
pub(crate) fn current_comm() -> [u8; COMM_LEN] {
    let mut words = [0_u64; 2];
    // SAFETY: the helper writes at most the size passed, and the buffer is that large. It fails only without a
    // current task, and then leaves zeros.
    unsafe { generated::bpf_get_current_comm(words.as_mut_ptr().cast(), size_of_val(&words) as u32) };
    // SAFETY: both are sixteen bytes without invalid values.
    unsafe { core::mem::transmute::<[u64; 2], [u8; COMM_LEN]>(words) }
}

/// `CLOCK_BOOTTIME` in nanoseconds.
#[inline(always)]
pub(crate) fn now_ns() -> u64 {
    // SAFETY: no preconditions.
    unsafe { bpf_ktime_get_boot_ns() }
}

/// The id of a `struct cgroup`.
#[inline(always)]
fn cgroup_id(cgroup: u64) -> Option<u64> {
    read(pointer(cgroup, offset!(cgroup_kn))?, offset!(kernfs_node_id))
}

/// The id of the cgroup that a `cgroup_subsys_state` belongs to.
#[inline(always)]
pub(crate) fn css_cgroup_id(css: u64) -> Option<u64> {
    cgroup_id(pointer(css, offset!(css_cgroup))?)
}

/// The id of a task's cgroup: the memory controller's if that is on a hierarchy of its own.
#[inline(always)]
pub(crate) fn task_cgroup_id(task: u64) -> Option<u64> {
    let css_set = pointer(task, offset!(task_cgroups))?;
    if offset!(css_set_memory_css) != ABSENT {
        return css_cgroup_id(pointer(css_set, offset!(css_set_memory_css))?);
    }
    cgroup_id(pointer(css_set, offset!(css_set_dfl_cgrp))?)
}

/// The memory controller's state (`cgroup_subsys_state`) in whose counters the kernel counts a kill of the process with
/// this memory: that of the memory's owner (`memcg_memory_event_mm` in linux/memcontrol.h). 0 if unknown.
#[inline(always)]
pub(crate) fn counted_css(mm: u64) -> u64 {
    let owner: u64 = read_or_zero(mm, offset!(mm_owner));
    let css_set: u64 = read_or_zero(owner, offset!(task_cgroups));
    read_or_zero(css_set, offset!(css_set_memory_any))
}

/// The id of the cgroup that a `cgroup_subsys_state` belongs to; 0 if unknown.
#[inline(always)]
pub(crate) fn css_cgroup_id_or_zero(css: u64) -> u64 {
    let cgroup: u64 = read_or_zero(css, offset!(css_cgroup));
    let node: u64 = read_or_zero(cgroup, offset!(cgroup_kn));
    read_or_zero(node, offset!(kernfs_node_id))
}

/// The directory of a `struct cgroup`; `None` if it cannot be read, or the cgroup is known to be on another hierarchy.
#[inline(always)]
pub(crate) fn unified_cgroup_node(cgroup: u64) -> Option<u64> {
    let hierarchy = pointer(cgroup, offset!(cgroup_root))
        .and_then(|root| read::<i32>(root, offset!(cgroup_root_hierarchy_id)))
        .unwrap_or(0);
    if hierarchy != 0 {
        return None;
    }
    pointer(cgroup, offset!(cgroup_kn))
}

/// Copies the name of a `kernfs_node` with its terminating zero into the buffer. Returns its length including the zero;
/// `None` if the name cannot be read.
#[inline(always)]
pub(crate) fn copy_node_name<const LEN: usize>(node: u64, buffer: &mut [u8; LEN]) -> Option<usize> {
    let name = pointer(node, offset!(kernfs_node_name))?;
    // SAFETY: the helper writes at most the size passed, which is the buffer's, and checks the address it reads from.
    let read = unsafe {
        generated::bpf_probe_read_kernel_str(buffer.as_mut_ptr().cast(), LEN as u32, name as *const _)
    };
    (read > 0).then_some(read as usize)
}

/// The current task's `task_struct`.
#[inline(always)]
pub(crate) fn current_task() -> u64 {
    // SAFETY: no preconditions.
    unsafe { bpf_get_current_task() }
}

/// The id of the current task's cgroup; `None` if it cannot be read.
#[inline(always)]
pub(crate) fn current_cgroup_id() -> Option<u64> {
    if UNIFIED.load() == 1 {
        // SAFETY: no preconditions.
        return Some(unsafe { bpf_get_current_cgroup_id() });
    }
    task_cgroup_id(current_task())
}

/// The directory, a `kernfs_node`, of a task's cgroup on the unified hierarchy.
#[inline(always)]
pub(crate) fn task_cgroup_node(task: u64) -> Option<u64> {
    let css_set = pointer(task, offset!(task_cgroups))?;
    pointer(pointer(css_set, offset!(css_set_dfl_cgrp))?, offset!(cgroup_kn))
}

/// The id of a `kernfs_node`: for a directory, the id of its cgroup.
#[inline(always)]
pub(crate) fn node_id(node: u64) -> Option<u64> {
    read(node, offset!(kernfs_node_id))
}

/// The directory that contains a `kernfs_node`; `None` for the root directory.
#[inline(always)]
pub(crate) fn node_parent(node: u64) -> Option<u64> {
    pointer(node, offset!(kernfs_node_parent))
}

/// The name of a `kernfs_node`, truncated if it is too long.
#[inline(always)]
pub(crate) fn node_name(node: u64) -> Option<FileWords> {
    let name = pointer(node, offset!(kernfs_node_name))?;
    let mut words: FileWords = [0; FILE_LEN / 8];
    // SAFETY: the helper writes at most the size passed, which is the buffer's, and checks the address it reads from.
    let read = unsafe {
        generated::bpf_probe_read_kernel_str(words.as_mut_ptr().cast(), FILE_LEN as u32, name as *const _)
    };
    (read > 0).then_some(words)
}

/// When a task's process started; 0 if unknown.
#[inline(always)]
pub(crate) fn process_start_ns(task: u64) -> u64 {
    pointer(task, offset!(task_group_leader))
        .and_then(|leader| read(leader, offset!(task_start_boottime)))
        .unwrap_or(0)
}

/// Whether the current task belongs to the daemon.
#[inline(always)]
pub(crate) fn is_own() -> bool {
    let own = OWN.load();
    let mut info = bpf_pidns_info { pid: 0, tgid: 0 };
    let size = size_of::<bpf_pidns_info>() as u32;
    // SAFETY: the helper writes `size` bytes, and fails if the current task is in another namespace.
    let result = unsafe {
        generated::bpf_get_ns_current_pid_tgid(own.namespace_dev, own.namespace_ino, &raw mut info, size)
    };
    own.pid != 0 && result == 0 && u64::from(info.tgid) == own.pid
}
