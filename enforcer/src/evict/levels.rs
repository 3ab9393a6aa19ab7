//! What can run short beside the node's memory: the pods' own share of it, and process ids. Read only where a threshold
//! asks for it.

use super::{drain::Drain, stat};
use crate::{
    model::CgroupPath,
    policy::{
        engine::{Engine, Few, Level},
        threshold::Signal,
    },
    sense::{
        AvailableMemory, PodsMemory, Sampler, TaskCount, Tasks,
        snapshot::{Charge, Missing, ReadResult},
    },
};

const MS: u64 = 1_000_000;

/// How long a reading of kubepods stands at the most while nothing has become of the node's memory since: at rest its
/// counters, which the kernel must gather from all cpus, are nobody's concern.
const PODS_KEEP_NS: u64 = 10_000 * MS;

/// How long it stands at the least, and so the shortest pause between two looks for its sake: a busy kubepods close to
/// its threshold is no reason to gather its counters a thousand times a second.
const PODS_PAUSE_NS: u64 = 10 * MS;

/// The same for one that was made of what all pods are charged for, which takes a hundred times as long.
const PODS_MADE_PAUSE_NS: u64 = 25 * MS;

/// And where that is short: a shortage that nobody can be evicted for may last. Whoever decides reads anew.
const PODS_SHORT_PAUSE_NS: u64 = 100 * MS;

/// How long it stands where kubepods could not be read: the threshold is not met meanwhile, whatever becomes of it.
const PODS_RETRY_NS: u64 = 100 * MS;

/// The part of what is left to the pods by which the node's memory may fall before they are looked at again.
const FELL_SHARE: u64 = 4;

/// How fast one cpu is assumed to make tasks: a fork takes some 50 µs.
const TASKS_PER_SECOND_AND_CPU: u64 = 20_000;

/// The shortest and longest pause between two looks for process ids' sake.
const TASKS_MIN_PAUSE_NS: u64 = 5 * MS;
const TASKS_MAX_PAUSE_NS: u64 = 1_000 * MS;

/// The signals that are read here.
const SIGNALS: [Signal; 2] = [Signal::AllocatableMemoryAvailable, Signal::PidAvailable];

/// The files, open, and what they showed last.
#[derive(Debug)]
pub(super) struct Levels {
    tasks: ReadResult<Tasks>,
    free_lists: Option<Drain>,
    pods: Option<Box<PodsMemory>>,
    pods_read: Option<PodsRead>,
    tasks_level: Option<Level>,
    /// Why a signal cannot be read, and whether that was told.
    blind: [(Option<Missing>, Option<Missing>); SIGNALS.len()],
}

/// A reading of kubepods.
#[derive(Clone, Copy, Debug)]
struct PodsRead {
    at_ns: u64,
    level: Option<Level>,
    /// What the node had then.
    node_bytes: u64,
    /// Whether it failed.
    has_failed: bool,
    /// Whether it was made of what the pods themselves are charged for.
    is_made: bool,
}

impl Levels {
    pub(super) fn new(tasks: ReadResult<Tasks>, free_lists: Option<Drain>) -> Self {
        Self {
            tasks,
            free_lists,
            pods: None,
            pods_read: None,
            tasks_level: None,
            blind: [(None, None); SIGNALS.len()],
        }
    }

    /// Takes the files of another kubepods, and gives back the former ones, to be closed elsewhere.
    #[must_use = "the old files are returned so that they are not closed here"]
    pub(super) fn replace_pods(&mut self, pods: Box<PodsMemory>) -> Option<Box<PodsMemory>> {
        self.pods_read = None;
        self.pods.replace(pods)
    }

    /// Has kubepods read anew at the next look: something was done about a shortage.
    pub(super) fn renew(&mut self) {
        self.pods_read = None;
    }

