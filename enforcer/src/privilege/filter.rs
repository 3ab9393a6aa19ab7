//! The filters of system calls (`seccomp(2)`): which calls a process may make after its start.
//!
//! A call that is refused fails, and its process lives on. A list of what a helper process may do answers `ENOSYS` to all
//! else, as a kernel without the call: libraries try another then.

use std::{collections::BTreeMap, env::consts::ARCH, io};

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Is,
    SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// Why a filter is not in force.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfiltered {
    /// The kernel has no filters of system calls.
    #[error("the kernel has no filters of system calls: {0}")]
    Missing(io::Error),
    /// It does not take this one.
    #[error("cannot filter system calls")]
    Refused(#[source] seccompiler::Error),
    /// There is none for this processor.
    #[error("cannot make a filter of system calls")]
    Unmade(#[from] BackendError),
}

/// The bits of a socket's type without its flags (`SOCK_TYPE_MASK`, include/linux/net.h).
const SOCKET_TYPES: u64 = 0xf;

/// What a helper process does with what it has: memory, time, its threads, the descriptors that are open.
const OF_HELPERS: &[i64] = &[
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Time, chance, threads, signals to itself.
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getrandom,
    libc::SYS_gettimeofday,
    libc::SYS_membarrier,
    libc::SYS_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    // Who and where it is.
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getrlimit,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    // What is open.
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_fstat,
    libc::SYS_lseek,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    // Files by their names, which are only looked at.
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_newfstatat,
    libc::SYS_readlinkat,
    libc::SYS_statx,
    // Connections that it makes. A netlink socket is bound to be asked for this host's addresses.
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
];

/// The same by their older names.
#[cfg(target_arch = "x86_64")]
const OLDER: &[i64] = &[
    libc::SYS_access,
    libc::SYS_epoll_wait,
    libc::SYS_lstat,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_stat,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[i64] = &[];

/// A program that uses the host's libc looks up names as the host does, which loads further code.
const LOADS_CODE: bool = !cfg!(target_feature = "crt-static");

/// `include/uapi/asm-generic/ioctls.h`.
const FIONREAD: u64 = 0x541B;
const SIOCOUTQ: u64 = 0x5411;
const FIONBIO: u64 = 0x5421;

pub(super) type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// A condition on the lower half of an argument.
pub(super) fn is(argument: u8, what: Is, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, Length::Dword, what, value)
}

/// A number as the kernel has it in an argument.
pub(super) fn number(value: i32) -> u64 {
    u64::from(value.cast_unsigned())
}

/// What a helper process may do.
fn of_helpers(accepts_connections: bool) -> Result<Rules, BackendError> {
    let mut rules: Rules = OF_HELPERS.iter().chain(OLDER).map(|call| (*call, Vec::new())).collect();
    if accepts_connections {
        // The socket that listens is open: it makes none.
        rules.insert(libc::SYS_accept4, Vec::new());
    }
    // Files are read.
    let writes = number(libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC);
    let reads = |flags: u8| SeccompRule::new(vec![is(flags, Is::MaskedEq(writes), number(libc::O_RDONLY))?]);
    rules.insert(libc::SYS_openat, vec![reads(2)?]);
    #[cfg(target_arch = "x86_64")]
    rules.insert(libc::SYS_open, vec![reads(1)?]);
    // Memory is no code.
    let code = number(libc::PROT_EXEC);
    let no_code = || SeccompRule::new(vec![is(2, Is::MaskedEq(code), 0)?]);
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, if LOADS_CODE { Vec::new() } else { vec![no_code()?] });
    }
    // The network, and asking the kernel for this host's addresses.
    let of_family = |family: i32| is(0, Is::Eq, number(family));
    rules.insert(
        libc::SYS_socket,
        vec![
            SeccompRule::new(vec![of_family(libc::AF_INET)?])?,
            SeccompRule::new(vec![of_family(libc::AF_INET6)?])?,
            SeccompRule::new(vec![
                of_family(libc::AF_NETLINK)?,
                is(2, Is::Eq, number(libc::NETLINK_ROUTE))?,
            ])?,
        ],
    );
    // One of datagrams could send to any socket of the host.
    let of_streams = is(1, Is::MaskedEq(SOCKET_TYPES), number(libc::SOCK_STREAM))?;
    rules.insert(libc::SYS_socketpair, vec![SeccompRule::new(vec![of_family(libc::AF_UNIX)?, of_streams])?]);
    let first = |values: &[i32]| {
        let rule = |value: &i32| SeccompRule::new(vec![is(0, Is::Eq, number(*value))?]);
        values.iter().map(rule).collect::<Result<Vec<_>, _>>()
    };
    rules.insert(libc::SYS_prctl, first(&[libc::PR_SET_NAME, libc::PR_GET_NAME])?);
    let second = |values: &[u64]| {
        let rule = |value: &u64| SeccompRule::new(vec![is(1, Is::Eq, *value)?]);
        values.iter().map(rule).collect::<Result<Vec<_>, _>>()
    };
    rules.insert(libc::SYS_ioctl, second(&[FIONBIO, FIONREAD, SIOCOUTQ])?);
    let flags =
        [libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL, libc::F_DUPFD_CLOEXEC].map(number);
    rules.insert(libc::SYS_fcntl, second(&flags)?);
    // Limits are read. The pointer to new ones is as long as two words of a condition.
    let unchanged = SeccompCondition::new(2, Length::Qword, Is::Eq, 0)?;
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(vec![unchanged])?]);
    Ok(rules)
}

