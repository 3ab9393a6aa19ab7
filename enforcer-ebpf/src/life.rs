//! Created and removed cgroups. Each program runs with the directory locked, so it is as short as possible.
use aya_ebpf::{
    macros::{map, raw_tracepoint},
    maps::PerCpuArray,
    programs::RawTracePointContext,
};
use enforcer_common::life::{
    CgroupGone, CgroupMade, KIND_CGROUP_MADE, LongCgroupMade, Made, NAME_LEN, counts,
};
use enforcer_common::record::Header;

use crate::{
    kernel::{copy_node_name, node_id, node_parent, now_ns, unified_cgroup_node},
    maps::{LIFE, life_counted},
};

/// Scratch space to build a record, which is too large for the stack.
#[map]
static LIFE_SCRATCH: PerCpuArray<LongCgroupMade> = PerCpuArray::with_max_entries(1, 0);

/// A cgroup was created: `struct cgroup *cgrp, const char *path`. No process can be in it yet.
#[raw_tracepoint(tracepoint = "cgroup_mkdir")]
pub fn cgroup_made(ctx: RawTracePointContext) -> i32 {
    if let Some(node) = unified_cgroup_node(ctx.arg::<u64>(0)) {
        life_counted(counts::SEEN);
        if try_made(node).is_none() {
            life_counted(counts::DROPPED);
        }
    }
    0
}

#[inline(always)]
fn try_made(node: u64) -> Option<()> {
    let scratch = LIFE_SCRATCH.get_ptr_mut(0)?;
    // SAFETY: this CPU's slot, which lives as long as the map, and has no other user: the kernel holds a spin lock with
    // interrupts off around the tracepoint.
    let scratch = unsafe { &mut *scratch };
    scratch.name = [0; _];
    let len = copy_node_name(node, &mut scratch.name)?;
    let size_bytes = if len <= NAME_LEN { CgroupMade::SIZE_BYTES } else { LongCgroupMade::SIZE_BYTES };
    scratch.made = Made {
        header: Header::new(KIND_CGROUP_MADE, size_bytes),
        time_ns: now_ns(),
        cgroup_id: node_id(node)?,
        parent_id: node_parent(node).and_then(node_id)?,
    };
    if len <= NAME_LEN {
        // SAFETY: the short record is a byte-for-byte prefix of the long one.
        let short = unsafe { &*(&raw const *scratch).cast::<CgroupMade>() };
        return LIFE.output::<CgroupMade>(short, 0).ok();
    }
    LIFE.output::<LongCgroupMade>(&*scratch, 0).ok()
}

/// A cgroup was removed: `struct cgroup *cgrp, const char *path`.
#[raw_tracepoint(tracepoint = "cgroup_rmdir")]
pub fn cgroup_gone(ctx: RawTracePointContext) -> i32 {
    if let Some(id) = unified_cgroup_node(ctx.arg::<u64>(0)).and_then(node_id) {
        life_counted(counts::SEEN);
        if LIFE.output::<CgroupGone>(&CgroupGone::new(id, now_ns()), 0).is_err() {
            life_counted(counts::DROPPED);
        }
    }
    0
}
