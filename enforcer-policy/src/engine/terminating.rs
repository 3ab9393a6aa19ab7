//! Memory that others free: pods that end by themselves, by order or to make way, and a kubelet that removes the
//! memory-backed volumes of victims.
//!
//! A terminating pod is no candidate for a shortage of memory, and the memory that its death frees counts as available. Both end
//! after 10 s, or as soon as its memory no longer falls: a pod whose grace period is an hour must not prevent evictions.
//! Neither holds when memory will be exhausted before a later victim could release its own.

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use super::{Engine, MS, Reading, Reclaim, Resource, Usage, candidates::Slot, exhaustion::is_too_late};
use crate::{few::Few, model::CgroupId, threshold::Signal};

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

/// The most pods whose volumes are awaited at once. With more, the one that is awaited the shortest is not any longer.
const MOST_VOLUMES: usize = 8;

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
    /// When the victim was seen dead.
    pub(super) dead_ns: u64,
    /// Until when it is awaited.
    pub(super) until_ns: u64,
    /// The most shared memory that the node has had since it is awaited: if nothing is read of the pod, the volume has been
    /// removed once the node has as much less.
    pub(super) shmem_bytes: u64,
}

impl Volume {
    /// How much of it is still charged; `None` if its pod does not show it.
    fn charged(&self, slot: Option<&Slot>) -> Option<u64> {
        // A pod whose containers have ended is no candidate any more, and its volumes may still be there.
        let slot = slot?;
        match slot.reading {
            // A pod without a cgroup has no volume.
            Reading::Gone => Some(0),
            Reading::Usage(usage) if usage.process_count != Some(0) && slot.read_ns >= self.dead_ns => {
                Some(self.bytes.min(usage.unmapped_shmem_bytes()))
            }
            // Neither a reading from before its death nor one without processes shows what it is charged for now.
            Reading::Usage(_) | Reading::Missing | Reading::Uncounted { .. } => None,
        }
    }
}

/// The volumes of dead victims, each with an end of its own.
#[derive(Clone, Copy, Debug, Default, Deserialize, Schema, Serialize)]
pub(super) struct Volumes {
    kept: Few<Volume, MOST_VOLUMES>,
}

impl Volumes {
    /// Awaits it from now on, when the node has so much shared memory, in place of what was known of the same pod. Without
    /// room the one that ends first is left out.
    pub(super) fn keep(&mut self, volume: Volume, shmem_bytes: u64) {
        let volume = Volume { shmem_bytes, ..volume };
        if let Some(known) = self.kept.iter_mut().find(|known| known.cgroup == volume.cgroup) {
            *known = volume;
            return;
        }
        if volume.bytes == 0 || self.kept.push(volume) {
            return;
        }
        // Those that are not awaited any more end first.
        if let Some(first) = self.kept.iter_mut().min_by_key(|known| known.until_ns)
            && first.until_ns < volume.until_ns
        {
            *first = volume;
        }
    }

    /// Takes how much shared memory the node has.
    pub(super) fn note_shmem(&mut self, bytes: u64) {
        for volume in self.kept.iter_mut() {
            volume.shmem_bytes = volume.shmem_bytes.max(bytes);
        }
    }

    /// Those that are awaited.
    fn awaited(&self, now_ns: u64) -> impl Iterator<Item = &Volume> {
        self.kept.iter().filter(move |volume| now_ns < volume.until_ns)
    }
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

    /// How much memory that counts for a signal terminating pods still release, and the removal of victims' volumes.
    pub(super) fn released_by_others(&self, now_ns: u64, signal: Signal) -> u64 {
        // What the victim still releases counts as its own, and so does what a dry run has chosen.
        let victim = self.victim.map(|victim| victim.cgroup);
        let is_others = |slot: &&Slot| {
            Some(slot.facts.cgroup) != victim && !slot.is_chosen(now_ns) && slot.facts.counts_for(signal)
        };
        let awaited = self.candidates.slots().map(|(_, slot)| slot).filter(is_others);
        let awaited = awaited.filter(|slot| slot.is_releasing(now_ns));
        let bytes = awaited.filter_map(|slot| slot.reading.usage()).map(Usage::freed_by_death_bytes);
        bytes.fold(self.volumes_left(now_ns), u64::saturating_add)
    }

    /// How much of dead victims' volumes is still charged, while that is awaited.
    fn volumes_left(&self, now_ns: u64) -> u64 {
        let slot = |cgroup| self.candidates.find(cgroup).and_then(|index| self.candidates.slot(index));
        let (mut charged, mut unseen, mut removed) = (0_u64, 0_u64, 0_u64);
        for volume in self.volumes.awaited(now_ns) {
            if let Some(bytes) = volume.charged(slot(volume.cgroup)) {
                charged = charged.saturating_add(bytes);
            } else {
                unseen = unseen.saturating_add(volume.bytes);
                removed = removed.max(volume.shmem_bytes.saturating_sub(self.shmem_bytes));
            }
        }
        charged.saturating_add(unseen.saturating_sub(removed))
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
        let has_volume =
            |slot: &Slot| self.volumes.awaited(now_ns).any(|volume| volume.cgroup == slot.facts.cgroup);
        let is_awaited = |slot: &Slot| slot.is_releasing(now_ns) || has_volume(slot);
        let is_old = |slot: &Slot| now_ns.saturating_sub(slot.read_ns) >= READ_EVERY_NS;
        let mut slots = self.candidates.slots().map(|(_, slot)| slot);
        slots.any(|slot| is_awaited(slot) && is_old(slot)) && self.waits_for_others(now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(cgroup: u64, until_ns: u64) -> Volume {
        Volume { cgroup: CgroupId(cgroup), bytes: 1, dead_ns: 0, until_ns, shmem_bytes: 0 }
    }

    fn awaited(volumes: &Volumes, now_ns: u64) -> Vec<u64> {
        volumes.awaited(now_ns).map(|volume| volume.cgroup.0).collect()
    }

    #[test]
    fn without_room_the_volume_that_ends_first_is_not_awaited_any_longer() {
        let mut volumes = Volumes::default();
        for cgroup in 1..=8 {
            volumes.keep(volume(cgroup, 100 - cgroup), 0);
        }
        assert_eq!(awaited(&volumes, 0).len(), MOST_VOLUMES);
        volumes.keep(volume(9, 200), 0);
        assert_eq!(awaited(&volumes, 0), [1, 2, 3, 4, 5, 6, 7, 9]);
        // It would be the first to end itself.
        volumes.keep(volume(10, 92), 0);
        assert_eq!(awaited(&volumes, 0), [1, 2, 3, 4, 5, 6, 7, 9]);
        assert_eq!(awaited(&volumes, 98), [1, 9]);
        assert!(awaited(&volumes, 200).is_empty());
    }

    #[test]
    fn a_pod_that_dies_a_second_time_has_no_more_than_what_it_had_left_then() {
        let mut volumes = Volumes::default();
        volumes.keep(volume(1, 100), 0);
        volumes.keep(Volume { bytes: 0, ..volume(1, 200) }, 0);
        volumes.keep(Volume { bytes: 0, ..volume(2, 200) }, 0);
        assert_eq!(awaited(&volumes, 0), [1]);
        assert!(volumes.awaited(0).all(|volume| volume.bytes == 0));
    }
}
