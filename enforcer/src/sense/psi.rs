//! Triggers of pressure stall information: the kernel wakes us when tasks stalled for lack of memory.
//!
//! A pressure file takes one trigger per open file (`psi_trigger_create`). The kernel checks the stalls every tenth of
//! the window, so a trigger is slower than the counters of a limit, but it shows a shortage of any cause.

use std::{
    fmt,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use rustix::io::Errno;

use super::{
    EdgeSource,
    edge::{Readiness, SourceState},
    wake::{Edge, EdgeKind},
};

/// The node's memory pressure file.
pub const NODE_PRESSURE: &str = "/proc/pressure/memory";

/// The shortest window that the kernel takes, in ms.
const SHORTEST_MS: u32 = 500;
/// Without `CAP_SYS_RESOURCE` the kernel takes only multiples of this.
const UNPRIVILEGED_MS: u32 = 2_000;
/// The part of a window that must be spent stalled. An edge costs a look of about 20 µs, at most one in a window, so
/// the trigger may fire early.
const WINDOW_SHARE: u32 = 50;

/// Which tasks are stalled.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Stalled {
    /// At least one task.
    Some,
    /// All tasks that could run.
    Full,
}

/// When the kernel wakes us.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Trigger {
    /// Which tasks are stalled.
    pub stalled: Stalled,
    /// Stall time within the window.
    pub stall_us: u32,
    /// The window: 500 ms to 10 s.
    pub window_us: u32,
}

impl Trigger {
    /// The trigger that fires soonest.
    pub const SHORTEST: Self = Self::early(SHORTEST_MS);

    /// A trigger that fires when some task was stalled for a fiftieth of a window.
    #[must_use]
    pub const fn early(window_ms: u32) -> Self {
        let whole_us = window_ms.saturating_mul(1_000);
        Self { stalled: Stalled::Some, stall_us: whole_us / WINDOW_SHARE, window_us: whole_us }
    }

    /// The triggers to try, best first. `may_be_short`: whether we have `CAP_SYS_RESOURCE`; `None` if unknown.
    #[must_use]
    pub fn alternatives(may_be_short: Option<bool>) -> &'static [Self] {
        const BOTH: [Trigger; 2] = [Trigger::SHORTEST, Trigger::early(UNPRIVILEGED_MS)];
        const LONG: [Trigger; 1] = [Trigger::early(UNPRIVILEGED_MS)];
        match may_be_short {
            Some(true) | None => &BOTH,
            Some(false) => &LONG,
        }
    }
}

impl fmt::Display for Trigger {
    /// In the kernel's format.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stalled, stall_us, window_us } = self;
        let stalled = match stalled {
            Stalled::Some => "some",
            Stalled::Full => "full",
        };
        write!(f, "{stalled} {stall_us} {window_us}")
    }
}

/// Why there is no trigger.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PsiError {
    /// The file does not exist.
    #[error("pressure stall information is not compiled in, off, or off for this cgroup: boot with psi=1")]
    Missing,
    /// Not permitted: before Linux 6.4 every trigger needs the capability.
    #[error("a pressure trigger is refused: grant CAP_SYS_RESOURCE")]
    Refused,
    /// The kernel takes none of the windows.
    #[error("the kernel takes none of the requested pressure windows: grant CAP_SYS_RESOURCE")]
    NoWindow,
    /// Any other error.
    #[error("cannot set a pressure trigger: {}", std::io::Error::from(*.0))]
    Kernel(Errno),
}

impl From<Errno> for PsiError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NODEV | Errno::OPNOTSUPP => Self::Missing,
            Errno::PERM | Errno::ACCESS => Self::Refused,
            Errno::INVAL => Self::NoWindow,
            errno => Self::Kernel(errno),
        }
    }
}

/// An armed trigger.
#[derive(Debug)]
pub struct Pressure {
    fd: OwnedFd,
    trigger: Trigger,
}

