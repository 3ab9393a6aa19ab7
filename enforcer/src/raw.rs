//! System interfaces that no safe crate offers.
#![expect(unsafe_code, reason = "the one userspace module that may; rustix covers everything else")]

mod child;
mod heap;
mod landlock;

use std::{
    ffi::{CStr, CString},
    fs::File,
    io,
    mem::MaybeUninit,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
    ptr::{self, NonNull, null_mut},
    sync::atomic::{AtomicI32, AtomicU64, Ordering},
};

use aya::maps::{HashMap, IterableMap, MapData, RingBuf};
use rustix::{
    mm::{MapFlags, ProtFlags},
    process::{WaitId, WaitIdOptions},
};
use tokio::io::{Interest, unix::AsyncFd};

pub(crate) use self::child::{Child, Signals, WaitingChild};
pub use self::heap::Heap;
pub(crate) use self::heap::{configure_heap, hold_back, lock_memory, trim_heap, trim_locked_heap};
pub(crate) use self::landlock::{landlock_version, touch_nothing};

/// Restricts host name lookups to /etc/hosts and DNS in a statically linked program: other services of
/// /etc/nsswitch.conf would be loaded from the host's libc, which may be another version.
#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
pub(crate) fn look_up_names_plainly() {
    unsafe extern "C" {
        fn __nss_configure_lookup(
            database: *const libc::c_char,
            services: *const libc::c_char,
        ) -> libc::c_int;
    }
    // SAFETY: glibc's function has that signature (nss/nss.h). Both strings end with a zero byte and are only read;
    // glibc copies what it keeps, and takes its own lock.
    let result = unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) };
    debug_assert_eq!(result, 0, "glibc knows the database, and parses the line");
}

/// A program that uses the host's libc looks up names as the host does.
#[cfg(not(all(target_env = "gnu", target_feature = "crt-static")))]
pub(crate) fn look_up_names_plainly() {}

/// Frees the memory of a process that has been sent SIGKILL, in the calling thread (`process_mrelease(2)`, Linux 5.15).
///
/// The kernel refuses a process that is not dying with `EINVAL`, so a reused pid is not harmed.
pub(crate) fn process_mrelease(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: it takes a file descriptor, which is open as it is borrowed, and no flags; it reads and writes no memory
    // of ours.
    let result = unsafe { libc::syscall(libc::SYS_process_mrelease, pidfd.as_raw_fd(), 0_u32) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Closes every descriptor but the three standard ones. Call it before anything else is opened.
pub(crate) fn close_all_but_standard() {
    // SAFETY: it takes numbers; nothing in this process owns one of these descriptors yet, as its caller is the first to
    // open anything. Before Linux 5.9 it fails: then those stay that were not opened to be closed at this program's start.
    let _unsupported = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) };
}

/// The descriptor of that number, which the program before this one in the same process has left open; `None` if it is not
/// open. Call it before anything else is opened.
pub(crate) fn inherited(number: i32) -> Option<OwnedFd> {
    if number <= libc::STDERR_FILENO {
        return None;
    }
    // SAFETY: it takes a number, and only looks.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    // SAFETY: it is open, and nothing in this process owns it, as its caller is the first to open anything that stays so.
    (flags >= 0).then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

/// A program to run detached from the daemon.
#[derive(Debug)]
pub(crate) struct SpawnArgs<'a> {
    /// Its absolute path: there is no search in `PATH`, and no fallback to a shell.
    pub(crate) path: &'a CStr,
    /// Its arguments, with its own name first.
    pub(crate) args: &'a [CString],
    /// Its whole environment.
    pub(crate) environment: &'a [CString],
    /// Its standard input.
    pub(crate) input: BorrowedFd<'a>,
    /// Its standard output and error.
    pub(crate) output: BorrowedFd<'a>,
    /// The `cgroup.procs` of the cgroup that it starts in.
    pub(crate) procs: Option<BorrowedFd<'a>>,
    /// Its `oom_score_adj`.
    pub(crate) score: &'a CStr,
}

