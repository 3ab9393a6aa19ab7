//! The helper thread that runs a program before a victim is signalled.
//!
//! The eviction waits for it only as long as the engine allows. Then the program is killed with everything that it
//! started. The hook process (`privileged`) starts it, with the rights that the daemon has given up. Neither its result nor its output changes the victim's fate, except that nothing is signalled if the
//! shortage is over by then.

mod cgroup;
mod environment;
mod privileged;
mod process;
mod program;
mod started;
mod tail;
#[cfg(test)]
mod tests;

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
};

use rustix::{event::EventfdFlags, io::Errno};
use ulid::Ulid;

use self::process::{KilledPrograms, Run};
pub use self::{
    privileged::{VERB, end_inherited, ended, hand_on, main, start},
    program::{HookProgram, UnsafeProgram},
};
use super::{
    candidate::Candidate,
    queue::{Receiver, Sender},
    report::Report,
};
use crate::{
    clock,
    policy::engine::{Decision, HookEnd, Outcome},
};

/// A request of the reflex: the eviction to run the program for.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: Ulid,
    pub(super) decision: Decision,
    pub(super) candidate: Arc<Candidate>,
    /// When it must be over, in nanoseconds of `CLOCK_BOOTTIME`.
    pub(super) deadline_ns: u64,
}

/// The result of a run.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HookRun {
    /// How it ended.
    pub end: HookEnd,
    /// How long it ran, in nanoseconds.
    pub ran_ns: u64,
    /// The end of its standard output and error, with invalid UTF-8 replaced.
    pub output: String,
    /// The length of all its output in bytes.
    pub output_bytes: u64,
}

impl HookRun {
    fn nothing(end: HookEnd) -> Self {
        Self { end, ran_ns: 0, output: String::new(), output_bytes: 0 }
    }
}

/// The state of the helper, as the reflex sees it.
mod doing {
    /// It has no run.
    pub(super) const NOTHING: u8 = 0;
    /// It starts a run and does not follow it yet. It may be stuck in that: the program's file can be on a disk that
    /// does not respond.
    pub(super) const BEGINNING: u8 = 1;
    /// It follows a run, and can end it on request.
    pub(super) const FOLLOWING: u8 = 2;
}

/// The state that the helper shares with the reflex and the configuration.
#[derive(Debug)]
pub(super) struct Hooks {
    /// The reflex never takes this lock.
    program: Mutex<Option<HookProgram>>,
    /// The queue for reports of runs; `None` once nothing waits for the helper. The reflex never takes this lock.
    reports: Mutex<Option<Sender<Report>>>,
    /// Runs for evictions up to this number must end now.
    cut: AtomicU64,
    doing: AtomicU8,
    /// Reports dropped because their queue was full.
    dropped: AtomicU64,
    waker: OwnedFd,
}

