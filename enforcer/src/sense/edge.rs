use std::os::fd::BorrowedFd;

/// Something that wakes the reflex: a ring buffer of kernel edges, a PSI trigger.
///
/// An edge says only that it is worth looking at the node now. It decides nothing.
pub trait EdgeSource: Send {
    /// What to wait on. It must stay the same as long as the source is.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Whether it becomes ready with `EPOLLPRI` (PSI triggers) and not with `EPOLLIN`.
    fn is_priority(&self) -> bool {
        false
    }

    /// Takes everything that is waiting, and tells how many edges that were. Must neither block nor allocate.
    fn drain(&mut self) -> u64;
}
