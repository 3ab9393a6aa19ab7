//! What the daemon can no longer do once it is set up, whatever it has capabilities for.
//!
//! It is a list of what is refused, and not of what is allowed: a call that was not thought of must not keep it from an
//! eviction. What it does after its start, on all its threads, and so is not refused:
//!
//! | for | it calls |
//! |---|---|
//! | sensing | `read`, `pread64`, `epoll_wait`, `poll`, `bpf` for maps (also in batches), PSI triggers by `write`, `open_by_handle_at` |
//! | a kill | `write` to `cgroup.kill` and limits, `pidfd_open`, `pidfd_send_signal`, `process_mrelease`, `kill` |
//! | desired state | `openat2`, `mkdirat`, `unlinkat`, `renameat`, extended attributes, `inotify`, systemd's bus |
//! | journal, intents, recordings | `openat`, `pwrite64`, `fdatasync`, `fallocate`, `ftruncate`, `renameat`, `flock`, `mmap` |
//! | reload, manifests, credentials | `openat`, `statx`, `readlink` in any folder |
//! | sockets | `accept4`, `getsockopt` of the peer, `sendmsg` to journald with a `memfd_create`, `connect` to runtime and kubelet |
//! | helper processes | `clone`, `execve`, and in them `setresuid`, `capset`, `landlock_restrict_self`, `seccomp` |
//! | memory and threads | `madvise`, `mlock2`, `munmap`, `clone`, `futex` |
//! | its start in its own place, when a kubelet comes | `execve`, then all of a start: `bpf` for programs, `perf_event_open` |

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpOp as Is, SeccompFilter, SeccompRule, TargetArch,
};

use super::filter::{Rules, Unfiltered, apply, is, number};

/// Calls that are refused whatever their arguments are.
const CALLS: &[i64] = &[
    // Mounts and roots.
    libc::SYS_chroot,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_pivot_root,
    libc::SYS_umount2,
    // Other namespaces.
    libc::SYS_setns,
    libc::SYS_unshare,
    // The memory and the descriptors of other processes.
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    // Another kernel, and what is loaded into this one.
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    // Keys.
    libc::SYS_add_key,
    libc::SYS_keyctl,
    libc::SYS_request_key,
    // The machine's settings.
    libc::SYS_acct,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_quotactl,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    // Devices by a name of one's own.
    libc::SYS_mknodat,
    // Ways around this filter, and parts of the kernel that have had many holes.
    libc::SYS_fanotify_init,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_personality,
    libc::SYS_userfaultfd,
];

/// The same of this architecture.
#[cfg(target_arch = "x86_64")]
const OLDER: &[i64] =
    &[libc::SYS_ioperm, libc::SYS_iopl, libc::SYS_mknod, libc::SYS_modify_ldt, libc::SYS_uselib];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[i64] = &[];

/// Namespaces that a new process could be in.
const NAMESPACES: &[i32] = &[
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWUTS,
];

/// The families of sockets that are not refused.
const FAMILIES: &[i32] = &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

fn rules() -> Result<Rules, BackendError> {
    let mut rules: Rules = CALLS.iter().chain(OLDER).map(|call| (*call, Vec::new())).collect();
    let in_namespace =
        |flag: &i32| SeccompRule::new(vec![is(0, Is::MaskedEq(number(*flag)), number(*flag))?]);
    rules.insert(libc::SYS_clone, NAMESPACES.iter().map(in_namespace).collect::<Result<_, _>>()?);
    let other = |family: &i32| is(0, Is::Ne, number(*family));
    let of_others = FAMILIES.iter().map(other).collect::<Result<_, _>>()?;
    rules.insert(libc::SYS_socket, vec![SeccompRule::new(of_others)?]);
    Ok(rules)
}

