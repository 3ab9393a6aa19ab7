//! Which processes die with a victim, when its memory is freed, and when the OOM killer is done.
use aya_ebpf::{helpers::bpf_get_current_pid_tgid, macros::fexit, programs::FExitContext};
use enforcer_common::{
    counter::drops,
    incident::{
        Awaited, BY_EXIT, CONTAINER_INIT, INIT_KNOWN, Marking, MemoryBack, OomOver, SCORE_KNOWN, Sharer,
        watched,
    },
    offsets::ABSENT,
};

use crate::{
    kernel::{
        comm, current_cgroup_id, current_comm, current_task, now_ns, offset, pointer, process_start_ns, read,
        task_cgroup_id,
    },
    maps::{EVENTS, KILLS, MARKED, MARKING, MEMORIES, OOMS, SHARERS, dropped, emit, is_watched},
    oom::is_namespace_init,
};

/// Handles the kernel's own SIGKILL to a task, sent by the current task. Right after it marked a victim, the OOM killer
/// sends one to each process that shares the victim's memory (`__oom_kill_process` in mm/oom_kill.c).
#[inline(always)]
pub(crate) fn killed(tid: u32, task: u64) {
    // SAFETY: the value is copied at once; only the current task writes its own entry.
    let Some(marking) = (unsafe { MARKING.get(tid) }).copied() else { return };
    let now_ns = now_ns();
    if !marking.covers(now_ns, is_watched(watched::ENDS)) {
        return;
    }
    if offset!(task_mm) == ABSENT {
        // Either the next victim, which is removed when it is marked, or a process that shares the memory.
        if SHARERS.insert(task, marking, 0).is_err() {
            dropped(drops::SHARER);
        }
        return;
    }
    try_sharer(task, &marking, now_ns);
}

#[inline(always)]
fn try_sharer(task: u64, marking: &Marking, now_ns: u64) {
    let Some(tgid) = read::<u32>(task, offset!(task_tgid)) else { return };
    // The first victim of a group is killed twice.
    if tgid == marking.victim {
        return;
    }
    let Some(memory) = read::<u64>(task, offset!(task_mm)) else { return };
    let Some(signal) = pointer(task, offset!(task_signal)) else { return };
    if memory == 0 {
        // A leader that exited before other threads of its process. A next victim would be a task with memory.
        if read::<i32>(signal, offset!(signal_live)).unwrap_or(0) <= 0 {
            return;
        }
    } else if memory != marking.memory {
        return;
    }
    // A group kill reaches the process again, and marks it as a victim.
    // SAFETY: the value is not kept.
    if unsafe { MARKED.get(tgid) }.is_some() {
        return;
    }
    let start_boottime_ns = process_start_ns(task);
    await_exit(tgid, now_ns, start_boottime_ns);
    let mut sharer = sharer_of(marking, now_ns);
    sharer.tid = read(task, offset!(task_pid)).unwrap_or(0);
    sharer.tgid = tgid;
    sharer.start_boottime_ns = start_boottime_ns;
    sharer.cgroup_id = task_cgroup_id(task).unwrap_or(0);
    sharer.comm = comm(task, offset!(task_comm));
    if let Some(score) = read::<i16>(signal, offset!(signal_oom_score_adj)) {
        sharer.oom_score_adj = i32::from(score);
        sharer.flags |= SCORE_KNOWN;
    }
    if let Some(init) = is_namespace_init(task) {
        sharer.flags |= INIT_KNOWN | if init { CONTAINER_INIT } else { 0 };
    }
    emit(&EVENTS, &sharer, drops::SHARER);
}

#[inline(always)]
fn sharer_of(marking: &Marking, now_ns: u64) -> Sharer {
    let mut sharer = Sharer::EMPTY;
    sharer.time_ns = now_ns;
    sharer.marked_ns = marking.marked_ns;
    sharer.victim = marking.victim;
    sharer
}

/// Makes the exit of a process be reported from now on.
#[inline(always)]
pub(crate) fn await_exit(tgid: u32, since_ns: u64, start_boottime_ns: u64) {
    if MARKED.insert(tgid, Awaited { marked_ns: since_ns, start_boottime_ns }, 0).is_err() {
        dropped(drops::MARKED_MAP);
    }
}

/// Handles the mark of a killed task: the task is a victim, not a sharer.
#[inline(always)]
pub(crate) fn is_marked(task: u64) {
    if offset!(task_mm) == ABSENT {
        // The entry may be absent already.
        let _ = SHARERS.remove(task);
    }
}

/// Handles the exit of the current task. If `task_struct.mm` cannot be read, a task that was killed after a victim
/// without being marked is reported now.
#[inline(always)]
pub(crate) fn exits(tid: u32, tgid: u32) {
    if offset!(task_mm) != ABSENT {
        return;
    }
    let task = current_task();
    // SAFETY: the value is copied at once.
    let Some(marking) = (unsafe { SHARERS.get(task) }).copied() else { return };
    let _ = SHARERS.remove(task);
    let now_ns = now_ns();
    await_exit(tgid, now_ns, process_start_ns(task));
    let mut sharer = sharer_of(&marking, now_ns);
    sharer.tid = tid;
    sharer.tgid = tgid;
    sharer.cgroup_id = current_cgroup_id().unwrap_or(0);
    sharer.comm = current_comm();
    sharer.flags = BY_EXIT;
    emit(&EVENTS, &sharer, drops::SHARER);
}

/// Memory was freed: `struct mm_struct *mm`. The last task that used it has released it.
#[fexit(function = "exit_mmap")]
pub fn memory_back(ctx: FExitContext) -> i32 {
    let memory = ctx.arg::<*const u8>(0) as u64;
    // SAFETY: the value is copied at once.
    if let Some(marked_ns) = unsafe { MEMORIES.get(memory) }.copied() {
        let _ = MEMORIES.remove(memory);
        emit(&EVENTS, &MemoryBack::new(memory, marked_ns, now_ns()), drops::MEMORY_BACK);
    }
    0
}

/// The OOM killer is done, whether it killed or not.
#[fexit(function = "out_of_memory")]
pub fn oom_over(_ctx: FExitContext) -> i32 {
    let tid = bpf_get_current_pid_tgid() as u32;
    // SAFETY: the value is copied at once; only the current task writes its own entries.
    let ooming = unsafe { OOMS.get(tid) }.copied();
    // The entries may be absent already.
    let _ = OOMS.remove(tid);
    let _ = KILLS.remove(tid);
    if MARKING.remove(tid).is_ok()
        && let Some(ooming) = ooming
    {
        emit(&EVENTS, &OomOver::new(tid, ooming.since_ns, now_ns()), drops::OOM_OVER);
    }
    0
}
