use std::{
    fmt,
    os::fd::{AsFd as _, BorrowedFd},
};

use aya::maps::{MapData, RingBuf};

use super::EdgeSource;

/// The ring buffer of kernel edges: kswapd woken, direct reclaim begun. Each kind comes at most about once in
/// a millisecond.
pub struct EdgeRing {
    ring: RingBuf<MapData>,
}

impl EdgeRing {
    pub(super) const fn new(ring: RingBuf<MapData>) -> Self {
        Self { ring }
    }
}

impl fmt::Debug for EdgeRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EdgeRing").finish_non_exhaustive()
    }
}

impl EdgeSource for EdgeRing {
    fn fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }

    fn drain(&mut self) -> u64 {
        // The kernel wakes a reader only when it had caught up, so it must be read to its end. That end
        // comes: each kind is rate-limited, and the ring holds a few hundred.
        let mut edges = 0;
        while let Some(edge) = self.ring.next() {
            drop(edge);
            edges += 1;
        }
        edges
    }
}
