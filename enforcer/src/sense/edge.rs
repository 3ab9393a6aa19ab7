use std::os::fd::BorrowedFd;

use super::wake::Edge;

/// Something that wakes the reflex: a ring buffer of kernel edges, a PSI trigger, a cgroup's event counters.
///
/// An edge says only that it is worth looking at the node now. It decides nothing.
pub trait EdgeSource: Send {
    /// What to wait on. It must stay the same as long as the source is.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Whether it becomes ready with `EPOLLPRI` (PSI triggers, cgroup files) and not with `EPOLLIN`.
    fn is_priority(&self) -> bool {
        false
    }

    /// Takes everything that is waiting, tells each edge, and quietens the source. Must neither block nor allocate.
    fn drain(&mut self, ready: Readiness, emit: &mut dyn FnMut(Edge)) -> SourceState;
}

/// What the kernel said of a source that it woke us for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Readiness {
    /// There is something.
    Ready,
    /// `EPOLLERR` or `EPOLLHUP`, alone or with it.
    Failed,
}

/// Whether a source can still tell anything.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SourceState {
    /// It can.
    Live,
    /// What it was about is gone: it is not waited on any more, and dropped.
    Gone,
}
