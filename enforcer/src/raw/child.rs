//! A child that is born in a cgroup, and waits there until it may become its program.

use std::{
    ffi::{CStr, CString},
    io::{self, Read as _, Write as _},
    mem::{MaybeUninit, size_of},
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
    ptr,
    time::Duration,
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, pidfd_send_signal, waitid};

/// `CLONE_INTO_CGROUP` (`include/uapi/linux/sched.h`), Linux 5.7.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// The exit status of a child whose parent has given it up. The parent ignores it.
const GIVEN_UP: libc::c_int = 125;

/// `struct clone_args` (`include/uapi/linux/sched.h`).
#[derive(Default)]
#[repr(C)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// A child process. It is killed and collected if it is dropped before it has ended.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
    pidfd: OwnedFd,
    has_ended: bool,
}

/// A child that has not become its program yet.
#[derive(Debug)]
pub(crate) struct WaitingChild {
    child: Child,
    /// A byte lets the child go on; closing it ends the child.
    gate: io::PipeWriter,
    /// Why it did not become its program: an errno, or nothing if it did.
    outcome: io::PipeReader,
}

impl WaitingChild {
    /// Clones this process, into a cgroup if one is given (`clone3(2)`). The child dies with the calling thread.
    ///
    /// `arguments` begins with the program, which is looked up in `PATH` as by `execvp(3)`.
    pub(crate) fn clone_into(cgroup: Option<BorrowedFd<'_>>, arguments: &[CString]) -> io::Result<Self> {
        let program = arguments.first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut pointers: Vec<*const libc::c_char> =
            arguments.iter().map(|argument| argument.as_ptr()).collect();
        pointers.push(ptr::null());
        let (gate_of_child, gate) = io::pipe()?;
        let (outcome, outcome_of_child) = io::pipe()?;
        // SAFETY: no preconditions.
        let parent = unsafe { libc::getpid() };
        let mut pidfd: libc::c_int = -1;
        let mut clone = CloneArguments {
            flags: u64::try_from(libc::CLONE_PIDFD).map_err(io::Error::other)?,
            pidfd: (&raw mut pidfd) as u64,
            exit_signal: u64::try_from(libc::SIGCHLD).map_err(io::Error::other)?,
            ..CloneArguments::default()
        };
        if let Some(cgroup) = cgroup {
            clone.flags |= CLONE_INTO_CGROUP;
            clone.cgroup = u64::try_from(cgroup.as_raw_fd()).map_err(io::Error::other)?;
        }
        // SAFETY: the kernel reads the arguments, whose size it is given, and writes the descriptor through the one pointer
        // in them. The child has a copy of this memory, and only makes system calls in it until it is its program.
        let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut clone, size_of::<CloneArguments>()) };
        if pid == 0 {
            let pipes = [gate_of_child.as_raw_fd(), gate.as_raw_fd(), outcome_of_child.as_raw_fd()];
            // SAFETY: this is the child; the strings and the array that ends with a null pointer are in its copy.
            unsafe { become_program(parent, pipes, program, pointers.as_ptr()) }
        }
        let failed = io::Error::last_os_error();
        let Some(pid) = i32::try_from(pid).ok().filter(|pid| *pid > 0).and_then(Pid::from_raw) else {
            return Err(failed);
        };
        // SAFETY: the kernel returned a new descriptor, which nothing else owns.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        Ok(Self { child: Child { pid, pidfd, has_ended: false }, gate, outcome })
    }

    /// Its process id, which stays its own until it is collected.
    pub(crate) fn pid(&self) -> u32 {
        self.child.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Lets the child become its program. The error is why it could not; one that was killed as it waited is a child that has
    /// ended.
    pub(crate) fn release(self) -> io::Result<Child> {
        let Self { mut child, mut gate, mut outcome } = self;
        match gate.write_all(&[1]) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(child),
            written => written?,
        }
        let mut errno = [0; size_of::<libc::c_int>()];
        let was_closed_by_exec = outcome.read(&mut errno)? == 0;
        if was_closed_by_exec {
            return Ok(child);
        }
        child.wait()?;
        Err(io::Error::from_raw_os_error(libc::c_int::from_ne_bytes(errno)))
    }
}

impl Child {
    /// Sends it a signal, if it has not ended.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// How it has ended; `None` if it has not.
    pub(crate) fn ended(&mut self) -> io::Result<Option<WaitIdStatus>> {
        self.collect(WaitIdOptions::EXITED | WaitIdOptions::NOHANG)
    }

    fn wait(&mut self) -> io::Result<Option<WaitIdStatus>> {
        self.collect(WaitIdOptions::EXITED)
    }

    fn collect(&mut self, options: WaitIdOptions) -> io::Result<Option<WaitIdStatus>> {
        let id = WaitId::PidFd(self.pidfd.as_fd());
        let status = rustix::io::retry_on_intr(|| waitid(id.clone(), options))?;
        self.has_ended |= status.is_some();
        Ok(status)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.has_ended {
            // It may have ended by itself; then there is nothing to kill.
            drop(self.signal(Signal::KILL));
            drop(self.wait());
        }
    }
}

