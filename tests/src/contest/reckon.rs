//! Computes the figures of a run from the witnesses' records.

use std::collections::HashMap;

use super::{
    outcome::{FirstSignal, Outcome},
    witness::{Event, What, families},
};
use crate::{
    figures::float,
    sampler::{HOLDERS, Sample},
};

#[cfg(test)]
mod tests;

/// Two samples further apart than this are late.
const LATE_US: u64 = 2_000;

/// A contender's own sample may be this much older than its signal.
const LOOK_BEFORE_US: u64 = 5_000;

/// The sampler's next sample may be this much younger.
const LOOK_AFTER_US: u64 = 2_000;

/// The kernel's OOM killer has marked its victim this long after its signal.
const MARK_US: u64 = 10_000;

/// A crossing or a signal between two samples further apart than this counts as unseen.
const BLIND_US: u64 = 6_000;

/// Memory is back if this many consecutive samples show it.
const BACK_LOOKS: usize = 10;

/// Growth counts from here on: what the load's program takes at its start does not.
const GROWTH_FROM_BYTES: u64 = 16 << 20;

/// One pod of a run.
#[derive(Clone, Debug)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// Its cgroup's path below the mount point.
    pub cgroup: String,
    /// The first process in it.
    pub root: u32,
    /// Whether it is one of those that grow.
    pub grows: bool,
}

/// The witnesses' records, and what was expected.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The crossing is the moment when less than this is available.
    pub threshold_bytes: u64,
    /// The sampler watched the first [`HOLDERS`] of them, in this order.
    pub pods: &'a [Pod],
    /// The pods that should die, in this order unless `any_order`.
    pub expected: &'a [&'a str],
    /// Whether they may die in any order: they are all alike.
    pub any_order: bool,
    /// For how much memory a cgroup without processes may be charged that is not there: [`charge_cache_bytes`].
    pub charge_cache_bytes: u64,
    /// When the work began, in microseconds of `CLOCK_MONOTONIC`.
    pub began_us: u64,
    /// In order of time.
    pub samples: &'a [Sample],
    /// In order of time.
    pub events: &'a [Event],
}

/// Facts that do not come from the two witnesses.
#[derive(Clone, Debug)]
pub struct Reported {
    /// The contender.
    pub contender: String,
    /// The workload.
    pub workload: String,
    /// The number of the run.
    pub run: usize,
    /// By the kernel's counter.
    pub kernel_kills_counted: u64,
    /// When the contender's own log had the signal to each pod, in microseconds of `CLOCK_MONOTONIC`.
    pub journalled_us: Vec<(String, u64)>,
    /// As the Guaranteed pod measured it.
    pub stall_ms: f64,
    /// Of the contender.
    pub cpu_ms: Option<f64>,
    /// Of the contender.
    pub resident_bytes: Option<u64>,
}

/// A signal to a process of a pod.
#[derive(Clone, Debug)]
struct Hit<'a> {
    time_us: u64,
    pod: usize,
    sender: &'a str,
    kernel: bool,
}

