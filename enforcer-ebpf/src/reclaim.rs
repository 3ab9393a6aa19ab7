//! How often and how long tasks stall in reclaim, and the edges that wake the sampler.
//!
//! Uses raw tracepoints, which need neither BTF nor tracefs. Only the owner of the limit and the sleeps of
//! `memory.high` need fentry and fexit programs.
use aya_ebpf::{
    helpers::bpf_get_current_pid_tgid,
    macros::{fentry, fexit, raw_tracepoint},
    programs::{FEntryContext, FExitContext, RawTracePointContext},
};
use enforcer_common::{
    counter::{drops, seen},
    reclaim::{DIRECT, KERNEL_THREAD, MEMCG, MEMORY_HIGH, THROTTLED, TaskReclaim, edge_is_due},
    record::{EDGE_DIRECT_RECLAIM, EDGE_KSWAPD_WAKE, Edge},
    stall::StallKey,
};

use crate::{
    kernel::{css_cgroup_id, current_cgroup_id, current_task, now_ns, offset, read},
    maps::{EDGE_LAST, EDGES, RECLAIM, RECLAIMED_ARGUMENT, RECLAIMING, STALL_LIMITS, dropped, emit, saw},
    stall::stalled,
};

/// `PF_KTHREAD` of include/linux/sched.h.
const KTHREAD: u32 = 0x0020_0000;

/// An allocating task begins to reclaim because the machine is short of memory.
#[raw_tracepoint(tracepoint = "mm_vmscan_direct_reclaim_begin")]
pub fn direct_reclaim_begin(_ctx: RawTracePointContext) -> i32 {
    let now_ns = now_ns();
    let tid = begin(key(DIRECT, 0), now_ns);
    edge(EDGE_DIRECT_RECLAIM, tid, now_ns);
    0
}

/// Direct reclaim ends.
#[raw_tracepoint(tracepoint = "mm_vmscan_direct_reclaim_end")]
pub fn direct_reclaim_end(_ctx: RawTracePointContext) -> i32 {
    end(DIRECT);
    0
}

/// A task begins to reclaim against a memory cgroup's own limit; the machine is not short of memory. Newer kernels pass
/// the cgroup.
#[raw_tracepoint(tracepoint = "mm_vmscan_memcg_reclaim_begin")]
pub fn memcg_reclaim_begin(ctx: RawTracePointContext) -> i32 {
    let memcg = match RECLAIMED_ARGUMENT.load() {
        0 => ctx.arg::<u64>(0),
        1 => ctx.arg::<u64>(1),
        2 => ctx.arg::<u64>(2),
        _ => 0,
    };
    begin_memcg(memcg);
    0
}

/// The same by the enclosing function, if the tracepoint does not pass the cgroup: its first argument is the cgroup.
#[fentry(function = "try_to_free_mem_cgroup_pages")]
pub fn memcg_reclaim_entered(ctx: FEntryContext) -> u32 {
    begin_memcg(ctx.arg::<*const u8>(0) as u64);
    0
}

/// Reclaim against a memory cgroup's limit ends.
#[raw_tracepoint(tracepoint = "mm_vmscan_memcg_reclaim_end")]
pub fn memcg_reclaim_end(_ctx: RawTracePointContext) -> i32 {
    end(MEMCG);
    0
}

/// A reclaiming task waited: `int nid, int usec_timeout, int usec_delayed, int reason`.
#[raw_tracepoint(tracepoint = "mm_vmscan_throttled")]
pub fn reclaim_throttled(ctx: RawTracePointContext) -> i32 {
    let delayed_us = ctx.arg::<i32>(2);
    if delayed_us <= 0 {
        return 0;
    }
    let tid = bpf_get_current_pid_tgid() as u32;
    let limit_id = match RECLAIMING.get_ptr(tid) {
        // SAFETY: the entry is this task's own, and only this task writes it.
        Some(task) => unsafe { if (*task).begin_ns == 0 { 0 } else { (*task).key.limit_id } },
        None => 0,
    };
    ended(key(THROTTLED, limit_id), delayed_us as u64 * 1_000, now_ns());
    0
}

/// A task may have to reclaim and sleep because its cgroup is over `memory.high`. Most tasks need not.
#[fentry(function = "mem_cgroup_handle_over_high")]
pub fn memory_high_begin(_ctx: FEntryContext) -> u32 {
    if owes_nothing() {
        return 0;
    }
    let (now_ns, key) = (now_ns(), key(MEMORY_HIGH, 0));
    with_task(|task| task.begin_high(key, now_ns));
    0
}

/// The task has reclaimed, which is counted separately, and then slept.
#[fexit(function = "mem_cgroup_handle_over_high")]
pub fn memory_high_end(_ctx: FExitContext) -> i32 {
    let tid = bpf_get_current_pid_tgid() as u32;
    let Some(task) = RECLAIMING.get_ptr_mut(tid) else { return 0 };
    // SAFETY: the entry is this task's own; an eviction from the map does not unmap it.
    let task = unsafe { &mut *task };
    if task.high_since_ns == 0 {
        return 0;
    }
    let now_ns = now_ns();
    if let Some((key, took_ns)) = task.end_high(now_ns, not_before_ns()) {
        ended(key, took_ns, now_ns);
    }
    0
}