/// Waits at the gate and becomes the program.
///
/// # Safety
///
/// The caller is a process of its own: this never returns. `arguments` ends with a null pointer.
unsafe fn become_program(
    parent: libc::pid_t,
    [gate, gate_of_parent, outcome]: [libc::c_int; 3],
    program: &CStr,
    arguments: *const *const libc::c_char,
) -> ! {
    // SAFETY: these take numbers, and pointers to this function's own memory and to the strings. Nothing here allocates or
    // locks: other threads of the parent may have held locks as this process was cloned.
    unsafe {
        libc::close(gate_of_parent);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        let mut byte = 0_u8;
        // A parent that died before sends no signal.
        if libc::getppid() != parent || libc::read(gate, (&raw mut byte).cast(), 1) != 1 {
            libc::_exit(GIVEN_UP);
        }
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let mut none = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
        libc::execvp(program.as_ptr(), arguments);
        let errno = *libc::__errno_location();
        libc::write(outcome, (&raw const errno).cast(), size_of::<libc::c_int>());
        libc::_exit(127)
    }
}

/// Signals that are blocked in this thread, and in those that it starts, to be waited for. They stay blocked: a thread that
/// was started meanwhile has them blocked as well.
#[derive(Debug)]
pub(crate) struct Signals(libc::sigset_t);

/// A signal that has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Arrived {
    pub(crate) number: i32,
    /// Whether the kernel sent it, as at a key press in a terminal: then each process of the terminal's group has it.
    pub(crate) is_of_kernel: bool,
}

impl Signals {
    pub(crate) fn block(numbers: &[i32]) -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the set is emptied before anything else reads it.
        let set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            set.assume_init()
        };
        let mut signals = Self(set);
        // A caller may have left it ignored: then the kernel collects children itself, and says nothing of their end.
        // SAFETY: it sets the default action of a signal, for which no handler of ours exists.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        for number in numbers {
            // SAFETY: the set is initialized; the library refuses a number that is no signal.
            if unsafe { libc::sigaddset(&raw mut signals.0, *number) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        // SAFETY: the set is initialized, and no old mask is asked for.
        match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals.0, ptr::null_mut()) } {
            0 => Ok(signals),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Waits for the next one, at most for so long.
    pub(crate) fn next(&self, most: Duration) -> io::Result<Option<Arrived>> {
        let most = libc::timespec {
            tv_sec: libc::time_t::try_from(most.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: most.subsec_nanos().into(),
        };
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: the set and the time are initialized; the kernel fills the record, of which all zeros are a valid one.
        let (number, info) = unsafe {
            let number = libc::sigtimedwait(&raw const self.0, info.as_mut_ptr(), &raw const most);
            (number, info.assume_init())
        };
        if number > 0 {
            return Ok(Some(Arrived { number, is_of_kernel: info.si_code == libc::SI_KERNEL }));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => Ok(None),
            _ => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Instant};

    use super::*;

    fn command(words: &[&str]) -> Vec<CString> {
        words.iter().map(|word| CString::new(*word).unwrap()).collect()
    }

    fn end(mut child: Child) -> WaitIdStatus {
        child.wait().unwrap().unwrap()
    }

    #[test]
    fn it_becomes_its_program_once_it_is_released() {
        let waiting = WaitingChild::clone_into(None, &command(&["sh", "-c", "exit 7"])).unwrap();
        let name = std::fs::read_to_string(format!("/proc/{}/comm", waiting.pid())).unwrap();
        assert_ne!(name.trim(), "sh", "it did not wait");
        assert_eq!(end(waiting.release().unwrap()).exit_status(), Some(7));
    }

    #[test]
    fn a_program_that_cannot_run_is_an_error() {
        let errno = |program: &str| {
            let waiting = WaitingChild::clone_into(None, &command(&[program])).unwrap();
            waiting.release().unwrap_err().raw_os_error().unwrap()
        };
        assert_eq!((errno("no-such-program"), errno("/")), (libc::ENOENT, libc::EACCES));
    }

    #[test]
    fn it_ends_with_its_parents_interest() {
        let waiting = WaitingChild::clone_into(None, &command(&["sleep", "1000"])).unwrap();
        let path = format!("/proc/{}", waiting.pid());
        assert!(std::path::Path::new(&path).exists());
        drop(waiting);
        assert!(!std::path::Path::new(&path).exists());
        let running =
            WaitingChild::clone_into(None, &command(&["sleep", "1000"])).unwrap().release().unwrap();
        running.signal(Signal::TERM).unwrap();
        assert_eq!(end(running).terminating_signal(), Some(libc::SIGTERM));
    }

    #[test]
    fn one_that_is_killed_as_it_waits_has_ended() {
        let waiting = WaitingChild::clone_into(None, &command(&["sleep", "1000"])).unwrap();
        waiting.child.signal(Signal::KILL).unwrap();
        // Its end of the pipe is closed before it is a zombie.
        waitid(WaitId::PidFd(waiting.child.pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
            .unwrap();
        assert_eq!(end(waiting.release().unwrap()).terminating_signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn a_blocked_signal_is_waited_for() {
        // In a thread of its own: the mask belongs to the thread.
        let waiter = thread::spawn(|| {
            let signals = Signals::block(&[libc::SIGUSR1]).unwrap();
            assert_eq!(signals.next(Duration::from_millis(1)).unwrap(), None);
            // SAFETY: it sends a blocked signal to the calling thread.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1) };
            let start = Instant::now();
            let arrived = signals.next(Duration::from_mins(1)).unwrap();
            assert_eq!(arrived, Some(Arrived { number: libc::SIGUSR1, is_of_kernel: false }));
            assert!(start.elapsed() < Duration::from_mins(1));
        });
        waiter.join().unwrap();
    }
}