/// Computes the figures.
#[must_use]
pub fn reckon(facts: &Facts<'_>, reported: Reported) -> Outcome {
    let Facts { threshold_bytes, pods, expected, any_order, charge_cache_bytes, began_us, samples, events } =
        *facts;
    let samples = from(samples, began_us);
    let hits = hits(facts);
    let crossed_us =
        samples.iter().find(|sample| sample.available_bytes < threshold_bytes).map(|sample| sample.time_us);
    let emptied = emptied(pods, began_us, events);
    let firsts = firsts(&hits);
    let died = died(&firsts, &emptied, pods);
    let since_crossing = |time_us: u64| crossed_us.map(|crossed_us| ms(crossed_us, time_us));
    let (first, gone_us) = match firsts.first() {
        Some(first) => (Some(first), emptied.get(&first.pod).copied()),
        None => (None, None),
    };
    let back_us = first.and_then(|first| back_us(samples, threshold_bytes, first.time_us));
    let name = |pod: usize| pods.get(pod).map_or("", |pod| pod.name.as_str());
    let mut should: Vec<&str> = expected.to_vec();
    let mut named: Vec<&str> = died.iter().map(|pod| name(*pod)).collect();
    if any_order {
        should.sort_unstable();
        named.sort_unstable();
    }
    let right = should == named && died.iter().all(|pod| emptied.contains_key(pod));
    let kernel_kills = hits.iter().filter(|hit| hit.kernel);
    let (late_looks, longest_look_us) = looks(samples);
    let moments = [crossed_us, first.map(|first| first.time_us)];
    let uncertain_us =
        moments.into_iter().flatten().map(|time_us| gap_us(samples, time_us)).max().unwrap_or(0);
    let corpses = Corpses { emptied: &emptied, charge_cache_bytes };
    let around: Vec<Around> =
        firsts.iter().map(|first| Around::of(first, &firsts, samples, &corpses)).collect();
    let count = |need: Need| around.iter().filter(|around| around.need(threshold_bytes) == need).count();
    let uncertain_signals = count(Need::Unknown);
    Outcome {
        contender: reported.contender,
        workload: reported.workload,
        run: reported.run,
        threshold_bytes,
        expected: expected.iter().map(|pod| (*pod).to_owned()).collect(),
        died: died.iter().map(|pod| name(*pod).to_owned()).collect(),
        right,
        crossed: crossed_us.is_some(),
        uncertain_ms: float(uncertain_us) / 1_000.0,
        uncertain_signals,
        seen: uncertain_us <= BLIND_US && uncertain_signals == 0,
        signal_ms: first.and_then(|first| since_crossing(first.time_us)),
        following_ms: following_ms(&firsts, &emptied, samples, threshold_bytes),
        dead_ms: gone_us.and_then(since_crossing),
        back_ms: back_us.and_then(since_crossing),
        over_kills: count(Need::None),
        signals: hits.len(),
        kernel_kills: kernel_kills.clone().count(),
        kernel_kills_spared: kernel_kills.filter(|hit| !expected.contains(&name(hit.pod))).count(),
        kernel_kills_counted: reported.kernel_kills_counted,
        lowest_bytes: samples.iter().map(|sample| sample.available_bytes).min().unwrap_or(0),
        rate_bytes: crossed_us.and_then(|crossed_us| rate(samples, pods, crossed_us)),
        journal_ms: journal_ms(&firsts, &reported.journalled_us, pods),
        stall_ms: reported.stall_ms,
        cpu_ms: reported.cpu_ms,
        resident_bytes: reported.resident_bytes,
        watched_ms: samples.last().map_or(0.0, |last| ms(began_us, last.time_us)),
        looks: samples.len(),
        late_looks,
        longest_look_ms: float(longest_look_us) / 1_000.0,
        first_signals: firsts
            .iter()
            .zip(&around)
            .map(|(first, around)| FirstSignal {
                pod: name(first.pod).to_owned(),
                ms: ms(crossed_us.unwrap_or(began_us), first.time_us),
                sender: first.sender.to_owned(),
                kernel: first.kernel,
                available_bytes: around.available_bytes,
                coming_bytes: around.coming_bytes,
            })
            .collect(),
    }
}

/// The longest time from the first signal to a pod to when the contender's log had it.
fn journal_ms(firsts: &[Hit<'_>], journalled_us: &[(String, u64)], pods: &[Pod]) -> Option<f64> {
    let times_ms = journalled_us.iter().filter_map(|(name, time_us)| {
        let first = firsts.iter().find(|first| pods.get(first.pod).is_some_and(|pod| pod.name == *name))?;
        Some(ms(first.time_us, *time_us))
    });
    times_ms.max_by(f64::total_cmp)
}

/// The samples since a moment.
fn from(samples: &[Sample], time_us: u64) -> &[Sample] {
    let begin = samples.partition_point(|sample| sample.time_us < time_us);
    samples.get(begin..).unwrap_or_default()
}

/// The signals to pods' processes since the work began.
fn hits<'a>(facts: &Facts<'a>) -> Vec<Hit<'a>> {
    let roots: Vec<_> = facts.pods.iter().enumerate().map(|(index, pod)| (pod.root, index)).collect();
    let families = families(facts.events, &roots);
    // The kernel's signal comes first, and the mark by the same task right after. A process that is already dying is
    // marked by the allocating task.
    let is_kernels = |pid: u32, signal: &Event| {
        facts.events.iter().any(|event| {
            event.what == What::Marked { pid }
                && event.by == signal.by
                && (signal.time_us..=signal.time_us + MARK_US).contains(&event.time_us)
        })
    };
    let of = |event: &'a Event| match &event.what {
        What::Signal { pid, sender } if event.time_us >= facts.began_us => {
            let kernel = is_kernels(*pid, event);
            families.get(pid).map(|pod| Hit { time_us: event.time_us, pod: *pod, sender, kernel })
        }
        _ => None,
    };
    facts.events.iter().filter_map(of).collect()
}

