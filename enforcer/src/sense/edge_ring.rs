//! Wakes the eviction thread when the kernel begins to reclaim, by eBPF.

use std::{
    fmt,
    os::fd::{AsFd as _, BorrowedFd},
};

use aya::maps::{MapData, RingBuf};

use super::{
    EdgeSource,
    edge::{Readiness, SourceState},
    record::{Record, decode},
    wake::{Edge, EdgeKind},
};

/// The ring buffer of kernel edges: kswapd woken, direct reclaim begun. Each kind occurs at most about once a
/// millisecond.
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

    fn drain(&mut self, _ready: Readiness, emit: &mut dyn FnMut(Edge)) -> SourceState {
        // The kernel wakes a reader only if it had read everything, so read to the end. The loop ends: each kind is
        // rate-limited, and the ring holds a few hundred.
        while let Some(bytes) = self.ring.next() {
            if let Some(edge) = edge(&bytes) {
                emit(edge);
            }
        }
        SourceState::Live
    }
}

/// The edge in a record; `None` if it cannot be decoded, which never happens with our own programs.
fn edge(bytes: &[u8]) -> Option<Edge> {
    let (kind, time_ns) = match decode(bytes).ok()? {
        Record::KswapdWoke { time_ns, node: _ } => (EdgeKind::KswapdWoken, time_ns),
        Record::DirectReclaim { time_ns, tid: _ } => (EdgeKind::DirectReclaim, time_ns),
        _ => return None,
    };
    Some(Edge { kind, onset_ns: Some(time_ns) })
}

#[cfg(test)]
mod tests {
    use enforcer_common::record::{EDGE_DIRECT_RECLAIM, EDGE_KSWAPD_WAKE, Edge as Written};
    use zerocopy::IntoBytes as _;

    use super::*;

    #[test]
    fn a_record_says_what_began_and_when() {
        for (written, kind) in
            [(EDGE_KSWAPD_WAKE, EdgeKind::KswapdWoken), (EDGE_DIRECT_RECLAIM, EdgeKind::DirectReclaim)]
        {
            let record = Written::new(written, 7, 123);
            assert_eq!(edge(record.as_bytes()), Some(Edge { kind, onset_ns: Some(123) }));
        }
        assert_eq!(edge(Written::new(77, 7, 123).as_bytes()), None);
        assert_eq!(edge(b"torn"), None);
    }
}
