//! Exits of marked victims, and processes without their container's score.
use aya_ebpf::{
    EbpfContext, helpers::bpf_get_current_pid_tgid, macros::raw_tracepoint, programs::RawTracePointContext,
};
use enforcer_common::{
    counter::{drops, seen},
    guard::{
        CAUSE_ATTACHED, CAUSE_EXECUTED, CAUSE_FORKED, CAUSE_WRITTEN, CREDIT, MAX_LEVELS, ScoreEdge, counts,
    },
    record::{EXIT_CODE_KNOWN, FREED, GROUP_DEAD, MEMORY_LET_GO, ProcessExit},
};

use crate::{
    incident,
    kernel::{
        comm, current_cgroup_id, current_comm, current_task, is_own, node_id, node_parent, now_ns, offset,
        pointer, process_start_ns, read, task_cgroup_id, task_cgroup_node,
    },
    maps::{EVENTS, GUARD, MARKED, RECLAIMING, WANTED, emit, guard_counted, saw},
};

/// A thread exits, in its own context. A raw tracepoint works with and without BTF.
#[raw_tracepoint(tracepoint = "sched_process_exit")]
pub fn process_exit(ctx: RawTracePointContext) -> i32 {
    try_process_exit(&ctx);
    0
}

#[inline(always)]
fn try_process_exit<C: EbpfContext>(ctx: &C) {
    let pid_tgid = bpf_get_current_pid_tgid();
    let (tid, tgid) = (pid_tgid as u32, (pid_tgid >> 32) as u32);
    // The thread id will be reused. A lookup first is cheaper because it takes no lock: most threads never reclaim.
    if RECLAIMING.get_ptr(tid).is_some() {
        let _ = RECLAIMING.remove(tid);
    }
    incident::exits(tid, tgid);

    // If the mark had only a thread id, that is the key.
    // SAFETY: the value is copied at once.
    let (key, awaited) = match unsafe { MARKED.get(tgid) } {
        Some(awaited) => (tgid, *awaited),
        // SAFETY: as above.
        None => match unsafe { MARKED.get(tid) } {
            Some(awaited) => (tid, *awaited),
            None => return,
        },
    };
    let task = current_task();
    let start_boottime_ns = process_start_ns(task);
    if !awaited.is(start_boottime_ns) {
        return;
    }
    let mut exit = ProcessExit::EMPTY;
    exit.start_boottime_ns = start_boottime_ns;
    exit.marked_ns = awaited.marked_ns;
    exit.tid = tid;
    exit.tgid = tgid;
    // The kernel decrements the count before the tracepoint. A leader's exit is not the exit of its process.
    if let Some(live) =
        pointer(task, offset!(task_signal)).and_then(|signal| read::<i32>(signal, offset!(signal_live)))
    {
        if live > 0 {
            return;
        }
        exit.flags |= GROUP_DEAD;
    } else if tid != key {
        // Without offsets the exit of the marked thread is the best sign available.
        return;
    }
    if let Some(code) = read(task, offset!(task_exit_code)) {
        exit.exit_code = code;
        exit.flags |= EXIT_CODE_KNOWN;
    }
    if read::<u64>(task, offset!(task_mm)) == Some(0) {
        exit.flags |= MEMORY_LET_GO;
    }
    exit.time_ns = now_ns();
    exit.cgroup_id = current_cgroup_id().unwrap_or(0);
    // Several threads that exit at once may each find none left: the one that removes the entry reports the exit.
    if MARKED.remove(key).is_err() {
        return;
    }
    saw(seen::PROCESS_EXIT);
    emit(&EVENTS, &exit, drops::PROCESS_EXIT);
    say!(ctx, "exit of marked tid {} tgid {}", tid, tgid);
}

