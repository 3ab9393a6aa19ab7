//! The end of marked victims.
use aya_ebpf::{
    EbpfContext, helpers::bpf_get_current_pid_tgid, macros::raw_tracepoint, programs::RawTracePointContext,
};
use enforcer_common::{
    counter::{drops, seen},
    record::{EXIT_CODE_KNOWN, GROUP_DEAD, ProcessExit},
};

use crate::{
    kernel::{current_cgroup_id, current_task, now_ns, offset, pointer, read},
    maps::{EVENTS, MARKED, RECLAIMING, saw, tell},
};

/// A thread exits, in its own context. The raw form serves with and without BTF alike.
#[raw_tracepoint(tracepoint = "sched_process_exit")]
pub fn process_exit(ctx: RawTracePointContext) -> i32 {
    try_process_exit(&ctx);
    0
}

#[inline(always)]
fn try_process_exit<C: EbpfContext>(ctx: &C) {
    let pid_tgid = bpf_get_current_pid_tgid();
    let (tid, tgid) = (pid_tgid as u32, (pid_tgid >> 32) as u32);
    // A task that is killed in reclaim leaves its begin behind; its thread id will be used again.
    let _ = RECLAIMING.remove(tid);

    // Where only a thread id was passed, it is the key.
    // SAFETY: the value is copied at once.
    let (key, marked_ns) = match unsafe { MARKED.get(tgid) } {
        Some(marked_ns) => (tgid, *marked_ns),
        // SAFETY: as above.
        None => match unsafe { MARKED.get(tid) } {
            Some(marked_ns) => (tid, *marked_ns),
            None => return,
        },
    };
    let task = current_task();
    let mut exit = ProcessExit::EMPTY;
    exit.marked_ns = marked_ns;
    exit.tid = tid;
    exit.tgid = tgid;
    // The count is lowered before the tracepoint, and a leader's exit is not its process's.
    if let Some(live) =
        pointer(task, offset!(task_signal)).and_then(|signal| read::<i32>(signal, offset!(signal_live)))
    {
        if live > 0 {
            return;
        }
        exit.flags |= GROUP_DEAD;
    } else if tid != key {
        // Without offsets the marked thread's own exit is the best sign there is.
        return;
    }
    if let Some(code) = read(task, offset!(task_exit_code)) {
        exit.exit_code = code;
        exit.flags |= EXIT_CODE_KNOWN;
    }
    exit.time_ns = now_ns();
    exit.cgroup_id = current_cgroup_id().unwrap_or(0);
    // It was there a moment ago; another exit of this process that took it first tells the same.
    let _ = MARKED.remove(key);
    saw(seen::PROCESS_EXIT);
    tell(&EVENTS, &exit, drops::PROCESS_EXIT);
    say!(ctx, "exit of marked tid {} tgid {}", tid, tgid);
}
