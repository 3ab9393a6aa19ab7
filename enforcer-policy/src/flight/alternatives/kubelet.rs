//! What the kubelet would have done: `synchronize` of its eviction manager on the course of the shortage.
//!
//! Neither when its loop looks, nor how old its usages are, nor how fast memory falls on, nor how long a pod takes to die
//! is known. So it is played through for each of these within its bounds, and the answer is what all of them have between
//! them.

use std::collections::BTreeSet;

use super::{
    Assumption, AtLeastOne, Kubelet, MayExhaust, Pass, Span, Unknown,
    course::{Course, Dead, Fall, Low, Shown},
    known::{Known, after_ms},
};
use crate::{
    engine::{EngineSettings, Resource},
    model::CgroupId,
    pressure::{HARD_GRACE_PERIOD_SECONDS, Observation, Observations, Pressure, Reclaim},
    rank::MemoryRankKey,
    threshold::{Signal, Threshold},
};

const MS: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000 * MS;

/// `evictionMonitoringPeriod`: how often it looks.
const PERIOD_NS: u64 = 10 * SECOND_NS;
/// The steps in which the moment of its looks is tried.
const PHASE_NS: u64 = SECOND_NS / 10;

/// How old the usages are that it ranks by: the node is measured anew, pods are not. cAdvisor measures a container every
/// 10 s, or every 15 s if it did not change (`HousekeepingInterval`, `maxHousekeepingInterval` of the kubelet), and waits
/// for up to twice as long (`jitter` in `nextHousekeepingInterval`).
const OLDEST_NS: u64 = 30 * SECOND_NS;
const AGE_NS: u64 = 10 * SECOND_NS;

/// After an eviction it awaits the pod's end, looking each second, for up to half a minute, and then looks at the node at
/// once (`podCleanupTimeout`).
const CLEANED_SOON_NS: u64 = SECOND_NS;
const CLEANED_LATE_NS: u64 = 30 * SECOND_NS;

/// How long after the crossing it is followed, besides the longest grace period of a threshold.
const FOLLOWED_NS: u64 = 60 * SECOND_NS;
const MOST_GRACE_NS: u64 = 3_600 * SECOND_NS;

/// The most evictions of one shortage that are stated.
const MOST_PASSES: usize = 8;

/// How long a pod takes to die.
#[derive(Clone, Copy, Debug)]
enum Pace {
    /// At once, and the next pass follows as soon as it can.
    Soon,
    /// For all of its grace period, and the next pass follows as late as it can.
    Late,
}

/// One way in which it could go.
#[derive(Clone, Copy, Debug)]
struct Way {
    phase_ns: u64,
    age_ns: u64,
    fall: Fall,
    pace: Pace,
}

/// What comes of one way.
#[derive(Debug, Default)]
struct Run {
    evictions: Vec<(CgroupId, u64)>,
    lowest: Option<u64>,
    exhausted_ns: Option<u64>,
    /// When it would have acted, had memory lasted.
    would_act_ns: Option<u64>,
    /// When the first pod's memory is back.
    first_dies_ns: Option<u64>,
    until_ns: u64,
}

impl Run {
    /// Takes what memory was lowest at since it was last seen.
    fn see(&mut self, low: Low, until_ns: u64) {
        self.lowest = Some(self.lowest.unwrap_or(u64::MAX).min(low.bytes));
        self.exhausted_ns = self.exhausted_ns.or(low.exhausted_ns);
        self.until_ns = until_ns;
    }

    /// When memory was used up before that of the first pod was back.
    fn too_late_ns(&self) -> Option<u64> {
        self.exhausted_ns.filter(|at_ns| self.first_dies_ns.is_none_or(|dies_ns| *at_ns < dies_ns))
    }
}

pub(super) fn answer(known: &Known, course: &Course<'_>) -> Kubelet {
    let Some(settings) = known.settings(course.crossed_ns) else {
        return Kubelet::Unknown(Unknown::BeginsAfterCrossing);
    };
    let thresholds: Vec<_> = settings.thresholds.iter().copied().filter(is_of_memory).collect();
    let runs: Vec<_> = ways().map(|way| run(course, settings, &thresholds, way)).collect();
    stated(course, &runs)
}

fn is_of_memory(threshold: &Threshold) -> bool {
    Resource::of(threshold.signal) == Some(Resource::Memory)
}

fn ways() -> impl Iterator<Item = Way> {
    let phases = (0..=PERIOD_NS / PHASE_NS).map(|step| step * PHASE_NS);
    phases.flat_map(|phase_ns| {
        let ages = (0..=OLDEST_NS / AGE_NS).map(|step| step * AGE_NS);
        ages.flat_map(move |age_ns| {
            Fall::BOTH.into_iter().flat_map(move |fall| {
                [Pace::Soon, Pace::Late].map(|pace| Way { phase_ns, age_ns, fall, pace })
            })
        })
    })
}

