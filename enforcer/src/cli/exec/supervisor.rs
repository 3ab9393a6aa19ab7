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

use super::{
    Obstacle, Target, back_off::BackOff, container, find, looks::Looks, place::Place, recheck, scope,
    set_score, taken_over,
};
use crate::{
    cgroup::CgroupDir,
    cli::{Failure, client, render::escape},
    model::{CgroupId, CgroupPath},
    policy::name,
    raw::{Child, Signals, WaitingChild},
    serve::{PodState, View},
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

/// The process file system.
const PROC: &str = "/proc";

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
    let mut place: Option<Place> = None;
    loop {
        let start = Instant::now();
        let what = match begin(run_dir, target, &arguments, &signals, place.as_ref()) {
            Ok((mut child, begun_in)) => {
                let place = place.insert(begun_in);
                let looks = Looks::new(looking(run_dir, target));
                let waited = wait(&mut child, &signals, looks)?;
                // What is left would run beside the next start, or without anyone who knows of it.
                let cleared = place.clear(Path::new(PROC));
                match waited {
                    Waited::Evicted(failure) => return Err(with_status_of(failure, cleared)),
                    Waited::Ended(end, is_stopped) if is_stopped || !restart.applies_to(end) => {
                        cleared?;
                        return Ok(end.exit_status());
                    }
                    Waited::Ended(end, _) => {
                        let seconds = start.elapsed().as_secs();
                        let left = cleared.err().map(|error| format!("; {error:#}")).unwrap_or_default();
                        format!("{target} ended {end} after {seconds} s{left}")
                    }
                }
            }
            Err(Obstacle { failure, is_final }) if is_final || place.is_none() => {
                // A pod that was evicted holds nothing any more, and one without a manifest may.
                let cleared = place.as_ref().map_or(Ok(()), |place| place.clear(Path::new(PROC)));
                return Err(with_status_of(failure, cleared));
            }
            Err(Obstacle { failure, .. }) => format!("{target} cannot be started: {failure}"),
        };
        let pause = back_off.after(start.elapsed());
        say(&format!("{what}: starting it again in {} s", pause.as_secs()));
        if let Some(stop) = rest(&signals, pause)? {
            // There may be what could not be ended before.
            place.as_ref().map_or(Ok(()), |place| place.clear(Path::new(PROC)))?;
            return Ok(End::Signal(stop).exit_status());
        }
    }
}

/// The failure, whose status says more; what could not be ended is said apart.
fn with_status_of(failure: Failure, cleared: anyhow::Result<()>) -> Failure {
    if let Err(error) = cleared {
        say(&format!("{error:#}"));
    }
    failure
}

fn say(what: &str) {
    // If this fails, there is nowhere to report it.
    drop(writeln!(io::stderr(), "enforcer exec: {}", escape(what)));
}

/// Asks the daemon whether the pod was evicted: says why the command must end then. A daemon that does not answer says
/// nothing.
fn looking(run_dir: &Path, target: &Target) -> impl Fn() -> Option<Failure> + Clone + Send + use<> {
    let (run_dir, target) = (run_dir.to_owned(), target.clone());
    move || {
        let view: View = client::block_on(async { client::get_json(&run_dir, "/v1/pods").await }).ok()?;
        evicted(&view, &target)
    }
}