/// kswapd woke: free memory is below the low watermark. The first argument is the NUMA node.
#[raw_tracepoint(tracepoint = "mm_vmscan_kswapd_wake")]
pub fn kswapd_wake(ctx: RawTracePointContext) -> i32 {
    saw(seen::KSWAPD_WAKE);
    edge(EDGE_KSWAPD_WAKE, ctx.arg::<u32>(0), now_ns());
    0
}

/// Anything that began before this belongs to an earlier daemon, whose map is kept.
#[inline(always)]
fn not_before_ns() -> u64 {
    STALL_LIMITS.load().not_before_ns
}

/// Whether the current task has charged nothing above `memory.high` since its last reclaim and sleep. `false` if that
/// is unknown.
#[inline(always)]
fn owes_nothing() -> bool {
    read::<u32>(current_task(), offset!(task_pages_over_high)) == Some(0)
}

/// The key for a stall of the current task that begins now.
#[inline(always)]
fn key(kind: u32, limit_id: u64) -> StallKey {
    let flags = read::<u32>(current_task(), offset!(task_flags)).unwrap_or(0);
    if flags & KTHREAD != 0 {
        return StallKey { cgroup_id: 0, limit_id: 0, kind: KERNEL_THREAD, reserved: 0 };
    }
    StallKey { cgroup_id: current_cgroup_id().unwrap_or(0), limit_id, kind, reserved: 0 }
}

#[inline(always)]
fn begin_memcg(memcg: u64) {
    let css = offset!(mem_cgroup_css);
    let limit_id = if memcg == 0 || css == enforcer_common::offsets::ABSENT {
        0
    } else {
        css_cgroup_id(memcg + u64::from(css)).unwrap_or(0)
    };
    begin(key(MEMCG, limit_id), now_ns());
}

/// Changes the current task's entry, which is created if absent. Returns the thread id.
#[inline(always)]
fn with_task(change: impl FnOnce(&mut TaskReclaim)) -> u32 {
    let tid = bpf_get_current_pid_tgid() as u32;
    // In place if possible: an insert takes a new entry of the map and frees the old one.
    if let Some(task) = RECLAIMING.get_ptr_mut(tid) {
        // SAFETY: the entry is this task's own; an eviction from the map does not unmap it.
        change(unsafe { &mut *task });
        return tid;
    }
    let mut task = TaskReclaim::default();
    change(&mut task);
    if RECLAIMING.insert(tid, &task, 0).is_err() {
        dropped(drops::RECLAIM_MAP);
    }
    tid
}

/// Records that the current task began a reclaim. Returns its thread id.
#[inline(always)]
fn begin(key: StallKey, now_ns: u64) -> u32 {
    let tid = with_task(|task| task.begin(key, now_ns));
    if let Some(totals) = RECLAIM.get_ptr_mut(key.kind) {
        // SAFETY: this CPU's slot, which lives as long as the map.
        unsafe { (*totals).begun += 1 }
    }
    tid
}

/// Records that the current task ended a reclaim of this kind, and adds its duration to the totals.
#[inline(always)]
fn end(kind: u32) {
    let now_ns = now_ns();
    let tid = bpf_get_current_pid_tgid() as u32;
    let mut paired = None;
    if let Some(task) = RECLAIMING.get_ptr_mut(tid) {
        // SAFETY: the entry is this task's own; an eviction from the map does not unmap it.
        paired = unsafe { (*task).end(kind, now_ns, not_before_ns()) };
    }
    if let Some((key, took_ns)) = paired {
        ended(key, took_ns, now_ns);
    } else if let Some(totals) = RECLAIM.get_ptr_mut(kind) {
        // SAFETY: this CPU's slot, which lives as long as the map.
        unsafe { (*totals).unpaired += 1 }
    }
}

/// Adds a finished stall to the totals.
#[inline(always)]
fn ended(key: StallKey, took_ns: u64, now_ns: u64) {
    if let Some(totals) = RECLAIM.get_ptr_mut(key.kind) {
        // SAFETY: this CPU's slot, which lives as long as the map.
        let totals = unsafe { &mut *totals };
        totals.ended += 1;
        totals.total_ns += took_ns;
        if took_ns > totals.max_ns {
            totals.max_ns = took_ns;
        }
    }
    if key.kind != KERNEL_THREAD && key.cgroup_id != 0 {
        stalled(&key, took_ns, now_ns);
    }
}

/// Emits an edge, unless one of its kind was emitted within the last millisecond. Two CPUs may both pass.
#[inline(always)]
fn edge(kind: u32, subject: u32, now_ns: u64) {
    let Some(last) = EDGE_LAST.get_ptr_mut(kind) else { return };
    // SAFETY: the slot lives as long as the map; a race only lets one edge more or fewer through.
    unsafe {
        if !edge_is_due(now_ns, *last) {
            return;
        }
        *last = now_ns;
    }
    saw(seen::EDGE);
    emit(&EDGES, &Edge::new(kind, subject, now_ns), drops::EDGE);
}
