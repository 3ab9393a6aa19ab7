//! One run: starts the program apart from us and the victim, waits for it, and ends it with all that it started.

use std::{io, os::fd::AsFd as _};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    process::Signal,
    time::Timespec,
};

use super::{
    HookProgram, HookRun, Hooks, Job,
    cgroup::HookCgroup,
    environment::environment,
    started::{self, Started},
    tail::Tail,
};
use crate::{clock, policy::engine::HookEnd};

/// The most killed programs that have not died yet, such as for a disk that does not respond. Beyond, no program is
/// started.
const MOST_UNDEAD: usize = 4;

/// How long to wait for a killed program's end.
const DEATH_NS: u64 = 100_000_000;

/// Programs that were killed and have not died, and cgroups that are not empty yet.
#[derive(Debug, Default)]
pub(super) struct KilledPrograms(Vec<Remains>);

#[derive(Debug)]
struct Remains {
    started: Option<Started>,
    pen: Option<HookCgroup>,
}

impl KilledPrograms {
    /// Whether there are too many to start another; forgets those that are gone first.
    pub(super) fn are_many(&mut self) -> bool {
        self.forget();
        self.0.len() >= MOST_UNDEAD
    }

    fn forget(&mut self) {
        self.0.retain_mut(|remains| {
            remains.started.take_if(|started| started.ended().is_some());
            remains.pen.take_if(|pen| pen.remove());
            remains.started.is_some() || remains.pen.is_some()
        });
    }
}

/// A running program.
#[derive(Debug)]
pub(super) struct Run {
    started: Started,
    pen: Option<HookCgroup>,
    output: Tail,
    begun_ns: u64,
}

impl Run {
    pub(super) fn begin(program: &HookProgram, job: &Job, begun_ns: u64) -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        let output = Tail::new(reader)?;
        let pen = HookCgroup::make()
            .inspect_err(|error| {
                tracing::warn!(%error, "no cgroup for preKillHook: processes that leave its session survive it");
            })
            .ok();
        let allowed_ns = job.deadline_ns.saturating_sub(begun_ns);
        let environment = environment(job.id, &job.decision, &job.candidate, allowed_ns);
        let environment = environment.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        // Our end of the output closes when this function returns; while it is open, the output does not end.
        let procs = pen.as_ref().map(HookCgroup::procs);
        let started = started::start(program, environment, writer.as_fd(), procs)?;
        Ok(Self { started, pen, output, begun_ns })
    }

    /// Waits until it ends, runs out of time, or is cut.
    pub(super) fn follow(mut self, job: &Job, hooks: &Hooks, undead: &mut KilledPrograms) -> HookRun {
        hooks.follows();
        let forced = loop {
            let left_ns = job.deadline_ns.saturating_sub(clock::boottime_ns());
            if left_ns == 0 {
                break Some(HookEnd::TimedOut);
            }
            if hooks.is_cut(job.decision.number) {
                break Some(HookEnd::Cut);
            }
            match self.wait(hooks, left_ns) {
                Ok(true) => break None,
                Ok(false) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "cannot wait for preKillHook, so it is killed");
                    break Some(HookEnd::Cut);
                }
            }
        };
        self.kill();
        hooks.is_done();
        let ended = self.reap();
        // No output follows the kill.
        self.output.read();
        let end = forced.unwrap_or_else(|| ended.unwrap_or(HookEnd::Cut));
        let ran_ns = clock::boottime_ns().saturating_sub(self.begun_ns);
        let Self { started, pen, output, begun_ns: _ } = self;
        undead.0.push(Remains { started: ended.is_none().then_some(started), pen });
        undead.forget();
        let (output, output_bytes) = output.finish();
        HookRun { end, ran_ns, output, output_bytes }
    }

    /// Waits for an event; returns whether the program has ended.
    fn wait(&mut self, hooks: &Hooks, left_ns: u64) -> Result<bool, Errno> {
        let timeout = timespec(left_ns);
        let waker = hooks.waker();
        let mut fds = vec![
            PollFd::new(&self.started.pidfd, PollFlags::IN),
            PollFd::from_borrowed_fd(waker, PollFlags::IN),
        ];
        if let Some(reader) = self.output.reader() {
            fds.push(PollFd::new(reader, PollFlags::IN));
        }
        poll(&mut fds, Some(&timeout))?;
        let has_ended = fds.first().is_some_and(|fd| !fd.revents().is_empty());
        let has_said = fds.get(2).is_some_and(|fd| !fd.revents().is_empty());
        drop(fds);
        if has_said {
            self.output.read();
        }
        Ok(has_ended)
    }

    /// Kills it and all that it started.
    fn kill(&mut self) {
        if let Some(pen) = &self.pen {
            pen.kill();
        }
        // One that nobody has collected takes signals, also when it has ended. The id of another may be anyone's.
        if rustix::process::pidfd_send_signal(&self.started.pidfd, Signal::KILL) != Err(Errno::SRCH) {
            let _killed = rustix::process::kill_process_group(self.started.pid, Signal::KILL);
        }
    }

    /// Its exit status; `None` if it does not die within [`DEATH_NS`].
    fn reap(&mut self) -> Option<HookEnd> {
        let mut fds = [PollFd::new(&self.started.pidfd, PollFlags::IN)];
        let _ended = poll(&mut fds, Some(&timespec(DEATH_NS)));
        self.started.ended()
    }
}

fn timespec(ns: u64) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
    }
}
