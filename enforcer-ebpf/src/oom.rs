//! OOM kills: the marked task, the allocating task, the owner of the limit, and whether the mark was a kill.
use aya_ebpf::{
    EbpfContext,
    helpers::bpf_get_current_pid_tgid,
    macros::{btf_tracepoint, fentry, raw_tracepoint, tracepoint},
    programs::{BtfTracePointContext, FEntryContext, RawTracePointContext, TracePointContext},
};
use enforcer_common::{
    counter::{drops, seen},
    incident::{Awaited, Marking, Ooming, watched},
    offsets::{ABSENT, pages_to_bytes},
    plain::{PlainFormat, data_loc_offset},
    record::{
        CGROUP_KNOWN, CONTAINER_INIT, COUNTS_KNOWN, END_WATCHED, INIT_KNOWN, KILL_WATCHED, LIMIT_KNOWN,
        MEMORY_KNOWN, MEMORY_WATCHED, MarkVictim, SCORE_KNOWN, UID_KNOWN, VICTIM_KILLED,
    },
};

use crate::{
    incident,
    kernel::{
        self, comm, counted_css, css_cgroup_id, css_cgroup_id_or_zero, current_cgroup_id, current_comm,
        now_ns, offset, pointer, process_start_ns, read, read_or_zero, task_cgroup_id,
    },
    maps::{
        EVENTS, KILLS, MARKED, MARKING, MEMORIES, OOMS, PLAIN_FORMAT, RECLAIMING, dropped, emit, is_watched,
        saw,
    },
};

const SIGKILL: i32 = 9;
/// Updates only a key that exists (linux/bpf.h).
const BPF_EXIST: u64 = 2;
/// The `siginfo` pointer that marks the kernel's own signals (`SEND_SIG_PRIV`, linux/sched/signal.h).
const SEND_SIG_PRIV: u64 = 1;

/// For kernels whose event passes the task and its user id.
#[btf_tracepoint(function = "mark_victim")]
pub fn mark_victim_task(ctx: BtfTracePointContext) -> i32 {
    try_mark_victim_task(&ctx);
    0
}

#[inline(always)]
fn try_mark_victim_task(ctx: &BtfTracePointContext) {
    let task = ctx.arg::<*const u8>(0) as u64;
    let mut mark = begin();
    mark.uid = ctx.arg::<u32>(1);
    mark.flags |= UID_KNOWN;
    mark.tid = read_or_zero(task, offset!(task_pid));
    mark.tgid = read_or_zero(task, offset!(task_tgid));
    mark.start_boottime_ns = read_or_zero(task, offset!(task_start_boottime));
    mark.comm = comm(task, offset!(task_comm));
    if let Some(id) = task_cgroup_id(task) {
        mark.cgroup_id = id;
        mark.flags |= CGROUP_KNOWN;
    }
    if let Some(score) = pointer(task, offset!(task_signal))
        .and_then(|signal| read::<i16>(signal, offset!(signal_oom_score_adj)))
    {
        mark.oom_score_adj = i32::from(score);
        mark.flags |= SCORE_KNOWN;
    }
    read_memory(&mut mark, task);
    if let Some(init) = is_namespace_init(task) {
        mark.flags |= INIT_KNOWN | if init { CONTAINER_INIT } else { 0 };
    }
    finish(ctx, &mut mark, Some(task));
}

/// For kernels whose event passes only a thread id.
#[btf_tracepoint(function = "mark_victim")]
pub fn mark_victim_pid(ctx: BtfTracePointContext) -> i32 {
    let mut mark = begin();
    mark.tid = ctx.arg::<u32>(0);
    finish(&ctx, &mut mark, None);
    0
}

/// For kernels without BTF: the classic tracepoint, read by its own format.
#[tracepoint(category = "oom", name = "mark_victim")]
pub fn mark_victim_plain(ctx: TracePointContext) -> u32 {
    try_mark_victim_plain(&ctx);
    0
}

#[inline(always)]
fn try_mark_victim_plain(ctx: &TracePointContext) {
    let PlainFormat { pid, uid, anon_rss, file_rss, shmem_rss, pgtables, oom_score_adj, comm } =
        PLAIN_FORMAT.load();
    let base = ctx.as_ptr() as u64;
    let mut mark = begin();
    mark.tid = read(base, pid).unwrap_or(0);
    if let Some(uid) = read(base, uid) {
        mark.uid = uid;
        mark.flags |= UID_KNOWN;
    }
    if let Some(score) = read::<i16>(base, oom_score_adj) {
        mark.oom_score_adj = i32::from(score);
        mark.flags |= SCORE_KNOWN;
    }
    if let Some(anon_kib) = read::<u64>(base, anon_rss) {
        mark.anon_bytes = anon_kib << 10;
        mark.file_bytes = read::<u64>(base, file_rss).unwrap_or(0) << 10;
        mark.shmem_bytes = read::<u64>(base, shmem_rss).unwrap_or(0) << 10;
        mark.pgtables_bytes = read::<u64>(base, pgtables).unwrap_or(0) << 10;
        mark.flags |= MEMORY_KNOWN;
    }
    if let Some(at) = read::<u32>(base, comm) {
        mark.comm = kernel::comm(base, data_loc_offset(at));
    }
    finish(ctx, &mut mark, None);
}