impl Hooks {
    pub(super) fn new(program: Option<HookProgram>, reports: Option<Sender<Report>>) -> io::Result<Self> {
        let waker = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            program: Mutex::new(program),
            reports: Mutex::new(reports),
            cut: AtomicU64::new(0),
            doing: AtomicU8::new(doing::NOTHING),
            dropped: AtomicU64::new(0),
            waker,
        })
    }

    pub(super) fn configure(&self, program: Option<HookProgram>) {
        *self.program.lock().unwrap_or_else(PoisonError::into_inner) = program;
    }

    /// Whether the helper takes a run for this eviction now. It does not while it starts another; it ends one that it
    /// follows. Does not allocate or wait.
    pub(super) fn take(&self, number: u64) -> bool {
        let before = self.doing.swap(doing::BEGINNING, Ordering::AcqRel);
        if before == doing::FOLLOWING {
            self.cut(number.saturating_sub(1));
        }
        before != doing::BEGINNING
    }

    /// Ends the run for that eviction and for earlier ones. Does not allocate or wait.
    pub(super) fn cut(&self, number: u64) {
        self.cut.fetch_max(number, Ordering::Release);
        // It can only fail when the counter is full, and then the helper is about to wake anyway.
        let _woken = rustix::io::write(&self.waker, &1_u64.to_ne_bytes());
    }

    /// The number of reports that were dropped because their queue was full.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Stops reports, as nothing waits for the helper any more.
    pub(super) fn silence(&self) {
        drop(self.reports.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn emit(&self, report: Report) {
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        if reports.as_ref().is_some_and(|reports| reports.offer(report).is_err()) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn follows(&self) {
        self.doing.store(doing::FOLLOWING, Ordering::Release);
    }

    /// Resets the state after a run that was taken but not started.
    pub(super) fn gave_up(&self) {
        self.doing.store(doing::NOTHING, Ordering::Release);
    }

    /// Resets the state after the followed run was killed, unless the next was taken meanwhile; that starts soon.
    fn is_done(&self) {
        let (from, to) = (doing::FOLLOWING, doing::NOTHING);
        // Fails if the next run was taken.
        let _done = self.doing.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
    }

    fn is_cut(&self, number: u64) -> bool {
        let mut wakes = [0_u8; 8];
        let _reset = rustix::io::read(&self.waker, &mut wakes);
        self.cut.load(Ordering::Acquire) >= number
    }

    fn waker(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

/// Whether a cgroup of that name was made for such a program, by a daemon that is gone.
#[must_use]
pub fn is_left(name: &str, proc: &Path) -> bool {
    cgroup::is_left(name, proc)
}

/// Kills processes that a hook of an earlier daemon left. Call it before the first reflex starts.
pub fn clear() {
    cgroup::clear();
}

/// Works until the reflex is gone.
pub(super) fn run(queue: &Receiver<Job>, hooks: &Hooks, mut answer: impl FnMut(Outcome)) {
    let mut undead = KilledPrograms::default();
    while let Some(job) = queue.next() {
        let ran = run_one(&job, hooks, &mut undead);
        let Job { id, decision, candidate, deadline_ns: _ } = job;
        let (number, signal, end) = (decision.number, decision.shortage.signal, ran.end);
        // Before the answer, which leads to the signal, so that the report of the signal includes this run.
        hooks.emit(Report::Hooked { id, signal, candidate, plan: decision.hook, ran });
        answer(Outcome::HookEnded { number, now_ns: clock::boottime_ns(), end });
    }
}

fn run_one(job: &Job, hooks: &Hooks, undead: &mut KilledPrograms) -> HookRun {
    match begin(job, hooks, undead) {
        Ok(run) => run.follow(job, hooks, undead),
        Err(end) => {
            hooks.gave_up();
            HookRun::nothing(end)
        }
    }
}

fn begin(job: &Job, hooks: &Hooks, undead: &mut KilledPrograms) -> Result<Run, HookEnd> {
    let program = hooks.program.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let program = program.ok_or(HookEnd::Unset)?;
    program.check().map_err(|error| {
        tracing::warn!(error = &error as &dyn std::error::Error, "preKillHook is not run");
        match error {
            UnsafeProgram::Unreadable { source, .. } => unstarted(&source),
            UnsafeProgram::NotExecutable { .. } => HookEnd::Unstarted(Errno::ACCESS.raw_os_error()),
            UnsafeProgram::NotReal { .. } | UnsafeProgram::Changeable { .. } => HookEnd::Unsafe,
        }
    })?;
    let begun_ns = clock::boottime_ns();
    if undead.are_many() || begun_ns >= job.deadline_ns {
        return Err(HookEnd::Busy);
    }
    if hooks.is_cut(job.decision.number) {
        return Err(HookEnd::Cut);
    }
    Run::begin(&program, job, begun_ns).map_err(|error| {
        tracing::warn!(%error, program = %program.path.display(), "cannot start preKillHook");
        unstarted(&error)
    })
}

fn unstarted(error: &io::Error) -> HookEnd {
    HookEnd::Unstarted(error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()))
}
