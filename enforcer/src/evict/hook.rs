//! The helper thread that runs a program before a victim is signalled.
//!
//! The eviction waits for it, and for no longer than the engine says; the program is killed then, with everything that it
//! started. Nothing that it does or says changes what becomes of the victim, except that nobody is signalled if the
//! shortage is over by then.

mod environment;
mod process;
mod program;
#[cfg(test)]
mod tests;

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::{event::EventfdFlags, time::ClockId};
use ulid::Ulid;

pub use self::program::{HookProgram, UnsafeProgram};
use super::{candidate::Candidate, queue::Receiver, report::Report, turn::now_ns};
use crate::policy::engine::{Decision, HookEnd, Outcome};

/// What the reflex hands over: the eviction that the program is to be run for.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: Ulid,
    pub(super) decision: Decision,
    pub(super) candidate: Arc<Candidate>,
    /// When it must be over, in nanoseconds of `CLOCK_BOOTTIME`.
    pub(super) deadline_ns: u64,
}

/// What came of a run.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HookRun {
    /// How it ended.
    pub end: HookEnd,
    /// How long it ran, in nanoseconds.
    pub ran_ns: u64,
    /// The last of what it wrote to its standard output and error, bytes that are no text replaced.
    pub output: String,
    /// How many bytes that were in all.
    pub output_bytes: u64,
}

impl HookRun {
    fn nothing(end: HookEnd) -> Self {
        Self { end, ran_ns: 0, output: String::new(), output_bytes: 0 }
    }
}

/// What the helper shares with the reflex, and with whoever configures it.
#[derive(Debug)]
pub(super) struct Hooks {
    /// The reflex never takes this lock.
    program: Mutex<Option<HookProgram>>,
    /// Runs for evictions up to this number are to end now.
    cut: AtomicU64,
    bell: OwnedFd,
}

impl Hooks {
    pub(super) fn new(program: Option<HookProgram>) -> io::Result<Self> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { program: Mutex::new(program), cut: AtomicU64::new(0), bell })
    }

    pub(super) fn configure(&self, program: Option<HookProgram>) {
        *self.program.lock().unwrap_or_else(PoisonError::into_inner) = program;
    }

    /// Has the run for that eviction ended, and those before; allocates nothing and waits for nobody.
    pub(super) fn cut(&self, number: u64) {
        self.cut.fetch_max(number, Ordering::Release);
        // It can only fail when the counter is full, and then the helper is about to wake anyway.
        let _rung = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    fn is_cut(&self, number: u64) -> bool {
        let mut rings = [0_u8; 8];
        let _quiet = rustix::io::read(&self.bell, &mut rings);
        self.cut.load(Ordering::Acquire) >= number
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// Works until the reflex is gone.
pub(super) fn run(
    queue: &Receiver<Job>,
    hooks: &Hooks,
    tell: impl Fn(Report),
    mut answer: impl FnMut(Outcome),
) {
    let mut undead = process::Undead::default();
    while let Some(job) = queue.next() {
        let ran = run_one(&job, hooks, &mut undead);
        let Job { id, decision, candidate, deadline_ns: _ } = job;
        let (number, signal, end) = (decision.number, decision.shortage.signal, ran.end);
        tell(Report::Hooked { id, signal, candidate, plan: decision.hook, ran });
        answer(Outcome::HookEnded { number, now_ns: now_ns(ClockId::Boottime), end });
    }
}

fn run_one(job: &Job, hooks: &Hooks, undead: &mut process::Undead) -> HookRun {
    let program = hooks.program.lock().unwrap_or_else(PoisonError::into_inner).clone();
    // Taken out of the configuration after the decision.
    let Some(program) = program else { return HookRun::nothing(HookEnd::Cut) };
    if let Err(error) = program.check() {
        tracing::warn!(error = &error as &dyn std::error::Error, "preKillHook is not run");
        return HookRun::nothing(HookEnd::Unsafe);
    }
    process::run(&program, job, hooks, undead)
}
