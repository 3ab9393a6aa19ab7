//! How memory and pods' usages go on without the daemon: as recorded until it acted, from there on at the last measured
//! rates.

use std::collections::BTreeMap;

use super::{
    Unknown,
    known::{Gap, Known, Pod},
};
use crate::{
    engine::{CandidateFacts, Decision, NodeSample, Resource, Shortage, Usage},
    model::CgroupId,
    threshold::Signal,
};

const MS: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000 * MS;

/// The shortest time between two measurements that a rate is computed from, and the time that it is rather computed
/// from.
const LEAST_SPAN_NS: u64 = 50 * MS;
const SPAN_NS: u64 = 500 * MS;

/// How fast memory falls where the recording does not show it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Fall {
    /// As the whole node filled.
    Fast,
    /// As the daemon's victim grew, and no other pod.
    Slow,
}

impl Fall {
    pub(super) const BOTH: [Self; 2] = [Self::Fast, Self::Slow];
}

/// A pod's memory at one moment, in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Held {
    /// What the kubelet ranks by.
    pub(super) working_set: u64,
    /// What its death frees.
    pub(super) freeable: u64,
}

/// A pod that dies then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dead {
    pub(super) pod: CgroupId,
    pub(super) at_ns: u64,
}

/// The lowest level in a while.
#[derive(Clone, Copy, Debug)]
pub(super) struct Low {
    pub(super) bytes: u64,
    /// When it was first 0.
    pub(super) exhausted_ns: Option<u64>,
}

/// A candidate as far as the recording shows it.
#[derive(Debug)]
pub(super) struct Shown<'a> {
    pub(super) pod: &'a Pod,
    readings: &'a [(u64, Usage)],
    /// How fast it grew when it was first read, in bytes a second.
    first_rate: u64,
    /// How fast it grew at last; `None` if that was not measured.
    last_rate: Option<i64>,
}

impl<'a> Shown<'a> {
    fn of(pod: &'a Pod, shown_ns: u64) -> Self {
        let to = pod.readings.partition_point(|(read_ns, _)| *read_ns <= shown_ns);
        let readings = pod.readings.get(..to).unwrap_or_default();
        let first_rate = u64::try_from(first_rate(readings).unwrap_or(0)).unwrap_or(0);
        let points = readings.iter().map(|(at_ns, usage)| (*at_ns, usage.working_set_bytes));
        Self { pod, readings, first_rate, last_rate: slope(points) }
    }
}

/// One shortage without the daemon.
#[derive(Debug)]
pub(super) struct Course<'a> {
    known: &'a Known,
    samples: &'a [NodeSample],
    last: NodeSample,
    pods: BTreeMap<CgroupId, Shown<'a>>,
    /// The candidates that hold processes and do not count towards the pods' own limit.
    outside: Vec<CandidateFacts>,
    pub(super) crossed_ns: u64,
    /// Where the recording begins without a gap.
    pub(super) begins_ns: u64,
    /// When the daemon acted, if it did.
    pub(super) acted_ns: Option<u64>,
    /// The daemon's victim, and how fast it grew, in bytes a second.
    victim: CgroupId,
    victim_rate: i64,
    fast: u64,
    slow: u64,
}