fn run(course: &Course<'_>, settings: &EngineSettings, thresholds: &[Threshold], way: Way) -> Run {
    let mut pressure = Pressure::of(thresholds.iter().copied(), settings.pressure_transition_period_ms);
    let grace_ns = thresholds.iter().map(|threshold| threshold.grace_period_ms.saturating_mul(MS)).max();
    let followed_ns = grace_ns.unwrap_or(0).min(MOST_GRACE_NS) + FOLLOWED_NS;
    let end_ns = course.crossed_ns.saturating_add(followed_ns);
    let mut now_ns = first_look_ns(course, way.phase_ns);
    let (mut run, mut dead, mut seen_ns) = (Run::default(), Vec::new(), course.crossed_ns);
    while now_ns <= end_ns {
        let Some(next_look_ns) = now_ns.checked_add(PERIOD_NS) else { break };
        if now_ns == course.crossed_ns && way.phase_ns == PERIOD_NS {
            // It looked right before the crossing: the latest that the next look can be.
            now_ns = next_look_ns;
            continue;
        }
        let verdict = pressure.observe(now_ns, &observations(course, now_ns, way.fall, &dead));
        if now_ns < course.crossed_ns {
            // The daemon has not acted on what it saw before either.
            now_ns = next_look_ns;
            continue;
        }
        run.see(course.lowest(seen_ns, now_ns, way.fall, &dead), now_ns);
        seen_ns = now_ns;
        if run.exhausted_ns.is_some() && !run.evictions.is_empty() {
            break;
        }
        let is_met = pressure.thresholds().any(|tracked| tracked.since_ns.is_some());
        let is_still = now_ns >= course.shown_ns() && course.rate(way.fall) == 0;
        let Some(reclaim) = verdict.reclaim else {
            if !is_met && (is_still || !run.evictions.is_empty()) {
                break;
            }
            now_ns = next_look_ns;
            continue;
        };
        let Some(pod) = first_ranked(course, now_ns, way, reclaim.threshold.signal, &dead) else { break };
        run.would_act_ns.get_or_insert(now_ns);
        if run.exhausted_ns.is_some() || run.evictions.len() == MOST_PASSES {
            break;
        }
        run.evictions.push((pod, now_ns));
        let (dies_ns, next_ns) = match way.pace {
            Pace::Soon => (now_ns, now_ns.saturating_add(CLEANED_SOON_NS)),
            Pace::Late => {
                let dies_ns = now_ns.saturating_add(grace_of(course, settings, &reclaim, pod));
                (dies_ns, dies_ns.saturating_add(CLEANED_LATE_NS))
            }
        };
        run.first_dies_ns.get_or_insert(dies_ns);
        dead.push(Dead { pod, at_ns: dies_ns });
        now_ns = next_ns;
    }
    // Behind the last look memory falls on until the last pod is dead.
    if let Some(last_ns) = dead.last().map(|dead| dead.at_ns).filter(|last_ns| *last_ns > seen_ns) {
        run.see(course.lowest(seen_ns, last_ns, way.fall, &dead), last_ns);
    }
    run
}

/// Its first look in the recording: what was met before the crossing counts towards grace periods.
fn first_look_ns(course: &Course<'_>, phase_ns: u64) -> u64 {
    let after_ns = course.crossed_ns.saturating_add(phase_ns);
    let looks = after_ns.saturating_sub(course.begins_ns) / PERIOD_NS;
    after_ns - looks * PERIOD_NS
}

fn observations(course: &Course<'_>, now_ns: u64, fall: Fall, dead: &[Dead]) -> Observations {
    let mut observations = Observations::default();
    for signal in [Signal::MemoryAvailable, Signal::AllocatableMemoryAvailable] {
        if let Some((level, capacity)) = course.level(signal, now_ns, fall) {
            let level = level.saturating_add(course.given_back(signal, now_ns, fall, dead));
            let available = u64::try_from(level.clamp(0, i128::from(capacity))).unwrap_or(0);
            observations.set(signal, Observation { available, capacity, measured_ns: None });
        }
    }
    observations
}

/// The pod that it evicts: the first of its ranking that is not critical. All pods of a kubelet are in kubepods, so for the
/// pods' own limit it ranks no other.
fn first_ranked(
    course: &Course<'_>,
    now_ns: u64,
    way: Way,
    signal: Signal,
    dead: &[Dead],
) -> Option<CgroupId> {
    let read_ns = now_ns.saturating_sub(way.age_ns);
    let shown_ns = course.shown_ns();
    let ranked = course.pods().zip(0..).filter_map(|((cgroup, Shown { pod, .. }), order)| {
        let is_dead = dead.iter().any(|dead| dead.pod == cgroup) || pod.is_gone(now_ns.min(shown_ns));
        if pod.facts.critical || is_dead || !pod.facts.counts_for(signal) {
            return None;
        }
        let usage_bytes = Some(course.held(cgroup, read_ns, way.fall)?.working_set);
        let (request_bytes, priority) = (pod.facts.request_bytes, pod.facts.priority);
        Some((MemoryRankKey { usage_bytes, request_bytes, priority, order }, cgroup))
    });
    ranked.min_by(|(one, _), (other, _)| one.compare(other).0).map(|(_, cgroup)| cgroup)
}

