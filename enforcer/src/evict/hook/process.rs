//! One run: started apart from us and from the victim, waited for, and ended with all that it started.

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
    time::{ClockId, Timespec},
};

use super::{HookProgram, HookRun, Hooks, Job, cgroup::HookCgroup, environment::environment, tail::Tail};
use crate::{
    evict::eviction_loop::now_ns,
    policy::engine::HookEnd,
    raw::{self, SpawnArgs},
};

/// How many killed programs may not have died yet, such as for a disk that does not answer; with more, none is begun.
const MOST_UNDEAD: usize = 4;

/// How long a killed program's end is awaited.
const DEATH_NS: u64 = 100_000_000;

/// Its `oom_score_adj`. It is not to outlive its own hunger: where it fills memory itself, the kernel takes it before any
/// pod that has a better score than the worst.
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
    /// Whether there are so many that none is to be added; looks again first.
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

/// A program that runs.
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
                tracing::warn!(%error, "preKillHook has no cgroup of its own: what leaves its session lives on");
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
            // It is closed on our side with this function's end: while we had it, the output would not end.
            output: writer.as_fd(),
            procs: pen.as_ref().map(HookCgroup::procs),
            score: SCORE,
        })?;
        Ok(Self { pid, pidfd, pen, output, begun_ns })
    }

    /// Waits until it ends, its time is up, or it is cut.
    pub(super) fn follow(mut self, job: &Job, hooks: &Hooks, undead: &mut KilledPrograms) -> HookRun {
        hooks.follows();
        let forced = loop {
            let left_ns = job.deadline_ns.saturating_sub(now_ns(ClockId::Boottime));
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
                    tracing::error!(%error, "preKillHook cannot be waited for, and is killed");
                    break Some(HookEnd::Cut);
                }
            }
        };
        self.kill();
        hooks.is_done();
        let ended = self.reap();
        // After the kill there is nothing more to come.
        self.output.read();
        let end = forced.unwrap_or_else(|| ended.as_ref().map_or(HookEnd::Cut, end));
        let ran_ns = now_ns(ClockId::Boottime).saturating_sub(self.begun_ns);
        let Self { pid: _, pidfd, pen, output, begun_ns: _ } = self;
        undead.0.push(Remains { pidfd: ended.is_none().then_some(pidfd), pen });
        undead.forget();
        let (output, output_bytes) = output.finish();
        HookRun { end, ran_ns, output, output_bytes }
    }

    /// Waits for something to happen; whether the program has ended.
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

    /// Kills it and all that it started: it has not been waited for, so that its number is still its own.
    fn kill(&mut self) {
        if let Some(pen) = &self.pen {
            pen.kill();
        }
        // Nobody is left where these fail.
        let _killed = rustix::process::kill_process_group(self.pid, Signal::KILL);
        let _killed = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// How it ended; none if it does not die at once.
    fn reap(&mut self) -> Option<WaitIdStatus> {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let _ended = poll(&mut fds, Some(&timespec(DEATH_NS)));
        status(&self.pidfd)
    }
}

/// How it ended; none as long as it has not.
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
