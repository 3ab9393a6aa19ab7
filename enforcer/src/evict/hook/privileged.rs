//! The hook process: it runs the program before a kill with the rights that the daemon was started with.
//!
//! It is started before the daemon gives those up, is told the program then, and never runs another: the daemon can ask only
//! for one more run, for its victim. So what has taken over the daemon does not get its rights back this way. The two talk over
//! a socket, one question at a time; the process ends with it.

use std::{
    ffi::OsString,
    io::{self, IoSlice, IoSliceMut, Write as _},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::process::CommandExt as _,
    },
    path::PathBuf,
    process::{Child, Command, ExitCode, Stdio},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, FdFlags, retry_on_intr},
    mm::MlockAllFlags,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recvmsg,
        sendmsg, socketpair,
        sockopt::{Timeout, set_socket_timeout},
    },
    process::{Pid, Signal, WaitId},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    HookProgram,
    environment::{LANG, PATH, PREFIX},
    started,
};
use crate::{policy::engine::HookEnd, raw, threads};

/// The hidden verb that this program is started with; the program to run and its arguments follow.
pub const VERB: &str = "hook-process";

/// By this variable a daemon that starts again in its own place finds the socket to the hook process, which it can no
/// longer start with the same rights.
const SOCKET: &str = "ENFORCER_HOOK_SOCKET";

/// The longest question, and the longest answer: the daemon has no memory to spare when it waits for one.
const MOST_ASK_BYTES: usize = 64 << 10;
const MOST_ANSWER_BYTES: usize = 256;

/// How long the process that was found may take to say what it is for.
const ANSWERS: Duration = Duration::from_secs(2);

/// The hook process's score, as the daemon's: it has to start a program while the node is short.
const SCORE: &str = "-999";

/// The one that runs.
static RUNNING: OnceLock<HookProcess> = OnceLock::new();

#[derive(Deserialize, Serialize)]
enum Ask {
    /// Whether this is the program that it was started for.
    IsFor(HookProgram),
    /// To start it. The descriptors are its output and, if there is one, its cgroup's `cgroup.procs`.
    Start { program: HookProgram, environment: Vec<String> },
    /// How that child has ended.
    Collect { pid: i32 },
}

#[derive(Deserialize, Serialize)]
enum Answer {
    IsFor(bool),
    /// Its pidfd is with the answer.
    Started {
        pid: i32,
    },
    Refused {
        errno: i32,
    },
    Runs,
    Exited(i32),
    Signalled(i32),
}

/// The daemon's connection to the hook process.
#[derive(Debug)]
pub(super) struct HookProcess {
    socket: Mutex<OwnedFd>,
    /// It ends with this process, and is collected by what collects that.
    _child: Option<Child>,
}

/// The one that was started for this daemon.
pub(super) fn running() -> Option<&'static HookProcess> {
    RUNNING.get()
}

/// Starts the process for this program, with the rights that the caller has. Call it once, before they are given up and from
/// the main thread, with which it ends. A daemon that has started again in its own place keeps the one that it had.
pub fn start(program: &HookProgram) -> io::Result<()> {
    let process = match inherited(program) {
        Some(process) => process,
        None => HookProcess::spawn(program)?,
    };
    // There is only one caller.
    let _is_first = RUNNING.set(process);
    Ok(())
}

/// Waits until the process has ended or is of no use any more; for ever if there is none. Must be called inside a tokio
/// runtime, before the first program is run.
pub async fn ended() -> io::Result<()> {
    match running() {
        Some(process) => process.ended().await,
        None => std::future::pending().await,
    }
}

/// Lets the next program in this process's place find the hook process.
pub fn hand_on(command: &mut Command) -> io::Result<()> {
    let socket = running().and_then(|process| match process.socket.try_lock() {
        Ok(socket) => Some(socket),
        Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
        // A thread waits for its answer, such as while the program's disk hangs: the next program starts another.
        Err(TryLockError::WouldBlock) => None,
    });
    let Some(socket) = socket else {
        command.env_remove(SOCKET);
        return Ok(());
    };
    rustix::io::fcntl_setfd(&*socket, FdFlags::empty())?;
    command.env(SOCKET, socket.as_raw_fd().to_string());
    Ok(())
}

