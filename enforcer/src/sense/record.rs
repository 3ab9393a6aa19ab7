//! Decodes the programs' records into owned values that need no interpretation.
use enforcer_common::{
    incident,
    record::{
        CGROUP_KNOWN, CONTAINER_INIT, COUNTS_KNOWN, EDGE_DIRECT_RECLAIM, EDGE_KSWAPD_WAKE, END_WATCHED,
        EXIT_CODE_KNOWN, Edge, GROUP_DEAD, Header, INIT_KNOWN, KILL_WATCHED, KIND_EDGE, KIND_MARK_VICTIM,
        KIND_PROCESS_EXIT, LIMIT_KNOWN, MEMORY_KNOWN, MEMORY_LET_GO, MEMORY_WATCHED, MarkVictim, ProcessExit,
        SCORE_KNOWN, UID_KNOWN, VERSION, VICTIM_KILLED,
    },
};
use enforcer_events::oom::OomCounts;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::model::CgroupId;

/// One record of a ring buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "at most a thousand are queued")]
pub enum Record {
    /// The OOM killer marked a task.
    Mark(Mark),
    /// A marked process has exited.
    Exit(Exit),
    /// A process is killed for sharing a victim's memory.
    Sharer(Sharer),
    /// A victim's memory was freed.
    MemoryBack(MemoryBack),
    /// The OOM killer is done with an OOM.
    OomOver(OomOver),
    /// kswapd woke on this NUMA node: free memory is below the low watermark.
    KswapdWoke {
        /// When.
        time_ns: u64,
        /// NUMA node.
        node: u32,
    },
    /// A task began to reclaim for itself because the machine is short.
    DirectReclaim {
        /// When.
        time_ns: u64,
        /// Its thread id.
        tid: u32,
    },
}

/// A task that the OOM killer marked. `None` always means unknown; times are of `CLOCK_BOOTTIME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// When.
    pub time_ns: u64,
    /// Thread id; not always the leader's.
    pub tid: u32,
    /// Process id.
    pub pid: Option<u32>,
    /// When the thread started.
    pub start_ns: Option<u64>,
    /// Name of the thread. Its user chose it: escape it for display.
    pub comm: String,
    /// Its cgroup.
    pub cgroup: Option<CgroupId>,
    /// User id.
    pub uid: Option<u32>,
    /// `oom_score_adj`.
    pub oom_score_adj: Option<i32>,
    /// Its memory. Off by up to a few hundred KiB on kernels that count per CPU.
    pub memory: Option<Memory>,
    /// Whether it was the init of a PID namespace, so that its death ends the container.
    pub container_init: Option<bool>,
    /// Whether the OOM killer killed it. `Some(false)`: it was dying already.
    pub killed: Option<bool>,
    /// The task whose allocation failed.
    pub trigger: Task,
    /// The limit that was hit, which is why the OOM killer was called.
    pub limit: Option<Limited>,
    /// When the reclaim that ended in this OOM began.
    pub reclaim_since_ns: Option<u64>,
    /// When the OOM killer was called for this OOM. With the trigger's thread id it joins several marks to one OOM.
    pub oom_since_ns: Option<u64>,
    /// The cgroup whose counters count the kill. Mostly the victim's own.
    pub counted: Option<CgroupId>,
    /// That cgroup's `memory.events.local` right after the kernel counted this kill; `None` if it was not read.
    pub counts: Option<OomCounts>,
    /// Identifies the victim's memory: processes that share it have the same number.
    pub memory_number: Option<u64>,
    /// A record will report the end of this OOM.
    pub end_watched: bool,
    /// A record will report when the memory is freed.
    pub memory_watched: bool,
}

/// A process that was killed for sharing a victim's memory. The kernel neither marks nor counts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharer {
    /// When it was killed, or when it exited if only that was seen.
    pub time_ns: u64,
    /// When the victim was marked.
    pub marked_ns: u64,
    /// Process id of the victim, or its thread id if the mark had no process id.
    pub victim: u32,
    /// Process id.
    pub pid: u32,
    /// Thread id of its leader.
    pub tid: u32,
    /// When its leader started.
    pub start_ns: Option<u64>,
    /// Name of its leader, hostile.
    pub comm: String,
    /// Its cgroup.
    pub cgroup: Option<CgroupId>,
    /// `oom_score_adj`.
    pub oom_score_adj: Option<i32>,
    /// Whether it was the init of a PID namespace.
    pub container_init: Option<bool>,
    /// The sharing is inferred: the OOM killer killed it after the victim without marking it.
    pub by_exit: bool,
}

/// A victim's memory was freed: no process uses it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBack {
    /// When.
    pub time_ns: u64,
    /// When its latest victim was marked.
    pub marked_ns: u64,
    /// [`Mark::memory_number`].
    pub memory_number: u64,
}

/// The OOM killer is done with an OOM in which it killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OomOver {
    /// When.
    pub time_ns: u64,
    /// [`Mark::oom_since_ns`].
    pub oom_since_ns: u64,
    /// Thread id of the trigger.
    pub trigger_tid: u32,
}

