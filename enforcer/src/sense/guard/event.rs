//! The guard's events, decoded from the programs' records.
use enforcer_common::guard::{
    CAUSE_ATTACHED, CAUSE_EXECUTED, CAUSE_FORKED, CAUSE_WRITTEN, KIND_SCORE, KIND_WRITE, ScoreEdge, WriteEdge,
};

use crate::{
    model::CgroupId,
    sense::{
        Undecodable,
        record::{body, comm, header},
    },
};

/// An event about something guarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardEvent {
    /// A process in a container has a wrong score.
    Score(WrongScore),
    /// Another process wrote to a file of a guarded cgroup, and the kernel took it. The value may be the wanted one.
    Written(ForeignWrite),
    /// Too many events of one container or cgroup, not all reported: check all of it.
    Overrun {
        /// Its id.
        cgroup: CgroupId,
        /// What to check.
        of: Kept,
    },
    /// This many events of any cgroups were lost: check everything. Comes at most ten times a second.
    Lost(u64),
}

/// What the daemon keeps of a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kept {
    /// The scores of its processes.
    Scores,
    /// Its files.
    Files,
}

/// A process with a wrong score. Times are of `CLOCK_BOOTTIME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongScore {
    /// When it was seen.
    pub time_ns: u64,
    /// The container; the process may be in a cgroup below it.
    pub container: CgroupId,
    /// The process.
    pub process: Process,
    /// The process's id as we see it in /proc; `None` outside of the machine's own PID namespace.
    pub pid: Option<u32>,
    /// How the process got it.
    pub cause: ScoreCause,
    /// Its score.
    pub score: i16,
    /// The score that it should have had then.
    pub wanted: i16,
    /// The process that caused it: the writer, the mover, the parent, or the process itself.
    pub writer: Process,
}

/// How a process came to have a wrong score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreCause {
    /// It was moved into the container.
    Attached,
    /// It was forked there, with its parent's score.
    Forked,
    /// It executed another program there.
    Executed,
    /// A process wrote its score.
    Written,
}

/// A write of another process to a file of a guarded cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignWrite {
    /// When the write ended.
    pub time_ns: u64,
    /// The cgroup.
    pub cgroup: CgroupId,
    /// The file's name.
    pub file: String,
    /// The process that wrote.
    pub writer: Process,
}

/// A process as numbered in the machine's own PID namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// When it started, in nanoseconds of `CLOCK_BOOTTIME`.
    pub start_ns: Option<u64>,
    /// Name of the thread that was seen. Its user chose it: escape it for display.
    pub comm: String,
}

/// Decodes one record. `pids_are_ours`: our PID namespace is the machine's own.
pub(super) fn decode(bytes: &[u8], pids_are_ours: bool) -> Result<GuardEvent, Undecodable> {
    let kind = header(bytes)?.kind;
    match kind {
        KIND_SCORE => Ok(GuardEvent::Score(wrong_score(&body::<ScoreEdge>(kind, bytes)?, pids_are_ours)?)),
        KIND_WRITE => {
            let raw = body::<WriteEdge>(kind, bytes)?;
            Ok(GuardEvent::Written(ForeignWrite {
                time_ns: raw.time_ns,
                cgroup: CgroupId(raw.cgroup_id),
                file: comm(&raw.file),
                writer: process(raw.writer_tgid, raw.writer_start_boottime_ns, &raw.writer_comm),
            }))
        }
        unknown => Err(Undecodable::UnknownKind(unknown)),
    }
}

fn wrong_score(raw: &ScoreEdge, pids_are_ours: bool) -> Result<WrongScore, Undecodable> {
    let cause = match raw.cause {
        CAUSE_ATTACHED => ScoreCause::Attached,
        CAUSE_FORKED => ScoreCause::Forked,
        CAUSE_EXECUTED => ScoreCause::Executed,
        CAUSE_WRITTEN => ScoreCause::Written,
        unknown => return Err(Undecodable::UnknownEdge(unknown)),
    };
    let score = |score: i32| i16::try_from(score).map_err(|_too_large| Undecodable::ImpossibleScore(score));
    Ok(WrongScore {
        time_ns: raw.time_ns,
        container: CgroupId(raw.cgroup_id),
        process: process(raw.tgid, raw.start_boottime_ns, &raw.comm),
        pid: (pids_are_ours && raw.tgid != 0).then_some(raw.tgid),
        cause,
        score: score(raw.score)?,
        wanted: score(raw.wanted)?,
        writer: process(raw.writer_tgid, raw.writer_start_boottime_ns, &raw.writer_comm),
    })
}

fn process(pid: u32, start_ns: u64, name: &[u8]) -> Process {
    Process { pid, start_ns: (start_ns != 0).then_some(start_ns), comm: comm(name) }
}
