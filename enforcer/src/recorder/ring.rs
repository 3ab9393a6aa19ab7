//! A ring of bytes from one thread to another. The writer never waits; it drops a record that finds no room.
//!
//! A record consists of whole words: its length in bytes, its time, its bytes. The writer publishes a record once it is
//! complete.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// The capacity: readings of 500 pods are about 15 KiB, and are taken at most ten times a second.
pub(super) const RING_BYTES: usize = 256 * 1024;

const WORD_BYTES: usize = 8;

#[derive(Debug)]
struct Ring {
    words: Box<[AtomicU64]>,
    /// Words written and words read, ever.
    written: AtomicU64,
    read: AtomicU64,
}

impl Ring {
    fn word(&self, place: u64) -> Option<&AtomicU64> {
        let length = u64::try_from(self.words.len()).ok()?;
        self.words.get(usize::try_from(place.checked_rem(length)?).ok()?)
    }

    fn capacity(&self) -> u64 {
        u64::try_from(self.words.len()).unwrap_or(u64::MAX)
    }
}

/// The writer's end.
#[derive(Debug)]
pub(super) struct Producer {
    ring: Arc<Ring>,
    at: u64,
}

/// The reader's end.
#[derive(Debug)]
pub(super) struct Consumer {
    ring: Arc<Ring>,
    at: u64,
}

/// Makes a ring of that size. Its pages are touched here, so that no page fault delays a later write.
pub(super) fn ring(bytes: usize) -> (Producer, Consumer) {
    let words = (0..bytes / WORD_BYTES).map(|_| AtomicU64::new(0)).collect();
    let ring = Arc::new(Ring { words, written: AtomicU64::new(0), read: AtomicU64::new(0) });
    (Producer { ring: Arc::clone(&ring), at: 0 }, Consumer { ring, at: 0 })
}

impl Producer {
    /// Writes a record with that time; returns its length in words, or `None` if there was no room.
    pub(super) fn put(&mut self, at_ns: u64, put: impl FnOnce(&mut Slot<'_>)) -> Option<u64> {
        let end = self.ring.read.load(Ordering::Acquire).saturating_add(self.ring.capacity());
        // The first two words hold length and time.
        let mut slot =
            Slot { ring: &self.ring, at: self.at.saturating_add(2), end, word: [0; WORD_BYTES], bytes: 0 };
        put(&mut slot);
        let (next, bytes) = slot.close()?;
        for (place, word) in [(self.at, bytes), (self.at + 1, at_ns)] {
            self.ring.word(place)?.store(word, Ordering::Relaxed);
        }
        let words = next - self.at;
        self.at = next;
        self.ring.written.store(next, Ordering::Release);
        Some(words)
    }

    /// Returns how many words are in use, and the capacity in words.
    pub(super) fn fill(&self) -> (u64, u64) {
        (self.at.saturating_sub(self.ring.read.load(Ordering::Relaxed)), self.ring.capacity())
    }
}

/// A record that is being written.
#[derive(Debug)]
pub(super) struct Slot<'a> {
    ring: &'a Ring,
    /// The place of the word being filled.
    at: u64,
    /// The first place that is not free.
    end: u64,
    word: [u8; WORD_BYTES],
    bytes: u64,
}

impl Slot<'_> {
    fn store(&mut self) {
        // Words that do not fit are counted but not written; `close` notices.
        if self.at < self.end
            && let Some(word) = self.ring.word(self.at)
        {
            word.store(u64::from_ne_bytes(self.word), Ordering::Relaxed);
        }
        self.at = self.at.saturating_add(1);
        self.word = [0; WORD_BYTES];
    }

    /// Returns the place after the record, and its length in bytes; `None` if it did not fit.
    fn close(mut self) -> Option<(u64, u64)> {
        if !self.bytes.is_multiple_of(8) {
            self.store();
        }
        (self.at <= self.end).then_some((self.at, self.bytes))
    }
}

impl Extend<u8> for Slot<'_> {
    fn extend<T: IntoIterator<Item = u8>>(&mut self, bytes: T) {
        for byte in bytes {
            let place = usize::try_from(self.bytes % 8).unwrap_or(0);
            if let Some(slot) = self.word.get_mut(place) {
                *slot = byte;
            }
            self.bytes += 1;
            if self.bytes.is_multiple_of(8) {
                self.store();
            }
        }
    }
}

impl Consumer {
    /// Takes the next record: appends its bytes to `into` and returns its time. Returns `None` if there is no record.
    pub(super) fn take(&mut self, into: &mut Vec<u8>) -> Option<u64> {
        if self.at == self.ring.written.load(Ordering::Acquire) {
            return None;
        }
        let word = |place: u64| self.ring.word(place).map_or(0, |word| word.load(Ordering::Relaxed));
        let (bytes, at_ns) = (word(self.at), word(self.at + 1));
        let first = self.at + 2;
        let words = bytes.div_ceil(8);
        let begin = into.len();
        for place in first..first + words {
            into.extend_from_slice(&word(place).to_ne_bytes());
        }
        into.truncate(begin.saturating_add(usize::try_from(bytes).unwrap_or(usize::MAX)));
        self.at = first + words;
        self.ring.read.store(self.at, Ordering::Release);
        Some(at_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u64) -> Vec<u8> {
        let length = usize::try_from(number * 7 % 61).unwrap();
        number.to_le_bytes().iter().copied().cycle().take(length).collect()
    }

    #[test]
    fn what_was_taken_arrives_whole_and_in_order_between_two_threads() {
        const COUNT: u64 = 100_000;
        let (mut producer, mut consumer) = ring(512);
        let reader = std::thread::spawn(move || {
            let (mut expected, mut bytes) = (0, Vec::new());
            while expected < COUNT {
                bytes.clear();
                match consumer.take(&mut bytes) {
                    Some(at_ns) => {
                        assert_eq!(at_ns, expected);
                        assert_eq!(bytes, record(expected));
                        expected += 1;
                    }
                    None => std::thread::yield_now(),
                }
            }
        });
        for number in 0..COUNT {
            let bytes = record(number);
            while producer.put(number, |slot| slot.extend(bytes.iter().copied())).is_none() {
                std::thread::yield_now();
            }
        }
        reader.join().unwrap();
    }

    #[test]
    fn what_does_not_fit_leaves_no_trace() {
        let (mut producer, mut consumer) = ring(64);
        let put =
            |producer: &mut Producer, length: usize| producer.put(9, |slot| slot.extend(vec![7; length]));
        assert_eq!(put(&mut producer, 49), None);
        assert_eq!(put(&mut producer, 17), Some(5));
        assert_eq!(put(&mut producer, 9), None);
        assert_eq!(put(&mut producer, 8), Some(3));
        assert_eq!(put(&mut producer, 0), None);
        assert_eq!(producer.fill(), (8, 8));
        let mut bytes = Vec::new();
        assert_eq!(consumer.take(&mut bytes), Some(9));
        assert_eq!(bytes, [7; 17]);
        assert_eq!(put(&mut producer, 0), Some(2));
        assert_eq!(consumer.take(&mut bytes), Some(9));
        assert_eq!(bytes, [7; 25]);
        assert_eq!((consumer.take(&mut bytes), consumer.take(&mut bytes)), (Some(9), None));
        assert_eq!(put(&mut producer, 48), Some(8));
    }
}