/// The same calls as x32 numbers them, an ABI that some kernels have beside the ordinary one.
#[cfg(target_arch = "x86_64")]
fn in_each_abi(mut rules: Rules) -> Rules {
    /// `__X32_SYSCALL_BIT` (arch/x86/include/uapi/asm/unistd.h).
    const BIT: i64 = 0x4000_0000;
    /// Those that have another number there: `ptrace`, `kexec_load`, `process_vm_readv` and `process_vm_writev`.
    const OTHERS: [i64; 4] = [521, 528, 539, 540];
    let same: Rules = rules.iter().map(|(call, rules)| (call | BIT, rules.clone())).collect();
    rules.extend(same);
    rules.extend(OTHERS.map(|call| (call | BIT, Vec::new())));
    rules
}

#[cfg(not(target_arch = "x86_64"))]
fn in_each_abi(rules: Rules) -> Rules {
    rules
}

fn program(rules: Rules, errno: i32) -> Result<BpfProgram, BackendError> {
    let refused = SeccompAction::Errno(errno.cast_unsigned());
    let target = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(in_each_abi(rules), SeccompAction::Allow, refused, target)?.try_into()
}

/// `clone3(2)` has its flags in memory, where no filter sees them. Libraries that are told that there is none call `clone`.
fn programs() -> Result<[BpfProgram; 2], BackendError> {
    let unseen = Rules::from([(libc::SYS_clone3, Vec::new())]);
    Ok([program(unseen, libc::ENOSYS)?, program(rules()?, libc::EPERM)?])
}

/// Refuses these calls to all threads of this process, those to come, and the processes that it starts. A refused call fails,
/// and the thread goes on.
pub(crate) fn refuse_what_is_not_used() -> Result<(), Unfiltered> {
    programs()?.iter().try_for_each(apply)
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command, thread};

    use rustix::{
        io::Errno,
        net::{AddressFamily, SocketType, socket},
        process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open},
    };

    use super::*;

    /// What comes of some work in a thread of its own that is filtered.
    fn filtered<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let programs = programs().unwrap();
        let thread = thread::spawn(move || {
            for program in &programs {
                seccompiler::apply_filter(program).unwrap();
            }
            work()
        });
        thread.join().unwrap()
    }

    /// A copy of a descriptor of this process, which each process may take of itself.
    fn copied() -> Result<(), Errno> {
        let own = pidfd_open(getpid(), PidfdFlags::empty())?;
        pidfd_getfd(&own, 0, PidfdGetfdFlags::empty()).map(drop)
    }

    /// The kernel's interface to ciphers, which any user may open where it is built.
    fn ciphers() -> Option<Errno> {
        socket(AddressFamily::from_raw(38), SocketType::SEQPACKET, None).err()
    }

    #[test]
    fn a_forbidden_call_is_refused_and_the_thread_goes_on() {
        let before = copied();
        assert_ne!(before, Err(Errno::PERM), "the test says nothing here");
        assert_ne!(ciphers(), Some(Errno::PERM), "the test says nothing here");
        let (copied, ciphers, unshared, read) = filtered(|| {
            // In processes that it starts, too.
            let unshared = Command::new("unshare").args(["--user", "true"]).output().unwrap();
            (copied(), ciphers(), unshared, fs::read_to_string("/proc/thread-self/status").unwrap())
        });
        assert_eq!((copied, ciphers), (Err(Errno::PERM), Some(Errno::PERM)));
        let error = String::from_utf8_lossy(&unshared.stderr).into_owned();
        assert!(!unshared.status.success() && error.contains("Operation not permitted"), "{error}");
        assert!(read.contains("Seccomp:\t2"), "{read}");
    }

    #[test]
    fn threads_and_processes_are_still_started() {
        let (thread, process) = filtered(|| {
            (thread::spawn(|| 7).join().unwrap(), Command::new("true").status().unwrap().success())
        });
        assert!(thread == 7 && process);
    }

    #[test]
    fn no_call_is_refused_twice() {
        let mut all: Vec<_> = CALLS.iter().chain(OLDER).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
