//! The records that the programs write into their ring buffers.
//!
//! Times are nanoseconds of `CLOCK_BOOTTIME`; sizes are bytes. Numbers are in native byte order: a record never
//! leaves its machine.
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Length of a kernel task name with its terminating zero (`TASK_COMM_LEN`).
pub const COMM_LEN: usize = 16;

/// Version of the record layouts. It rises with every change except a new kind or a new field at the end of
/// [`MarkVictim`] or [`ProcessExit`], whose sizes show which fields they have.
pub const VERSION: u16 = 2;

/// [`Header::kind`] of [`MarkVictim`].
pub const KIND_MARK_VICTIM: u32 = 1;
/// [`Header::kind`] of [`ProcessExit`].
pub const KIND_PROCESS_EXIT: u32 = 2;
/// [`Header::kind`] of [`Edge`].
pub const KIND_EDGE: u32 = 3;

/// The start of every record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// One of the `KIND_` constants.
    pub kind: u32,
    /// Size of the whole record in bytes, this header included.
    pub size_bytes: u16,
    /// [`VERSION`] of the writer.
    pub version: u16,
}

impl Header {
    /// A header for a record of this kind and size.
    #[must_use]
    pub const fn new(kind: u32, size_bytes: u16) -> Self {
        Self { kind, size_bytes, version: VERSION }
    }
}

/// The kernel marked a task as the victim of its OOM killer (`oom:mark_victim`).
///
/// A mark alone is not a kill: the tracepoint also fires for a task that was already dying. [`VICTIM_KILLED`]
/// distinguishes the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MarkVictim {
    /// Kind [`KIND_MARK_VICTIM`].
    pub header: Header,
    /// When it was marked.
    pub time_ns: u64,
    /// When the victim's thread started: with the thread id, a key that is safe against pid reuse. 0 if unknown.
    pub start_boottime_ns: u64,
    /// The victim's cgroup (inode number of its directory); valid with [`CGROUP_KNOWN`].
    pub cgroup_id: u64,
    /// The allocating task's cgroup; 0 if unknown.
    pub trigger_cgroup_id: u64,
    /// The cgroup whose limit was hit; valid with [`LIMIT_KNOWN`], and then 0 means the whole machine.
    pub limit_cgroup_id: u64,
    /// When the reclaim of the allocating task that ended in this OOM began; 0 if none was seen.
    pub reclaim_since_ns: u64,
    /// When the kernel's OOM killer was called for this OOM. Marks with this time and the same trigger's thread id
    /// belong to one OOM. 0 if unknown.
    pub oom_since_ns: u64,
    /// The cgroup in whose counters the kernel counts the kill: that of the memory's owner, or its nearest ancestor
    /// with the memory controller. 0 if unknown.
    pub counted_cgroup_id: u64,
    /// Identifies the victim's memory, as in [`MemoryBack::memory`](crate::incident::MemoryBack::memory); 0 if unknown.
    pub memory: u64,
    /// The victim's anonymous memory; the four sizes are valid with [`MEMORY_KNOWN`].
    pub anon_bytes: u64,
    /// The victim's mapped file pages.
    pub file_bytes: u64,
    /// The victim's mapped shared memory and tmpfs pages.
    pub shmem_bytes: u64,
    /// The victim's swapped-out memory; 0 if only the tracepoint's own fields are available.
    pub swap_bytes: u64,
    /// The victim's page tables.
    pub pgtables_bytes: u64,
    /// Thread id of the victim. The tracepoint passes a thread, not always the leader.
    pub tid: u32,
    /// Process id of the victim; 0 if unknown.
    pub tgid: u32,
    /// Thread id of the allocating task.
    pub trigger_tid: u32,
    /// Process id of the allocating task.
    pub trigger_tgid: u32,
    /// User id of the victim; valid with [`UID_KNOWN`].
    pub uid: u32,
    /// The victim's `oom_score_adj`; valid with [`SCORE_KNOWN`].
    pub oom_score_adj: i32,
    /// The kernel's `enum oom_constraint`; valid with [`LIMIT_KNOWN`]. 0 none, 1 cpuset, 2 memory policy,
    /// 3 memory cgroup.
    pub constraint: u32,
    /// The flags below.
    pub flags: u32,
    /// Name of the victim's thread, zero-padded; all zero if unknown.
    pub comm: [u8; COMM_LEN],
    /// Name of the allocating thread, zero-padded.
    pub trigger_comm: [u8; COMM_LEN],
    /// The counted cgroup's own `oom` in `memory.events.local`, just after the kernel counted this kill: the cgroup may be
    /// gone before a process can read the file. The three counts are valid with [`COUNTS_KNOWN`].
    pub counted_oom: u64,
    /// Its `oom_kill`.
    pub counted_oom_kill: u64,
    /// Its `oom_group_kill`.
    pub counted_oom_group_kill: u64,
}

