//! Records of an OOM besides its marks and exits: other processes killed with a victim, when the victim's memory was
//! freed, and when the kernel's OOM killer finished.
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::record::{COMM_LEN, Header};

/// [`Header::kind`] of [`Sharer`].
pub const KIND_SHARER: u32 = 10;
/// [`Header::kind`] of [`MemoryBack`].
pub const KIND_MEMORY_BACK: u32 = 11;
/// [`Header::kind`] of [`OomOver`].
pub const KIND_OOM_OVER: u32 = 12;

/// A process that is not itself a victim and was killed because it shares a victim's memory (`CLONE_VM` without
/// `CLONE_THREAD`, as after `vfork`). The kernel neither marks nor counts it (`__oom_kill_process` in `mm/oom_kill.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Sharer {
    /// Kind [`KIND_SHARER`].
    pub header: Header,
    /// When it was killed; with [`BY_EXIT`], when it exited.
    pub time_ns: u64,
    /// The [`MarkVictim::time_ns`](crate::record::MarkVictim::time_ns) of the victim whose memory it shares.
    pub marked_ns: u64,
    /// When its first thread started; 0 if unknown.
    pub start_boottime_ns: u64,
    /// Its cgroup; 0 if unknown.
    pub cgroup_id: u64,
    /// Thread id of its leader.
    pub tid: u32,
    /// Process id.
    pub tgid: u32,
    /// The victim's process id, or its thread id if the mark had no process id.
    pub victim: u32,
    /// Its `oom_score_adj`; valid with [`SCORE_KNOWN`].
    pub oom_score_adj: i32,
    /// The flags below.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
    /// Name of its leader, zero-padded; all zero if unknown.
    pub comm: [u8; COMM_LEN],
}

/// [`Sharer::flags`]: the `oom_score_adj` is known.
pub const SCORE_KNOWN: u32 = 1 << 0;
/// [`Sharer::flags`]: sharing is inferred: the OOM killer killed the process after the victim without marking it, which
/// was noticed when the process exited.
pub const BY_EXIT: u32 = 1 << 1;
/// [`Sharer::flags`]: it is known whether the process was the init of a PID namespace.
pub const INIT_KNOWN: u32 = 1 << 2;
/// [`Sharer::flags`]: the process was the init of a PID namespace other than the machine's.
pub const CONTAINER_INIT: u32 = 1 << 3;

impl Sharer {
    /// Size of the record.
    pub const SIZE_BYTES: u16 = 80;

    /// A record with only its header set.
    pub const EMPTY: Self = Self {
        header: Header::new(KIND_SHARER, Self::SIZE_BYTES),
        time_ns: 0,
        marked_ns: 0,
        start_boottime_ns: 0,
        cgroup_id: 0,
        tid: 0,
        tgid: 0,
        victim: 0,
        oom_score_adj: 0,
        flags: 0,
        reserved: 0,
        comm: [0; COMM_LEN],
    };
}

/// A victim's memory was freed: no process has it any more (`exit_mmap` in `mm/mmap.c` has returned).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MemoryBack {
    /// Kind [`KIND_MEMORY_BACK`].
    pub header: Header,
    /// When the memory was freed.
    pub time_ns: u64,
    /// When its latest victim was marked.
    pub marked_ns: u64,
    /// Identifies the memory, as in [`MarkVictim::memory`](crate::record::MarkVictim::memory). Unique among memory that
    /// exists at the same time.
    pub memory: u64,
}

impl MemoryBack {
    /// Size of the record.
    pub const SIZE_BYTES: u16 = 32;

    /// A record for this memory.
    #[must_use]
    pub const fn new(memory: u64, marked_ns: u64, time_ns: u64) -> Self {
        Self { header: Header::new(KIND_MEMORY_BACK, Self::SIZE_BYTES), time_ns, marked_ns, memory }
    }
}