/// Starts the program as the leader of its own session, with normal priority, only the first three descriptors, the
/// root folder as its working directory, and umask 077. It dies when the calling thread does.
///
/// As with `posix_spawn(3)`, the new process shares our memory, and the calling thread is suspended, until it has
/// become its program. A fork would copy the page tables instead, and then every other thread would need a page for its
/// next write: the reflex too, just while there is no memory. `posix_spawn` itself supports neither cgroups nor scores.
/// The kernel sets the score for such a child alone (`__set_oom_adj`, fs/proc/base.c).
pub(crate) fn spawn_detached(program: &SpawnArgs<'_>) -> io::Result<(rustix::process::Pid, OwnedFd)> {
    const STACK_WORDS: usize = 4 * 1024;
    let fds = [Some(program.input), Some(program.output), program.procs];
    if fds.iter().flatten().any(|fd| fd.as_raw_fd() <= libc::STDERR_FILENO) {
        // They would be replaced before they are used. Our own are never that low: the runtime has filled these three.
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let pointers = |strings: &[CString]| {
        strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect::<Vec<_>>()
    };
    let (args, environment) = (pointers(program.args), pointers(program.environment));
    let child = Detached {
        program,
        args: args.as_ptr(),
        environment: environment.as_ptr(),
        // SAFETY: no preconditions.
        parent: unsafe { libc::getpid() },
        errno: AtomicI32::new(0),
    };
    let mut stack = vec![0_u128; STACK_WORDS];
    let mut pidfd: libc::c_int = -1;
    // No signal handler of ours may run in the child, where it would work on our memory.
    let mut mask = MaybeUninit::<[libc::sigset_t; 2]>::uninit();
    let before: *mut libc::sigset_t = mask.as_mut_ptr().cast();
    // SAFETY: `mask` has room for two sets; the second is filled before it is read, and the first before it is
    // restored. The stack, everything that `child` points to and `pidfd` outlive the child's use of them, as this
    // thread is suspended until the child has left our memory (CLONE_VFORK). The stack grows down from its end, which
    // is aligned as `u128` is.
    let (pid, errno) = unsafe {
        let all = before.add(1);
        libc::sigfillset(all);
        libc::pthread_sigmask(libc::SIG_SETMASK, all, before);
        let pid = libc::clone(
            become_program,
            stack.as_mut_ptr().add(STACK_WORDS).cast(),
            libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD,
            ptr::from_ref(&child).cast_mut().cast(),
            &raw mut pidfd,
        );
        let errno = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, before, null_mut());
        (pid, errno)
    };
    let Some(pid) = rustix::process::Pid::from_raw(pid).filter(|_| pid > 0) else { return Err(errno) };
    // SAFETY: the kernel returned a new descriptor, which nothing else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    match child.errno.load(Ordering::Acquire) {
        0 => Ok((pid, pidfd)),
        errno => {
            // The child has exited.
            rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED)?;
            Err(io::Error::from_raw_os_error(errno))
        }
    }
}

/// The input of a new process, and its error.
struct Detached<'a> {
    program: &'a SpawnArgs<'a>,
    args: *const *const libc::c_char,
    environment: *const *const libc::c_char,
    parent: libc::pid_t,
    /// Why it did not become its program.
    errno: AtomicI32,
}

impl Detached<'_> {
    /// Gives up the daemon's attributes, and becomes the program. It runs in our memory, so it must not allocate, lock
    /// or panic: it only makes system calls.
    fn leave(&self) -> io::Result<()> {
        /// `include/uapi/linux/close_range.h`.
        const CLOSE_RANGE_CLOEXEC: libc::c_uint = 1 << 2;
        /// `select(2)` supports no higher descriptors; the daemon's own limit is higher.
        const OPEN_FILES: libc::rlim_t = 1024;
        /// How many signals the kernel has.
        const SIGNALS: libc::c_long = 64;
        let done = |result: libc::c_int| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
        let write = |fd: libc::c_int, text: &CStr| {
            // SAFETY: it reads as many bytes as the text has; the kernel checks whether the descriptor is open.
            let written = unsafe { libc::write(fd, text.as_ptr().cast(), text.count_bytes()) };
            if written < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        };
        if let Some(procs) = self.program.procs {
            write(procs.as_raw_fd(), c"0")?;
        }
        // SAFETY: these take numbers, and strings and pointers that outlive the call. The process has its own
        // descriptor table, signal handlers, limits and working directory.
        unsafe {
            done(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
            if libc::getppid() != self.parent {
                // The parent has died already: there will be no signal.
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            done(libc::setsid())?;
            let score = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            done(score)?;
            write(score, self.program.score)?;
            done(libc::dup2(self.program.input.as_raw_fd(), libc::STDIN_FILENO))?;
            done(libc::dup2(self.program.output.as_raw_fd(), libc::STDOUT_FILENO))?;
            done(libc::dup2(self.program.output.as_raw_fd(), libc::STDERR_FILENO))?;
            if libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, CLOSE_RANGE_CLOEXEC) < 0 {
                return Err(io::Error::last_os_error());
            }
            done(libc::chdir(c"/".as_ptr()))?;
            libc::umask(0o077);
            // Best effort: on failure it keeps our priority and our file limit.
            libc::setpriority(libc::PRIO_PROCESS, 0, 0);
            let mut files = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut files) == 0 {
                files.rlim_cur = files.rlim_cur.min(OPEN_FILES);
                libc::setrlimit(libc::RLIMIT_NOFILE, &raw const files);
            }
            // Ignored signals, such as SIGPIPE, would stay ignored. The kernel's structure is shorter, and all zeros
            // mean the default; the library would skip two signals. SIGKILL and SIGSTOP are refused.
            let default = [0_u64; 8];
            for signal in 1..=SIGNALS {
                let (new, old) = (default.as_ptr(), ptr::null::<u64>());
                libc::syscall(libc::SYS_rt_sigaction, signal, new, old, SIGNALS / 8);
            }
            let mut none = MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigemptyset(none.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), null_mut());
            libc::execve(self.program.path.as_ptr(), self.args, self.environment);
        }
        Err(io::Error::last_os_error())
    }
}

