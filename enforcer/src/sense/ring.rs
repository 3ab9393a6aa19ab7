//! Drains a ring buffer into a channel.
use std::{
    io,
    sync::atomic::{AtomicU64, Ordering},
};

use aya::maps::{MapData, RingBuf};
use tokio::sync::mpsc;

use super::record::{Record, Undecodable, decode};
use crate::raw;

/// Records taken in one turn before other tasks get theirs. A hot producer would keep us here for ever.
const TURN: usize = 512;

/// What went through a ring, for the metrics. All only grow.
#[derive(Debug, Default)]
pub struct RingStats {
    records: AtomicU64,
    unknown: AtomicU64,
    malformed: AtomicU64,
}

impl RingStats {
    /// Records decoded.
    pub fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Records of a kind or version that this daemon does not know.
    pub fn unknown(&self) -> u64 {
        self.unknown.load(Ordering::Relaxed)
    }

    /// Torn records and records of the wrong size.
    pub fn malformed(&self) -> u64 {
        self.malformed.load(Ordering::Relaxed)
    }

    /// Decodes a record and counts what became of it.
    pub fn decode(&self, bytes: &[u8]) -> Option<Record> {
        let decoded = decode(bytes);
        let counter = match &decoded {
            Ok(_) => &self.records,
            Err(Undecodable::UnknownKind(_) | Undecodable::UnknownEdge(_) | Undecodable::OtherVersion(_)) => {
                &self.unknown
            }
            Err(Undecodable::Torn(_) | Undecodable::WrongSize { .. } | Undecodable::ImpossibleScore(_)) => {
                &self.malformed
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
        decoded.inspect_err(|error| tracing::debug!(%error, "record not usable")).ok()
    }
}

/// Reads a ring for as long as the channel is open.
///
/// When the channel is full it waits: the ring takes up the rest, and the kernel counts what no longer fits.
/// Nothing is lost in between.
pub async fn drain(ring: RingBuf<MapData>, sink: mpsc::Sender<Record>, stats: &RingStats) -> io::Result<()> {
    let mut ring = raw::readable(ring)?;
    let mut turn = Vec::with_capacity(TURN);
    loop {
        let mut guard = tokio::select! {
            guard = ring.readable_mut() => guard?,
            () = sink.closed() => return Ok(()),
        };
        let ring = guard.get_inner_mut();
        let mut taken = 0;
        let drained = loop {
            if taken == TURN {
                break false;
            }
            let Some(item) = ring.next() else { break true };
            taken += 1;
            turn.extend(stats.decode(&item));
        };
        // Readiness is edge-triggered: it may only be cleared when the ring was seen empty.
        if drained {
            guard.clear_ready();
        }
        for record in turn.drain(..) {
            if sink.send(record).await.is_err() {
                return Ok(());
            }
        }
        if !drained {
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use enforcer_common::record::{Edge, Header};
    use zerocopy::IntoBytes as _;

    use super::*;

    #[test]
    fn every_record_is_counted_once() {
        let stats = RingStats::default();
        assert!(stats.decode(Edge::new(0, 1, 2).as_bytes()).is_some());
        assert!(stats.decode(Edge::new(7, 1, 2).as_bytes()).is_none());
        assert!(stats.decode(Header::new(99, 8).as_bytes()).is_none());
        assert!(stats.decode(&[1, 2, 3]).is_none());
        assert!(stats.decode(&Edge::new(0, 1, 2).as_bytes()[..16]).is_none());
        assert_eq!((stats.records(), stats.unknown(), stats.malformed()), (1, 2, 2));
    }
}