/// Ends the process that the program before this one in the same process has started, if no program is run before a kill any
/// more.
pub fn end_inherited() {
    drop(inherited_socket());
}

fn inherited_socket() -> Option<OwnedFd> {
    let socket = raw::inherited(std::env::var(SOCKET).ok()?.parse().ok()?)?;
    rustix::net::sockopt::socket_type(&socket).ok()?;
    rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC).ok()?;
    Some(socket)
}

fn inherited(program: &HookProgram) -> Option<HookProcess> {
    let socket = inherited_socket()?;
    // One that does not answer is not waited for.
    set_socket_timeout(&socket, Timeout::Recv, Some(ANSWERS)).ok()?;
    let process = HookProcess { socket: Mutex::new(socket), _child: None };
    // Otherwise the configuration names another program by now, and that one gets what this process still has.
    let is_its = process.is_for(program).ok()?;
    set_socket_timeout(&*process.lock(), Timeout::Recv, None).ok()?;
    is_its.then_some(process)
}

impl HookProcess {
    fn spawn(program: &HookProgram) -> io::Result<Self> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg(VERB).arg(&program.path).args(&program.args).env_clear();
        command.stdin(theirs).stdout(Stdio::null());
        // A Ctrl-C on the daemon's terminal is not for it.
        let child = command.process_group(0).spawn()?;
        Ok(Self { socket: Mutex::new(ours), _child: Some(child) })
    }

    fn lock(&self) -> MutexGuard<'_, OwnedFd> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_for(&self, program: &HookProgram) -> io::Result<bool> {
        let (answer, _) = self.exchange(&Ask::IsFor(program.clone()), &[])?;
        Ok(matches!(answer, Answer::IsFor(true)))
    }

    pub(super) fn start(
        &self,
        program: &HookProgram,
        environment: Vec<String>,
        output: BorrowedFd<'_>,
        procs: Option<BorrowedFd<'_>>,
    ) -> io::Result<(Pid, OwnedFd)> {
        let ask = Ask::Start { program: program.clone(), environment };
        let descriptors: Vec<_> = std::iter::once(output).chain(procs).collect();
        let (answer, pidfd) = self.exchange(&ask, &descriptors)?;
        match answer {
            Answer::Started { pid } => Pid::from_raw(pid).zip(pidfd).ok_or_else(unexpected),
            Answer::Refused { errno } => Err(io::Error::from_raw_os_error(errno)),
            _ => Err(unexpected()),
        }
    }

    /// How a program has ended that it has started; `None` while that runs.
    pub(super) fn collect(&self, pid: Pid) -> io::Result<Option<HookEnd>> {
        match self.exchange(&Ask::Collect { pid: pid.as_raw_nonzero().get() }, &[])?.0 {
            Answer::Runs => Ok(None),
            Answer::Exited(status) => Ok(Some(HookEnd::Exited(status))),
            Answer::Signalled(signal) => Ok(Some(HookEnd::Signalled(signal))),
            _ => Err(unexpected()),
        }
    }

    async fn ended(&self) -> io::Result<()> {
        let socket = self.lock().try_clone()?;
        let socket = raw::readable_fd(socket)?;
        loop {
            let mut ready = socket.readable().await?;
            // Its answers make it readable too; they are for the thread that asks.
            if is_over(socket.get_ref().as_fd())? {
                return Ok(());
            }
            ready.clear_ready();
        }
    }

    fn exchange(&self, ask: &Ask, descriptors: &[BorrowedFd<'_>]) -> io::Result<(Answer, Option<OwnedFd>)> {
        let socket = self.lock();
        send(socket.as_fd(), ask, descriptors)?;
        let received = receive(socket.as_fd(), MOST_ANSWER_BYTES)
            .and_then(|received| received.ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe)));
        if received.is_err() {
            // What comes later is the answer to another question than the next one.
            let _ended = rustix::net::shutdown(&*socket, Shutdown::Both);
        }
        received.map(|(answer, descriptors)| (answer, descriptors.into_iter().next()))
    }
}

