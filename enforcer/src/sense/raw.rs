//! The system calls that rustix does not have.
#![expect(unsafe_code, reason = "the one userspace module that may; rustix covers everything else")]

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
};

/// Frees the memory of a process that has been sent SIGKILL, in the calling thread (`process_mrelease(2)`, Linux 5.15).
///
/// A process that is not dying is refused with `EINVAL`, so that a pid that was reused meanwhile comes to no harm.
pub fn process_mrelease(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes a file descriptor, which is open as it is borrowed, and flags, of which there are none; it reads
    // and writes no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_process_mrelease, pidfd.as_raw_fd(), 0_u32) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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
