//! A parent that starts a container's command again when it ends. It stays in its caller's cgroup.

use std::{
    ffi::{CString, OsStr, OsString},
    fmt,
    io::{self, Write as _},
    os::{fd::AsFd as _, unix::ffi::OsStrExt as _},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow};
use rustix::process::{Signal, WaitIdStatus};

use super::{Obstacle, Target, back_off::BackOff, container, recheck, scope, set_score, taken_over};
use crate::{
    cgroup::CgroupDir,
    cli::{Failure, client, render::escape},
    model::CgroupId,
    policy::name,
    raw::{Child, Signals, WaitingChild},
};

/// When a command that has ended is started again.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub(super) enum Restart {
    /// Unless it has ended with status 0
    OnFailure,
    /// Whatever its status
    Always,
}

/// What is passed on to the command.
const FORWARDED: [i32; 8] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGCONT,
];

/// How often a wait for a signal begins again.
const LOOK: Duration = Duration::from_mins(1);

/// How a command has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum End {
    Status(u8),
    Signal(i32),
}

impl End {
    fn of(status: WaitIdStatus) -> Self {
        match (status.exit_status(), status.terminating_signal()) {
            (Some(status), _) => Self::Status(u8::try_from(status & 0xff).unwrap_or(u8::MAX)),
            (None, signal) => Self::Signal(signal.unwrap_or(libc::SIGKILL)),
        }
    }

    /// As shells give it.
    fn exit_status(self) -> u8 {
        match self {
            Self::Status(status) => status,
            Self::Signal(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "with status {status}"),
            Self::Signal(signal) => write!(f, "by signal {signal}"),
        }
    }
}

impl Restart {
    fn applies_to(self, end: End) -> bool {
        self == Self::Always || end != End::Status(0)
    }
}

/// Whether a signal asks the command to end: then it is not started again.
fn is_stop(number: i32, is_of_kernel: bool) -> bool {
    match number {
        libc::SIGTERM | libc::SIGINT | libc::SIGQUIT => true,
        // By the kernel when the terminal goes; else many programs read their configuration again.
        libc::SIGHUP => is_of_kernel,
        _ => false,
    }
}

/// Runs the command in the container until it ends for good. Returns the exit status to pass on.
pub(super) fn supervise(
    run_dir: &Path,
    target: &Target,
    command: &[OsString],
    restart: Restart,
) -> Result<u8, Failure> {
    let arguments: Vec<CString> = command
        .iter()
        .map(|word| CString::new(word.as_bytes()))
        .collect::<Result<_, _>>()
        .map_err(|_nul| Failure::usage(anyhow!("an argument contains a zero byte")))?;
    let numbers: Vec<i32> = FORWARDED.into_iter().chain([libc::SIGCHLD]).collect();
    let signals = Signals::block(&numbers).context("cannot block signals")?;
    let mut back_off = BackOff::default();
    let mut was_started = false;
    loop {
        let start = Instant::now();
        let what = match begin(run_dir, target, &arguments, &signals) {
            Ok(mut child) => {
                was_started = true;
                let (end, is_stopped) = wait(&mut child, &signals)?;
                if is_stopped || !restart.applies_to(end) {
                    return Ok(end.exit_status());
                }
                format!("{target} ended {end} after {} s", start.elapsed().as_secs())
            }
            Err(Obstacle { failure, is_final }) if is_final || !was_started => return Err(failure),
            Err(Obstacle { failure, .. }) => format!("{target} cannot be started: {failure}"),
        };
        let pause = back_off.after(start.elapsed());
        // If this fails, there is nowhere to report it.
        drop(writeln!(
            io::stderr(),
            "enforcer exec: {}: starting it again in {} s",
            escape(&what),
            pause.as_secs()
        ));
        if let Some(stop) = rest(&signals, pause)? {
            return Ok(End::Signal(stop).exit_status());
        }
    }
}

