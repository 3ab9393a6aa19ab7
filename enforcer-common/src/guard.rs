//! What the programs guard and report: processes without their container's `oom_score_adj`, and writes by other
//! processes to cgroup files that the daemon manages.
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::record::{COMM_LEN, Header};

/// [`Header::kind`] of [`ScoreEdge`].
pub const KIND_SCORE: u32 = 4;
/// [`Header::kind`] of [`WriteEdge`].
pub const KIND_WRITE: u32 = 5;

/// Room for the name of a cgroup file with its terminating zero; the kernel's longest names have 31 letters.
pub const FILE_LEN: usize = 32;

/// Maximum number of containers whose scores are guarded.
pub const MAX_WANTED: u32 = 4096;
/// Maximum number of cgroups whose files are guarded.
pub const MAX_GUARDED: u32 = 8192;

/// How many levels from a task's cgroup upwards are searched for a guarded container, which may have child cgroups.
pub const MAX_LEVELS: u32 = 8;

/// How many records one cgroup may emit before the daemon has to renew its credit. The daemon does so after a moment,
/// and checks the cgroup itself if the credit was used up. So a hostile process that writes a million times a second
/// costs little, and no other cgroup loses a record.
pub const CREDIT: u32 = 64;

/// A guarded container: a value of the `WANTED` map, keyed by cgroup id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Wanted {
    /// The `oom_score_adj` that every process in the cgroup and below it should have.
    pub score: i32,
    /// How much of [`CREDIT`] is used.
    pub reported: u32,
}

/// A cgroup whose files are guarded: a value of the `GUARDED` map, keyed by cgroup id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Guarded {
    /// How much of [`CREDIT`] is used.
    pub reported: u32,
}

/// The daemon itself, whose own actions are not reported: its process id and PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Own {
    /// Device of the namespace's file in the kernel's encoding: major number from bit 20 on.
    pub namespace_dev: u64,
    /// Inode number of the namespace's file.
    pub namespace_ino: u64,
    /// Process id in that namespace; 0 if unknown, and then every process is reported.
    pub pid: u64,
}

impl Own {
    /// No process is exempt.
    pub const NOBODY: Self = Self { namespace_dev: 0, namespace_ino: 0, pid: 0 };
}

/// A process in a guarded container has the wrong `oom_score_adj`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ScoreEdge {
    /// Kind [`KIND_SCORE`].
    pub header: Header,
    /// When the program noticed it.
    pub time_ns: u64,
    /// The guarded container's cgroup; the process may be in a cgroup below it.
    pub cgroup_id: u64,
    /// When the process's first thread started; 0 if unknown.
    pub start_boottime_ns: u64,
    /// When the first thread of the process that caused it started; 0 if unknown.
    pub writer_start_boottime_ns: u64,
    /// Process id.
    pub tgid: u32,
    /// Process id of the process that caused it: it wrote the score, moved the process, or is the process itself.
    pub writer_tgid: u32,
    /// One of the `CAUSE_` constants.
    pub cause: u32,
    /// The score that the process has.
    pub score: i32,
    /// The score that the process should have.
    pub wanted: i32,
    /// Zero.
    pub reserved: u32,
    /// Name of the process's thread, zero-padded.
    pub comm: [u8; COMM_LEN],
    /// Name of the thread that caused it, zero-padded.
    pub writer_comm: [u8; COMM_LEN],
}

/// [`ScoreEdge::cause`]: the process was moved into the container (`cgroup:cgroup_attach_task`).
pub const CAUSE_ATTACHED: u32 = 0;
/// [`ScoreEdge::cause`]: the process was forked there, with its parent's score (`sched:sched_process_fork`).
pub const CAUSE_FORKED: u32 = 1;
/// [`ScoreEdge::cause`]: the process executed another program there (`sched:sched_process_exec`).
pub const CAUSE_EXECUTED: u32 = 2;
/// [`ScoreEdge::cause`]: a process wrote its score (`oom:oom_score_adj_update`).
pub const CAUSE_WRITTEN: u32 = 3;

impl ScoreEdge {
    /// Size of the record.
    pub const SIZE_BYTES: u16 = 96;

    /// A record with only its header set.
    pub const EMPTY: Self = Self {
        header: Header::new(KIND_SCORE, Self::SIZE_BYTES),
        time_ns: 0,
        cgroup_id: 0,
        start_boottime_ns: 0,
        writer_start_boottime_ns: 0,
        tgid: 0,
        writer_tgid: 0,
        cause: 0,
        score: 0,
        wanted: 0,
        reserved: 0,
        comm: [0; COMM_LEN],
        writer_comm: [0; COMM_LEN],
    };
}