/// A task's structure is freed: `struct task_struct *p`. A process whose exit was not seen is reported now.
///
/// Since Linux 7.0 a raw tracepoint's program can be preempted, and the kernel does not start it again on a CPU where
/// it is already running (`__bpf_trace_run` in kernel/trace/bpf_trace.c): one of two concurrent exits can be skipped.
/// This event comes from a softirq, which is not preempted.
#[raw_tracepoint(tracepoint = "sched_process_free")]
pub fn process_freed(ctx: RawTracePointContext) -> i32 {
    let task = ctx.arg::<u64>(0);
    let (Some(tid), Some(tgid)) =
        (read::<u32>(task, offset!(task_pid)), read::<u32>(task, offset!(task_tgid)))
    else {
        return 0;
    };
    // The process is gone with its leader, the last thread to be waited for.
    if tid != tgid {
        return 0;
    }
    // SAFETY: the value is copied at once.
    let Some(awaited) = (unsafe { MARKED.get(tgid) }).copied() else { return 0 };
    let start_boottime_ns = process_start_ns(task);
    // The pid is free for reuse before the structure is freed.
    if !awaited.is(start_boottime_ns) || MARKED.remove(tgid).is_err() {
        return 0;
    }
    let mut exit = ProcessExit::EMPTY;
    exit.start_boottime_ns = start_boottime_ns;
    exit.time_ns = now_ns();
    exit.marked_ns = awaited.marked_ns;
    exit.tid = tid;
    exit.tgid = tgid;
    exit.cgroup_id = task_cgroup_id(task).unwrap_or(0);
    exit.flags = GROUP_DEAD | FREED;
    // As `wait_task_zombie` reports to the parent (kernel/exit.c): the group's exit code, else the leader's own.
    let group = pointer(task, offset!(task_signal))
        .and_then(|signal| read::<u32>(signal, offset!(signal_group_exit_code)))
        .filter(|code| *code != 0);
    if let Some(code) = group.or_else(|| read(task, offset!(task_exit_code))) {
        exit.exit_code = code;
        exit.flags |= EXIT_CODE_KNOWN;
    }
    saw(seen::PROCESS_EXIT);
    emit(&EVENTS, &exit, drops::PROCESS_EXIT);
    0
}

/// A process was moved to another cgroup: `struct cgroup *dst_cgrp, const char *path, struct task_struct *task, …`.
#[raw_tracepoint(tracepoint = "cgroup_attach_task")]
pub fn score_attached(ctx: RawTracePointContext) -> i32 {
    try_score(ctx.arg::<u64>(2), CAUSE_ATTACHED);
    0
}

/// A process or thread was created: `struct task_struct *parent, struct task_struct *child`. It is already in its
/// cgroup, which may differ from its parent's (`CLONE_INTO_CGROUP`).
#[raw_tracepoint(tracepoint = "sched_process_fork")]
pub fn score_forked(ctx: RawTracePointContext) -> i32 {
    let child = ctx.arg::<u64>(1);
    // A thread shares its process's score.
    if read::<u64>(child, offset!(task_group_leader)) == Some(child) {
        try_score(child, CAUSE_FORKED);
    }
    0
}

/// A process executed another program: `struct task_struct *p, pid_t old_pid, struct linux_binprm *bprm`.
#[raw_tracepoint(tracepoint = "sched_process_exec")]
pub fn score_executed(ctx: RawTracePointContext) -> i32 {
    try_score(ctx.arg::<u64>(0), CAUSE_EXECUTED);
    0
}

/// A process wrote a score, which is already in force: `struct task_struct *task`.
#[raw_tracepoint(tracepoint = "oom_score_adj_update")]
pub fn score_written(ctx: RawTracePointContext) -> i32 {
    if !is_own() {
        try_score(ctx.arg::<u64>(0), CAUSE_WRITTEN);
    }
    0
}

#[inline(always)]
fn try_score(task: u64, cause: u32) {
    let Some(signal) = pointer(task, offset!(task_signal)) else { return };
    let Some(score) = read::<i16>(signal, offset!(signal_oom_score_adj)) else { return };
    let score = i32::from(score);
    let Some(mut node) = task_cgroup_node(task) else { return };
    for _ in 0..MAX_LEVELS {
        let Some(id) = node_id(node) else { return };
        if let Some(wanted) = WANTED.get_ptr_mut(id) {
            // SAFETY: the entry stays mapped while the program runs. If it is replaced meanwhile, the credit allows one
            // record too many or too few, and the daemon checks every record before it acts.
            let wanted = unsafe { &mut *wanted };
            if wanted.score != score {
                if wanted.reported < CREDIT {
                    wanted.reported += 1;
                    tell_score(task, cause, id, score, wanted.score);
                } else {
                    guard_counted(counts::SCORE_SEEN);
                    guard_counted(counts::SCORE_HELD);
                }
            }
            return;
        }
        let Some(parent) = node_parent(node) else { return };
        node = parent;
    }
}

#[inline(always)]
fn tell_score(task: u64, cause: u32, cgroup_id: u64, score: i32, wanted: i32) {
    let mut edge = ScoreEdge::EMPTY;
    edge.time_ns = now_ns();
    edge.cgroup_id = cgroup_id;
    edge.start_boottime_ns = process_start_ns(task);
    edge.writer_start_boottime_ns = process_start_ns(current_task());
    edge.tgid = read(task, offset!(task_tgid)).unwrap_or(0);
    edge.writer_tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    edge.cause = cause;
    edge.score = score;
    edge.wanted = wanted;
    edge.comm = comm(task, offset!(task_comm));
    edge.writer_comm = current_comm();
    guard_counted(counts::SCORE_SEEN);
    if GUARD.output::<ScoreEdge>(&edge, 0).is_err() {
        guard_counted(counts::SCORE_DROPPED);
    }
}