fn helper_program(accepts_connections: bool) -> Result<BpfProgram, BackendError> {
    let refused = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    let rules = of_helpers(accepts_connections)?;
    SeccompFilter::new(rules, refused, SeccompAction::Allow, TargetArch::try_from(ARCH)?)?.try_into()
}

/// Leaves a helper process what it needs to answer, in all its threads. It has `no_new_privs`.
pub(crate) fn confine_helper(accepts_connections: bool) -> Result<(), Unfiltered> {
    apply(&helper_program(accepts_connections)?)
}

/// Puts a filter in force in all threads.
pub(super) fn apply(program: &BpfProgram) -> Result<(), Unfiltered> {
    seccompiler::apply_filter_all_threads(program).map_err(|error| match error {
        seccompiler::Error::Seccomp(error)
            if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL)) =>
        {
            Unfiltered::Missing(error)
        }
        error => Unfiltered::Refused(error),
    })
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        net::{TcpListener, TcpStream, UdpSocket},
        os::{
            fd::AsFd as _,
            unix::net::{UnixDatagram, UnixListener, UnixStream},
        },
        process::Command,
        thread,
        time::{Duration, Instant},
    };

    use super::*;
    use crate::raw::unacknowledged_bytes;

    /// What comes of some work in a thread of its own that is filtered, and whose end is not.
    fn filtered<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        filtered_as(false, work)
    }

    fn filtered_as<T: Send + 'static>(
        accepts_connections: bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let program = helper_program(accepts_connections).unwrap();
        let thread = thread::spawn(move || {
            seccompiler::apply_filter(&program).unwrap();
            work()
        });
        thread.join().unwrap()
    }

    fn errno<T>(result: io::Result<T>) -> Option<i32> {
        result.err().and_then(|error| error.raw_os_error())
    }

    #[test]
    fn a_helper_process_reads_and_connects_and_waits() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        filtered(move || {
            assert!(fs::read_to_string("/proc/self/status").unwrap().contains("Seccomp:"));
            assert!(fs::metadata("/").unwrap().is_dir());
            let stream = TcpStream::connect(address).unwrap();
            stream.set_nonblocking(true).unwrap();
            assert_eq!(unacknowledged_bytes(stream.as_fd()).unwrap(), 0);
            assert!(UdpSocket::bind("127.0.0.1:0").is_ok());
            assert!(UnixStream::pair().is_ok());
            assert_eq!(errno(UnixDatagram::pair()), Some(libc::ENOSYS), "it could write to the journal");
            let begin = Instant::now();
            thread::sleep(Duration::from_millis(1));
            assert!(begin.elapsed() >= Duration::from_millis(1));
            // It comes from the kernel, and goes back to it.
            let large = vec![1_u8; 8 << 20];
            assert_eq!(large.iter().map(|byte| usize::from(*byte)).sum::<usize>(), 8 << 20);
        });
    }

    #[test]
    fn a_helper_process_changes_no_file_runs_nothing_and_serves_no_one() {
        let temp = tempfile::tempdir().unwrap();
        let existing = temp.path().join("existing");
        fs::write(&existing, "kept").unwrap();
        let folder = temp.path().to_owned();
        let [created, written, removed, made, ran, listened, local, spawned] = filtered(move || {
            [
                errno(File::create(folder.join("new"))),
                errno(File::options().write(true).open(folder.join("existing"))),
                errno(fs::remove_file(folder.join("existing"))),
                errno(fs::create_dir(folder.join("folder"))),
                errno(Command::new("true").status()),
                errno(TcpListener::bind("127.0.0.1:0")),
                errno(UnixListener::bind(folder.join("socket"))),
                errno(thread::Builder::new().spawn(|| ())),
            ]
        });
        let refused = Some(libc::ENOSYS);
        assert_eq!([created, written, removed, made, listened, local], [refused; 6]);
        assert!(ran.is_some() && spawned.is_some(), "{ran:?} {spawned:?}");
        assert_eq!(fs::read_to_string(&existing).unwrap(), "kept");
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1);
    }

    #[test]
    fn only_a_helper_process_that_serves_accepts_connections_and_it_listens_nowhere_else() {
        let accepted = |accepts_connections| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let outcome = filtered_as(accepts_connections, move || {
                (errno(listener.accept()), errno(TcpListener::bind("127.0.0.1:0")))
            });
            drop(client);
            outcome
        };
        let refused = Some(libc::ENOSYS);
        assert_eq!(accepted(true), (None, refused));
        assert_eq!(accepted(false), (refused, refused));
    }

    #[test]
    fn no_call_is_allowed_twice() {
        let mut all: Vec<_> = OF_HELPERS.iter().chain(OLDER).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
