//! Carries out the decisions of [`crate::policy::engine`] and reports their outcome.
//!
//! ```text
//! timer, edges ─► reflex thread: meminfo ─► engine ─► usages ─► engine ─► kill ─► engine
//!                      │ reports                                     │ victims, old sets
//!                      ▼                                             ▼
//!                 report thread ─► events                       reaper thread ─► process_mrelease
//!                      │                                        close thread ─► old files, limits of the dead
//!                      └─► ask thread ─► API server, SIGTERM, once the decision is on disk
//!                                                               drain thread ─► per-CPU lists, after a death
//!                                                               brake thread ─► memory.high of the next candidate
//!                                                               hook thread ─► preKillHook, before a kill
//! ```
//!
//! Between waking and signalling the reflex thread does not allocate, open files, wait for a lock or touch the disk.
//! Helper threads do slow work. They get it over bounded queues on which the reflex never waits; work that does not
//! fit is counted.

mod brake;
mod candidate;
mod close;
mod core;
mod doomed;
mod drain;
mod endings;
mod event_builder;
mod eviction_loop;
mod executor;
mod failure;
mod fill_detector;
mod graceful;
mod hook;
mod inherited;
mod intents;
mod levels;
mod listener;
mod manual;
mod observer;
mod queue;
mod raised_limits;
mod reap;
mod recheck;
mod reflex;
mod rehearsal;
mod repeat;
mod report;
mod scheduling;
mod soft;
mod sources;
mod spec_state;
mod stat;
#[cfg(test)]
mod tests;

pub(crate) use self::event_builder::{killed_data, shortage_data};
pub use self::{
    brake::BrakeBook,
    candidate::{Accounted, Candidate, Identity, OpenError, pod_key, usage_of},
    doomed::{Holding, look as look_at_dying},
    drain::{LeftSysctl, left_sysctl},
    endings::Endings,
    event_builder::EventBuilder,
    fill_detector::FillWaker,
    graceful::{EndError, Ending, Sent, end},
    hook::{
        HookProgram, HookRun, UnsafeProgram, VERB as HOOK_VERB, clear as clear_hooks,
        end_inherited as end_inherited_hook_process, ended as hook_process_ended,
        hand_on as hand_on_hook_process, is_left as is_hook_left, main as hook_process,
        start as start_hook_process,
    },
    inherited::InheritedEviction,
    intents::EvictionIntents,
    listener::{Listener, Recorded},
    manual::{ManualEviction, Operator},
    observer::{Observer, ReflexStats, Waiting},
    reflex::{Reflex, ReflexConfig, ReflexError},
    repeat::{check_again, kill_again},
    report::{Blindness, End, Report},
    scheduling::Scheduling,
    soft::{Asking, Requested, Requester},
    spec_state::SpecState,
};