/// The first signal to each pod.
fn firsts<'a>(hits: &[Hit<'a>]) -> Vec<Hit<'a>> {
    let mut firsts: Vec<Hit<'_>> = Vec::new();
    for hit in hits {
        if !firsts.iter().any(|first| first.pod == hit.pod) {
            firsts.push(hit.clone());
        }
    }
    firsts
}

/// When each pod became empty, for the last time.
fn emptied(pods: &[Pod], began_us: u64, events: &[Event]) -> HashMap<usize, u64> {
    let mut emptied = HashMap::new();
    for event in events.iter().filter(|event| event.time_us >= began_us) {
        if let What::Emptied { cgroup } = &event.what
            && let Some(pod) = pods.iter().position(|pod| pod.cgroup == *cgroup)
        {
            emptied.insert(pod, event.time_us);
        }
    }
    emptied
}

/// The pods that were signalled, or ended without a signal, in order of time.
fn died(firsts: &[Hit<'_>], emptied: &HashMap<usize, u64>, pods: &[Pod]) -> Vec<usize> {
    let mut times: Vec<(u64, usize)> = (0..pods.len())
        .filter_map(|pod| {
            let signalled = firsts.iter().find(|first| first.pod == pod).map(|first| first.time_us);
            Some((signalled.or_else(|| emptied.get(&pod).copied())?, pod))
        })
        .collect();
    times.sort_unstable();
    times.into_iter().map(|(_, pod)| pod).collect()
}

/// Since when the threshold has been available again.
fn back_us(samples: &[Sample], threshold_bytes: u64, after_us: u64) -> Option<u64> {
    let samples = from(samples, after_us);
    let enough = |run: &[Sample]| run.iter().all(|sample| sample.available_bytes >= threshold_bytes);
    samples.windows(BACK_LOOKS).find(|run| enough(run)).and_then(|run| run.first()).map(|first| first.time_us)
}

/// Whether a pod had to be killed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Need {
    /// Too little was available, also counting what the earlier victims were still to free.
    Real,
    /// Enough was available, or would have been counting what the earlier victims were still to free.
    None,
    /// Enough at the sample before the signal and too little at the one after it, and the two are far apart.
    Unknown,
}

/// The kernel charges a cgroup for batches of 64 pages (`MEMCG_CHARGE_BATCH`, `mm/memcontrol.c`) and keeps what is not used
/// of one on each CPU. When a cgroup's last process is dead, `memory.current` still has these charges, although no page
/// belongs to them: nothing comes back with them.
#[must_use]
pub fn charge_cache_bytes(cpus: u64) -> u64 {
    const BATCH_PAGES: u64 = 64;
    cpus * BATCH_PAGES * u64::try_from(rustix::param::page_size()).unwrap_or(4_096)
}

/// The pods that are dead.
struct Corpses<'a> {
    /// Since when, in microseconds.
    emptied: &'a HashMap<usize, u64>,
    charge_cache_bytes: u64,
}

impl Corpses<'_> {
    /// How much of what a pod is charged for at that time may be no memory.
    fn cached_bytes(&self, pod: usize, time_us: u64) -> u64 {
        let is_dead = self.emptied.get(&pod).is_some_and(|emptied_us| *emptied_us <= time_us);
        if is_dead { self.charge_cache_bytes } else { 0 }
    }
}

/// Memory around a signal, in bytes.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_field_names, reason = "their unit")]
struct Around {
    /// The minimum available in the samples around it.
    available_bytes: u64,
    /// And in the sample after these.
    later_bytes: u64,
    /// What the earlier victims still held and freed later.
    coming_bytes: u64,
}

impl Around {
    fn of(hit: &Hit<'_>, firsts: &[Hit<'_>], samples: &[Sample], corpses: &Corpses<'_>) -> Self {
        let before = samples.partition_point(|sample| sample.time_us <= hit.time_us).saturating_sub(1);
        let Some(last) = samples.get(before) else {
            return Self { available_bytes: 0, later_bytes: 0, coming_bytes: 0 };
        };
        // About 80 KiB stay charged to a dead pod and do not come back.
        let coming = |pod: usize| {
            let held = |sample: &Sample| sample.held_bytes.get(pod).copied().unwrap_or(0);
            let kept = samples.get(before..).unwrap_or_default().iter().map(held).min();
            let later = held(last).saturating_sub(kept.unwrap_or(0));
            later.saturating_sub(corpses.cached_bytes(pod, hit.time_us))
        };
        let coming_bytes = firsts
            .iter()
            .filter(|earlier| earlier.time_us < hit.time_us && earlier.pod < HOLDERS)
            .map(|earlier| coming(earlier.pod))
            .sum();
        let looks = from(samples, last.time_us.min(hit.time_us.saturating_sub(LOOK_BEFORE_US)));
        let looks = looks.iter().take_while(|sample| sample.time_us <= hit.time_us + LOOK_AFTER_US);
        let available_bytes = looks.map(|sample| sample.available_bytes).min().unwrap_or(0);
        let later_bytes = samples.get(before + 1).map_or(u64::MAX, |sample| sample.available_bytes);
        Self { available_bytes, later_bytes, coming_bytes }
    }

    fn need(&self, threshold_bytes: u64) -> Need {
        let is_short =
            |available_bytes: u64| available_bytes.saturating_add(self.coming_bytes) < threshold_bytes;
        if is_short(self.available_bytes) {
            return Need::Real;
        }
        // The next sample may be later than those; then the crossing may have been before the signal.
        if is_short(self.later_bytes) { Need::Unknown } else { Need::None }
    }
}