impl Pressure {
    /// Arms the first of `triggers` that the kernel takes, each in a file of its own that `open` opens for reading and
    /// writing.
    pub fn arm(
        mut open: impl FnMut() -> rustix::io::Result<OwnedFd>,
        triggers: &[Trigger],
    ) -> Result<Self, PsiError> {
        let mut refused = PsiError::NoWindow;
        for trigger in triggers {
            let fd = open()?;
            // The kernel treats the last byte as the end of the text, whatever it is.
            let text = format!("{trigger}\0");
            match rustix::io::retry_on_intr(|| rustix::io::write(&fd, text.as_bytes())) {
                Ok(_) => return Ok(Self { fd, trigger: *trigger }),
                // The window; or the missing capability, if no trigger can be set without it.
                Err(errno @ (Errno::INVAL | Errno::PERM)) => refused = errno.into(),
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(refused)
    }

    /// Opens the node's memory pressure file for a trigger.
    pub fn open_node() -> rustix::io::Result<OwnedFd> {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        rustix::fs::open(NODE_PRESSURE, flags, Mode::empty())
    }

    /// The armed trigger.
    #[must_use]
    pub fn trigger(&self) -> Trigger {
        self.trigger
    }
}

impl EdgeSource for Pressure {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn is_priority(&self) -> bool {
        true
    }

    fn drain(&mut self, ready: Readiness, emit: &mut dyn FnMut(Edge)) -> SourceState {
        match ready {
            // The kernel has cleared the readiness by reporting it.
            Readiness::Ready => {
                emit(Edge { kind: EdgeKind::Pressure, onset_ns: None });
                SourceState::Live
            }
            Readiness::Failed => SourceState::Gone,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, fs};

    use rustix::fs::{Mode, OFlags};

    use super::*;

    #[test]
    fn reads_as_the_kernel_wants_it() {
        assert_eq!(Trigger::early(500).to_string(), "some 10000 500000");
        let full = Trigger { stalled: Stalled::Full, ..Trigger::early(2_000) };
        assert_eq!(full.to_string(), "full 40000 2000000");
    }

    #[test]
    fn without_the_capability_only_long_windows_are_asked_for() {
        let windows = |may| Trigger::alternatives(may).iter().map(|wish| wish.window_us).collect::<Vec<_>>();
        assert_eq!(windows(Some(true)), [500_000, 2_000_000]);
        assert_eq!(windows(None), [500_000, 2_000_000]);
        assert_eq!(windows(Some(false)), [2_000_000]);
    }

    #[test]
    fn arms_the_first_with_its_end_marked() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let pressure =
            Pressure::arm(|| Ok(file.reopen().unwrap().into()), Trigger::alternatives(None)).unwrap();
        assert_eq!(pressure.trigger(), Trigger::early(500));
        assert_eq!(fs::read(file.path()).unwrap(), b"some 10000 500000\0");
    }

    #[test]
    fn each_reason_is_reported_apart() {
        let arm = |errno| Pressure::arm(|| Err(errno), Trigger::alternatives(None)).unwrap_err();
        assert_eq!(arm(Errno::NOENT), PsiError::Missing);
        let folder = tempfile::tempdir().unwrap();
        let nowhere = folder.path().join("memory.pressure");
        let open = || rustix::fs::open(&nowhere, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        assert_eq!(Pressure::arm(open, Trigger::alternatives(None)).unwrap_err(), PsiError::Missing);
        assert_eq!(arm(Errno::OPNOTSUPP), PsiError::Missing);
        assert_eq!(arm(Errno::PERM), PsiError::Refused);
        assert_eq!(arm(Errno::IO), PsiError::Kernel(Errno::IO));
        // A file that takes no text at all: each wish is tried, in a file of its own.
        let opened = Cell::new(0);
        let refuses = || {
            use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
            opened.set(opened.get() + 1);
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK)
        };
        assert_eq!(Pressure::arm(refuses, Trigger::alternatives(None)).unwrap_err(), PsiError::NoWindow);
        assert_eq!(opened.get(), 2);
    }
}