/// A victim's memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Anonymous memory.
    pub anon_bytes: u64,
    /// Mapped files.
    pub file_bytes: u64,
    /// Shared memory and tmpfs.
    pub shmem_bytes: u64,
    /// Swapped-out memory.
    pub swap_bytes: u64,
    /// Page tables.
    pub pgtables_bytes: u64,
}

/// A task as the kernel names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Thread id.
    pub tid: u32,
    /// Process id.
    pub pid: u32,
    /// Name of the thread, hostile.
    pub comm: String,
    /// Its cgroup.
    pub cgroup: Option<CgroupId>,
}

/// The limit behind an OOM kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limited {
    /// A memory cgroup's limit.
    Cgroup(CgroupId),
    /// The machine itself, or the nodes of a cpuset or memory policy.
    Machine,
}

/// A marked process that has exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// When.
    pub time_ns: u64,
    /// When it was marked.
    pub marked_ns: u64,
    /// Process id.
    pub pid: u32,
    /// Thread id of the last thread.
    pub tid: u32,
    /// Its cgroup at the end.
    pub cgroup: Option<CgroupId>,
    /// Exit code as in `wait(2)`.
    pub exit_code: Option<u32>,
    /// Whether it is known that no thread is left.
    pub group_dead: bool,
    /// Whether it had released its memory by then.
    pub memory_let_go: bool,
}

/// A record that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undecodable {
    /// Shorter than a header.
    #[error("a record of {0} bytes has no header")]
    Torn(usize),
    /// Its length does not match its header or kind.
    #[error("a record of kind {kind} has {actual_bytes} bytes, not {expected_bytes}")]
    WrongSize {
        /// The kind.
        kind: u32,
        /// Its length.
        actual_bytes: usize,
        /// The expected length.
        expected_bytes: usize,
    },
    /// Of another version of the layouts.
    #[error("a record of version {0}, not {VERSION}; build object and daemon together")]
    OtherVersion(u16),
    /// Of a kind that this daemon does not know.
    #[error("a record of unknown kind {0}")]
    UnknownKind(u32),
    /// An edge of a kind that this daemon does not know.
    #[error("an edge of unknown kind {0}")]
    UnknownEdge(u32),
    /// A score that no process can have.
    #[error("a score of {0}")]
    ImpossibleScore(i32),
}

/// The result of [`decode`].
pub type Decoded = Result<Record, Undecodable>;

/// Decodes one record of the ring of OOMs or the ring of edges.
pub fn decode(bytes: &[u8]) -> Decoded {
    let kind = header(bytes)?.kind;
    match kind {
        KIND_MARK_VICTIM => Ok(Record::Mark(mark(&of_any_build(kind, bytes, MarkVictim::read)?))),
        KIND_PROCESS_EXIT => Ok(Record::Exit(exit(&of_any_build(kind, bytes, ProcessExit::read)?))),
        incident::KIND_SHARER => Ok(Record::Sharer(sharer(&body::<incident::Sharer>(kind, bytes)?))),
        incident::KIND_MEMORY_BACK => {
            let incident::MemoryBack { header: _, time_ns, marked_ns, memory } = body(kind, bytes)?;
            Ok(Record::MemoryBack(MemoryBack { time_ns, marked_ns, memory_number: memory }))
        }
        incident::KIND_OOM_OVER => {
            let incident::OomOver { header: _, time_ns, oom_since_ns, trigger_tid, reserved: _ } =
                body(kind, bytes)?;
            Ok(Record::OomOver(OomOver { time_ns, oom_since_ns, trigger_tid }))
        }
        KIND_EDGE => {
            let Edge { header: _, time_ns, edge, subject } = body(kind, bytes)?;
            match edge {
                EDGE_KSWAPD_WAKE => Ok(Record::KswapdWoke { time_ns, node: subject }),
                EDGE_DIRECT_RECLAIM => Ok(Record::DirectReclaim { time_ns, tid: subject }),
                unknown => Err(Undecodable::UnknownEdge(unknown)),
            }
        }
        unknown => Err(Undecodable::UnknownKind(unknown)),
    }
}

/// The header of a complete record of our version.
pub(super) fn header(bytes: &[u8]) -> Result<Header, Undecodable> {
    let Ok((header, _)) = Header::read_from_prefix(bytes) else {
        return Err(Undecodable::Torn(bytes.len()));
    };
    let Header { kind, size_bytes, version } = header;
    if version != VERSION {
        return Err(Undecodable::OtherVersion(version));
    }
    if usize::from(size_bytes) != bytes.len() {
        let expected_bytes = usize::from(size_bytes);
        return Err(Undecodable::WrongSize { kind, actual_bytes: bytes.len(), expected_bytes });
    }
    Ok(header)
}

