//! Turns the programs' records into owned values with nothing left to interpret.
use enforcer_common::record::{
    CGROUP_KNOWN, CONTAINER_INIT, EDGE_DIRECT_RECLAIM, EDGE_KSWAPD_WAKE, EXIT_CODE_KNOWN, Edge, GROUP_DEAD,
    Header, INIT_KNOWN, KILL_WATCHED, KIND_EDGE, KIND_MARK_VICTIM, KIND_PROCESS_EXIT, LIMIT_KNOWN,
    MEMORY_KNOWN, MarkVictim, ProcessExit, SCORE_KNOWN, UID_KNOWN, VERSION, VICTIM_KILLED,
};
use zerocopy::FromBytes;

use crate::model::CgroupId;

/// One record of a ring buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The OOM killer marked a task.
    Mark(Mark),
    /// A marked process is gone.
    Exit(Exit),
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

/// A task that the OOM killer marked. `None` is always "could not be told", times are of `CLOCK_BOOTTIME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// When.
    pub time_ns: u64,
    /// Thread id; not always that of the leader.
    pub tid: u32,
    /// Process id.
    pub pid: Option<u32>,
    /// When the thread started.
    pub start_ns: Option<u64>,
    /// Name of the thread. Chosen by whoever runs it: escape it where it is shown.
    pub comm: String,
    /// Its cgroup.
    pub cgroup: Option<CgroupId>,
    /// User id.
    pub uid: Option<u32>,
    /// `oom_score_adj`.
    pub oom_score_adj: Option<i32>,
    /// What it had in memory. Up to some hundred KiB off on kernels that count per CPU.
    pub memory: Option<Memory>,
    /// Whether it was the init of a PID namespace, so that its container goes down with it.
    pub container_init: Option<bool>,
    /// Whether the OOM killer killed it. `Some(false)`: it was dying already.
    pub killed: Option<bool>,
    /// The task whose allocation failed.
    pub trigger: Task,
    /// Whose limit was hit, and why the OOM killer was called.
    pub limit: Option<Limited>,
    /// When the reclaim that ended in this OOM began.
    pub reclaim_since_ns: Option<u64>,
}

/// A victim's memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Anonymous.
    pub anon_bytes: u64,
    /// Mapped files.
    pub file_bytes: u64,
    /// Shared memory and tmpfs.
    pub shmem_bytes: u64,
    /// Swapped out.
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

/// What an OOM kill was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limited {
    /// A memory cgroup's limit.
    Cgroup(CgroupId),
    /// The machine itself, or the nodes of a cpuset or memory policy.
    Machine,
}

/// A marked process that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// When.
    pub time_ns: u64,
    /// The time of its mark.
    pub marked_ns: u64,
    /// Process id.
    pub pid: u32,
    /// Thread id of the last thread.
    pub tid: u32,
    /// Its cgroup, as it was at the end.
    pub cgroup: Option<CgroupId>,
    /// Exit code as in `wait(2)`.
    pub exit_code: Option<u32>,
    /// Whether it is known that no thread is left.
    pub group_dead: bool,
}

/// A record that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undecodable {
    /// Shorter than a header.
    #[error("a record of {0} bytes has no header")]
    Torn(usize),
    /// Its length is not what its header or its kind says.
    #[error("a record of kind {kind} has {actual_bytes} bytes, not {expected_bytes}")]
    WrongSize {
        /// The kind.
        kind: u32,
        /// Its length.
        actual_bytes: usize,
        /// What it should be.
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

/// What [`decode`] returns.
pub type Decoded = Result<Record, Undecodable>;

/// Decodes one record of the ring of OOMs or that of edges.
pub fn decode(bytes: &[u8]) -> Decoded {
    let kind = header(bytes)?.kind;
    match kind {
        KIND_MARK_VICTIM => Ok(Record::Mark(mark(&body::<MarkVictim>(kind, bytes)?))),
        KIND_PROCESS_EXIT => Ok(Record::Exit(exit(&body::<ProcessExit>(kind, bytes)?))),
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

/// The header of a record that is whole and of our version.
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

/// A record of that kind; it must be as long as its type.
pub(super) fn body<T: FromBytes>(kind: u32, bytes: &[u8]) -> Result<T, Undecodable> {
    let wrong =
        |_| Undecodable::WrongSize { kind, actual_bytes: bytes.len(), expected_bytes: size_of::<T>() };
    T::read_from_bytes(bytes).map_err(wrong)
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
mod tests;
