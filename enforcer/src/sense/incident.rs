//! Makes one incident of what the kernel tells in pieces: marks, exits, counters.
//!
//! [`Incidents`] is a pure state machine. Records, counter readings and the passing of time go in, each with
//! the time at which it does; what is to be told, and what is to be read, comes out. It does no IO, and asks
//! the [`World`] only whose a cgroup is.
//!
//! One OOM of the kernel is told by one event: marks with the same limit owner and trigger that are less than
//! [`FOLD_NS`] apart belong together (a group kill marks each process). It closes as soon as the victims have
//! exited and the counters are read, at the latest [`CLOSE_NS`] after its first mark.

mod counts;
mod event;
mod machine;
mod open;

pub use self::{
    counts::{OomCounts, Reconciliation},
    event::{
        Averted, AvertedCause, Detected, Incident, LimitSource, Place, Scope, Timeline, Trigger, Victim,
    },
    machine::{Incidents, Input, Output, World},
};

/// Marks further apart than this are of different OOMs.
pub const FOLD_NS: u64 = 50_000_000;
/// When the counters are read at the latest, counted from the first mark.
pub const READ_NS: u64 = 900_000_000;
/// When an incident is closed at the latest, counted from the first mark.
pub const CLOSE_NS: u64 = 1_000_000_000;
/// How long a victim is remembered after its incident closed: other threads of it may still be marked.
pub const REMEMBER_NS: u64 = 10_000_000_000;
/// Most incidents that are open at once. One more closes the oldest as it is.
pub const MAX_OPEN: usize = 16_384;
/// How many levels above a victim are read. The kernel itself has no limit; nobody nests deeper.
pub const MAX_LEVELS: usize = 16;

#[cfg(test)]
mod tests;
