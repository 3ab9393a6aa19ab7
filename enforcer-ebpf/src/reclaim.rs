//! Reclaim: how often and how long tasks stall in it, and the edges that wake the sampler.
//!
//! All by raw tracepoints: they need neither BTF nor tracefs, and cost the least.
use aya_ebpf::{helpers::bpf_get_current_pid_tgid, macros::raw_tracepoint, programs::RawTracePointContext};
use enforcer_common::{
    counter::{drops, seen},
    reclaim::{DIRECT, MEMCG, TaskReclaim, edge_is_due},
    record::{EDGE_DIRECT_RECLAIM, EDGE_KSWAPD_WAKE, Edge},
};

use crate::{
    kernel::now_ns,
    maps::{EDGE_LAST, EDGES, RECLAIM, RECLAIMING, dropped, saw, tell},
};

/// An allocating task begins to reclaim because the machine is short.
#[raw_tracepoint(tracepoint = "mm_vmscan_direct_reclaim_begin")]
pub fn direct_reclaim_begin(_ctx: RawTracePointContext) -> i32 {
    let now_ns = now_ns();
    let tid = begin(DIRECT, now_ns);
    edge(EDGE_DIRECT_RECLAIM, tid, now_ns);
    0
}

/// It ends.
#[raw_tracepoint(tracepoint = "mm_vmscan_direct_reclaim_end")]
pub fn direct_reclaim_end(_ctx: RawTracePointContext) -> i32 {
    end(DIRECT);
    0
}

/// A task begins to reclaim against a memory cgroup's own limit: no shortage of the machine's.
#[raw_tracepoint(tracepoint = "mm_vmscan_memcg_reclaim_begin")]
pub fn memcg_reclaim_begin(_ctx: RawTracePointContext) -> i32 {
    begin(MEMCG, now_ns());
    0
}

/// It ends.
#[raw_tracepoint(tracepoint = "mm_vmscan_memcg_reclaim_end")]
pub fn memcg_reclaim_end(_ctx: RawTracePointContext) -> i32 {
    end(MEMCG);
    0
}

/// kswapd woke: free memory is below the low watermark. The first argument is the NUMA node.
#[raw_tracepoint(tracepoint = "mm_vmscan_kswapd_wake")]
pub fn kswapd_wake(ctx: RawTracePointContext) -> i32 {
    saw(seen::KSWAPD_WAKE);
    edge(EDGE_KSWAPD_WAKE, ctx.arg::<u32>(0), now_ns());
    0
}

/// Notes that the current task began a reclaim of this kind; its thread id.
#[inline(always)]
fn begin(kind: u32, now_ns: u64) -> u32 {
    let tid = bpf_get_current_pid_tgid() as u32;
    // SAFETY: the value is copied at once; only the current task writes its own entry.
    let before = unsafe { RECLAIMING.get(tid) }.copied().unwrap_or(TaskReclaim::default());
    if RECLAIMING.insert(tid, before.begin(now_ns), 0).is_err() {
        dropped(drops::RECLAIM_MAP);
    }
    if let Some(totals) = RECLAIM.get_ptr_mut(kind) {
        // SAFETY: this CPU's slot, which lives as long as the map.
        unsafe { (*totals).begun += 1 }
    }
    tid
}

/// Notes that the current task ended a reclaim of this kind, and adds up how long it took.
#[inline(always)]
fn end(kind: u32) {
    let now_ns = now_ns();
    let tid = bpf_get_current_pid_tgid() as u32;
    let mut took_ns = None;
    if let Some(entry) = RECLAIMING.get_ptr_mut(tid) {
        // SAFETY: the entry is this task's own; an eviction from the map does not unmap it.
        unsafe { (*entry, took_ns) = (*entry).end(now_ns) }
    }
    let Some(totals) = RECLAIM.get_ptr_mut(kind) else { return };
    // SAFETY: this CPU's slot, which lives as long as the map.
    let totals = unsafe { &mut *totals };
    match took_ns {
        Some(took_ns) => {
            totals.ended += 1;
            totals.total_ns += took_ns;
            if took_ns > totals.max_ns {
                totals.max_ns = took_ns;
            }
        }
        None => totals.unpaired += 1,
    }
}

/// Tells an edge, unless one of its kind was told within the last millisecond. Two CPUs may pass at once.
#[inline(always)]
fn edge(kind: u32, subject: u32, now_ns: u64) {
    let Some(last) = EDGE_LAST.get_ptr_mut(kind) else { return };
    // SAFETY: the slot lives as long as the map; a race only lets an edge more or less through.
    unsafe {
        if !edge_is_due(now_ns, *last) {
            return;
        }
        *last = now_ns;
    }
    saw(seen::EDGE);
    tell(&EDGES, &Edge::new(kind, subject, now_ns), drops::EDGE);
}
