//! Runs the script and carries its output to the host.
use std::{
    fs::File,
    io::{self, ErrorKind, Read as _},
    os::fd::{AsFd as _, OwnedFd},
    process::{Command, Stdio},
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, anyhow};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::{Errno, ioctl_fionread},
    pipe::{PipeFlags, pipe_with},
    process::{Pid, WaitOptions, wait},
};

use crate::ports;

const SCRIPT: &str = "/etc/rig/script";

const ENVIRONMENT: [(&str, &str); 4] = [
    ("PATH", "/usr/local/bin:/bin:/sbin"),
    ("HOME", "/root"),
    ("TERM", "linux"),
    // A panicking test says where.
    ("RUST_BACKTRACE", "1"),
];

/// How the script ended.
pub(crate) struct End {
    /// As a shell reports it: 128 plus the signal where one ended it.
    pub(crate) status: i32,
    pub(crate) out_bytes: u64,
    pub(crate) err_bytes: u64,
}

/// Runs `sh -c` with the script's text; its two streams go to ports of their own.
///
/// Processes that the script leaves behind do not delay the end: what they wrote until then is carried.
pub(crate) fn run() -> anyhow::Result<End> {
    let script = std::fs::read(SCRIPT).with_context(|| format!("cannot read {SCRIPT}"))?;
    let script = <std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(script);
    let (out, out_write) = Pump::start("enforcer.out")?;
    let (err, err_write) = Pump::start("enforcer.err")?;
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(script).stdin(Stdio::null()).stdout(out_write).stderr(err_write);
    let status = spawn_and_reap(command)?;
    Ok(End { status, out_bytes: out.finish()?, err_bytes: err.finish()? })
}

/// Runs an interactive shell on the virtio console; `size` is `ROWSxCOLUMNS` of the host's terminal.
pub(crate) fn shell(size: &str) -> anyhow::Result<End> {
    let console =
        || File::options().read(true).write(true).open("/dev/hvc0").context("cannot open /dev/hvc0");
    let mut command = Command::new("/bin/busybox");
    let (rows, columns) = size.split_once('x').unwrap_or(("24", "80"));
    let prepare = r#"stty rows "$1" cols "$2"; cd; exec sh -l"#;
    command.args(["setsid", "-c", "sh", "-c", prepare, "sh", rows, columns]);
    command.stdin(console()?).stdout(console()?).stderr(console()?);
    let status = spawn_and_reap(command)?;
    Ok(End { status, out_bytes: 0, err_bytes: 0 })
}

fn spawn_and_reap(mut command: Command) -> anyhow::Result<i32> {
    command.env_clear().envs(ENVIRONMENT);
    let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
    // The pipes' write ends must not stay open here.
    drop(command);
    let child = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("the child has no pid")?;
    // As PID 1 it inherits every orphan, so any child is waited for.
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == child => {
                return status
                    .exit_status()
                    .or_else(|| status.terminating_signal().map(|signal| 128 + signal))
                    .context("the script neither exited nor was it killed");
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for the script"),
        }
    }
}

/// Carries one stream from a pipe to a port, on a thread of its own.
struct Pump {
    thread: JoinHandle<io::Result<u64>>,
    /// Closed to say that what is in the pipe now is the last.
    stop: OwnedFd,
}

impl Pump {
    /// Answers the pump and the end of the pipe to write to.
    fn start(name: &'static str) -> anyhow::Result<(Self, OwnedFd)> {
        let mut port = ports::open(name)?;
        let (source, write) = pipe_with(PipeFlags::CLOEXEC).context("cannot make a pipe")?;
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC).context("cannot make a pipe")?;
        fcntl_setfl(&source, fcntl_getfl(&source)? | OFlags::NONBLOCK)?;
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || carry(File::from(source), &stopped, &mut port))
            .context("cannot start a thread")?;
        Ok((Self { thread, stop }, write))
    }

    /// Carries what is left and answers how many bytes went over in all.
    fn finish(self) -> anyhow::Result<u64> {
        drop(self.stop);
        let carried = self.thread.join().map_err(|_panic| anyhow!("a stream's thread panicked"))?;
        carried.context("cannot carry a stream to the host")
    }
}

fn carry(mut source: File, stopped: &OwnedFd, port: &mut File) -> io::Result<u64> {
    let mut buffer = vec![0; 32 * 1024];
    let mut carried_bytes = 0;
    // What was in the pipe when the script ended; who still writes is cut off there.
    let mut left_bytes = None;
    while left_bytes != Some(0) {
        match source.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                ports::write_all(port, buffer.get(..count).unwrap_or_default())?;
                let count = u64::try_from(count).unwrap_or_default();
                carried_bytes += count;
                left_bytes = left_bytes.map(|left: u64| left.saturating_sub(count));
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if left_bytes.is_some() {
                    break;
                }
                wait_for_either(&source, stopped)?;
            }
            Err(error) => return Err(error),
        }
        if left_bytes.is_none() && is_stopped(stopped)? {
            left_bytes = Some(ioctl_fionread(&source)?);
        }
    }
    Ok(carried_bytes)
}

/// Waits for something to read or for the stop.
fn wait_for_either(source: &File, stopped: &OwnedFd) -> io::Result<()> {
    let mut waiting = [
        PollFd::from_borrowed_fd(source.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(stopped.as_fd(), PollFlags::IN),
    ];
    match poll(&mut waiting, None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn is_stopped(stopped: &OwnedFd) -> io::Result<bool> {
    let mut waiting = [PollFd::from_borrowed_fd(stopped.as_fd(), PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(poll(&mut waiting, Some(&now))? > 0)
}
