//! Carries out what [`crate::policy::engine`] decides, step by step, and reports what came of it.
//!
//! ```text
//! timer, edges ─► reflex thread: meminfo ─► engine ─► usages ─► engine ─► kill ─► engine
//!                      │ reports                                     │ victims, old sets
//!                      ▼                                             ▼
//!                 teller thread ─► events                       reaper thread ─► process_mrelease, close
//!                                                               drain thread ─► per-CPU lists, after a death
//!                                                               brake thread ─► memory.high of the next candidate
//!                                                               hook thread ─► the administrator's program, before a kill
//! ```
//!
//! Between waking and signalling the reflex thread allocates nothing, opens nothing, waits for no lock and touches no
//! disk. What is slow goes to the helper threads over bounded queues that it never waits on; what does not fit is
//! counted.

mod brake;
mod by_hand;
mod candidate;
mod core;
mod drain;
mod endings;
mod executor;
mod failure;
mod gentle;
mod hook;
mod lent;
mod levels;
mod listener;
mod observer;
mod onset;
mod pledge;
mod queue;
mod reap;
mod reflex;
mod rehearsal;
mod report;
mod retry;
mod scheduling;
mod sources;
mod stat;
mod teller;
#[cfg(test)]
mod tests;
mod turn;

pub(crate) use self::teller::shortage_data;
pub use self::{
    brake::BrakeBook,
    by_hand::{ByHand, Operator},
    candidate::{Candidate, Identity, OpenError, pod_key},
    endings::Endings,
    gentle::{EndError, Ending, Sent, end},
    hook::{HookProgram, HookRun, UnsafeProgram, clear as clear_hooks},
    listener::Listener,
    observer::{Observer, ReflexStats, Waiting},
    onset::Alarm,
    pledge::Pledges,
    reflex::{Reflex, ReflexConfig, ReflexError},
    report::{Blindness, Report},
    scheduling::Scheduling,
    teller::Teller,
};