    /// What is left to the pods. With `fresh` it is read anew in any case, otherwise where it may have changed. Where it may
    /// be short, it is made of what the `members` below that cgroup are charged for.
    pub(super) fn pods(
        &mut self,
        now_ns: u64,
        node_bytes: u64,
        engine: &Engine,
        fresh: bool,
        buffer: &mut [u8; stat::BUFFER_BYTES],
        members: impl FnOnce(&CgroupPath, &mut [u8]) -> Charge,
    ) -> Option<Level> {
        let signal = Signal::AllocatableMemoryAvailable;
        let limits = engine.highest_threshold(signal).zip(engine.highest_target(signal));
        let (Some((threshold, target)), Some(pods)) = (limits, &self.pods) else {
            self.pods_read = None;
            return None;
        };
        if let Some(read) =
            self.pods_read.filter(|read| !fresh && !read.is_due(now_ns, node_bytes, threshold))
        {
            return read.level;
        }
        let mut is_made = false;
        let read = pods.read(buffer.as_mut_slice()).and_then(|read| match read {
            Some(read) if read.least_available_bytes() < target => {
                is_made = true;
                let charge = members(pods.path(), buffer.as_mut_slice());
                pods.made_of(read, charge, buffer.as_mut_slice()).map(Some)
            }
            read => Ok(read),
        });
        let (level, missing) = match read {
            Ok(read) => {
                let level = read.map(|read| {
                    let AvailableMemory { available_bytes, total_bytes } = read.available();
                    Level { available: available_bytes, capacity: total_bytes }
                });
                (level, None)
            }
            // Without kubepods there are no pods either.
            Err(Missing::Gone) => (None, None),
            Err(missing) => (None, Some(missing)),
        };
        self.blind[0].0 = missing;
        let has_failed = missing.is_some();
        self.pods_read = Some(PodsRead { at_ns: now_ns, level, node_bytes, has_failed, is_made });
        level
    }

    /// Has the kernel give back what the death of that eviction's victim has left on per-CPU lists.
    pub(super) fn drain(&mut self, number: u64, now_ns: u64) {
        if let Some(lists) = &mut self.free_lists {
            lists.ask(number, now_ns);
        }
    }

    /// What lies free on the kernel's per-CPU lists and is on its way back, in bytes; 0 where it does not matter, or cannot be
    /// read.
    pub(super) fn free_lists(&mut self, now_ns: u64, engine: &Engine) -> u64 {
        match &mut self.free_lists {
            Some(lists) if engine.counts_free_lists(now_ns) => lists.coming_bytes(now_ns).unwrap_or(0),
            Some(_) | None => 0,
        }
    }

    /// How many tasks there can still be.
    pub(super) fn tasks(&mut self, engine: &Engine) -> Option<Level> {
        engine.highest_threshold(Signal::PidAvailable)?;
        let read = self.tasks.as_ref().map_err(|missing| *missing).and_then(Tasks::read);
        self.blind[1].0 = read.err();
        self.tasks_level = read.ok().map(|TaskCount { running, most }| Level {
            available: most.saturating_sub(running),
            capacity: most,
        });
        self.tasks_level
    }

    /// Which signals have become unreadable since the last call, and why; and which can be read again.
    pub(super) fn news(&mut self) -> Few<(Signal, Option<Missing>), { SIGNALS.len() }> {
        let mut news = Few::new();
        for (signal, (now, reported)) in SIGNALS.into_iter().zip(&mut self.blind) {
            if now.is_some() != reported.is_some() {
                *reported = *now;
                let _fits = news.push((signal, *now));
            }
        }
        news
    }

    /// How long the next look may wait for these signals' sake.
    pub(super) fn next_look_ns(&self, engine: &Engine, sampler: &Sampler, cpus: u64) -> u64 {
        let left = |level: Option<Level>, signal| {
            let threshold = engine.next_threshold(signal)?;
            Some(level?.available.saturating_sub(threshold))
        };
        let pods = left(self.pods_read.and_then(|read| read.level), Signal::AllocatableMemoryAvailable)
            .map_or(u64::MAX, |left| sampler.next_look_ns(left).max(PODS_PAUSE_NS));
        let tasks = left(self.tasks_level, Signal::PidAvailable).map_or(u64::MAX, |left| {
            let a_second = TASKS_PER_SECOND_AND_CPU.saturating_mul(cpus.max(1));
            (left.saturating_mul(1_000) / a_second)
                .saturating_mul(MS)
                .clamp(TASKS_MIN_PAUSE_NS, TASKS_MAX_PAUSE_NS)
        });
        pods.min(tasks)
    }
}

impl PodsRead {
    fn is_due(&self, now_ns: u64, node_bytes: u64, threshold: u64) -> bool {
        let age_ns = now_ns.saturating_sub(self.at_ns);
        if age_ns >= PODS_KEEP_NS || self.has_failed && age_ns >= PODS_RETRY_NS {
            return true;
        }
        let Some(level) = self.level else { return false };
        let left = level.available.saturating_sub(threshold);
        let fell = self.node_bytes.saturating_sub(node_bytes);
        let pause_ns = match (self.is_made, left) {
            (false, _) => PODS_PAUSE_NS,
            (true, 0) => PODS_SHORT_PAUSE_NS,
            (true, _) => PODS_MADE_PAUSE_NS,
        };
        age_ns >= pause_ns && (left < threshold || fell >= left / FELL_SHARE)
    }
}
