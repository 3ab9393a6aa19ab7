//! A ring that behaves as the kernel's does (`kernel/bpf/ringbuf.c`), in memory of our own.
//!
//! Each record is preceded by eight bytes: its length with the bits for "being written" and "discarded", and a place
//! that only the kernel uses. Positions only grow, and are taken modulo the size; a record may lie across the end, as
//! the kernel maps the data twice. What does not fit is refused and counted, as the programs count it. A reader is
//! woken only by the record that it waits for, so that one which does not read on to the end waits for ever.
use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::Notify;

use super::RecordRing;

/// The header's size, and what records are rounded up to (`BPF_RINGBUF_HDR_SZ`).
const HEADER_BYTES: usize = 8;
/// The record is being written (`BPF_RINGBUF_BUSY_BIT`).
const BUSY: u32 = 1 << 31;
/// The record was given up, and is skipped (`BPF_RINGBUF_DISCARD_BIT`).
const DISCARD: u32 = 1 << 30;

#[derive(Debug)]
struct Memory {
    data: Vec<u8>,
    producer: usize,
    consumer: usize,
}

impl Memory {
    /// The bytes from a position on, across the end.
    fn at(&self, position: usize) -> impl Iterator<Item = u8> {
        (0..).map(move |offset| self.data[(position + offset) % self.data.len()])
    }

    fn put(&mut self, position: usize, bytes: &[u8]) {
        let size = self.data.len();
        for (offset, byte) in bytes.iter().enumerate() {
            self.data[(position + offset) % size] = *byte;
        }
    }

    fn header(&self, position: usize) -> u32 {
        let mut bytes = self.at(position);
        u32::from_ne_bytes([(); 4].map(|()| bytes.next().unwrap()))
    }
}

#[derive(Debug)]
struct Shared {
    memory: Mutex<Memory>,
    edge: Notify,
    stored: AtomicU64,
    dropped: AtomicU64,
    woken: AtomicU64,
}

impl Shared {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap()
    }
}

/// The kernel's end.
#[derive(Clone, Debug)]
pub(crate) struct Producer(Arc<Shared>);

/// The reader's end.
#[derive(Debug)]
pub(crate) struct FakeRing {
    shared: Arc<Shared>,
    /// What the event loop would know: it learns by edges, and forgets when a read finds nothing.
    ready: bool,
}

/// A place that was reserved: what is put there is seen when it is [committed](Self::commit).
#[derive(Debug)]
#[must_use = "the reader waits for what was reserved and never committed"]
pub(crate) struct Reserved {
    shared: Arc<Shared>,
    position: usize,
    size_bytes: usize,
}

/// A ring of that many bytes, a power of two as in the kernel, whose positions begin at `start`.
pub(crate) fn ring(size_bytes: usize, start: usize) -> (Producer, FakeRing) {
    assert!(size_bytes.is_power_of_two() && start.is_multiple_of(HEADER_BYTES), "{size_bytes}, {start}");
    // What was there before must never be taken for a record.
    let memory = Memory { data: vec![0xAA; size_bytes], producer: start, consumer: start };
    let shared = Arc::new(Shared {
        memory: Mutex::new(memory),
        edge: Notify::new(),
        stored: AtomicU64::new(0),
        dropped: AtomicU64::new(0),
        woken: AtomicU64::new(0),
    });
    (Producer(Arc::clone(&shared)), FakeRing { shared, ready: false })
}

impl Producer {
    /// Reserves room, as `bpf_ringbuf_reserve` does; none, and one more drop, if there is none.
    pub(crate) fn reserve(&self, size_bytes: usize) -> Option<Reserved> {
        let mut memory = self.0.memory();
        let position = memory.producer;
        let end = position + (HEADER_BYTES + size_bytes).next_multiple_of(HEADER_BYTES);
        if end - memory.consumer > memory.data.len() - 1 {
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let header = u32::try_from(size_bytes).unwrap() | BUSY;
        memory.put(position, &header.to_ne_bytes());
        memory.producer = end;
        Some(Reserved { shared: Arc::clone(&self.0), position, size_bytes })
    }

    /// Writes a record whole; false, and one more drop, if there is no room.
    pub(crate) fn output(&self, record: &[u8]) -> bool {
        self.reserve(record.len()).map(|reserved| reserved.commit(record)).is_some()
    }

    /// How many records were written whole.
    pub(crate) fn stored(&self) -> u64 {
        self.0.stored.load(Ordering::Relaxed)
    }

    /// How many found no room.
    pub(crate) fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// How often the reader was woken.
    pub(crate) fn woken(&self) -> u64 {
        self.0.woken.load(Ordering::Relaxed)
    }
}

impl Reserved {
    /// Writes the record, which is as long as was reserved, and lets the reader have it.
    pub(crate) fn commit(self, record: &[u8]) {
        assert_eq!(record.len(), self.size_bytes);
        self.shared.stored.fetch_add(1, Ordering::Relaxed);
        self.shared.memory().put(self.position + HEADER_BYTES, record);
        self.end(0);
    }

    /// Gives it up, as `bpf_ringbuf_discard` does.
    pub(crate) fn discard(self) {
        self.end(DISCARD);
    }

    fn end(self, flag: u32) {
        let mut memory = self.shared.memory();
        let header = u32::try_from(self.size_bytes).unwrap() | flag;
        memory.put(self.position, &header.to_ne_bytes());
        if memory.consumer == self.position {
            self.shared.woken.fetch_add(1, Ordering::Relaxed);
            self.shared.edge.notify_one();
        }
    }
}

impl FakeRing {
    /// The records that are there now, without waiting.
    pub(crate) fn waiting(&mut self) -> Vec<Vec<u8>> {
        self.ready = true;
        std::iter::from_fn(|| self.next(<[u8]>::to_vec)).collect()
    }

    fn take(&mut self) -> Option<Vec<u8>> {
        let mut memory = self.shared.memory();
        while self.ready {
            let position = memory.consumer;
            if position == memory.producer || memory.header(position) & BUSY != 0 {
                self.ready = false;
                break;
            }
            let header = memory.header(position);
            let size_bytes = usize::try_from(header & !DISCARD).unwrap();
            memory.consumer = position + (HEADER_BYTES + size_bytes).next_multiple_of(HEADER_BYTES);
            if header & DISCARD == 0 {
                return Some(memory.at(position + HEADER_BYTES).take(size_bytes).collect());
            }
        }
        None
    }
}

impl RecordRing for FakeRing {
    async fn readable(&mut self) -> io::Result<()> {
        if !self.ready {
            self.shared.edge.notified().await;
            self.ready = true;
        }
        Ok(())
    }

    fn next<T>(&mut self, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        self.take().map(|record| read(&record))
    }
}