extern "C" fn become_program(child: *mut libc::c_void) -> libc::c_int {
    // SAFETY: it is the `Detached` of the thread that waits for us, and lives until we have left its memory.
    let child = unsafe { &*child.cast::<Detached<'_>>() };
    let errno = child.leave().err().and_then(|error| error.raw_os_error());
    child.errno.store(errno.unwrap_or(libc::EIO), Ordering::Release);
    // SAFETY: it ends only this process, without running the exit handlers of ours.
    unsafe { libc::_exit(127) }
}

/// A pidfd of the process that connected to a unix socket (`SO_PEERPIDFD`, Linux 6.5). Unlike a pid, it never means
/// another process.
pub(crate) fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const SO_PEERPIDFD: libc::c_int = 77;
    let mut fd: libc::c_int = -1;
    let mut length: libc::socklen_t = 4;
    // SAFETY: the socket is open as it is borrowed; the kernel writes at most `length` bytes to `fd`, which is that
    // long.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            ptr::from_mut(&mut fd).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel returned a new descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The supplementary groups of the process that connected to a unix socket, at that time (`SO_PEERGROUPS`, Linux 4.13).
pub(crate) fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    /// The maximum for a process (`NGROUPS_MAX`).
    const MOST: usize = 65_536;
    const SO_PEERGROUPS: libc::c_int = 59;
    let mut groups: Vec<u32> = vec![0; 64];
    loop {
        let mut length =
            libc::socklen_t::try_from(groups.len() * size_of::<u32>()).map_err(io::Error::other)?;
        // SAFETY: the socket is open as it is borrowed; the kernel writes at most `length` bytes to `groups`, which is
        // that long.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let needed = usize::try_from(length).map_err(io::Error::other)? / size_of::<u32>();
        if result == 0 {
            groups.truncate(needed);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // There are more groups; the kernel has returned the needed length.
        if error.raw_os_error() != Some(libc::ERANGE) || needed <= groups.len() || needed > MOST {
            return Err(error);
        }
        groups.resize(needed, 0);
    }
}

/// How many bytes that were sent over a TCP connection its other end has not acknowledged (`SIOCOUTQ`, tcp(7)).
pub(crate) fn unacknowledged_bytes(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the socket is open as it is borrowed; the kernel writes one `int` to `bytes`.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { u32::try_from(bytes).map_err(io::Error::other) } else { Err(io::Error::last_os_error()) }
}

/// Attaches an empty program to the entry of the kernel function with that BTF id, and detaches it at once.
///
/// Whether that works depends on the kernel's options and the processor, and only attaching shows it: some kernels load
/// programs of this type but cannot attach them.
pub(crate) fn try_fentry(function: u32) -> io::Result<()> {
    const BPF_PROG_LOAD: libc::c_long = 5;
    const BPF_RAW_TRACEPOINT_OPEN: libc::c_long = 17;
    /// The start of `union bpf_attr` for `BPF_PROG_LOAD` (`include/uapi/linux/bpf.h`), up to the last needed field.
    #[derive(Default)]
    #[repr(C)]
    struct Load {
        prog_type: u32,
        insn_cnt: u32,
        insns: u64,
        license: u64,
        log: [u64; 2],
        kern_version: u32,
        prog_flags: u32,
        prog_name: [u8; 16],
        prog_ifindex: u32,
        expected_attach_type: u32,
        func_and_line_info: [u64; 4],
        line_info_cnt: u32,
        attach_btf_id: u32,
    }
    #[repr(C)]
    struct Open {
        name: u64,
        prog_fd: u32,
        padding: u32,
    }
    fn bpf<T>(command: libc::c_long, attribute: &T) -> io::Result<OwnedFd> {
        // SAFETY: the kernel reads `size_of::<T>()` bytes of the attribute, which has no padding; the data that the
        // attribute points to lives in `try_fentry` until after the call.
        let result =
            unsafe { libc::syscall(libc::SYS_bpf, command, ptr::from_ref(attribute), size_of::<T>()) };
        match i32::try_from(result) {
            // SAFETY: these two commands return a new descriptor, which nothing else owns.
            Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
            Ok(_) | Err(_) => Err(io::Error::last_os_error()),
        }
    }
    // r0 = 0; exit
    let program: [[u8; 8]; 2] = [[0xB7, 0, 0, 0, 0, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
    let address = |bytes: *const u8| u64::try_from(bytes.expose_provenance()).unwrap_or(0);
    let load = Load {
        prog_type: 26,            // BPF_PROG_TYPE_TRACING
        expected_attach_type: 24, // BPF_TRACE_FENTRY
        insn_cnt: 2,
        insns: address(program.as_ptr().cast()),
        license: address(c"GPL".as_ptr().cast()),
        attach_btf_id: function,
        ..Load::default()
    };
    let program = bpf(BPF_PROG_LOAD, &load)?;
    let prog_fd = u32::try_from(program.as_raw_fd()).map_err(io::Error::other)?;
    bpf(BPF_RAW_TRACEPOINT_OPEN, &Open { name: 0, prog_fd, padding: 0 }).map(drop)
}

/// A file's pages, shared with every process that maps it, as words with atomic access.
#[derive(Debug)]
pub(crate) struct SharedWords {
    first: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the pages belong to the mapping, which lives as long as the value; atomics may be used from any thread.
unsafe impl Send for SharedWords {}
// SAFETY: as above; only atomics are handed out.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Maps that many words from the start of the file and locks them into memory, so that accesses never fault.
    ///
    /// The file must be at least that long, and must not be truncated while it is mapped.
    pub(crate) fn map(file: &File, words: usize) -> io::Result<Self> {
        let bytes = words.checked_mul(size_of::<AtomicU64>()).ok_or(io::ErrorKind::InvalidInput)?;
        let enough =
            u64::try_from(bytes).is_ok_and(|bytes| file.metadata().is_ok_and(|file| file.len() >= bytes));
        if words == 0 || !enough {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the kernel chooses the address, so the mapping replaces no memory in use. The file is at least as
        // long as the mapping, and nothing truncates a file of the run directory, which only we use.
        let address = unsafe {
            rustix::mm::mmap(null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)
        }?;
        Self::locked(address, words)
    }

    /// Maps that many anonymous words: they are zero, and freed with the process.
    pub(crate) fn anonymous(words: usize) -> io::Result<Self> {
        let bytes = words.checked_mul(size_of::<AtomicU64>()).ok_or(io::ErrorKind::InvalidInput)?;
        if words == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the kernel chooses the address, so the mapping replaces no memory in use.
        let address = unsafe {
            rustix::mm::mmap_anonymous(
                null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        Self::locked(address, words)
    }

    /// Locks the words of a mapping into memory.
    fn locked(address: *mut libc::c_void, words: usize) -> io::Result<Self> {
        let first = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapped = Self { first, words };
        // SAFETY: the range is the mapping's own.
        unsafe { rustix::mm::mlock(address, words * size_of::<AtomicU64>()) }?;
        Ok(mapped)
    }

    /// The word at that index; beyond the end the last one, so that no index leaves the mapping.
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        let index = index.min(self.words - 1);
        // SAFETY: the mapping is page-aligned, holds `words` words, more than `index`, and lives as long as `self`. Any
        // bits are a valid word, and other processes access the words atomically too.
        unsafe { self.first.add(index).as_ref() }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping's own, and no reference to it outlives `self`.
        let unmapped =
            unsafe { rustix::mm::munmap(self.first.as_ptr().cast(), self.words * size_of::<AtomicU64>()) };
        debug_assert_eq!(unmapped, Ok(()), "the range was mapped");
    }
}

/// Opens a directory of a cgroup hierarchy by its id, which is its inode number (`open_by_handle_at(2)`, Linux 5.5).
///
/// `mount` is any directory of that hierarchy. `ESTALE` means that the id does not exist. It needs
/// `CAP_DAC_READ_SEARCH`.
pub(crate) fn open_by_id(mount: BorrowedFd<'_>, id: u64) -> io::Result<OwnedFd> {
    /// `struct file_handle` with the eight bytes that kernfs uses (`FILEID_KERNFS`, linux/exportfs.h).
    #[repr(C)]
    struct KernfsHandle {
        bytes: u32,
        kind: i32,
        id: [u8; 8],
    }
    const FILEID_KERNFS: i32 = 0xfe;
    let handle = KernfsHandle { bytes: 8, kind: FILEID_KERNFS, id: id.to_ne_bytes() };
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the kernel reads the handle, which contains its own length. The handle outlives the call, and the
    // descriptor is open as it is borrowed.
    let fd =
        unsafe { libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw const handle, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the call has just opened it, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The position while reading a hash map in batches.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BatchCursor {
    place: u32,
    is_under_way: bool,
}

/// The result of reading a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    /// How many keys and values were written, from index 0 on.
    pub(crate) entries: usize,
    /// Whether this was the last batch.
    pub(crate) is_last: bool,
}

/// `union bpf_attr` for the batch commands (linux/bpf.h).
#[repr(C)]
struct BatchAttributes {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// Reads the next entries of a BPF hash map, as many as fit (`BPF_MAP_LOOKUP_BATCH`, Linux 5.6).
///
/// `ENOSPC` means that entries of one bucket do not fit: try again with more room.
pub(crate) fn lookup_batch<K: aya::Pod, V: aya::Pod>(
    map: &HashMap<MapData, K, V>,
    cursor: &mut BatchCursor,
    keys: &mut [K],
    values: &mut [V],
) -> io::Result<Batch> {
    const BPF_MAP_LOOKUP_BATCH: libc::c_long = 24;
    let room = keys.len().min(values.len());
    let mut next = 0_u32;
    let mut attributes = BatchAttributes {
        in_batch: if cursor.is_under_way { (&raw const cursor.place) as u64 } else { 0 },
        out_batch: (&raw mut next) as u64,
        keys: keys.as_mut_ptr() as u64,
        values: values.as_mut_ptr() as u64,
        count: u32::try_from(room).unwrap_or(u32::MAX),
        map_fd: u32::try_from(IterableMap::map(map).fd().as_fd().as_raw_fd()).map_err(io::Error::other)?,
        elem_flags: 0,
        flags: 0,
    };
    // SAFETY: the kernel writes at most `count` keys and values of the map's sizes, which are those of `K` and `V`, as
    // aya checked when it created `HashMap`, and a word through each batch pointer; all outlive the call. Any bits are
    // a valid `Pod`.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_MAP_LOOKUP_BATCH, &raw mut attributes, size_of::<BatchAttributes>())
    };
    let is_last = result != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT);
    if result != 0 && !is_last {
        return Err(io::Error::last_os_error());
    }
    *cursor = BatchCursor { place: next, is_under_way: true };
    let entries = usize::try_from(attributes.count).unwrap_or(room).min(room);
    Ok(Batch { entries, is_last })
}

/// Registers a ring buffer for reading with the present runtime.
pub(crate) fn readable(ring: RingBuf<MapData>) -> io::Result<AsyncFd<RingBuf<MapData>>> {
    // SAFETY: the descriptor is the map's own. `RingBuf` owns its `MapData`, which owns the descriptor, closes it only
    // on drop, and offers no way to replace it; `AsyncFd` owns the ring in turn.
    Ok(unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) }?)
}

/// The same for a socket, whose end is to be noticed, or a timer.
pub(crate) fn readable_fd(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` closes its descriptor only on drop; `AsyncFd` owns it, and nothing here takes it out.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}

/// Makes the kernel end this process in that many seconds by SIGALRM, whatever its threads wait for, also if it has become
/// another program by then; 0 cancels that.
pub(crate) fn end_after(seconds: u32) {
    // SAFETY: no preconditions; this process does not handle SIGALRM, whose default action ends it.
    unsafe {
        libc::alarm(seconds);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use rustix::process::{PidfdFlags, getpid, pidfd_open};

    use super::process_mrelease;

    #[test]
    fn a_process_that_is_not_dying_is_refused() {
        let pidfd = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        let error = process_mrelease(pidfd.as_fd()).unwrap_err();
        // ENOSYS before Linux 5.15.
        assert!(matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)), "{error}");
    }
}