/// For each pod but the first, from when a pod had to be killed to its signal, without the kernel's signals.
fn following_ms(
    firsts: &[Hit<'_>],
    emptied: &HashMap<usize, u64>,
    samples: &[Sample],
    threshold_bytes: u64,
) -> Vec<f64> {
    let pairs = firsts.windows(2).filter_map(|pair| match pair {
        [one, next] => Some((one, next)),
        _ => None,
    });
    let due = |one: &Hit<'_>, next: &Hit<'_>| {
        let short_us = short_since_us(samples, threshold_bytes, next.time_us)?;
        // A pod that is not dead yet when the next is signalled was no reason to wait.
        let dead_us = emptied.get(&one.pod).copied().filter(|dead_us| *dead_us <= next.time_us);
        Some(dead_us.map_or(short_us, |dead_us| dead_us.max(short_us)))
    };
    pairs
        .filter(|(_, next)| !next.kernel)
        .filter_map(|(one, next)| Some(ms(due(one, next)?, next.time_us)))
        .collect()
}

/// Since when too little has been available at a moment, except for fewer than [`BACK_LOOKS`] samples in a row; if it
/// came just before the sample that shows it, since that one.
fn short_since_us(samples: &[Sample], threshold_bytes: u64, time_us: u64) -> Option<u64> {
    let end = samples.partition_point(|sample| sample.time_us <= time_us);
    let mut enough = 0;
    let mut since_us = None;
    for sample in samples.get(..end)?.iter().rev() {
        if sample.available_bytes < threshold_bytes {
            since_us = Some(sample.time_us);
            enough = 0;
        } else {
            enough += 1;
        }
        if enough == BACK_LOOKS {
            break;
        }
    }
    since_us.or_else(|| samples.get(end).map(|next| next.time_us))
}

/// How fast the growing pods grew, together.
fn rate(samples: &[Sample], pods: &[Pod], crossed_us: u64) -> Option<u64> {
    let held_bytes = |sample: &Sample| -> u64 {
        pods.iter().zip(&sample.held_bytes).filter(|(pod, _)| pod.grows).map(|(_, bytes)| *bytes).sum()
    };
    let first = samples.iter().find(|sample| held_bytes(sample) >= GROWTH_FROM_BYTES)?;
    let last = samples.iter().find(|sample| sample.time_us >= crossed_us)?;
    let time_us = last.time_us.checked_sub(first.time_us).filter(|time_us| *time_us > 0)?;
    held_bytes(last).checked_sub(held_bytes(first))?.checked_mul(1_000_000)?.checked_div(time_us)
}

/// Time between the two samples around a moment, or between the sample at the moment and the previous one.
fn gap_us(samples: &[Sample], time_us: u64) -> u64 {
    let after = samples.partition_point(|sample| sample.time_us < time_us);
    let (before, after) = (after.checked_sub(1).and_then(|before| samples.get(before)), samples.get(after));
    match (before, after) {
        (Some(before), Some(after)) => after.time_us - before.time_us,
        // Before the first sample, or after the last.
        _ => u64::MAX,
    }
}

/// How many samples were late, and the longest time between two.
fn looks(samples: &[Sample]) -> (usize, u64) {
    let gaps = samples.windows(2).filter_map(|pair| match pair {
        [one, next] => Some(next.time_us.saturating_sub(one.time_us)),
        _ => None,
    });
    gaps.fold((0, 0), |(late, longest), gap| (late + usize::from(gap > LATE_US), longest.max(gap)))
}

/// Milliseconds from one moment to another, which may be the earlier one.
fn ms(from_us: u64, to_us: u64) -> f64 {
    (float(to_us) - float(from_us)) / 1_000.0
}
