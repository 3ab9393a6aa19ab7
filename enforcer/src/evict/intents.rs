//! What the next start must know of an eviction, should this process not live to tell: written down before the signal,
//! taken back once it is known where it lasts.

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

/// How many evictions can be under way or not yet recorded; as many as the intent page has slots for.
const MOST: usize = 14;

/// The reflex's slots of the intent page. Using it allocates nothing and waits for nobody.
#[derive(Debug)]
pub struct EvictionIntents {
    slots: Slots,
    held: [Option<(u64, Slot)>; MOST],
    /// Of what victims were lent; and which of those are given back by now, a bit each.
    lent: [Option<Slot>; raised_limits::MOST],
    given_back: Arc<AtomicU64>,
    recorded: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
    brakes: Option<BrakeBook>,
}

impl EvictionIntents {
    /// `recorded` is the number of the latest eviction that is known on the disk with all before it; others raise it.
    #[must_use]
    pub fn new(slots: Slots, recorded: Arc<AtomicU64>) -> Self {
        Self {
            slots,
            held: [const { None }; MOST],
            lent: [const { None }; raised_limits::MOST],
            given_back: Arc::default(),
            recorded,
            ended: Arc::default(),
            brakes: None,
        }
    }

    /// Where the number is raised of the latest eviction whose end is told.
    pub(super) fn ended(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.ended)
    }

    /// With what holding a candidate back takes; without it nobody is.
    #[must_use]
    pub fn braking(mut self, brakes: BrakeBook) -> Self {
        self.brakes = Some(brakes);
        self
    }

    pub(super) fn take_brakes(&mut self) -> Option<BrakeBook> {
        self.brakes.take()
    }

    /// Writes an eviction down. Without room it goes on unwritten: the shortage does not wait.
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

    /// Writes down that a file holds another value until the victim is dead. The bit that says that it is given back; none
    /// if there was no room for it.
    pub(super) fn lend(&mut self, lent: &RaisedLimit, owner: &Owner) -> Option<u64> {
        let (place, free) = self.lent.iter_mut().enumerate().find(|(_, lent)| lent.is_none())?;
        *free = self.slots.hold(&lent.intent(owner));
        free.is_some().then_some(1 << place)
    }

    /// Where others set the bits of what is given back.
    pub(super) fn given_back(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.given_back)
    }

    /// Takes back what did not come to a signal.
    pub(super) fn release(&mut self, number: u64) {
        self.release_if(|held| held == number);
    }

    /// Takes back what is recorded by now, and whose end is told: what stays would be taken for unfinished after a crash,
    /// however late.
    pub(super) fn settle(&mut self) {
        let given_back = self.given_back.swap(0, Ordering::AcqRel);
        for (place, lent) in
            self.lent.iter_mut().enumerate().filter(|(place, _)| given_back & (1 << place) != 0)
        {
            debug_assert!(lent.is_some(), "{place} is given back twice");
            if let Some(slot) = lent.take() {
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
    /// What is told stays told: whoever stops in order writes it all down. An eviction whose end is not told is taken up by
    /// the next start.
    fn drop(&mut self) {
        let ended = self.ended.load(Ordering::Acquire);
        self.release_if(|held| held <= ended);
    }
}
