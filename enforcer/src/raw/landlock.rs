//! Landlock, by which a process gives up what its user may do to files (`landlock(7)`, Linux 5.13).

use std::{
    io,
    mem::size_of,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    ptr,
};

/// `include/uapi/linux/landlock.h`.
const CREATE_RULESET_VERSION: u32 = 1;

/// `struct landlock_ruleset_attr`. A kernel takes members that it does not know if they are zero.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(C)]
struct Ruleset {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

impl Ruleset {
    /// All that a kernel with this version of the interface can refuse, but reading files and connecting.
    fn of_version(version: u32) -> Self {
        /// `LANDLOCK_ACCESS_FS_READ_FILE` and `_READ_DIR`.
        const READING: u64 = 1 << 2 | 1 << 3;
        const BIND_TCP: u64 = 1;
        /// Abstract unix sockets and signals.
        const SCOPES: u64 = 1 | 1 << 1;
        // REFER came with version 2, TRUNCATE with 3, IOCTL_DEV with 5.
        let accesses = match version {
            0 => 0,
            1 => 13,
            2 => 14,
            3 | 4 => 15,
            5.. => 16,
        };
        Self {
            handled_access_fs: ((1_u64 << accesses) - 1) & !READING,
            handled_access_net: if version >= 4 { BIND_TCP } else { 0 },
            scoped: if version >= 6 { SCOPES } else { 0 },
        }
    }
}

/// The version of the kernel's interface; `None` if the kernel was built or booted without it, or a filter refuses it.
pub(crate) fn landlock_version() -> Option<u32> {
    // SAFETY: with this flag it reads no memory, and returns a number.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            ptr::null::<Ruleset>(),
            0_usize,
            CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(version).ok().filter(|version| *version > 0)
}

/// Lets the calling thread, and those that it starts, change and run no file by its name, wait for no connection and signal
/// no other process, as far as the kernel can refuse that. What is open stays so. It must have `no_new_privs`. Returns
/// whether the kernel has Landlock.
pub(crate) fn touch_nothing() -> io::Result<bool> {
    let Some(version) = landlock_version() else { return Ok(false) };
    let rules = Ruleset::of_version(version);
    // SAFETY: the kernel reads as many bytes of the rules as they have, which outlive the call.
    let fd = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, &raw const rules, size_of::<Ruleset>(), 0_u32)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the call has just opened it, and nothing else owns it.
    let ruleset = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: it takes numbers.
    let result = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0_u32) };
    if result == 0 { Ok(true) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::{fs, thread};

    use super::*;

    #[test]
    fn a_kernel_is_asked_for_what_it_knows() {
        let of = |version| Ruleset::of_version(version);
        let net = |version| (of(version).handled_access_net, of(version).scoped);
        assert_eq!(of(1).handled_access_fs, 0b1_1111_1111_0011);
        assert_eq!(of(2).handled_access_fs, 0b11_1111_1111_0011);
        assert_eq!((of(3).handled_access_fs, of(4).handled_access_fs), (0x7ff3, 0x7ff3));
        assert_eq!(of(6).handled_access_fs, 0xfff3);
        assert_eq!([net(3), net(4), net(5), net(6), net(9)], [(0, 0), (1, 0), (1, 0), (1, 3), (1, 3)]);
    }

    #[test]
    fn what_is_given_up_is_refused_to_that_thread_alone() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("file");
        let path = file.clone();
        let (has, written) = thread::spawn(move || {
            rustix::thread::set_no_new_privs(true).unwrap();
            (touch_nothing().unwrap(), fs::write(&path, "other").map_err(|error| error.kind()))
        })
        .join()
        .unwrap();
        assert_eq!(has, landlock_version().is_some());
        let expected = if has { Err(io::ErrorKind::PermissionDenied) } else { Ok(()) };
        assert_eq!(written, expected);
        fs::write(&file, "own").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "own");
    }
}
