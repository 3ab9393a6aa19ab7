//! The interface of everything that can wake the eviction thread.

use std::os::fd::BorrowedFd;

use super::wake::Edge;

/// Something that wakes the reflex: a ring buffer of kernel edges, a PSI trigger, a cgroup's event counters.
///
/// An edge only asks for a look at the node. It decides nothing.
pub trait EdgeSource: Send {
    /// The descriptor to wait on. It must not change during the source's life.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Whether it becomes ready with `EPOLLPRI` (PSI triggers, cgroup files) and not with `EPOLLIN`.
    fn is_priority(&self) -> bool {
        false
    }

    /// Takes everything that is waiting, emits each edge, and clears the readiness. Must neither block nor allocate.
    fn drain(&mut self, ready: Readiness, emit: &mut dyn FnMut(Edge)) -> SourceState;
}

/// What epoll reported for a source.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Readiness {
    /// It has events.
    Ready,
    /// `EPOLLERR` or `EPOLLHUP`, alone or with events.
    Failed,
}

/// Whether a source can still emit edges.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SourceState {
    /// It can.
    Live,
    /// Its subject is gone: it is removed from epoll and dropped.
    Gone,
}