/// A process wrote to a file of a guarded cgroup, and the kernel accepted the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WriteEdge {
    /// Kind [`KIND_WRITE`].
    pub header: Header,
    /// When the write ended.
    pub time_ns: u64,
    /// The cgroup.
    pub cgroup_id: u64,
    /// When the writer's first thread started; 0 if unknown.
    pub writer_start_boottime_ns: u64,
    /// Process id of the writer.
    pub writer_tgid: u32,
    /// Zero.
    pub reserved: u32,
    /// Name of the writing thread, zero-padded.
    pub writer_comm: [u8; COMM_LEN],
    /// Name of the file, zero-padded, truncated if longer.
    pub file: [u8; FILE_LEN],
}

impl WriteEdge {
    /// Size of the record.
    pub const SIZE_BYTES: u16 = 88;

    /// A record with only its header set.
    pub const EMPTY: Self = Self {
        header: Header::new(KIND_WRITE, Self::SIZE_BYTES),
        time_ns: 0,
        cgroup_id: 0,
        writer_start_boottime_ns: 0,
        writer_tgid: 0,
        reserved: 0,
        writer_comm: [0; COMM_LEN],
        file: [0; FILE_LEN],
    };
}

/// A file's name as words, the form in which the programs hold it.
pub type FileWords = [u64; FILE_LEN / 8];

/// Whether a write to a file of this name moves processes instead of changing a setting. All bytes after the
/// terminating zero must be zero.
#[must_use]
pub const fn moves_processes(name: &FileWords) -> bool {
    is(name, b"cgroup.procs") || is(name, b"cgroup.threads")
}

const fn is(name: &FileWords, other: &[u8]) -> bool {
    let other = words(other);
    // No loop: the verifier accepts plain comparisons.
    name[0] == other[0] && name[1] == other[1] && name[2] == other[2] && name[3] == other[3]
}

/// A name as words in this machine's byte order. Longer names are truncated.
#[must_use]
pub const fn words(name: &[u8]) -> FileWords {
    let mut words = [0; FILE_LEN / 8];
    let mut at = 0;
    while at < FILE_LEN / 8 {
        let mut bytes = [0; 8];
        let mut within = 0;
        while within < 8 {
            if at * 8 + within < name.len() {
                bytes[within] = name[at * 8 + within];
            }
            within += 1;
        }
        words[at] = u64::from_ne_bytes(bytes);
        at += 1;
    }
    words
}

/// Indices into the `GUARD_COUNTS` map. For each kind, `seen = delivered + dropped + held`.
pub mod counts {
    /// Processes with a wrong score.
    pub const SCORE_SEEN: u32 = 0;
    /// Of these, lost because the ring buffer was full.
    pub const SCORE_DROPPED: u32 = 1;
    /// Of these, not reported because their container had used up its [`CREDIT`](super::CREDIT).
    pub const SCORE_HELD: u32 = 2;
    /// Writes to guarded files.
    pub const WRITE_SEEN: u32 = 3;
    /// Of these, lost because the ring buffer was full.
    pub const WRITE_DROPPED: u32 = 4;
    /// Of these, not reported because their cgroup had used up its [`CREDIT`](super::CREDIT).
    pub const WRITE_HELD: u32 = 5;
    /// Number of counters.
    pub const COUNT: u32 = 6;
}

const _: () = assert!(size_of::<Wanted>() == 8);
const _: () = assert!(size_of::<Guarded>() == 4);
const _: () = assert!(size_of::<Own>() == 24);
const _: () = assert!(size_of::<ScoreEdge>() == ScoreEdge::SIZE_BYTES as usize);
const _: () = assert!(size_of::<WriteEdge>() == WriteEdge::SIZE_BYTES as usize);
// The ring buffer aligns its entries to 8 bytes.
const _: () = assert!(align_of::<ScoreEdge>() == 8 && align_of::<WriteEdge>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_lists_of_processes_move_them() {
        assert!(moves_processes(&words(b"cgroup.procs")));
        assert!(moves_processes(&words(b"cgroup.threads")));
        for other in [b"cgroup.proc".as_slice(), b"cgroup.procsx", b"memory.max", b"", b"cgroup.freeze"] {
            assert!(!moves_processes(&words(other)), "{other:?}");
        }
    }

    #[test]
    fn a_long_name_is_cut_off() {
        let name = [b'x'; 40];
        assert_eq!(words(&name), words(&name[..32]));
        assert_eq!(words(b"ab")[0].to_ne_bytes(), *b"ab\0\0\0\0\0\0");
    }
}
