//! Makes one incident of what the kernel tells in pieces: marks, exits, memory that is back, counters.
//!
//! [`Incidents`] is a pure state machine. Records, counter readings and the passing of time go in, each with
//! the time at which it does; what is to be told, and what is to be read, comes out. It does no IO, and asks
//! the [`World`] only whose a cgroup is.
//!
//! One OOM of the kernel is told by one event: marks of one call of the OOM killer belong together (a group kill marks
//! each process). Where the call is not known, marks with the same limit owner and trigger do that are less than
//! [`FOLD_NS`] apart. It closes as soon as the OOM is over, the victims have exited, their memory is back and the counters
//! are read, at the latest [`CLOSE_NS`] after its last mark.
//!
//! Every kill that a cgroup's counters show and no record explains is told as well, as an incident that was
//! reconstructed; see `ledger`.

mod counts;
mod event;
mod ledger;
mod machine;
mod open;
mod rebuild;
mod scene;
mod tally;

pub use self::{
    counts::{OomCounts, Reconciliation},
    event::{
        Averted, AvertedCause, Detected, Incident, LimitSource, MemoryBackSource, Place, Scope, SharedBy,
        Timeline, Trigger, Victim, VictimMemory,
    },
    machine::{Incidents, Input, Output, Tracing, World},
};

/// Marks further apart than this are of different OOMs, where nothing tells it better.
pub const FOLD_NS: u64 = 50_000_000;
/// An exit may be told so long before its mark: the victim runs on another CPU.
pub const EARLY_NS: u64 = 100_000_000;
/// Most exits that wait for their mark.
pub const MAX_EARLY: usize = 256;
/// When the counters are read at the latest, counted from the last mark.
pub const READ_NS: u64 = 900_000_000;
/// When an incident is closed at the latest, counted from the last mark.
pub const CLOSE_NS: u64 = 1_000_000_000;
/// When it is closed at the latest, counted from the first mark: a group kill of thousands marks for long.
pub const LONGEST_NS: u64 = 5_000_000_000;
/// How long a victim is remembered after its incident closed: other threads of it may still be marked.
pub const REMEMBER_NS: u64 = 10_000_000_000;
/// How long what a cgroup's counters show is left to be explained by records, where kills are traced. The kernel counts
/// a kill first and marks the victim then (`__oom_kill_process` in `mm/oom_kill.c`), on the time of the task that ran into
/// the limit: one of the lowest weight may wait for seconds between the two on a busy machine.
pub const GRACE_NS: u64 = 3_000_000_000;
/// How long after the first sign of a kill the counters are read, where kills are not traced: a group kill takes a
/// moment.
pub const SETTLE_NS: u64 = 100_000_000;
/// How long a suspicion waits for open incidents of its cgroup.
pub const SUSPECT_NS: u64 = 10_000_000_000;
/// How long a cgroup that is gone keeps its account, for late records.
pub const GONE_NS: u64 = 60_000_000_000;
/// Most incidents that are open at once. One more closes the oldest as it is.
pub const MAX_OPEN: usize = 16_384;
/// How many levels above a victim are read. The kernel itself has no limit; nobody nests deeper.
pub const MAX_LEVELS: usize = 16;

#[cfg(test)]
mod tests;