fn grace_of(course: &Course<'_>, settings: &EngineSettings, reclaim: &Reclaim, pod: CgroupId) -> u64 {
    if reclaim.threshold.is_hard() {
        return HARD_GRACE_PERIOD_SECONDS * SECOND_NS;
    }
    let own =
        course.pods().find(|(cgroup, _)| *cgroup == pod).map(|(_, shown)| shown.pod.facts.grace_period_ns);
    settings.max_pod_grace_period_ns.min(own.unwrap_or(0))
}

fn stated(course: &Course<'_>, runs: &[Run]) -> Kubelet {
    let ms = |at_ns: u64| after_ms(course.crossed_ns, at_ns);
    let assumptions = assumptions(course, runs);
    let lowest_bytes = span(runs.iter().filter_map(|run| run.lowest)).unwrap_or(Span::of(0));
    let late: Vec<_> = runs.iter().filter(|run| run.too_late_ns().is_some()).collect();
    let exhausted_ms = span(late.iter().filter_map(|run| run.too_late_ns()).map(ms));
    let would_act_ms = span(late.iter().filter_map(|run| run.would_act_ns).map(ms));
    if let Some(passes) = passes(runs, ms) {
        let exhausted_before = match exhausted_ms {
            Some(exhausted_ms) => MayExhaust::Possibly {
                from_ms: exhausted_ms.from(),
                permille: permille(late.len(), runs.len()),
            },
            None => MayExhaust::No,
        };
        return Kubelet::Evicts { passes, lowest_bytes, exhausted_before, assumptions };
    }
    match (exhausted_ms, would_act_ms) {
        (Some(exhausted_ms), Some(would_act_ms)) if late.len() == runs.len() => {
            Kubelet::TooLate { exhausted_ms, would_act_ms, assumptions }
        }
        _ => Kubelet::Spares { lowest_bytes, assumptions },
    }
}

/// The share of the ways in thousandths: at least 1, and 1000 only if it is all.
fn permille(ways: usize, all: usize) -> u16 {
    let most = if ways < all { 999 } else { 1_000 };
    let share = (ways * 1_000).div_ceil(all.max(1)).min(most);
    u16::try_from(share).unwrap_or(1_000)
}

/// The evictions of all ways, the first, the second and so on with each other.
fn passes(runs: &[Run], ms: impl Fn(u64) -> u64) -> Option<AtLeastOne<Pass>> {
    let pass = |place: usize| {
        let mut evictions: Vec<_> = runs.iter().filter_map(|run| run.evictions.get(place)).collect();
        evictions.sort_by_key(|(_, at_ns)| *at_ns);
        let mut met = BTreeSet::new();
        let pods = evictions.iter().map(|(pod, _)| *pod).filter(|pod| met.insert(*pod));
        let pods = AtLeastOne::of(pods.collect::<Vec<_>>())?;
        let at_ms = span(evictions.iter().map(|(_, at_ns)| ms(*at_ns)))?;
        Some(Pass { pods, at_ms, is_certain: evictions.len() == runs.len() })
    };
    AtLeastOne::of((0..MOST_PASSES).map_while(pass))
}

fn span(values: impl Iterator<Item = u64>) -> Option<Span<u64>> {
    values.fold(None, |span: Option<Span<u64>>, value| {
        Some(span.map_or_else(|| Span::of(value), |span| span.with(value)))
    })
}

fn assumptions(course: &Course<'_>, runs: &[Run]) -> Vec<Assumption> {
    let oldest_ns = course.crossed_ns.saturating_sub(OLDEST_NS);
    let pods = || course.pods().map(|(cgroup, Shown { pod, .. })| (cgroup, pod));
    let live = || pods().filter(|(_, pod)| !pod.facts.critical && !pod.is_gone(course.shown_ns()));
    let is_unread = |cgroup: CgroupId| course.held(cgroup, course.shown_ns(), Fall::Fast).is_none();
    let is_read_late =
        |readings: &[(u64, _)]| readings.first().is_some_and(|(read_ns, _)| *read_ns > oldest_ns);
    let all = [
        (Assumption::SameThresholds, true),
        (Assumption::SameAvailable, true),
        (Assumption::LooksEveryTenSeconds, true),
        (Assumption::UsagesUpToHalfAMinuteOld, true),
        (Assumption::GrewAlikeBefore, live().any(|(_, pod)| is_read_late(&pod.readings))),
        (Assumption::UnreadLeftOut, live().any(|(cgroup, _)| is_unread(cgroup))),
        (Assumption::FallsOn, runs.iter().any(|run| run.until_ns > course.shown_ns())),
        (Assumption::DiesWithinGrace, runs.iter().any(|run| !run.evictions.is_empty())),
    ];
    all.into_iter().filter(|(_, applies)| *applies).map(|(assumption, _)| assumption).collect()
}

#[cfg(test)]
mod tests {
    use super::permille;

    #[test]
    fn only_all_ways_are_a_thousand_of_a_thousand() {
        assert_eq!([permille(1, 1_616), permille(1_615, 1_616), permille(1_616, 1_616)], [1, 999, 1_000]);
    }
}
