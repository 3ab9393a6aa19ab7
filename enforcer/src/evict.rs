//! Carries out what [`crate::policy::engine`] decides, step by step, and reports what came of it.
//!
//! ```text
//! timer, edges ─► reflex thread: meminfo ─► engine ─► usages ─► engine ─► kill ─► engine
//!                      │ reports                                     │ victims, old sets
//!                      ▼                                             ▼
//!                 teller thread ─► events                       reaper thread ─► process_mrelease, close
//! ```
//!
//! Between waking and signalling the reflex thread allocates nothing, opens nothing, waits for no lock and touches no
//! disk. What is slow goes to the two helper threads over bounded queues that it never waits on; what does not fit is
//! counted.

mod candidate;
mod core;
mod executor;
mod gentle;
mod levels;
mod pledge;
mod queue;
mod reap;
mod reflex;
mod rehearsal;
mod report;
mod sources;
mod stat;
#[cfg(test)]
mod tests;
mod turn;

pub use self::{
    candidate::{Candidate, Identity, OpenError},
    gentle::{EndError, Ending, end},
    pledge::Pledges,
    reflex::{Reflex, ReflexConfig, ReflexError, ReflexStats},
    report::{Blindness, Report, Teller},
};
