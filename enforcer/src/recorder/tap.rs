//! The flight recorder's side on the reflex thread, which it must never delay.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    Waker,
    ring::{Producer, ring},
};
use crate::policy::{
    engine::{Actions, Candidates, Engine, EngineSettings, Input},
    flight::{RecordRef, StepRef, encode},
};

/// How often the engine's whole state is recorded, in time and in words: a replay can begin there. Up to that much more
/// is kept than was requested.
const KEY_EVERY_NS: u64 = 300_000_000_000;
const KEY_EVERY_WORDS: u64 = 128 * 1024 / 8;

/// Room for the records of one eviction of one candidate.
const UNWATCHED_BYTES: usize = 32 * 1024;

/// What the tap reports beside the records.
#[derive(Debug, Default)]
pub(super) struct Tapped {
    /// Records that found no room, ever.
    lost: AtomicU64,
    /// The random part of the first eviction's id, its lower half first.
    seed: [AtomicU64; 2],
}

impl Tapped {
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    pub(super) fn seed(&self) -> u128 {
        let [low, high] = &self.seed;
        u128::from(low.load(Ordering::Relaxed)) | u128::from(high.load(Ordering::Relaxed)) << 64
    }
}

/// Records the engine's inputs and outcomes. It belongs to the thread that feeds the engine: it allocates nothing,
/// takes no lock and never waits.
#[derive(Debug)]
pub struct Tap {
    ring: Producer,
    waker: Arc<Waker>,
    tapped: Arc<Tapped>,
    /// Lost records that the recording does not mention yet.
    unreported: u64,
    /// Whether the records can be replayed: not before the first whole state, nor after a loss.
    is_sound: bool,
    now_ns: u64,
    key_ns: u64,
    since_key_words: u64,
}

impl Tap {
    pub(super) fn new(ring: Producer, waker: Arc<Waker>) -> Self {
        Self {
            ring,
            waker,
            tapped: Arc::default(),
            unreported: 0,
            is_sound: false,
            now_ns: 0,
            key_ns: 0,
            since_key_words: 0,
        }
    }

    /// A tap whose records no one reads.
    pub(crate) fn unwatched() -> io::Result<Self> {
        let (ring, _) = ring(UNWATCHED_BYTES);
        Ok(Self::new(ring, Arc::new(Waker::new()?)))
    }

    pub(super) fn tapped(&self) -> Arc<Tapped> {
        Arc::clone(&self.tapped)
    }

    /// Records the engine's initial state; `seed` is the random part of the first eviction's id.
    pub fn begin(&mut self, engine: &Engine, seed: u128) {
        let [low, high] = &self.tapped.seed;
        let half = |value: u128| u64::try_from(value & u128::from(u64::MAX)).unwrap_or(0);
        low.store(half(seed), Ordering::Relaxed);
        high.store(half(seed >> 64), Ordering::Relaxed);
        self.key(engine);
    }

    /// Records an input, the engine's actions for it, and its decision afterwards.
    pub fn step(&mut self, input: &Input<'_>, actions: &Actions, engine: &Engine) {
        self.now_ns = input.now_ns();
        self.put(RecordRef::Step(StepRef::new(input, actions, engine.decision())));
    }

    /// Records new settings of the engine.
    pub fn settings(&mut self, settings: &EngineSettings) {
        self.put(RecordRef::Settings(settings));
    }

    /// Records new candidates of the engine.
    pub fn candidates(&mut self, candidates: &Candidates) {
        self.put(RecordRef::Candidates(candidates));
    }

    /// Records the id under which a decision is reported.
    pub fn called(&mut self, number: u64, id: u128) {
        self.put(RecordRef::Called { number, id });
    }

    /// Called when all other work is done: records the whole state if it is due.
    pub fn rest(&mut self, engine: &Engine) {
        let is_old = self.now_ns.saturating_sub(self.key_ns) >= KEY_EVERY_NS;
        if !self.is_sound || is_old || self.since_key_words >= KEY_EVERY_WORDS {
            self.key(engine);
        }
    }

    fn key(&mut self, engine: &Engine) {
        if self.unreported > 0 {
            let unreported = self.unreported;
            if self.append(RecordRef::Lost(unreported)).is_none() {
                self.wake();
                return;
            }
            self.unreported = 0;
        }
        if self.append(RecordRef::Key(engine)).is_some() {
            self.is_sound = true;
            self.key_ns = self.now_ns;
            self.since_key_words = 0;
        } else {
            // Nothing is lost: recording continues, and the state is tried again.
            self.wake();
        }
    }

    /// Returns the record's length in words, if there was room.
    fn append(&mut self, record: RecordRef<'_>) -> Option<u64> {
        self.ring.put(self.now_ns, |slot| encode(&record, slot))
    }

    fn put(&mut self, record: RecordRef<'_>) {
        let words = if self.is_sound { self.append(record) } else { None };
        let Some(words) = words else {
            self.is_sound = false;
            self.unreported = self.unreported.saturating_add(1);
            self.tapped.lost.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.since_key_words = self.since_key_words.saturating_add(words);
        let (fill, capacity) = self.ring.fill();
        // Wakes the recorder once, when the fill level crosses one half upwards.
        if fill >= capacity / 2 && fill - words.min(fill) < capacity / 2 {
            self.wake();
        }
    }

    fn wake(&self) {
        self.waker.wake();
    }
}
