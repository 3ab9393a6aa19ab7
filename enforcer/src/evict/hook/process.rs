//! One run: started apart from us and from the victim, waited for, and ended with all that it started.

use std::{
    fs::{self, File},
    io::{self, PipeReader, Read as _},
    os::{fd::OwnedFd, unix::process::ExitStatusExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    process::{Pid, PidfdFlags, Signal},
    time::{ClockId, Timespec},
};

use super::{HookProgram, HookRun, Hooks, Job, environment::environment};
use crate::{cgroup, evict::turn::now_ns, policy::engine::HookEnd, raw};

/// How much of its output is kept: the last of it.
const TAIL_BYTES: usize = 1024;

/// How many killed programs may not have died yet, such as for a disk that does not answer; with more, none is begun.
const MOST_UNDEAD: usize = 4;

/// Where it runs, below our own cgroup: with that, everything that it started is killed, wherever it has put itself.
const PEN: &str = "enforcer-hook";

/// Programs that were killed and have not died.
#[derive(Debug, Default)]
pub(super) struct Undead(Vec<Child>);

impl Undead {
    fn reap(&mut self) {
        self.0.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }
}

/// Runs it.
pub(super) fn run(program: &HookProgram, job: &Job, hooks: &Hooks, undead: &mut Undead) -> HookRun {
    undead.reap();
    let begun_ns = now_ns(ClockId::Boottime);
    if undead.0.len() >= MOST_UNDEAD || begun_ns >= job.deadline_ns {
        return HookRun::nothing(HookEnd::Busy);
    }
    if hooks.is_cut(job.decision.number) {
        return HookRun::nothing(HookEnd::Cut);
    }
    match Run::begin(program, job, begun_ns) {
        Ok(run) => run.follow(job, hooks, undead),
        Err(error) => {
            tracing::warn!(%error, program = %program.path.display(), "preKillHook cannot be started");
            let errno = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
            HookRun::nothing(HookEnd::Unstarted(errno))
        }
    }
}

struct Run {
    child: Child,
    pidfd: OwnedFd,
    pen: Option<Pen>,
    output: Tail,
    begun_ns: u64,
}

impl Run {
    fn begin(program: &HookProgram, job: &Job, begun_ns: u64) -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::NONBLOCK)?;
        let pen = Pen::make()
            .inspect_err(|error| tracing::debug!(%error, "the hook has no cgroup of its own"))
            .ok();
        let allowed_ns = job.deadline_ns.saturating_sub(begun_ns);
        let mut command = Command::new(&program.path);
        command
            .args(&program.args)
            .env_clear()
            .envs(environment(job.id, &job.decision, &job.candidate, allowed_ns))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer);
        raw::set_apart(&mut command, pen.as_ref().map(|pen| pen.procs.try_clone()).transpose()?);
        let mut child = command.spawn()?;
        // Our ends of what it writes to, which would keep the pipe open.
        drop(command);
        let pidfd =
            match pid(&child).and_then(|pid| Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)) {
                Ok(pidfd) => pidfd,
                Err(error) => {
                    // It cannot be waited for, and so must not run.
                    child.kill()?;
                    child.wait()?;
                    return Err(error);
                }
            };
        Ok(Self { child, pidfd, pen, output: Tail::new(reader), begun_ns })
    }

    /// Until it ends, its time is up, or it is cut.
    fn follow(mut self, job: &Job, hooks: &Hooks, undead: &mut Undead) -> HookRun {
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
        // After the kill there is nothing more to come; it has ended, or is about to.
        let status = self.reap();
        self.output.read();
        let end = forced.unwrap_or_else(|| status.map_or(HookEnd::Cut, ended));
        let ran_ns = now_ns(ClockId::Boottime).saturating_sub(self.begun_ns);
        if status.is_none() {
            undead.0.push(self.child);
        }
        let (output, output_bytes) = self.output.finish();
        HookRun { end, ran_ns, output, output_bytes }
    }

    /// Waits for something to happen; whether the program has ended.
    fn wait(&mut self, hooks: &Hooks, left_ns: u64) -> Result<bool, Errno> {
        let timeout = timespec(left_ns);
        let bell = hooks.bell();
        let mut fds =
            vec![PollFd::new(&self.pidfd, PollFlags::IN), PollFd::from_borrowed_fd(bell, PollFlags::IN)];
        if let Some(reader) = &self.output.reader {
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
        if let Ok(pid) = pid(&self.child) {
            // Nobody is left of the group where this fails.
            let _killed = rustix::process::kill_process_group(pid, Signal::KILL);
        }
        let _killed = self.child.kill();
    }

    /// Its status; none if it does not die at once.
    fn reap(&mut self) -> Option<ExitStatus> {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let _ended = poll(&mut fds, Some(&timespec(100_000_000)));
        self.child.try_wait().ok().flatten()
    }
}

fn ended(status: ExitStatus) -> HookEnd {
    status.code().map_or_else(|| HookEnd::Signalled(status.signal().unwrap_or(0)), HookEnd::Exited)
}

fn pid(child: &Child) -> io::Result<Pid> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("a process without a number"))
}

fn timespec(ns: u64) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
    }
}

/// The cgroup that a run is kept in; removed when it is empty.
struct Pen {
    path: PathBuf,
    procs: File,
    kill: File,
}

impl Pen {
    fn make() -> io::Result<Self> {
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
        let own = own.ok_or_else(|| io::Error::other("no cgroup v2"))?;
        let path = Path::new(cgroup::MOUNT).join(own).join(PEN);
        match fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let open = |file: &str| File::options().write(true).open(path.join(file));
        let (procs, kill) = (open("cgroup.procs")?, open("cgroup.kill")?);
        Ok(Self { path, procs, kill })
    }

    fn kill(&self) {
        if let Err(error) = rustix::io::write(&self.kill, b"1") {
            tracing::debug!(%error, "the hook's cgroup cannot be killed");
        }
    }
}

impl Drop for Pen {
    fn drop(&mut self) {
        // Who is still dying in it keeps it; the next run takes it as it is.
        let _removed = fs::remove_dir(&self.path);
    }
}

/// The last of what it wrote.
struct Tail {
    /// None once nobody can write any more.
    reader: Option<PipeReader>,
    kept: Vec<u8>,
    bytes: u64,
}

impl Tail {
    fn new(reader: PipeReader) -> Self {
        Self { reader: Some(reader), kept: Vec::with_capacity(2 * TAIL_BYTES), bytes: 0 }
    }

    /// Takes what is there, no more than a pipe holds: who writes without end is not listened to without end.
    fn read(&mut self) {
        let mut buffer = [0_u8; TAIL_BYTES];
        for _ in 0..64 {
            let Some(reader) = &mut self.reader else { return };
            match reader.read(&mut buffer) {
                Ok(0) => self.reader = None,
                Ok(count) => self.keep(buffer.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.reader = None,
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.bytes = self.bytes.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        self.kept.extend_from_slice(bytes);
        let surplus = self.kept.len().saturating_sub(TAIL_BYTES);
        self.kept.drain(..surplus);
    }

    fn finish(self) -> (String, u64) {
        (String::from_utf8_lossy(&self.kept).into_owned(), self.bytes)
    }
}
