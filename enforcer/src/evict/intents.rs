//! What the next start must know about an eviction if this process dies before it reports: written to the intent page
//! before the signal, and removed once the events are on disk.

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use ulid::Ulid;

use super::{
    brake::BrakeBook,
    candidate::{Candidate, Owner},
    raised_limits::{self, RaisedLimit},
};
use crate::{
    journal::{Intent, Slot, Slots},
    policy::engine::Decision,
};

/// The most evictions that are under way or not yet recorded: the slots that the intent page has for them.
const MOST: usize = 14;

/// The reflex's slots of the intent page. Using it does not allocate or wait.
#[derive(Debug)]
pub struct EvictionIntents {
    slots: Slots,
    held: [Option<(u64, Slot)>; MOST],
    /// The slots of raised limits.
    raised: [Option<Slot>; raised_limits::MOST],
    /// Which of those limits are restored by now, a bit each.
    given_back: Arc<AtomicU64>,
    recorded: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
    brakes: Option<BrakeBook>,
}

impl EvictionIntents {
    /// `recorded` is the number of the latest eviction that is on disk with all before it; others raise it.
    #[must_use]
    pub fn new(slots: Slots, recorded: Arc<AtomicU64>) -> Self {
        Self {
            slots,
            held: [const { None }; MOST],
            raised: [const { None }; raised_limits::MOST],
            given_back: Arc::default(),
            recorded,
            ended: Arc::default(),
            brakes: None,
        }
    }

    /// The number of the latest eviction whose end is reported; others raise it.
    pub(super) fn ended(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.ended)
    }

    /// Adds what the brake thread needs; without it no pod is throttled.
    #[must_use]
    pub fn braking(mut self, brakes: BrakeBook) -> Self {
        self.brakes = Some(brakes);
        self
    }

    pub(super) fn take_brakes(&mut self) -> Option<BrakeBook> {
        self.brakes.take()
    }

    /// Takes the slot of an eviction that an earlier process began, and that is now the first one.
    #[must_use]
    pub fn inheriting(mut self, slot: Slot) -> Self {
        self.held[0] = Some((1, slot));
        self
    }

    /// Writes an eviction to the intent page. If that is full, it goes on without: the shortage does not wait.
    pub(super) fn hold(&mut self, id: Ulid, decision: &Decision, candidate: &Candidate) {
        self.settle();
        let Some(free) = self.held.iter_mut().find(|held| held.is_none()) else { return };
        let intent = Intent::Eviction {
            id: id.into(),
            pod: Cow::Borrowed(&candidate.label),
            uid: Cow::Borrowed(candidate.identity.uid.as_str()),
            path: Cow::Borrowed(candidate.identity.cgroup.as_str()),
            cgroup: decision.cgroup,
            whole: candidate.is_whole,
            targets: Cow::Borrowed(&candidate.pledged),
            signal: Cow::Borrowed(decision.shortage.signal.as_str()),
            hard: decision.shortage.hard,
            threshold: decision.shortage.threshold,
            observed: decision.shortage.observed,
            decided_ns: decision.decided_ns,
        };
        *free = self.slots.hold(&intent).map(|slot| (decision.number, slot));
    }

    /// Writes down that a limit is raised until the victim is dead. Returns the bit to set once it is restored; `None`
    /// if the page is full.
    pub(super) fn note_raised(&mut self, limit: &RaisedLimit, owner: &Owner) -> Option<u64> {
        let (place, free) = self.raised.iter_mut().enumerate().find(|(_, slot)| slot.is_none())?;
        *free = self.slots.hold(&limit.intent(owner));
        free.is_some().then_some(1 << place)
    }

    /// The bits of restored limits; others set them.
    pub(super) fn given_back(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.given_back)
    }

    /// Releases an eviction that did not reach its signal.
    pub(super) fn release(&mut self, number: u64) {
        self.release_if(|held| held == number);
    }

    /// Releases limits that are restored, and evictions that are recorded and whose end is reported. After a crash,
    /// those left on the page would count as unfinished.
    pub(super) fn settle(&mut self) {
        let given_back = self.given_back.swap(0, Ordering::AcqRel);
        for (place, raised) in
            self.raised.iter_mut().enumerate().filter(|(place, _)| given_back & (1 << place) != 0)
        {
            debug_assert!(raised.is_some(), "{place} is restored twice");
            if let Some(slot) = raised.take() {
                self.slots.release(slot);
            }
        }
        if self.held.iter().all(Option::is_none) {
            return;
        }
        let by_now = self.recorded.load(Ordering::Acquire).min(self.ended.load(Ordering::Acquire));
        self.release_if(|held| held <= by_now);
    }

    fn release_if(&mut self, which: impl Fn(u64) -> bool) {
        for held in &mut self.held {
            if let Some((_, slot)) = held.take_if(|(number, _)| which(*number)) {
                self.slots.release(slot);
            }
        }
    }
}

impl Drop for EvictionIntents {
    /// An orderly stop writes all reported events to disk. The next start handles evictions whose end is not reported.
    fn drop(&mut self) {
        let ended = self.ended.load(Ordering::Acquire);
        self.release_if(|held| held <= ended);
    }
}