/// Waits out a pause. Returns the signal that asks to stop, if one comes.
fn rest(signals: &Signals, pause: Duration) -> anyhow::Result<Option<i32>> {
    let end = Instant::now() + pause;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if let Some(arrived) = signals.next(left).context("cannot wait for signals")?
            && is_stop(arrived.number, arrived.is_of_kernel)
        {
            return Ok(Some(arrived.number));
        }
        if left.is_zero() {
            return Ok(None);
        }
    }
}

/// Passes signals on until the command has ended. Also returns whether it was asked to end.
fn wait(child: &mut Child, signals: &Signals) -> anyhow::Result<(End, bool)> {
    let mut is_stopped = false;
    loop {
        if let Some(status) = child.ended().context("cannot wait for the command")? {
            return Ok((End::of(status), is_stopped));
        }
        let Some(arrived) = signals.next(LOOK).context("cannot wait for signals")? else { continue };
        is_stopped |= is_stop(arrived.number, arrived.is_of_kernel);
        // The command has a terminal's signal already.
        if arrived.number != libc::SIGCHLD
            && !arrived.is_of_kernel
            && let Some(signal) = Signal::from_named_raw(arrived.number)
        {
            child.signal(signal).context("cannot pass a signal on")?;
        }
    }
}

/// Starts the command in the container, and only if its pod may run.
fn begin(
    run_dir: &Path,
    target: &Target,
    arguments: &[CString],
    signals: &Signals,
) -> Result<Child, Obstacle> {
    let container = client::block_on(async { Ok(container(run_dir, target).await) })??;
    let root =
        CgroupDir::mount(Path::new(crate::cgroup::MOUNT)).context("cannot open the container's cgroup")?;
    let path = &container.cgroup;
    let cannot = || format!("cannot start a process for cgroup {path}");
    let child = if name::is_scope(path) {
        let child = WaitingChild::clone_into(None, arguments).with_context(cannot)?;
        client::block_on(async {
            let cgroup = scope::enter(&root, path, child.pid()).await?;
            Ok(taken_over(run_dir, target, cgroup.id()).await)
        })??;
        child
    } else {
        let cgroup = root.open(path).context("cannot open the container's cgroup")?;
        if Some(cgroup.id()) != container.cgroup_id.map(CgroupId) {
            return Err(anyhow!("cgroup {path} was replaced a moment ago").into());
        }
        WaitingChild::clone_into(Some(cgroup.as_fd()), arguments).with_context(cannot)?
    };
    set_score(&root, &container, child.pid())?;
    // An eviction between the daemon's answer and the start did not kill this process, which must not outlive it.
    client::block_on(async { Ok(recheck(run_dir, target).await) })??;
    // One that came before the child was there did not reach it.
    if let Some(stop) = rest(signals, Duration::ZERO)? {
        return Err(Obstacle { failure: Failure::ended(End::Signal(stop).exit_status()), is_final: true });
    }
    child.release().map_err(|error| {
        let program =
            arguments.first().map(|program| OsStr::from_bytes(program.as_bytes())).unwrap_or_default();
        Obstacle { failure: Failure::command(error, &program.to_string_lossy()), is_final: true }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_ended_well_is_started_again_only_if_always() {
        for (restart, end, again) in [
            (Restart::OnFailure, End::Status(0), false),
            (Restart::OnFailure, End::Status(3), true),
            (Restart::OnFailure, End::Signal(libc::SIGKILL), true),
            (Restart::Always, End::Status(0), true),
        ] {
            assert_eq!(restart.applies_to(end), again, "{restart:?} {end:?}");
        }
    }

    #[test]
    fn a_signal_that_ends_it_is_passed_on_as_shells_do() {
        assert_eq!(End::Signal(libc::SIGTERM).exit_status(), 143);
        assert_eq!(End::Status(5).exit_status(), 5);
    }

    #[test]
    fn a_hang_up_stops_only_if_the_terminal_has_gone() {
        assert!(is_stop(libc::SIGTERM, false) && is_stop(libc::SIGINT, true));
        assert!(is_stop(libc::SIGHUP, true) && !is_stop(libc::SIGHUP, false));
        assert!(!is_stop(libc::SIGUSR1, false) && !is_stop(libc::SIGCHLD, false));
    }
}
