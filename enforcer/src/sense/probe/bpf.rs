//! What the kernel permits BPF programs to do.
use std::{fs, io};

use aya::sys::SyscallError;
use rustix::io::Errno;

use crate::{
    raw,
    sense::btf::{Btf, Kind},
};

/// The kernel-internal "not supported" (`ENOTSUPP`, `include/linux/errno.h`), which bpf(2) leaks.
const ENOTSUPP: i32 = 524;

/// The kernel's lockdown against root (`security/lockdown`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lockdown {
    /// No lockdown, or not supported.
    Off,
    /// Kernel memory cannot be changed, which we never do.
    Integrity,
    /// Kernel memory cannot be read either, so programs that read its structures are refused.
    Confidentiality,
}

/// Reads the current lockdown.
pub(super) fn lockdown() -> Option<Lockdown> {
    match fs::read_to_string("/sys/kernel/security/lockdown") {
        Ok(text) => parse_lockdown(&text),
        // Either securityfs is not mounted, or the kernel has no lockdown: unknown.
        Err(_) => None,
    }
}

/// The word in brackets is the current one: `none [integrity] confidentiality`.
fn parse_lockdown(text: &str) -> Option<Lockdown> {
    let (_, rest) = text.split_once('[')?;
    match rest.split_once(']')?.0 {
        "none" => Some(Lockdown::Off),
        "integrity" => Some(Lockdown::Integrity),
        "confidentiality" => Some(Lockdown::Confidentiality),
        _ => None,
    }
}

/// Whether bpf(2) works, from the result of one call. A refusal is only conclusive if we have the capabilities.
pub(super) fn is_answered(call: &Result<bool, SyscallError>, cap_bpf: Option<bool>) -> Option<bool> {
    match call {
        Ok(_) => Some(true),
        Err(SyscallError { io_error, .. }) => answered(io_error.raw_os_error(), cap_bpf),
    }
}

fn answered(error: Option<i32>, cap_bpf: Option<bool>) -> Option<bool> {
    match Errno::from_raw_os_error(error?) {
        Errno::NOSYS => Some(false),
        Errno::PERM | Errno::ACCESS if cap_bpf == Some(true) => Some(false),
        _ => None,
    }
}

/// Whether programs can be attached to functions' entries. Attaches one that does nothing to a function that is
/// called only when memory has run out.
pub(super) fn fentry(btf: &Btf) -> Option<bool> {
    let function = btf.find("out_of_memory", Kind::Func)?;
    attached(&raw::try_fentry(function.number()))
}

fn attached(outcome: &io::Result<()>) -> Option<bool> {
    let error = match outcome {
        Ok(()) => return Some(true),
        Err(error) => error.raw_os_error()?,
    };
    // Only these errors mean that it is unsupported; a lack of rights or memory does not.
    let refused = [Errno::INVAL, Errno::OPNOTSUPP, Errno::NODEV, Errno::NOENT, Errno::NOSYS];
    (error == ENOTSUPP || refused.iter().any(|errno| errno.raw_os_error() == error)).then_some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lockdown_in_force_is_in_brackets() {
        for (text, lockdown) in [
            ("[none] integrity confidentiality\n", Some(Lockdown::Off)),
            ("none [integrity] confidentiality\n", Some(Lockdown::Integrity)),
            ("none integrity [confidentiality]\n", Some(Lockdown::Confidentiality)),
            ("none [more] confidentiality\n", None),
            ("", None),
        ] {
            assert_eq!(parse_lockdown(text), lockdown, "{text}");
        }
    }

    #[test]
    fn a_refused_call_says_something_only_with_the_capability() {
        let refused = Some(libc::EPERM);
        assert_eq!(answered(refused, Some(true)), Some(false));
        assert_eq!((answered(refused, Some(false)), answered(refused, None)), (None, None));
        assert_eq!(answered(Some(libc::ENOSYS), None), Some(false));
        assert_eq!(answered(Some(libc::ENOMEM), Some(true)), None);
        assert_eq!(is_answered(&Ok(false), None), Some(true));
    }

    #[test]
    fn only_a_refusal_of_the_thing_itself_says_that_it_is_missing() {
        let failed = |error| attached(&Err(io::Error::from_raw_os_error(error)));
        assert_eq!(attached(&Ok(())), Some(true));
        assert_eq!((failed(ENOTSUPP), failed(libc::EOPNOTSUPP)), (Some(false), Some(false)));
        assert_eq!((failed(libc::EPERM), failed(libc::ENOMEM)), (None, None));
    }
}
