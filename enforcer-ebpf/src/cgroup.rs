//! Writes to the files of guarded cgroups.
use aya_ebpf::{helpers::bpf_get_current_pid_tgid, macros::fexit, programs::FExitContext};
use enforcer_common::guard::{CREDIT, FILE_LEN, FileWords, WriteEdge, counts, moves_processes};

use crate::{
    kernel::{
        current_comm, current_task, is_own, node_id, node_name, node_parent, now_ns, offset, pointer,
        process_start_ns,
    },
    maps::{GUARD, GUARDED, guard_counted},
};

/// A write to a cgroup's file ended: `struct kernfs_open_file *of, char *buf, size_t nbytes, loff_t off`, and the
/// return value.
#[fexit(function = "cgroup_file_write")]
pub fn cgroup_written(ctx: FExitContext) -> i32 {
    // The return value follows the four arguments. A failed write changed nothing.
    if ctx.arg::<i64>(4) >= 0 {
        try_written(ctx.arg::<*const u8>(0) as u64);
    }
    0
}

#[inline(always)]
fn try_written(open_file: u64) {
    let Some(file) = pointer(open_file, offset!(kernfs_open_file_kn)) else { return };
    let Some(cgroup_id) = node_parent(file).and_then(node_id) else { return };
    let Some(guarded) = GUARDED.get_ptr_mut(cgroup_id) else { return };
    let Some(name) = node_name(file) else { return };
    if moves_processes(&name) || is_own() {
        return;
    }
    guard_counted(counts::WRITE_SEEN);
    // SAFETY: the entry stays mapped while the program runs. If it is replaced meanwhile, the credit allows one record
    // too many or too few.
    let guarded = unsafe { &mut *guarded };
    if guarded.reported >= CREDIT {
        guard_counted(counts::WRITE_HELD);
        return;
    }
    guarded.reported += 1;
    let mut edge = WriteEdge::EMPTY;
    edge.time_ns = now_ns();
    edge.cgroup_id = cgroup_id;
    edge.writer_start_boottime_ns = process_start_ns(current_task());
    edge.writer_tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    edge.writer_comm = current_comm();
    // SAFETY: both are `FILE_LEN` bytes without invalid values.
    edge.file = unsafe { core::mem::transmute::<FileWords, [u8; FILE_LEN]>(name) };
    if GUARD.output::<WriteEdge>(&edge, 0).is_err() {
        guard_counted(counts::WRITE_DROPPED);
    }
}
