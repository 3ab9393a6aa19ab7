//! Drains a ring buffer into a channel.
use std::{
    fmt, io,
    sync::atomic::{AtomicU64, Ordering},
};

use aya::maps::{MapData, RingBuf};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::mpsc,
};

use super::record::{Record, Undecodable, decode};
use crate::raw;

/// The most records of one pass before other tasks run. A hot producer would keep us here for ever.
const PASS_RECORDS: usize = 512;

/// Counts of the records of a ring, for the metrics. All only grow.
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

    /// Decodes a record and counts the result.
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
        decoded.inspect_err(|error| tracing::debug!(%error, "cannot use a record")).ok()
    }
}

/// A ring of records with one reader: the kernel's, or one in tests that behaves like it.
pub trait RecordRing: Send {
    /// Waits until there may be a record. Safe to cancel.
    ///
    /// A ring may report only what comes after [`next`](Self::next) found it empty, so call that until it returns
    /// `None`.
    fn readable(&mut self) -> impl Future<Output = io::Result<()>> + Send;

    /// Calls `read` on the next record and removes it from the ring; `None` if there is none now.
    fn next<T>(&mut self, read: impl FnOnce(&[u8]) -> T) -> Option<T>;
}

/// A ring of the kernel.
pub struct KernelRing(AsyncFd<RingBuf<MapData>>);

impl fmt::Debug for KernelRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelRing").finish_non_exhaustive()
    }
}

impl KernelRing {
    /// Registers it with the current runtime.
    pub fn register(ring: RingBuf<MapData>) -> io::Result<Self> {
        raw::readable(ring).map(Self)
    }

    /// Calls `read` on each record that is there, on at most `most`, and removes them: cheaper than [`next`](RecordRing::next)
    /// for each.
    pub fn take(&mut self, most: usize, mut read: impl FnMut(&[u8])) {
        let take = |ring: &mut RingBuf<MapData>| {
            for _ in 0..most {
                let Some(record) = ring.next() else { return Err(io::ErrorKind::WouldBlock.into()) };
                read(&record);
            }
            Ok(())
        };
        // Readiness is edge-triggered: it may only be cleared once the ring was seen empty, as that error says.
        let _empty: io::Result<()> = self.0.try_io_mut(Interest::READABLE, take);
    }
}

impl RecordRing for KernelRing {
    async fn readable(&mut self) -> io::Result<()> {
        // It stays ready until `next` finds it empty.
        self.0.readable_mut().await.map(drop)
    }

    fn next<T>(&mut self, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        // Readiness is edge-triggered: it may only be cleared once the ring was seen empty.
        let next = |ring: &mut RingBuf<MapData>| {
            ring.next().map(|record| read(&record)).ok_or_else(|| io::ErrorKind::WouldBlock.into())
        };
        self.0.try_io_mut(Interest::READABLE, next).ok()
    }
}

/// Reads a ring for as long as the channel is open.
///
/// It waits while the channel is full: the ring buffers the rest, and the kernel counts what no longer fits.
/// Nothing is lost in between.
pub async fn drain(
    mut ring: impl RecordRing,
    sink: mpsc::Sender<Record>,
    stats: &RingStats,
) -> io::Result<()> {
    let mut batch = Vec::with_capacity(PASS_RECORDS);
    loop {
        tokio::select! {
            ready = ring.readable() => ready?,
            () = sink.closed() => return Ok(()),
        }
        let mut drained = false;
        for _ in 0..PASS_RECORDS {
            let Some(record) = ring.next(|bytes| stats.decode(bytes)) else {
                drained = true;
                break;
            };
            batch.extend(record);
        }
        for record in batch.drain(..) {
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
pub(crate) mod fake;

#[cfg(test)]
mod tests;