impl<'a> Course<'a> {
    pub(super) fn of(known: &'a Known, crossed_ns: u64, shortage: Shortage) -> Result<Self, Unknown> {
        if shortage.resource() != Resource::Memory {
            return Err(Unknown::NotMemory);
        }
        let first = known.decisions(crossed_ns, shortage).next().ok_or(Unknown::BeginsAfterCrossing)?;
        let is_before = |gap: &&Gap| gap.to_ns <= crossed_ns;
        let begins_ns = known.begins_ns.ok_or(Unknown::BeginsAfterCrossing)?;
        let begins_ns = known.gaps.iter().filter(is_before).map(|gap| gap.to_ns).fold(begins_ns, u64::max);
        if begins_ns > crossed_ns {
            return Err(Unknown::BeginsAfterCrossing);
        }
        let next_gap_ns = known.gaps.iter().filter(|gap| !is_before(gap)).map(|gap| gap.from_ns).min();
        if next_gap_ns.is_some_and(|gap_ns| gap_ns < first.decided_ns) {
            return Err(Unknown::Gap);
        }
        let acted_ns = known.acted_ns(crossed_ns);
        let until_ns = acted_ns.unwrap_or(u64::MAX).min(next_gap_ns.unwrap_or(u64::MAX));
        let from = known.samples.partition_point(|node| node.now_ns < begins_ns);
        let to = known.samples.partition_point(|node| node.now_ns <= until_ns);
        let samples = known.samples.get(from..to).unwrap_or_default();
        let last = *samples.last().ok_or(Unknown::BeginsAfterCrossing)?;
        if samples.first().is_none_or(|first| first.now_ns > crossed_ns) {
            return Err(Unknown::BeginsAfterCrossing);
        }
        let shown = known.pods.iter().map(|(cgroup, pod)| (*cgroup, Shown::of(pod, last.now_ns)));
        let pods: BTreeMap<_, _> = shown.collect();
        if pods.values().all(|pod| pod.readings.is_empty()) {
            return Err(Unknown::NoReadings);
        }
        let candidates =
            known.candidates(last.now_ns).iter().filter_map(|cgroup| Some(pods.get(cgroup)?.pod));
        let is_outside = |pod: &&Pod| {
            let counts = pod.facts.counts_for(Signal::AllocatableMemoryAvailable);
            !counts && !pod.is_gone(last.now_ns)
        };
        let outside: Vec<_> = candidates.filter(is_outside).map(|pod| pod.facts).collect();
        let node = node_rate(samples);
        let victim = pods.get(&first.cgroup).and_then(|pod| pod.last_rate);
        let victim = victim.or_else(|| known_growth(first));
        let bytes = |rate: i64| u64::try_from(rate).unwrap_or(0);
        let (fast, slow) = match (node, victim.map(bytes)) {
            (Some(node), Some(victim)) => (node.max(victim), node.min(victim)),
            (Some(only), None) | (None, Some(only)) => (only, only),
            (None, None) => return Err(Unknown::NoRate),
        };
        let victim_rate = victim.unwrap_or(0);
        let victim = first.cgroup;
        Ok(Self {
            known,
            samples,
            last,
            pods,
            outside,
            crossed_ns,
            begins_ns,
            acted_ns,
            victim,
            victim_rate,
            fast,
            slow,
        })
    }

    /// Until when the recording shows it.
    pub(super) fn shown_ns(&self) -> u64 {
        self.last.now_ns
    }

    /// How fast memory falls after that, in bytes a second.
    pub(super) fn rate(&self, fall: Fall) -> u64 {
        match fall {
            Fall::Fast => self.fast,
            Fall::Slow => self.slow,
        }
    }

    /// The same of a signal's level: what grows without counting for it leaves it as it is.
    fn level_rate(&self, signal: Signal, fall: Fall) -> u64 {
        let others = self.outside.iter().filter(|facts| !facts.counts_for(signal));
        let rates = others.map(|facts| self.pod_rate(facts.cgroup, fall));
        self.rate(fall).saturating_sub(rates.fold(0, u64::saturating_add))
    }

    /// The candidates, in their order, with what is known of each.
    pub(super) fn pods(&self) -> impl Iterator<Item = (CgroupId, &Shown<'a>)> {
        let set = self.known.candidates(self.shown_ns());
        set.iter().filter_map(|cgroup| Some((*cgroup, self.pods.get(cgroup)?)))
    }

    /// How fast all candidates grew together at last, in bytes a second.
    pub(super) fn pods_rate(&self) -> u64 {
        let rates = self.pods().map(|(cgroup, _)| self.pod_rate(cgroup, Fall::Fast));
        rates.fold(0, u64::saturating_add)
    }

    /// The level of a signal then, below 0 if more was used than there is, and its capacity.
    pub(super) fn level(&self, signal: Signal, at_ns: u64, fall: Fall) -> Option<(i128, u64)> {
        let after = self.samples.partition_point(|node| node.now_ns <= at_ns);
        let before = self.samples.get(after.checked_sub(1)?)?;
        let level = before.level(signal)?;
        let from = i128::from(level.available);
        let passed_ns = at_ns.saturating_sub(before.now_ns);
        let available = match self.samples.get(after) {
            Some(next) => {
                let to = i128::from(next.level(signal)?.available);
                from.saturating_add(share(to - from, passed_ns, next.now_ns.saturating_sub(before.now_ns)))
            }
            None => from.saturating_sub(grown(self.level_rate(signal, fall), passed_ns)),
        };
        Some((available, level.capacity))
    }

