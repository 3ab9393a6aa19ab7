//! What is told of an OOM beside its marks and exits: who else died with a victim, when its memory was back, and when
//! the kernel's OOM killer was done.
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::record::{COMM_LEN, Header};

/// [`Header::kind`] of [`Sharer`].
pub const KIND_SHARER: u32 = 10;
/// [`Header::kind`] of [`MemoryBack`].
pub const KIND_MEMORY_BACK: u32 = 11;
/// [`Header::kind`] of [`OomOver`].
pub const KIND_OOM_OVER: u32 = 12;

/// A process that is no victim by itself, and was killed for having a victim's memory as its own (`CLONE_VM` without
/// `CLONE_THREAD`, as after `vfork`). The kernel neither marks nor counts it (`__oom_kill_process` in `mm/oom_kill.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Sharer {
    /// Kind [`KIND_SHARER`].
    pub header: Header,
    /// When it was killed; when it exited with [`BY_EXIT`].
    pub time_ns: u64,
    /// The [`MarkVictim::time_ns`](crate::record::MarkVictim::time_ns) of the victim whose memory it has.
    pub marked_ns: u64,
    /// When its first thread started; 0 if unknown.
    pub start_boottime_ns: u64,
    /// Its cgroup; 0 if unknown.
    pub cgroup_id: u64,
    /// Thread id of its leader.
    pub tid: u32,
    /// Process id.
    pub tgid: u32,
    /// The victim, by process id, or by thread id where its mark told no more.
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
/// [`Sharer::flags`]: that it shares the memory is inferred: the OOM killer killed it after the victim and did not
/// mark it, and it was noticed as it exited.
pub const BY_EXIT: u32 = 1 << 1;
/// [`Sharer::flags`]: whether it was the init of a PID namespace could be told.
pub const INIT_KNOWN: u32 = 1 << 2;
/// [`Sharer::flags`]: it was the init of a PID namespace other than the machine's.
pub const CONTAINER_INIT: u32 = 1 << 3;

impl Sharer {
    /// Size of the record.
    pub const SIZE_BYTES: u16 = 80;

    /// A record with its header and nothing else.
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

/// A victim's memory was given back: nobody has it any more (`exit_mmap` in `mm/mmap.c` has returned).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MemoryBack {
    /// Kind [`KIND_MEMORY_BACK`].
    pub header: Header,
    /// When.
    pub time_ns: u64,
    /// When its latest victim was marked.
    pub marked_ns: u64,
    /// Names the memory, as in [`MarkVictim::memory`](crate::record::MarkVictim::memory). Of two that exist at a time
    /// it is different.
    pub memory: u64,
}

impl MemoryBack {
    /// Size of the record.
    pub const SIZE_BYTES: u16 = 32;

    /// A record of this memory.
    #[must_use]
    pub const fn new(memory: u64, marked_ns: u64, time_ns: u64) -> Self {
        Self { header: Header::new(KIND_MEMORY_BACK, Self::SIZE_BYTES), time_ns, marked_ns, memory }
    }
}

/// The OOM killer is done with an OOM in which it marked somebody: no mark and no sharer of it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OomOver {
    /// Kind [`KIND_OOM_OVER`].
    pub header: Header,
    /// When.
    pub time_ns: u64,
    /// When it was called: [`MarkVictim::oom_since_ns`](crate::record::MarkVictim::oom_since_ns).
    pub oom_since_ns: u64,
    /// Thread id of the allocating task.
    pub trigger_tid: u32,
    /// Zero.
    pub reserved: u32,
}

impl OomOver {
    /// Size of the record.
    pub const SIZE_BYTES: u16 = 32;

    /// A record of this OOM.
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

/// What the OOM killer works with in an OOM under way: a value of the `OOMS` map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Ooming {
    /// Address of the `oom_control`.
    pub oom_control: u64,
    /// When the OOM killer was called.
    pub since_ns: u64,
}

/// The latest mark of a task that runs the OOM killer: a value of the `MARKING` map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Marking {
    /// The victim's memory; 0 if unknown.
    pub memory: u64,
    /// When.
    pub marked_ns: u64,
    /// The victim, by process id, or by thread id where no more is known.
    pub victim: u32,
    /// Zero.
    pub reserved: u32,
}

/// A process that the OOM killer kills, until it has exited: a value of the `MARKED` map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Awaited {
    /// When it was marked; until then, when it was killed.
    pub marked_ns: u64,
    /// When it started; 0 if unknown. Its number may be another process's by now.
    pub start_boottime_ns: u64,
}

impl Awaited {
    /// Whether a process of the same number that started then is this one, as far as is known.
    #[must_use]
    pub const fn is(&self, start_boottime_ns: u64) -> bool {
        self.start_boottime_ns == 0 || start_boottime_ns == 0 || self.start_boottime_ns == start_boottime_ns
    }
}

/// How long after a mark a further kill by the same task is taken for one of the same OOM, where the end of an OOM
/// cannot be seen.
pub const SAME_OOM_NS: u64 = 50_000_000;

impl Marking {
    /// Whether a kill at that time can belong to the same OOM. `end_watched`: the entry goes when the OOM is over.
    #[must_use]
    pub const fn covers(&self, now_ns: u64, end_watched: bool) -> bool {
        end_watched || now_ns.saturating_sub(self.marked_ns) <= SAME_OOM_NS
    }
}

/// Indices into the `KILL_WATCH` map: what is being watched, so that its absence says something.
pub mod watched {
    /// SIGKILLs of the OOM killer.
    pub const KILLS: u32 = 0;
    /// The ends of OOMs.
    pub const ENDS: u32 = 1;
    /// Memory that is given back.
    pub const MEMORY: u32 = 2;
    /// How many there are.
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
