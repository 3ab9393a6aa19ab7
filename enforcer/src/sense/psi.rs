//! Triggers of pressure stall information: the kernel wakes us when tasks stalled for want of memory.
//!
//! A pressure file takes one trigger per open file (`psi_trigger_create`). The kernel looks at the stalls a tenth of the
//! window apart, so a trigger is slower than the counters of a limit, but it tells of shortage whatever its cause.

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

/// The node's pressure of memory.
pub const NODE_PRESSURE: &str = "/proc/pressure/memory";

/// The shortest window that the kernel takes, in ms.
const SHORTEST_MS: u32 = 500;
/// Without `CAP_SYS_RESOURCE` it takes only multiples of this.
const UNPRIVILEGED_MS: u32 = 2_000;
/// What part of a window must be spent stalled. An edge costs a look of some 20 µs, at most one in a window, so it may be
/// told early.
const WINDOW_SHARE: u32 = 50;

/// Who is stalled.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Stalled {
    /// At least one task.
    Some,
    /// All tasks that could run.
    Full,
}

/// When the kernel is to wake us.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Trigger {
    /// Who is stalled.
    pub stalled: Stalled,
    /// For how long within the window.
    pub stall_us: u32,
    /// The window: 500 ms to 10 s.
    pub window_us: u32,
}

impl Trigger {
    /// The one that fires soonest.
    pub const SHORTEST: Self = Self::early(SHORTEST_MS);

    /// One that fires when some task was stalled for a fiftieth of a window.
    #[must_use]
    pub const fn early(window_ms: u32) -> Self {
        let whole_us = window_ms.saturating_mul(1_000);
        Self { stalled: Stalled::Some, stall_us: whole_us / WINDOW_SHARE, window_us: whole_us }
    }

    /// What to ask for, best first. `may_be_short`: whether we have `CAP_SYS_RESOURCE`; none is not known.
    #[must_use]
    pub fn wishes(may_be_short: Option<bool>) -> &'static [Self] {
        const BOTH: [Trigger; 2] = [Trigger::SHORTEST, Trigger::early(UNPRIVILEGED_MS)];
        const LONG: [Trigger; 1] = [Trigger::early(UNPRIVILEGED_MS)];
        match may_be_short {
            Some(true) | None => &BOTH,
            Some(false) => &LONG,
        }
    }
}

impl fmt::Display for Trigger {
    /// As the kernel reads it.
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
    /// The file is not there.
    #[error("pressure stall information is not compiled in, off, or off for this cgroup: boot with psi=1")]
    Missing,
    /// Not allowed: before Linux 6.4 whoever sets a trigger needs the capability.
    #[error("a pressure trigger is refused: grant CAP_SYS_RESOURCE")]
    Refused,
    /// The kernel takes none of the windows.
    #[error("the kernel takes none of the pressure windows that were asked for: grant CAP_SYS_RESOURCE")]
    NoWindow,
    /// Anything else.
    #[error("a pressure trigger cannot be set: {}", std::io::Error::from(*.0))]
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
    /// Arms the first of `wishes` that the kernel takes, each in a file of its own that `open` opens to be read and
    /// written.
    pub fn arm(
        mut open: impl FnMut() -> rustix::io::Result<OwnedFd>,
        wishes: &[Trigger],
    ) -> Result<Self, PsiError> {
        let mut refused = PsiError::NoWindow;
        for trigger in wishes {
            let fd = open()?;
            // The kernel takes the last byte for the text's end, whatever it is.
            let text = format!("{trigger}\0");
            match rustix::io::retry_on_intr(|| rustix::io::write(&fd, text.as_bytes())) {
                Ok(_) => return Ok(Self { fd, trigger: *trigger }),
                // The window; or, where none can be set without the capability, that.
                Err(errno @ (Errno::INVAL | Errno::PERM)) => refused = errno.into(),
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(refused)
    }

    /// The node's pressure of memory, opened for a trigger.
    pub fn open_node() -> rustix::io::Result<OwnedFd> {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        rustix::fs::open(NODE_PRESSURE, flags, Mode::empty())
    }

    /// What it was armed with.
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
            // That the kernel told of it has quietened it.
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
        let windows = |may| Trigger::wishes(may).iter().map(|wish| wish.window_us).collect::<Vec<_>>();
        assert_eq!(windows(Some(true)), [500_000, 2_000_000]);
        assert_eq!(windows(None), [500_000, 2_000_000]);
        assert_eq!(windows(Some(false)), [2_000_000]);
    }

    #[test]
    fn arms_the_first_with_its_end_marked() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let pressure = Pressure::arm(|| Ok(file.reopen().unwrap().into()), Trigger::wishes(None)).unwrap();
        assert_eq!(pressure.trigger(), Trigger::early(500));
        assert_eq!(fs::read(file.path()).unwrap(), b"some 10000 500000\0");
    }

    #[test]
    fn each_reason_is_reported_apart() {
        let arm = |errno| Pressure::arm(|| Err(errno), Trigger::wishes(None)).unwrap_err();
        assert_eq!(arm(Errno::NOENT), PsiError::Missing);
        let folder = tempfile::tempdir().unwrap();
        let nowhere = folder.path().join("memory.pressure");
        let open = || rustix::fs::open(&nowhere, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        assert_eq!(Pressure::arm(open, Trigger::wishes(None)).unwrap_err(), PsiError::Missing);
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
        assert_eq!(Pressure::arm(refuses, Trigger::wishes(None)).unwrap_err(), PsiError::NoWindow);
        assert_eq!(opened.get(), 2);
    }
}