/// A record with the fields known from the current task, which allocates.
#[inline(always)]
fn begin() -> MarkVictim {
    let pid_tgid = bpf_get_current_pid_tgid();
    let mut mark = MarkVictim::EMPTY;
    mark.time_ns = now_ns();
    mark.trigger_tid = pid_tgid as u32;
    mark.trigger_tgid = (pid_tgid >> 32) as u32;
    mark.trigger_cgroup_id = current_cgroup_id().unwrap_or(0);
    mark.trigger_comm = current_comm();
    // SAFETY: the value is copied at once; this task's own entry cannot change concurrently.
    if let Some(reclaim) = unsafe { RECLAIMING.get(mark.trigger_tid) } {
        mark.reclaim_since_ns = reclaim.led_here_since_ns(mark.time_ns);
    }
    // SAFETY: as above.
    if let Some(ooming) = unsafe { OOMS.get(mark.trigger_tid) } {
        let Ooming { oom_control, since_ns } = *ooming;
        mark.oom_since_ns = since_ns;
        read_limit(&mut mark, oom_control);
    }
    mark
}

/// Reads the owner of the limit. The structure is on the stack of the current task, still in `out_of_memory`.
#[inline(always)]
fn read_limit(mark: &mut MarkVictim, oom_control: u64) {
    let Some(memcg) = read::<u64>(oom_control, offset!(oom_control_memcg)) else { return };
    if memcg != 0 {
        let css = offset!(mem_cgroup_css);
        if css == ABSENT {
            return;
        }
        let Some(id) = css_cgroup_id(memcg + u64::from(css)) else { return };
        mark.limit_cgroup_id = id;
    }
    mark.constraint = read(oom_control, offset!(oom_control_constraint)).unwrap_or(0);
    mark.flags |= LIMIT_KNOWN;
}

/// Adds whether the mark was a kill, emits the record, and stores the victim until it exits.
#[inline(always)]
fn finish<C: EbpfContext>(ctx: &C, mark: &mut MarkVictim, victim: Option<u64>) {
    // Kept outside the flags: a branch on the flags would make the verifier distinguish all their values.
    let mut killed_it = false;
    if is_watched(watched::KILLS) {
        mark.flags |= KILL_WATCHED;
        // SAFETY: the value is copied at once; only the current task writes its own entry.
        if let Some(killed) = unsafe { KILLS.get(mark.trigger_tid) } {
            // If the event passes no task, the kill just before it is the victim's.
            if victim.is_none_or(|task| task == *killed) {
                mark.flags |= VICTIM_KILLED;
                killed_it = true;
            }
            incident::is_marked(*killed);
            // The entry may be absent already.
            let _ = KILLS.remove(mark.trigger_tid);
        }
    }
    let key = if mark.tgid == 0 { mark.tid } else { mark.tgid };
    // If the exit was awaited since the kill and the entry is gone, the process has exited.
    let awaited = killed_it && mark.tgid != 0 && mark.oom_since_ns != 0;
    // The first thread's start, which the exit is matched by: the marked thread may be another.
    let start_boottime_ns = victim.map_or(0, process_start_ns);
    let entry = Awaited { marked_ns: mark.time_ns, start_boottime_ns };
    let noted = MARKED.insert(key, entry, if awaited { BPF_EXIST } else { 0 });
    if noted.is_err() && !awaited {
        dropped(drops::MARKED_MAP);
    }
    if let Some(mm) = victim.and_then(|task| pointer(task, offset!(task_mm))) {
        mark.memory = mm;
        read_counts(mark, counted_css(mm));
        if is_watched(watched::MEMORY) {
            if MEMORIES.insert(mm, mark.time_ns, 0).is_ok() {
                mark.flags |= MEMORY_WATCHED;
            } else {
                dropped(drops::MEMORY_BACK);
            }
        }
    }
    // Only a kill also kills the processes that share the memory.
    if killed_it {
        if is_watched(watched::ENDS) && mark.oom_since_ns != 0 {
            mark.flags |= END_WATCHED;
        }
        let marking = Marking { memory: mark.memory, marked_ns: mark.time_ns, victim: key, reserved: 0 };
        if MARKING.insert(mark.trigger_tid, marking, 0).is_err() {
            dropped(drops::SHARER);
        }
    }
    saw(seen::MARK_VICTIM);
    emit(&EVENTS, mark, drops::MARK_VICTIM);
    say!(ctx, "mark_victim tid {} tgid {} by {}", mark.tid, mark.tgid, mark.trigger_tid);
}