    /// A pod's memory then; `None` if it was never read.
    pub(super) fn held(&self, cgroup: CgroupId, at_ns: u64, fall: Fall) -> Option<Held> {
        let Shown { readings, first_rate, .. } = self.pods.get(&cgroup)?;
        let after = readings.partition_point(|(read_ns, _)| *read_ns <= at_ns);
        let moved = |usage: &Usage, by: i128| Held {
            working_set: bytes(i128::from(usage.working_set_bytes).saturating_add(by)),
            freeable: bytes(i128::from(usage.freed_by_death_bytes()).saturating_add(by)),
        };
        let Some((before_ns, before)) = after.checked_sub(1).and_then(|before| readings.get(before)) else {
            let (first_ns, first) = readings.first()?;
            return Some(moved(first, -grown(*first_rate, first_ns.saturating_sub(at_ns))));
        };
        let passed_ns = at_ns.saturating_sub(*before_ns);
        Some(match readings.get(after) {
            Some((next_ns, next)) => {
                let between = |from: u64, to: u64| {
                    let change = i128::from(to) - i128::from(from);
                    bytes(i128::from(from).saturating_add(share(
                        change,
                        passed_ns,
                        next_ns.saturating_sub(*before_ns),
                    )))
                };
                Held {
                    working_set: between(before.working_set_bytes, next.working_set_bytes),
                    freeable: between(before.freed_by_death_bytes(), next.freed_by_death_bytes()),
                }
            }
            None => moved(before, grown(self.pod_rate(cgroup, fall), passed_ns)),
        })
    }

    /// How fast a pod grows after its last reading, in bytes a second.
    pub(super) fn pod_rate(&self, cgroup: CgroupId, fall: Fall) -> u64 {
        let measured = || self.pods.get(&cgroup).and_then(|pod| pod.last_rate);
        let rate = match fall {
            _ if cgroup == self.victim => self.victim_rate,
            Fall::Fast => measured().unwrap_or(0),
            Fall::Slow => 0,
        };
        u64::try_from(rate).unwrap_or(0)
    }

    /// The lowest available memory of the node in this time, while these pods die.
    pub(super) fn lowest(&self, from_ns: u64, to_ns: u64, fall: Fall, dead: &[Dead]) -> Low {
        let inside = |at_ns: &u64| (from_ns..=to_ns).contains(at_ns);
        // Between these the level moves in straight lines, and it jumps where a pod dies.
        let begin = self.samples.partition_point(|node| node.now_ns < from_ns);
        let shown = self.samples.get(begin..).unwrap_or_default().iter().map(|node| node.now_ns);
        let mut points: Vec<u64> = shown.take_while(|at_ns| *at_ns <= to_ns).collect();
        for Dead { at_ns, .. } in dead {
            points.extend([at_ns.saturating_sub(1), *at_ns].iter().filter(|at_ns| inside(at_ns)));
        }
        points.extend([from_ns, to_ns]);
        points.sort_unstable();
        points.dedup();
        let (mut lowest, mut exhausted_ns, mut before) = (i128::MAX, None, None);
        for at_ns in points {
            let Some(level) = self.memory(at_ns, fall, dead) else { continue };
            lowest = lowest.min(level);
            if level <= 0 {
                exhausted_ns.get_or_insert_with(|| match before {
                    Some((before_ns, held)) => zero_between((before_ns, held), (at_ns, level)),
                    None => at_ns,
                });
            }
            before = Some((at_ns, level));
        }
        Low { bytes: bytes(lowest), exhausted_ns }
    }

    /// The available memory then, with that of these pods once they are dead.
    fn memory(&self, at_ns: u64, fall: Fall, dead: &[Dead]) -> Option<i128> {
        let (available, _) = self.level(Signal::MemoryAvailable, at_ns, fall)?;
        Some(available.saturating_add(self.given_back(Signal::MemoryAvailable, at_ns, fall, dead)))
    }

    /// What the dead would hold by then of what counts for that signal.
    pub(super) fn given_back(&self, signal: Signal, at_ns: u64, fall: Fall, dead: &[Dead]) -> i128 {
        let counts = |dead: &&Dead| {
            let shown = self.pods.get(&dead.pod);
            dead.at_ns <= at_ns && shown.is_some_and(|shown| shown.pod.facts.counts_for(signal))
        };
        let held = dead.iter().filter(counts).filter_map(|dead| self.held(dead.pod, at_ns, fall));
        held.map(|held| i128::from(held.freeable)).sum()
    }