/// A record of that kind; its length must match its type.
pub(super) fn body<T: FromBytes>(kind: u32, bytes: &[u8]) -> Result<T, Undecodable> {
    let wrong =
        |_| Undecodable::WrongSize { kind, actual_bytes: bytes.len(), expected_bytes: size_of::<T>() };
    T::read_from_bytes(bytes).map_err(wrong)
}

/// The same where it lies: the kernel puts records at multiples of eight bytes, which suits each of them.
pub(super) fn view<T: FromBytes + Immutable + KnownLayout>(
    kind: u32,
    bytes: &[u8],
) -> Result<&T, Undecodable> {
    T::ref_from_bytes(bytes).ok().ok_or(Undecodable::WrongSize {
        kind,
        actual_bytes: bytes.len(),
        expected_bytes: size_of::<T>(),
    })
}

/// A record as written by this build or an earlier one, which wrote a shorter one.
fn of_any_build<T>(kind: u32, bytes: &[u8], read: impl Fn(&[u8]) -> Option<T>) -> Result<T, Undecodable> {
    read(bytes).ok_or(Undecodable::WrongSize {
        kind,
        actual_bytes: bytes.len(),
        expected_bytes: size_of::<T>(),
    })
}

fn mark(raw: &MarkVictim) -> Mark {
    let known = |flag: u32| raw.has(flag);
    Mark {
        time_ns: raw.time_ns,
        tid: raw.tid,
        pid: (raw.tgid != 0).then_some(raw.tgid),
        start_ns: (raw.start_boottime_ns != 0).then_some(raw.start_boottime_ns),
        comm: comm(&raw.comm),
        cgroup: known(CGROUP_KNOWN).then(|| cgroup(raw.cgroup_id)).flatten(),
        uid: known(UID_KNOWN).then_some(raw.uid),
        oom_score_adj: known(SCORE_KNOWN).then_some(raw.oom_score_adj),
        memory: known(MEMORY_KNOWN).then_some(Memory {
            anon_bytes: raw.anon_bytes,
            file_bytes: raw.file_bytes,
            shmem_bytes: raw.shmem_bytes,
            swap_bytes: raw.swap_bytes,
            pgtables_bytes: raw.pgtables_bytes,
        }),
        container_init: known(INIT_KNOWN).then(|| known(CONTAINER_INIT)),
        killed: known(KILL_WATCHED).then(|| known(VICTIM_KILLED)),
        trigger: Task {
            tid: raw.trigger_tid,
            pid: raw.trigger_tgid,
            comm: comm(&raw.trigger_comm),
            cgroup: cgroup(raw.trigger_cgroup_id),
        },
        limit: known(LIMIT_KNOWN)
            .then(|| cgroup(raw.limit_cgroup_id).map_or(Limited::Machine, Limited::Cgroup)),
        reclaim_since_ns: (raw.reclaim_since_ns != 0).then_some(raw.reclaim_since_ns),
        oom_since_ns: (raw.oom_since_ns != 0).then_some(raw.oom_since_ns),
        counted: cgroup(raw.counted_cgroup_id),
        counts: known(COUNTS_KNOWN).then_some(OomCounts {
            oom: raw.counted_oom,
            oom_kill: raw.counted_oom_kill,
            oom_group_kill: raw.counted_oom_group_kill,
        }),
        memory_number: (raw.memory != 0).then_some(raw.memory),
        end_watched: known(END_WATCHED),
        memory_watched: known(MEMORY_WATCHED),
    }
}

fn exit(raw: &ProcessExit) -> Exit {
    Exit {
        time_ns: raw.time_ns,
        marked_ns: raw.marked_ns,
        pid: raw.tgid,
        tid: raw.tid,
        cgroup: cgroup(raw.cgroup_id),
        exit_code: (raw.flags & EXIT_CODE_KNOWN != 0).then_some(raw.exit_code),
        group_dead: raw.flags & GROUP_DEAD != 0,
        memory_let_go: raw.flags & MEMORY_LET_GO != 0,
    }
}

fn sharer(raw: &incident::Sharer) -> Sharer {
    let known = |flag: u32| raw.flags & flag != 0;
    Sharer {
        time_ns: raw.time_ns,
        marked_ns: raw.marked_ns,
        victim: raw.victim,
        pid: raw.tgid,
        tid: raw.tid,
        start_ns: (raw.start_boottime_ns != 0).then_some(raw.start_boottime_ns),
        comm: comm(&raw.comm),
        cgroup: cgroup(raw.cgroup_id),
        oom_score_adj: known(incident::SCORE_KNOWN).then_some(raw.oom_score_adj),
        container_init: known(incident::INIT_KNOWN).then(|| known(incident::CONTAINER_INIT)),
        by_exit: known(incident::BY_EXIT),
    }
}

fn cgroup(id: u64) -> Option<CgroupId> {
    (id != 0).then_some(CgroupId(id))
}

/// A name up to its terminating zero.
pub(super) fn comm(raw: &[u8]) -> String {
    let name = raw.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

#[cfg(test)]
pub(crate) mod recorded;

#[cfg(test)]
mod tests;