/// [`MarkVictim::cgroup_id`] was read from the victim itself.
pub const CGROUP_KNOWN: u32 = 1 << 0;
/// The `oom_control` of this OOM was read: limit owner and constraint are known.
pub const LIMIT_KNOWN: u32 = 1 << 1;
/// Kills are being watched, so the absence of [`VICTIM_KILLED`] is meaningful.
pub const KILL_WATCHED: u32 = 1 << 2;
/// The OOM killer sent SIGKILL to this task just before it marked it. Without this flag, and with
/// [`KILL_WATCHED`], the task was already dying.
pub const VICTIM_KILLED: u32 = 1 << 3;
/// It is known whether the victim was a PID namespace's init.
pub const INIT_KNOWN: u32 = 1 << 4;
/// The victim was the init of a PID namespace other than the machine's: its container dies with it.
pub const CONTAINER_INIT: u32 = 1 << 5;
/// The sizes are known.
pub const MEMORY_KNOWN: u32 = 1 << 6;
/// The user id is known.
pub const UID_KNOWN: u32 = 1 << 7;
/// The `oom_score_adj` is known.
pub const SCORE_KNOWN: u32 = 1 << 8;
/// An [`OomOver`](crate::incident::OomOver) will report the end of this OOM.
pub const END_WATCHED: u32 = 1 << 9;
/// A [`MemoryBack`](crate::incident::MemoryBack) will report when the victim's memory is freed.
pub const MEMORY_WATCHED: u32 = 1 << 10;
/// The counters of [`MarkVictim::counted_cgroup_id`] were read.
pub const COUNTS_KNOWN: u32 = 1 << 11;

impl MarkVictim {
    /// Size of the record.
    pub const SIZE_BYTES: u16 = 208;

    /// Size of a record of earlier builds, which lacks the counters.
    pub const BYTES_WITHOUT_COUNTERS: u16 = 184;

    /// A record with only its header set.
    pub const EMPTY: Self = Self {
        header: Header::new(KIND_MARK_VICTIM, Self::SIZE_BYTES),
        time_ns: 0,
        start_boottime_ns: 0,
        cgroup_id: 0,
        trigger_cgroup_id: 0,
        limit_cgroup_id: 0,
        reclaim_since_ns: 0,
        oom_since_ns: 0,
        counted_cgroup_id: 0,
        memory: 0,
        anon_bytes: 0,
        file_bytes: 0,
        shmem_bytes: 0,
        swap_bytes: 0,
        pgtables_bytes: 0,
        tid: 0,
        tgid: 0,
        trigger_tid: 0,
        trigger_tgid: 0,
        uid: 0,
        oom_score_adj: 0,
        constraint: 0,
        flags: 0,
        comm: [0; COMM_LEN],
        trigger_comm: [0; COMM_LEN],
        counted_oom: 0,
        counted_oom_kill: 0,
        counted_oom_group_kill: 0,
    };

    /// Reads a whole record of this build or of an earlier one; `None` if its length fits neither.
    #[must_use]
    pub fn read(record: &[u8]) -> Option<Self> {
        read_grown::<Self, { Self::SIZE_BYTES as usize }>(record, Self::BYTES_WITHOUT_COUNTERS)
    }

    /// Whether all of `flags` are set.
    #[must_use]
    pub const fn has(&self, flags: u32) -> bool {
        self.flags & flags == flags
    }
}

