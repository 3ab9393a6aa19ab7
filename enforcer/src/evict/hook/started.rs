//! A program that was started, and its end.

use std::{
    ffi::{CString, NulError},
    fs::File,
    io,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus},
    time::Timespec,
};

use super::{HookProgram, privileged};
use crate::{
    policy::engine::HookEnd,
    raw::{self, SpawnArgs},
};

/// Its `oom_score_adj`. If the program itself fills memory, the kernel kills it before any pod with a lower score.
const SCORE: &std::ffi::CStr = c"1000";

/// A program that was started. It is not reaped before its end is asked for, so its pid is not reused.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) pid: Pid,
    pub(super) pidfd: OwnedFd,
    /// Whether it is a child of the hook process, and not of this one.
    is_apart: bool,
}

/// Starts the program by the hook process, if that runs; it does in every daemon with a program before a kill.
pub(super) fn start(
    program: &HookProgram,
    environment: Vec<String>,
    output: BorrowedFd<'_>,
    procs: Option<BorrowedFd<'_>>,
) -> io::Result<Started> {
    let (is_apart, (pid, pidfd)) = match privileged::running() {
        Some(process) => (true, process.start(program, environment, output, procs)?),
        None => (false, start_here(program, environment, output, procs)?),
    };
    Ok(Started { pid, pidfd, is_apart })
}

/// Starts the program as a child of this process.
pub(super) fn start_here(
    program: &HookProgram,
    environment: Vec<String>,
    output: BorrowedFd<'_>,
    procs: Option<BorrowedFd<'_>>,
) -> io::Result<(Pid, OwnedFd)> {
    let input = File::open("/dev/null")?;
    let path = CString::new(program.path.as_os_str().as_bytes())?;
    let args = program.args.iter().map(|arg| CString::new(arg.as_str()));
    let args: Vec<_> = std::iter::once(Ok(path.clone())).chain(args).collect::<Result<_, NulError>>()?;
    let environment: Vec<_> = environment.into_iter().map(CString::new).collect::<Result<_, _>>()?;
    raw::spawn_detached(&SpawnArgs {
        path: &path,
        args: &args,
        environment: &environment,
        input: input.as_fd(),
        output,
        procs,
        score: SCORE,
    })
}

impl Started {
    /// How it has ended; `None` while it runs.
    pub(super) fn ended(&self) -> Option<HookEnd> {
        if !self.is_apart {
            return collect(WaitId::PidFd(self.pidfd.as_fd()));
        }
        // The hook process is asked once, when there is an answer.
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&at_once)).ok().filter(|ready| *ready > 0)?;
        match privileged::running()?.collect(self.pid) {
            Ok(ended) => ended,
            Err(error) => {
                tracing::error!(%error, "the process that runs preKillHook has ended: restart the daemon to have it again");
                // The program dies with it.
                Some(HookEnd::Signalled(Signal::KILL.as_raw()))
            }
        }
    }
}

/// How a child of this process has ended; `None` while it runs.
pub(super) fn collect(id: WaitId<'_>) -> Option<HookEnd> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    rustix::process::waitid(id, options).ok().flatten().as_ref().map(end)
}

fn end(status: &WaitIdStatus) -> HookEnd {
    status
        .exit_status()
        .map_or_else(|| HookEnd::Signalled(status.terminating_signal().unwrap_or(0)), HookEnd::Exited)
}