/// The OOM killer finished an OOM in which it marked a victim: no further mark or sharer of this OOM follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OomOver {
    /// Kind [`KIND_OOM_OVER`].
    pub header: Header,
    /// When the OOM killer returned.
    pub time_ns: u64,
    /// When the OOM killer was called: [`MarkVictim::oom_since_ns`](crate::record::MarkVictim::oom_since_ns).
    pub oom_since_ns: u64,
    /// Thread id of the allocating task.
    pub trigger_tid: u32,
    /// Zero.
    pub reserved: u32,
}

impl OomOver {
    /// Size of the record.
    pub const SIZE_BYTES: u16 = 32;

    /// A record for this OOM.
    #[must_use]
    pub const fn new(trigger_tid: u32, oom_since_ns: u64, time_ns: u64) -> Self {
        Self {
            header: Header::new(KIND_OOM_OVER, Self::SIZE_BYTES),
            time_ns,
            oom_since_ns,
            trigger_tid,
            reserved: 0,
        }
    }
}

/// State of an OOM in progress: a value of the `OOMS` map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Ooming {
    /// Address of the `oom_control`.
    pub oom_control: u64,
    /// When the OOM killer was called.
    pub since_ns: u64,
}

/// The latest mark made by a task that runs the OOM killer: a value of the `MARKING` map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Marking {
    /// The victim's memory; 0 if unknown.
    pub memory: u64,
    /// When the victim was marked.
    pub marked_ns: u64,
    /// The victim's process id, or its thread id if only that is known.
    pub victim: u32,
    /// Zero.
    pub reserved: u32,
}

/// A process killed by the OOM killer whose exit is awaited: a value of the `MARKED` map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Awaited {
    /// When the process was marked; before that, when it was killed.
    pub marked_ns: u64,
    /// When the process started; 0 if unknown. The pid may have been reused by now.
    pub start_boottime_ns: u64,
}

impl Awaited {
    /// Whether a process with the same pid and this start time is this one. An unknown start time matches any.
    #[must_use]
    pub const fn is(&self, start_boottime_ns: u64) -> bool {
        self.start_boottime_ns == 0 || start_boottime_ns == 0 || self.start_boottime_ns == start_boottime_ns
    }
}

/// How long after a mark a further kill by the same task counts as part of the same OOM, if the end of an OOM cannot be
/// observed.
pub const SAME_OOM_NS: u64 = 50_000_000;

impl Marking {
    /// Whether a kill at `now_ns` can belong to the same OOM. `end_watched`: the entry is removed when the OOM ends.
    #[must_use]
    pub const fn covers(&self, now_ns: u64, end_watched: bool) -> bool {
        end_watched || now_ns.saturating_sub(self.marked_ns) <= SAME_OOM_NS
    }
}

/// Indices into the `KILL_WATCH` map: what is being watched, so that its absence is meaningful.
pub mod watched {
    /// SIGKILLs of the OOM killer.
    pub const KILLS: u32 = 0;
    /// The ends of OOMs.
    pub const ENDS: u32 = 1;
    /// Memory being freed.
    pub const MEMORY: u32 = 2;
    /// Number of indices.
    pub const COUNT: u32 = 3;
}

const _: () = assert!(size_of::<Sharer>() == Sharer::SIZE_BYTES as usize);
const _: () = assert!(size_of::<MemoryBack>() == MemoryBack::SIZE_BYTES as usize);
const _: () = assert!(size_of::<OomOver>() == OomOver::SIZE_BYTES as usize);
const _: () =
    assert!(align_of::<Sharer>() == 8 && align_of::<MemoryBack>() == 8 && align_of::<OomOver>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_end_a_mark_covers_a_moment() {
        let marking = Marking { marked_ns: 1_000, ..Marking::default() };
        assert!(marking.covers(1_000 + SAME_OOM_NS, false));
        assert!(!marking.covers(1_001 + SAME_OOM_NS, false));
        assert!(marking.covers(u64::MAX, true));
    }
    #[test]
    fn a_number_used_again_is_another_process() {
        let awaited = |start_boottime_ns| Awaited { marked_ns: 9, start_boottime_ns };
        assert!(awaited(5).is(5) && !awaited(5).is(6));
        assert!(awaited(0).is(6) && awaited(5).is(0), "as far as is known");
    }
}
