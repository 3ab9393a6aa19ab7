//! One run: starts the program apart from us and the victim, waits for it, and ends it with all that it started.

use std::{
    ffi::{CString, NulError},
    fs::File,
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus},
    time::Timespec,
};

use super::{HookProgram, HookRun, Hooks, Job, cgroup::HookCgroup, environment::environment, tail::Tail};
use crate::{
    clock,
    policy::engine::HookEnd,
    raw::{self, SpawnArgs},
};

/// The most killed programs that have not died yet, such as for a disk that does not respond. Beyond, no program is
/// started.
const MOST_UNDEAD: usize = 4;

/// How long to wait for a killed program's end.
const DEATH_NS: u64 = 100_000_000;

/// Its `oom_score_adj`. If the program itself fills memory, the kernel kills it before any pod with a lower score.
const SCORE: &std::ffi::CStr = c"1000";

/// Programs that were killed and have not died, and cgroups that are not empty yet.
#[derive(Debug, Default)]
pub(super) struct KilledPrograms(Vec<Remains>);

#[derive(Debug)]
struct Remains {
    pidfd: Option<OwnedFd>,
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
            remains.pidfd.take_if(|pidfd| status(pidfd).is_some());
            remains.pen.take_if(|pen| pen.remove());
            remains.pidfd.is_some() || remains.pen.is_some()
        });
    }
}

/// A running program.
#[derive(Debug)]
pub(super) struct Run {
    pid: Pid,
    pidfd: OwnedFd,
    pen: Option<HookCgroup>,
    output: Tail,
    begun_ns: u64,
}

impl Run {
    pub(super) fn begin(program: &HookProgram, job: &Job, begun_ns: u64) -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        let output = Tail::new(reader)?;
        let input = File::open("/dev/null")?;
        let pen = HookCgroup::make()
            .inspect_err(|error| {
                tracing::warn!(%error, "no cgroup for preKillHook: processes that leave its session survive it");
            })
            .ok();
        let allowed_ns = job.deadline_ns.saturating_sub(begun_ns);
        let path = CString::new(program.path.as_os_str().as_bytes())?;
        let args = program.args.iter().map(|arg| CString::new(arg.as_str()));
        let args: Vec<_> = std::iter::once(Ok(path.clone())).chain(args).collect::<Result<_, NulError>>()?;
        let environment = environment(job.id, &job.decision, &job.candidate, allowed_ns);
        let environment: Vec<_> = environment
            .into_iter()
            .map(|(name, value)| CString::new(format!("{name}={value}")))
            .collect::<Result<_, _>>()?;
        let (pid, pidfd) = raw::spawn_detached(&SpawnArgs {
            path: &path,
            args: &args,
            environment: &environment,
            input: input.as_fd(),
            // Our end closes when this function returns; while it is open, the output does not end.
            output: writer.as_fd(),
            procs: pen.as_ref().map(HookCgroup::procs),
            score: SCORE,
        })?;
        Ok(Self { pid, pidfd, pen, output, begun_ns })
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
        let end = forced.unwrap_or_else(|| ended.as_ref().map_or(HookEnd::Cut, end));
        let ran_ns = clock::boottime_ns().saturating_sub(self.begun_ns);
        let Self { pid: _, pidfd, pen, output, begun_ns: _ } = self;
        undead.0.push(Remains { pidfd: ended.is_none().then_some(pidfd), pen });
        undead.forget();
        let (output, output_bytes) = output.finish();
        HookRun { end, ran_ns, output, output_bytes }
    }

    /// Waits for an event; returns whether the program has ended.
    fn wait(&mut self, hooks: &Hooks, left_ns: u64) -> Result<bool, Errno> {
        let timeout = timespec(left_ns);
        let waker = hooks.waker();
        let mut fds =
            vec![PollFd::new(&self.pidfd, PollFlags::IN), PollFd::from_borrowed_fd(waker, PollFlags::IN)];
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

    /// Kills it and all that it started. It has not been reaped, so its pid is not reused.
    fn kill(&mut self) {
        if let Some(pen) = &self.pen {
            pen.kill();
        }
        // These fail only if no process is left.
        let _killed = rustix::process::kill_process_group(self.pid, Signal::KILL);
        let _killed = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Its exit status; `None` if it does not die within [`DEATH_NS`].
    fn reap(&mut self) -> Option<WaitIdStatus> {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let _ended = poll(&mut fds, Some(&timespec(DEATH_NS)));
        status(&self.pidfd)
    }
}

/// Its exit status; `None` while it runs.
fn status(pidfd: &OwnedFd) -> Option<WaitIdStatus> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), options).ok().flatten()
}

fn end(status: &WaitIdStatus) -> HookEnd {
    status
        .exit_status()
        .map_or_else(|| HookEnd::Signalled(status.terminating_signal().unwrap_or(0)), HookEnd::Exited)
}

fn timespec(ns: u64) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
    }
}