/// Whether the other end is closed, or this one was shut down as no answer came.
fn is_over(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let mut looked = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
    retry_on_intr(|| poll(&mut looked, Some(&Timespec::default())))?;
    Ok(looked.iter().any(|looked| looked.revents().intersects(PollFlags::HUP | PollFlags::ERR)))
}

fn unexpected() -> io::Error {
    io::Error::other("an answer to another question")
}

fn send(socket: BorrowedFd<'_>, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MOST_ASK_BYTES {
        return Err(Errno::TOOBIG.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("no room for the descriptors"));
    }
    retry_on_intr(|| sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// The next message with its descriptors; `None` if the other end is closed.
fn receive<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    most_bytes: usize,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; most_bytes];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            descriptors.extend(some);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(Errno::MSGSIZE.into());
    }
    let message = serde_json::from_slice(bytes.get(..received.bytes).unwrap_or_default())?;
    Ok(Some((message, descriptors)))
}

/// Runs the hook process: `arguments` are the program to run, and its own.
#[must_use]
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    match run(arguments.into_iter()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(io::stderr(), "the hook process of enforcer: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run(mut arguments: impl Iterator<Item = OsString>) -> io::Result<()> {
    raw::close_all_but_standard();
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let path = arguments.next().map(PathBuf::from);
    let args: Option<Vec<String>> = arguments.map(|arg| arg.into_string().ok()).collect();
    let program = path.zip(args).map(|(path, args)| HookProgram { path, args });
    let Some(program) = program.filter(|_| rustix::net::sockopt::socket_type(&socket).is_ok()) else {
        return Err(io::Error::other("it is started by `enforcer run`, and by nothing else"));
    };
    // If the daemon has died already, its end of the socket is closed.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // Best effort, as for the daemon, which reports what it lacks.
    drop(std::fs::write("/proc/self/oom_score_adj", SCORE));
    let _preferred = rustix::process::setpriority_process(None, threads::NICE);
    let resident = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    let _locked = rustix::mm::mlockall(resident);
    serve(socket.as_fd(), &program)
}

/// Answers until the other end is closed.
fn serve(socket: BorrowedFd<'_>, program: &HookProgram) -> io::Result<()> {
    while let Some((ask, descriptors)) = receive(socket, MOST_ASK_BYTES)? {
        let mut pidfd = None;
        let answer = match ask {
            Ask::IsFor(other) => Answer::IsFor(other == *program),
            Ask::Start { program: other, environment } => {
                match start_own(program, &other, environment, &descriptors) {
                    Ok((pid, of_child)) => {
                        pidfd = Some(of_child);
                        Answer::Started { pid: pid.as_raw_nonzero().get() }
                    }
                    Err(error) => Answer::Refused { errno: error.raw_os_error().unwrap_or(libc::EIO) },
                }
            }
            Ask::Collect { pid } => {
                match Pid::from_raw(pid).and_then(|pid| started::collect(WaitId::Pid(pid))) {
                    Some(HookEnd::Exited(status)) => Answer::Exited(status),
                    Some(HookEnd::Signalled(signal)) => Answer::Signalled(signal),
                    _ => Answer::Runs,
                }
            }
        };
        let descriptors: Vec<_> = pidfd.iter().map(OwnedFd::as_fd).collect();
        send(socket, &answer, &descriptors)?;
    }
    Ok(())
}

/// Starts the one program that this process is for. The asker says nothing but who the victim is: not which code runs.
fn start_own(
    program: &HookProgram,
    asked: &HookProgram,
    environment: Vec<String>,
    descriptors: &[OwnedFd],
) -> io::Result<(Pid, OwnedFd)> {
    let output = descriptors.first().ok_or(Errno::INVAL)?;
    if asked != program || program.check().is_err() {
        return Err(Errno::PERM.into());
    }
    let fixed = [PATH, LANG].map(|(name, value)| format!("{name}={value}"));
    let of_victim = environment.into_iter().filter(|variable| variable.starts_with(PREFIX));
    let environment = fixed.into_iter().chain(of_victim).collect();
    started::start_here(program, environment, output.as_fd(), descriptors.get(1).map(OwnedFd::as_fd))
}

#[cfg(test)]
mod tests {
    use std::{io::Read as _, pin::pin, thread};

    use super::*;
    use crate::evict::tests::hook::program;

    /// What a run by another process says, and how it ends.
    fn ran(own: &HookProgram, asked: &HookProgram, variables: &[&str]) -> io::Result<(String, HookEnd)> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let own = own.clone();
        let serving = thread::spawn(move || serve(theirs.as_fd(), &own));
        let process = HookProcess { socket: Mutex::new(ours), _child: None };
        let (mut reader, writer) = io::pipe()?;
        let environment = variables.iter().map(|variable| (*variable).to_owned()).collect();
        let started = process.start(asked, environment, writer.as_fd(), None);
        drop(writer);
        let ran = started.and_then(|(pid, pidfd)| {
            let mut output = String::new();
            reader.read_to_string(&mut output)?;
            poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None)?;
            Ok((output, process.collect(pid)?.unwrap()))
        });
        drop(process);
        serving.join().unwrap()?;
        ran
    }

    #[test]
    fn the_program_runs_and_its_end_is_known() {
        let shell = program("sh", &["-c", "echo \"$ENFORCER_POD\"; exit 3"]);
        let (output, end) = ran(&shell, &shell, &["ENFORCER_POD=hog"]).unwrap();
        assert_eq!((&*output, end), ("hog\n", HookEnd::Exited(3)));
        let shell = program("sh", &["-c", "kill -ABRT $$"]);
        assert_eq!(ran(&shell, &shell, &[]).unwrap().1, HookEnd::Signalled(libc::SIGABRT));
    }

    #[test]
    fn no_other_program_and_no_other_variable_is_taken() {
        let (own, other) = (program("sh", &["-c", "true"]), program("sh", &["-c", "echo other"]));
        let refused = ran(&own, &other, &[]).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        let own = program("env", &[]);
        let (output, _) = ran(&own, &own, &["LD_PRELOAD=/tmp/x.so", "ENFORCER_POD=hog"]).unwrap();
        let mut names: Vec<_> = output.lines().filter_map(|line| line.split('=').next()).collect();
        names.sort_unstable();
        assert_eq!(names, ["ENFORCER_POD", "LANG", "PATH"]);
    }

    #[test]
    fn it_knows_which_program_it_is_for() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let own = HookProgram { path: "/a".into(), args: vec![String::from("b")] };
        let serving = {
            let own = own.clone();
            thread::spawn(move || serve(theirs.as_fd(), &own))
        };
        let process = HookProcess { socket: Mutex::new(ours), _child: None };
        assert!(process.is_for(&own).unwrap());
        assert!(!process.is_for(&HookProgram { args: Vec::new(), ..own }).unwrap());
        drop(process);
        serving.join().unwrap().unwrap();
    }

    #[tokio::test]
    async fn its_end_is_noticed_and_an_answer_is_not_taken_for_it() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let process = HookProcess { socket: Mutex::new(ours), _child: None };
        let mut ended = pin!(process.ended());
        send(theirs.as_fd(), &Answer::Runs, &[]).unwrap();
        tokio::select! {
            biased;
            ended = &mut ended => panic!("{ended:?}"),
            () = tokio::task::yield_now() => {}
        }
        assert!(!is_over(process.lock().as_fd()).unwrap());
        let (answer, _) = receive::<Answer>(process.lock().as_fd(), MOST_ANSWER_BYTES).unwrap().unwrap();
        assert!(matches!(answer, Answer::Runs));
        drop(theirs);
        ended.await.unwrap();
        assert!(is_over(process.lock().as_fd()).unwrap());
    }
}