/// A marked process exited (`sched:sched_process_exit` of its last thread).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ProcessExit {
    /// Kind [`KIND_PROCESS_EXIT`].
    pub header: Header,
    /// When the thread exited.
    pub time_ns: u64,
    /// The [`MarkVictim::time_ns`] that this exit belongs to.
    pub marked_ns: u64,
    /// Its cgroup, read from the exiting task: the victim's cgroup if the mark did not contain it. 0 if unknown.
    pub cgroup_id: u64,
    /// Thread id.
    pub tid: u32,
    /// Process id.
    pub tgid: u32,
    /// Exit code as in `wait(2)`: the low seven bits are the signal. Valid with [`EXIT_CODE_KNOWN`].
    pub exit_code: u32,
    /// The flags below.
    pub flags: u32,
    /// When the process started: with its id, a key that is safe against pid reuse. 0 if unknown.
    pub start_boottime_ns: u64,
}

/// [`ProcessExit::exit_code`] was read.
pub const EXIT_CODE_KNOWN: u32 = 1 << 0;
/// This is known to be the last thread of the process. Without this flag, the marked thread has exited and other
/// threads of its process may still run.
pub const GROUP_DEAD: u32 = 1 << 1;
/// The exiting task had already released its memory. If no other task shared it, it was free by then.
pub const MEMORY_LET_GO: u32 = 1 << 2;
/// The exit itself was not seen: its time is when the process was freed after its parent had waited for it.
pub const FREED: u32 = 1 << 3;

impl ProcessExit {
    /// Size of the record.
    pub const SIZE_BYTES: u16 = 56;

    /// Size of a record of earlier builds, which lacks the process's start time.
    pub const STARTLESS_BYTES: u16 = 48;

    /// A record with only its header set.
    pub const EMPTY: Self = Self {
        header: Header::new(KIND_PROCESS_EXIT, Self::SIZE_BYTES),
        time_ns: 0,
        marked_ns: 0,
        cgroup_id: 0,
        tid: 0,
        tgid: 0,
        exit_code: 0,
        flags: 0,
        start_boottime_ns: 0,
    };

    /// Reads a whole record of this build or of an earlier one; `None` if its length fits neither.
    #[must_use]
    pub fn read(record: &[u8]) -> Option<Self> {
        read_grown::<Self, { Self::SIZE_BYTES as usize }>(record, Self::STARTLESS_BYTES)
    }
}

/// Reads a record that was shorter in earlier builds; what it lacks is zero.
fn read_grown<T: FromBytes, const BYTES: usize>(record: &[u8], earlier_bytes: u16) -> Option<T> {
    if record.len() != usize::from(earlier_bytes) {
        return T::read_from_bytes(record).ok();
    }
    let mut whole = [0; BYTES];
    whole.get_mut(..record.len())?.copy_from_slice(record);
    T::read_from_bytes(&whole).ok()
}

/// Memory is short enough for the kernel to act: a wake-up for the sampler, not a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Edge {
    /// Kind [`KIND_EDGE`].
    pub header: Header,
    /// When it happened.
    pub time_ns: u64,
    /// One of the `EDGE_` constants.
    pub edge: u32,
    /// The NUMA node for [`EDGE_KSWAPD_WAKE`], the thread id of the reclaiming task otherwise.
    pub subject: u32,
}

/// [`Edge::edge`]: kswapd woke because free memory is below the low watermark.
pub const EDGE_KSWAPD_WAKE: u32 = 0;
/// [`Edge::edge`]: an allocating task began direct reclaim because the machine is short of memory.
pub const EDGE_DIRECT_RECLAIM: u32 = 1;
/// Number of edge kinds.
pub const EDGES: u32 = 2;

impl Edge {
    /// Size of the record.
    pub const SIZE_BYTES: u16 = 24;

    /// An edge of this kind.
    #[must_use]
    pub const fn new(edge: u32, subject: u32, time_ns: u64) -> Self {
        Self { header: Header::new(KIND_EDGE, Self::SIZE_BYTES), time_ns, edge, subject }
    }
}

const _: () = assert!(size_of::<Header>() == 8);
const _: () = assert!(size_of::<MarkVictim>() == MarkVictim::SIZE_BYTES as usize);
const _: () = assert!(size_of::<ProcessExit>() == ProcessExit::SIZE_BYTES as usize);
const _: () = assert!(size_of::<Edge>() == Edge::SIZE_BYTES as usize);
// The ring buffer aligns its entries to 8 bytes.
const _: () =
    assert!(align_of::<MarkVictim>() == 8 && align_of::<ProcessExit>() == 8 && align_of::<Edge>() == 8);