    /// When available memory and so much more are used up; `None` if they are not within this time.
    pub(super) fn used_up_ns(&self, fall: Fall, more_bytes: u64, within_ns: u64) -> Option<u64> {
        let to_ns = self.crossed_ns.saturating_add(within_ns);
        if more_bytes == 0
            && let Some(at_ns) = self.lowest(self.crossed_ns, self.shown_ns(), fall, &[]).exhausted_ns
        {
            return Some(at_ns);
        }
        let left = u128::from(self.last.memory.available) + u128::from(more_bytes);
        let left_ns = (left * u128::from(SECOND_NS)).checked_div(u128::from(self.rate(fall)))?;
        let at_ns = self.shown_ns().saturating_add(u64::try_from(left_ns).unwrap_or(u64::MAX));
        (at_ns <= to_ns).then_some(at_ns)
    }
}

/// The growth that the decision knew; it is 0 where there was only one reading.
fn known_growth(decision: &Decision) -> Option<i64> {
    Some(decision.growth_bytes_per_second).filter(|growth| *growth != 0)
}

/// How fast memory fell at last, in bytes a second; 0 if it did not.
fn node_rate(samples: &[NodeSample]) -> Option<u64> {
    let last = samples.last()?;
    if last.fill_bytes_per_second > 0 {
        return Some(last.fill_bytes_per_second);
    }
    let level = |node: &NodeSample| (node.now_ns, node.memory.available);
    let falls = slope(samples.iter().map(level))?.checked_neg().unwrap_or(i64::MAX);
    Some(u64::try_from(falls).unwrap_or(0))
}

/// How fast it grew when it was first read.
fn first_rate(readings: &[(u64, Usage)]) -> Option<i64> {
    let (first_ns, first) = readings.first()?;
    let is_apart = |(at_ns, _): &&(u64, Usage)| at_ns.saturating_sub(*first_ns) >= LEAST_SPAN_NS;
    let (next_ns, next) = readings.iter().find(is_apart)?;
    a_second(i128::from(next.working_set_bytes) - i128::from(first.working_set_bytes), next_ns - first_ns)
}

/// The slope of the last measurements, in units a second.
fn slope(points: impl DoubleEndedIterator<Item = (u64, u64)>) -> Option<i64> {
    let mut back = points.rev();
    let (last_ns, last) = back.next()?;
    let mut from = None;
    for (at_ns, value) in back {
        let span_ns = last_ns.saturating_sub(at_ns);
        if span_ns >= LEAST_SPAN_NS {
            from = Some((span_ns, value));
        }
        if span_ns >= SPAN_NS {
            break;
        }
    }
    let (span_ns, value) = from?;
    a_second(i128::from(last) - i128::from(value), span_ns)
}

fn a_second(change: i128, span_ns: u64) -> Option<i64> {
    let rate = (change * i128::from(SECOND_NS)).checked_div(i128::from(span_ns))?;
    Some(i64::try_from(rate).unwrap_or(if rate < 0 { i64::MIN } else { i64::MAX }))
}

/// What is added at that rate in that time.
fn grown(bytes_a_second: u64, passed_ns: u64) -> i128 {
    i128::from(bytes_a_second).saturating_mul(i128::from(passed_ns)) / i128::from(SECOND_NS)
}

/// The part of a change that falls on the first of the time.
fn share(change: i128, passed_ns: u64, whole_ns: u64) -> i128 {
    change.saturating_mul(i128::from(passed_ns)).checked_div(i128::from(whole_ns)).unwrap_or(0)
}

/// When a straight line from above 0 reaches it.
fn zero_between((from_ns, from): (u64, i128), (to_ns, to): (u64, i128)) -> u64 {
    let span_ns = to_ns.saturating_sub(from_ns);
    let part = from.saturating_mul(i128::from(span_ns)).checked_div(from.saturating_sub(to)).unwrap_or(0);
    from_ns.saturating_add(u64::try_from(part).unwrap_or(0))
}

/// Not below 0.
fn bytes(amount: i128) -> u64 {
    u64::try_from(amount.max(0)).unwrap_or(u64::MAX)
}