/// Why the command must end, if the pod was evicted.
fn evicted(view: &View, target: &Target) -> Option<Failure> {
    let mut pods = view.pods.iter();
    let pod = pods.find(|pod| pod.namespace == target.namespace && pod.name == target.pod)?;
    // Whatever else keeps a command from being started does not end one that runs.
    let is_evicted = pod.state == PodState::Evicted;
    is_evicted.then(|| find(view, target).err()).flatten().map(|obstacle| obstacle.failure)
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

/// Why a command is no longer waited for.
enum Waited {
    /// It has ended; whether it was asked to.
    Ended(End, bool),
    /// Its pod was evicted, and it was killed.
    Evicted(Failure),
}

/// Passes signals on until the command has ended, or until a look shows that its pod was evicted.
fn wait<F: Fn() -> Option<Failure> + Clone + Send + 'static>(
    child: &mut Child,
    signals: &Signals,
    mut looks: Looks<F>,
) -> anyhow::Result<Waited> {
    let mut is_stopped = false;
    loop {
        if let Some(status) = child.ended().context("cannot wait for the command")? {
            return Ok(Waited::Ended(End::of(status), is_stopped));
        }
        if let Some(evicted) = looks.step(Instant::now()) {
            child.signal(Signal::KILL).context("cannot kill the command of an evicted pod")?;
            return Ok(Waited::Evicted(evicted));
        }
        let most = looks.due_in(Instant::now()).map_or(LOOK, |due| due.min(LOOK));
        let Some(arrived) = signals.next(most).context("cannot wait for signals")? else { continue };
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

/// Starts the command in the container, and only if its pod may run. If it ran `before`, nothing of it is left then.
fn begin(
    run_dir: &Path,
    target: &Target,
    arguments: &[CString],
    signals: &Signals,
    before: Option<&Place>,
) -> Result<(Child, Place), Obstacle> {
    let container = client::block_on(async { Ok(container(run_dir, target).await) })??;
    let root =
        CgroupDir::mount(Path::new(crate::cgroup::MOUNT)).context("cannot open the container's cgroup")?;
    let path = CgroupPath::parse(&container.cgroup).context("the daemon named an invalid cgroup")?;
    let cannot = || format!("cannot start a process for cgroup {path}");
    let is_containers = |cgroup: &CgroupDir| Some(cgroup.id()) == container.cgroup_id.map(CgroupId);
    if let Some(before) = before {
        before.clear(Path::new(PROC))?;
        // A pod's processes may have been moved into another cgroup meanwhile.
        let is_another = |cgroup: &CgroupDir| is_containers(cgroup) && cgroup.id() != before.id();
        if let Some(cgroup) = root.open(&path).ok().filter(is_another) {
            Place::of(cgroup, &container).and_then(|place| place.clear(Path::new(PROC)))?;
        }
    }
    let (child, cgroup) = if name::is_scope(&path) {
        let child = WaitingChild::clone_into(None, arguments).with_context(cannot)?;
        let cgroup = client::block_on(async {
            let cgroup = scope::enter(&root, &path, child.pid()).await?;
            Ok(taken_over(run_dir, target, cgroup.id()).await.map(|()| cgroup))
        })??;
        (child, cgroup)
    } else {
        let cgroup = root.open(&path).context("cannot open the container's cgroup")?;
        if !is_containers(&cgroup) {
            return Err(anyhow!("cgroup {path} was replaced a moment ago").into());
        }
        (WaitingChild::clone_into(Some(cgroup.as_fd()), arguments).with_context(cannot)?, cgroup)
    };
    let place = Place::of(cgroup, &container)?;
    set_score(&container, child.pid())?;
    // An eviction between the daemon's answer and the start did not kill this process, which must not outlive it.
    client::block_on(async { Ok(recheck(run_dir, target).await) })??;
    // One that came before the child was there did not reach it.
    if let Some(stop) = rest(signals, Duration::ZERO)? {
        return Err(Obstacle { failure: Failure::ended(End::Signal(stop).exit_status()), is_final: true });
    }
    let child = child.release().map_err(|error| {
        let program =
            arguments.first().map(|program| OsStr::from_bytes(program.as_bytes())).unwrap_or_default();
        Obstacle { failure: Failure::command(error, &program.to_string_lossy()), is_final: true }
    })?;
    Ok((child, place))
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
    #[test]
    fn a_command_of_a_pod_that_was_evicted_is_killed() {
        // In a thread of its own: the mask belongs to the thread.
        let waiter = std::thread::spawn(|| {
            let signals = Signals::block(&[libc::SIGCHLD]).unwrap();
            let words = ["sleep", "1000"].map(|word| CString::new(word).unwrap());
            let mut child = WaitingChild::clone_into(None, &words).unwrap().release().unwrap();
            let looks = Looks::new(|| Some(Failure::refused(anyhow!("pod default/web was evicted"))));
            let Ok(Waited::Evicted(failure)) = wait(&mut child, &signals, looks) else {
                panic!("not evicted")
            };
            assert!(failure.to_string().contains("was evicted"), "{failure}");
            let start = Instant::now();
            let end = loop {
                match child.ended().unwrap() {
                    Some(status) => break End::of(status),
                    None if start.elapsed() < LOOK => std::thread::sleep(Duration::from_millis(1)),
                    None => panic!("it lives"),
                }
            };
            assert_eq!(end, End::Signal(libc::SIGKILL));
        });
        waiter.join().unwrap();
    }
}
