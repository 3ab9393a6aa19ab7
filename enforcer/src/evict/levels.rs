//! Resources other than the node's memory: allocatable memory of the pods, and process ids. Read only if a threshold
//! needs them.

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

/// The longest time that a reading of kubepods is used while the node's memory has not fallen since. The kernel must
/// gather its counters from all CPUs, which is not worth it at rest.
const PODS_KEEP_NS: u64 = 10_000 * MS;

/// The shortest time that it is used, and so the shortest pause between two looks for it. Even a busy kubepods close to
/// its threshold does not need its counters gathered a thousand times a second.
const PODS_PAUSE_NS: u64 = 10 * MS;

/// The same for a reading that sums the charges of all pods, which takes a hundred times as long.
const PODS_MADE_PAUSE_NS: u64 = 25 * MS;

/// The same during a shortage, which may last if no pod can be evicted for it. A decision reads again anyway.
const PODS_SHORT_PAUSE_NS: u64 = 100 * MS;

/// The pause before a retry if kubepods could not be read. The threshold counts as not crossed meanwhile.
const PODS_RETRY_NS: u64 = 100 * MS;

/// Reads kubepods again after the node's memory has fallen by this fraction of the pods' headroom.
const FELL_SHARE: u64 = 4;

/// How fast one CPU is assumed to create tasks: a fork takes about 50 µs.
const TASKS_PER_SECOND_AND_CPU: u64 = 20_000;

/// The shortest and longest pause between two looks for process ids.
const TASKS_MIN_PAUSE_NS: u64 = 5 * MS;
const TASKS_MAX_PAUSE_NS: u64 = 2_000 * MS;

/// The signals that are read here.
const SIGNALS: [Signal; 2] = [Signal::AllocatableMemoryAvailable, Signal::PidAvailable];

/// The open files and their latest values.
#[derive(Debug)]
pub(super) struct Levels {
    tasks: ReadResult<Tasks>,
    free_lists: Option<Drain>,
    pods: Option<Box<PodsMemory>>,
    pods_read: Option<PodsRead>,
    tasks_level: Option<Level>,
    /// Per signal, why it cannot be read now, and the reason that was last reported.
    blind: [(Option<Missing>, Option<Missing>); SIGNALS.len()],
}

/// A reading of kubepods.
#[derive(Clone, Copy, Debug)]
struct PodsRead {
    at_ns: u64,
    level: Option<Level>,
    /// The node's available memory at that time.
    node_bytes: u64,
    has_failed: bool,
    /// Whether it sums the charges of the pods themselves.
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

    /// Takes the files of another kubepods and returns the former ones, to be closed elsewhere.
    #[must_use = "the old files are returned so that they are not closed here"]
    pub(super) fn replace_pods(&mut self, pods: Box<PodsMemory>) -> Option<Box<PodsMemory>> {
        self.pods_read = None;
        self.pods.replace(pods)
    }

    /// Makes the next look read kubepods again, after an action against a shortage.
    pub(super) fn renew(&mut self) {
        self.pods_read = None;
    }

    /// The memory available to the pods. Always read again if `fresh`, otherwise only if it may have changed. If it may
    /// be short, it is computed from the charges of the `members` below that cgroup.
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
            // Without kubepods there are no pods.
            Err(Missing::Gone) => (None, None),
            Err(missing) => (None, Some(missing)),
        };
        self.blind[0].0 = missing;
        let has_failed = missing.is_some();
        self.pods_read = Some(PodsRead { at_ns: now_ns, level, node_bytes, has_failed, is_made });
        level
    }

    /// Requests short per-CPU lists of free pages, if they matter: a victim was killed.
    pub(super) fn note_kill(&self) {
        if let Some(lists) = &self.free_lists {
            lists.note_kill();
        }
    }

    /// Makes the kernel return pages that the death of that eviction's victim left on per-CPU lists.
    pub(super) fn drain(&mut self, number: u64, now_ns: u64) {
        if let Some(lists) = &mut self.free_lists {
            lists.ask(number, now_ns);
        }
    }

    /// The free bytes on the kernel's per-CPU lists that are on their way back; 0 if irrelevant or unreadable.
    pub(super) fn free_lists(&mut self, now_ns: u64, engine: &Engine) -> u64 {
        match &mut self.free_lists {
            Some(lists) if engine.counts_free_lists(now_ns) => lists.coming_bytes(now_ns).unwrap_or(0),
            Some(_) | None => 0,
        }
    }

    /// How many more tasks can be created.
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

    /// The signals that became unreadable since the last call, with the reason, and those that are readable again.
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

    /// The time until the next look that these signals need.
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
