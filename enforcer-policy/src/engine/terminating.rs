//! Memory that others free: pods that end by themselves, by order or to make way, and a kubelet that removes a victim's
//! memory-backed volumes.
//!
//! A terminating pod is no candidate for a shortage of memory, and the memory that its death frees counts as available. Both end
//! after 10 s, or as soon as its memory no longer falls: a pod whose grace period is an hour must not prevent evictions.
//! Neither holds when memory will be exhausted before a later victim could release its own.

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use super::{Engine, MS, Reading, Reclaim, Resource, Usage, candidates::Slot, exhaustion::is_too_late};
use crate::{model::CgroupId, threshold::Signal};

/// The longest that a terminating pod is awaited, from the first reading of its usage.
const LONGEST_NS: u64 = 10_000 * MS;

/// The same with the pauses of the machine: slow readings must not prolong it without end.
const LONGEST_WITH_PAUSES_NS: u64 = 2 * LONGEST_NS;

/// How long its memory may stop falling: between SIGTERM and the exit a process writes its buffers.
const STANDSTILL_NS: u64 = 1_000 * MS;

/// The longest gap between two readings that counts: on a paused machine the pod had no time to end either.
const LONGEST_GAP_NS: u64 = 300 * MS;

/// How often usages are read while one is awaited.
const READ_EVERY_NS: u64 = 100 * MS;

/// By how much its memory falls or grows at least: a 64th, or 1 MiB. Counters are batched per CPU.
const STEP_SHARE: u64 = 64;
const STEP_BYTES: u64 = 1 << 20;

/// The memory of a terminating pod over time.
#[derive(Clone, Copy, Debug, Deserialize, Schema, Serialize)]
pub(super) struct Release {
    began_ns: u64,
    /// When it began, later by the pauses of the machine.
    since_ns: u64,
    /// The lowest that was read, and when.
    lowest_bytes: u64,
    fell_ns: u64,
    looked_ns: u64,
    /// Whether it has grown since.
    grows: bool,
}

impl Release {
    pub(super) fn new(now_ns: u64, bytes: u64) -> Self {
        Self {
            began_ns: now_ns,
            since_ns: now_ns,
            lowest_bytes: bytes,
            fell_ns: now_ns,
            looked_ns: now_ns,
            grows: false,
        }
    }

    /// Takes another reading.
    pub(super) fn look(&mut self, now_ns: u64, bytes: u64) {
        let uncounted_ns = now_ns.saturating_sub(self.looked_ns).saturating_sub(LONGEST_GAP_NS);
        self.since_ns = self.since_ns.saturating_add(uncounted_ns);
        self.fell_ns = self.fell_ns.saturating_add(uncounted_ns);
        self.looked_ns = now_ns;
        let step_bytes = (self.lowest_bytes / STEP_SHARE).max(STEP_BYTES);
        self.grows = bytes > self.lowest_bytes.saturating_add(step_bytes);
        if bytes.saturating_add(step_bytes) <= self.lowest_bytes {
            self.lowest_bytes = bytes;
            self.fell_ns = now_ns;
        }
    }

    fn is_awaited(&self, now_ns: u64) -> bool {
        let Self { began_ns, since_ns, lowest_bytes: _, fell_ns, looked_ns: _, grows } = *self;
        let passed_ns = |since_ns| now_ns.saturating_sub(since_ns);
        let is_within = passed_ns(since_ns) < LONGEST_NS && passed_ns(began_ns) < LONGEST_WITH_PAUSES_NS;
        !grows && is_within && passed_ns(fell_ns) < STANDSTILL_NS
    }
}

/// Memory in volumes of a dead victim, which a kubelet removes.
#[derive(Clone, Copy, Debug, Deserialize, Schema, Serialize)]
pub(super) struct Volume {
    /// The pod's cgroup, which is charged for it.
    pub(super) cgroup: CgroupId,
    pub(super) bytes: u64,
    /// Until when it is awaited.
    pub(super) until_ns: u64,
}

impl Slot {
    /// Whether it is terminating and releases its memory, as far as is known.
    pub(super) fn is_releasing(&self, now_ns: u64) -> bool {
        self.facts.terminating && self.release.is_some_and(|release| release.is_awaited(now_ns))
    }
}

impl Engine {
    /// Whether there is time to await what others make free.
    pub(super) fn awaits_others(&self) -> bool {
        // What is outside of kubepods ends by order or to make way, and is awaited no longer than what is in it.
        !is_too_late(self.exhaustion.in_ns(true), 0)
    }

    /// How much memory that counts for a signal terminating pods still release, and the removal of the last victim's volumes.
    pub(super) fn released_by_others(&self, now_ns: u64, signal: Signal) -> u64 {
        // What the victim still releases counts as its own, and so does what a dry run has chosen.
        let victim = self.victim.map(|victim| victim.cgroup);
        let is_others = |slot: &&Slot| {
            Some(slot.facts.cgroup) != victim && !slot.is_chosen(now_ns) && slot.facts.counts_for(signal)
        };
        let awaited = self.candidates.slots().map(|(_, slot)| slot).filter(is_others);
        let awaited = awaited.filter(|slot| slot.is_releasing(now_ns));
        let bytes = awaited.filter_map(|slot| slot.reading.usage()).map(Usage::freed_by_death_bytes);
        bytes.fold(self.volume_left(now_ns), u64::saturating_add)
    }

    /// How much of the last victim's volumes is still charged, while that is awaited.
    fn volume_left(&self, now_ns: u64) -> u64 {
        let Some(Volume { cgroup, bytes, until_ns }) = self.volume else { return 0 };
        if now_ns >= until_ns {
            return 0;
        }
        let slot = self.candidates.find(cgroup).and_then(|index| self.candidates.slot(index));
        match slot.map(|slot| slot.reading) {
            // A pod without a cgroup has no volume.
            None | Some(Reading::Gone) => 0,
            Some(Reading::Usage(usage)) if usage.process_count != Some(0) => {
                bytes.min(usage.unmapped_shmem_bytes())
            }
            // A reading of a pod without processes says nothing of what it is charged for.
            Some(Reading::Usage(_) | Reading::Missing | Reading::Uncounted { .. }) => bytes,
        }
    }

    /// Whether an eviction is put off only because of what others make free.
    pub(super) fn waits_for_others(&self, now_ns: u64) -> bool {
        let is_put_off = |reclaim: Reclaim| {
            let is_memory = Resource::of(reclaim.threshold.signal) == Some(Resource::Memory);
            let with = reclaim.available.saturating_add(self.coming(now_ns, &reclaim));
            let without = with.saturating_sub(self.released_by_others(now_ns, reclaim.threshold.signal));
            is_memory && without < reclaim.target && with >= reclaim.target
        };
        let is_free = self.victim.is_none_or(|victim| !victim.is_alive());
        is_free && self.awaits_others() && self.pressure.due().any(is_put_off)
    }

    /// Whether the usages of what is awaited must be read again.
    pub(super) fn must_read_others(&self, now_ns: u64) -> bool {
        let has_volume = |slot: &Slot| self.volume.is_some_and(|volume| volume.cgroup == slot.facts.cgroup);
        let is_awaited = |slot: &Slot| slot.is_releasing(now_ns) || has_volume(slot);
        let is_old = |slot: &Slot| now_ns.saturating_sub(slot.read_ns) >= READ_EVERY_NS;
        let mut slots = self.candidates.slots().map(|(_, slot)| slot);
        slots.any(|slot| is_awaited(slot) && is_old(slot)) && self.waits_for_others(now_ns)
    }
}
