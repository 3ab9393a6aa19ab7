//! Joins the kernel's separate records of one OOM into one incident: marks, exits, freed memory, counters.
//!
//! [`Incidents`] is a pure state machine. Records, counter readings and ticks go in, each with its time; events to
//! emit and counters to read come out. It does no IO, and asks the [`World`] only for the owners of cgroups.
//!
//! One OOM of the kernel becomes one event: marks of one call of the OOM killer belong together (a group kill marks
//! each process). If the call is not known, marks with the same limit owner and trigger that are less than
//! [`FOLD_NS`] apart belong together. It closes as soon as the OOM is over, the victims have exited, their memory is
//! freed, the counters are read and all names are known, at the latest [`CLOSE_NS`] after its last mark; later only if the
//! daemon is behind with the counters, or for [`NAMED_NS`] if names are missing that may still come.
//!
//! A kill that a cgroup's counters show and no record explains is reported as a reconstructed incident; see
//! `ledger`.

mod event;
mod ledger;
mod machine;
mod open;
mod rebuild;
mod scene;
mod tally;

pub use enforcer_events::{
    oom::{
        Averted, AvertedCause, Detected, Incident, LimitSource, MemoryBackSource, OomCounts, Reconciliation,
        Scope, SharedBy, Timeline, Trigger, Victim, VictimMemory,
    },
    pod::Place,
};

pub(in crate::sense) use self::event::{place_of, pod_name};
pub use self::{
    event::About,
    machine::{Eviction, Incidents, Input, Output, Tracing, World},
};

/// Marks further apart than this belong to different OOMs, if the call of the OOM killer is not known.
pub const FOLD_NS: u64 = 50_000_000;
/// An exit may be recorded this long before its mark: the victim runs on another CPU.
pub const EARLY_NS: u64 = 100_000_000;
/// The most exits that wait for their mark.
pub const MAX_EARLY: usize = 256;
/// Latest time to read the counters, counted from the last mark.
pub const READ_NS: u64 = 900_000_000;
/// Latest time to close an incident, counted from the last mark.
pub const CLOSE_NS: u64 = 1_000_000_000;
/// How much longer an incident waits for counters that it has asked for: they are read by this daemon, which may be
/// behind.
pub const ANSWER_NS: u64 = 4_000_000_000;
/// How much longer an incident waits for names of pods and containers that are missing, when all else is known: the
/// container runtime is slow just when memory is short. Once that does not know them, nothing is waited for.
pub const NAMED_NS: u64 = 5_000_000_000;
/// How often an incident looks again for names of pods and containers that are missing.
pub const NAME_NS: u64 = 20_000_000;
/// Latest time to close an incident, counted from the first mark and without [`ANSWER_NS`] and [`NAMED_NS`]: a group kill of thousands
/// marks for long.
pub const LONGEST_NS: u64 = 5_000_000_000;
/// How long a victim is remembered after its incident closed: other threads of it may still be marked.
pub const REMEMBER_NS: u64 = 10_000_000_000;
/// How long counts of a cgroup may wait for records that explain them, if kills are traced. The kernel counts a kill
/// before it marks the victim (`__oom_kill_process` in `mm/oom_kill.c`), and does so in the task that hit the limit:
/// at the lowest weight, seconds may pass between the two on a busy machine.
pub const GRACE_NS: u64 = 3_000_000_000;
/// How long after the first sign of a kill the counters are read, if kills are not traced: a group kill takes a
/// moment.
pub const SETTLE_NS: u64 = 100_000_000;
/// How long a suspicion waits for open incidents of its cgroup.
pub const SUSPECT_NS: u64 = 10_000_000_000;
/// How long the account of a removed cgroup is kept, for late records.
pub const GONE_NS: u64 = 60_000_000_000;
/// The most open incidents. One more closes the oldest in its current state.
pub const MAX_OPEN: usize = 16_384;
/// How many levels above a victim are read. The kernel has no limit of its own; real hierarchies are not deeper.
pub const MAX_LEVELS: usize = 16;

#[cfg(test)]
mod tests;