/// Reads which cgroup counts the kill, and what it has counted. The kernel counts a kill right before it marks the victim
/// (`__oom_kill_process` in mm/oom_kill.c).
#[inline(always)]
fn read_counts(mark: &mut MarkVictim, css: u64) {
    mark.counted_cgroup_id = css_cgroup_id_or_zero(css);
    let within = offset!(mem_cgroup_css);
    if css == 0 || within == ABSENT || offset!(mem_cgroup_oom_kill) == ABSENT {
        return;
    }
    let memcg = css - u64::from(within);
    mark.counted_oom = read_or_zero(memcg, offset!(mem_cgroup_oom));
    mark.counted_oom_kill = read_or_zero(memcg, offset!(mem_cgroup_oom_kill));
    mark.counted_oom_group_kill = read_or_zero(memcg, offset!(mem_cgroup_oom_group_kill));
    mark.flags |= COUNTS_KNOWN;
}

#[inline(always)]
fn read_memory(mark: &mut MarkVictim, task: u64) {
    let Some(mm) = pointer(task, offset!(task_mm)) else { return };
    let Some(anon) = read::<i64>(mm, offset!(mm_anon_pages)) else { return };
    let shift = offset!(page_shift);
    mark.anon_bytes = pages_to_bytes(anon, shift);
    mark.file_bytes = pages_to_bytes(read_or_zero(mm, offset!(mm_file_pages)), shift);
    mark.shmem_bytes = pages_to_bytes(read_or_zero(mm, offset!(mm_shmem_pages)), shift);
    mark.swap_bytes = pages_to_bytes(read_or_zero(mm, offset!(mm_swap_pages)), shift);
    mark.pgtables_bytes = pages_to_bytes(read_or_zero(mm, offset!(mm_pgtables_bytes)), 0);
    mark.flags |= MEMORY_KNOWN;
}

/// Whether the task's process is the init of a PID namespace below the machine's own; `None` if unknown.
#[inline(always)]
pub(crate) fn is_namespace_init(task: u64) -> Option<bool> {
    let (numbers, size) = (offset!(pid_numbers), offset!(upid_size));
    if numbers == ABSENT || size == ABSENT {
        return None;
    }
    let pid: u64 = read_or_zero(task, offset!(task_thread_pid));
    let level: u32 = read_or_zero(pid, offset!(pid_level));
    let upid = pid + u64::from(numbers) + u64::from(level) * u64::from(size);
    let namespace: u64 = read_or_zero(upid, offset!(upid_ns));
    let reaper: u64 = read_or_zero(namespace, offset!(pid_namespace_child_reaper));
    if reaper == 0 {
        return None;
    }
    // The reaper is a thread of the init process: its leader, unless that has exited.
    let leader: u64 = read_or_zero(task, offset!(task_group_leader));
    Some((level != 0) & ((reaper == task) | (reaper == leader)))
}

/// Stores the state of this OOM; `mark_victim` follows in the same task. OOMs of memory cgroups pass through here
/// too.
#[fentry(function = "out_of_memory")]
pub fn out_of_memory(ctx: FEntryContext) -> u32 {
    let ooming = Ooming { oom_control: ctx.arg::<*const u8>(0) as u64, since_ns: now_ns() };
    let tid = bpf_get_current_pid_tgid() as u32;
    if OOMS.insert(tid, ooming, 0).is_err() {
        dropped(drops::OOM_MAP);
    }
    0
}

/// Awaits the exit of a process that the OOM killer is killing. The exit may precede the mark: newer kernels trace an
/// exit at its very beginning, and the victim may run on another CPU.
#[inline(always)]
fn expect(tid: u32, victim: u64) {
    if OOMS.get_ptr(tid).is_some()
        && let Some(tgid) = read::<u32>(victim, offset!(task_tgid))
    {
        incident::await_exit(tgid, now_ns(), process_start_ns(victim));
    }
}

/// Stores the kernel's own SIGKILLs. The OOM killer sends one to a task that it kills, right before it marks
/// it, and none to a task that was already dying (`__oom_kill_process` and `oom_kill_process` in
/// mm/oom_kill.c). The tracepoint passes `int sig, struct kernel_siginfo *info, struct task_struct *task, …`.
#[raw_tracepoint(tracepoint = "signal_generate")]
pub fn oom_signal(ctx: RawTracePointContext) -> i32 {
    if ctx.arg::<i32>(0) == SIGKILL && ctx.arg::<u64>(1) == SEND_SIG_PRIV {
        let tid = bpf_get_current_pid_tgid() as u32;
        if KILLS.insert(tid, ctx.arg::<u64>(2), 0).is_err() {
            dropped(drops::KILL_MAP);
        }
        incident::killed(tid, ctx.arg::<u64>(2));
        // After `killed`, which skips processes that are already awaited: those are no unreported sharers.
        expect(tid, ctx.arg::<u64>(2));
    }
    0
}
