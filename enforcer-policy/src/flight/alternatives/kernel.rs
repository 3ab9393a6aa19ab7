//! What the kernel alone would have done: `select_bad_process` on the processes that were read, each time that memory is
//! used up.

use std::collections::BTreeMap;

use super::{
    Assumption, AtLeastOne, Kernel, KernelVictim, Kill, Span, Unknown,
    course::{Course, Fall},
    known::after_ms,
};
use crate::{
    engine::Shortage,
    flight::processes::{Process, Processes},
    model::CgroupId,
    threshold::Signal,
};

const MS: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000 * MS;

/// Memory that lasts for longer than this after the crossing does not run out in this shortage.
const WITHIN_NS: u64 = 3_600 * SECOND_NS;

/// The most kills that are stated, and for how long after the first: containers are started again by then.
const MOST_KILLS: usize = 8;
const FOLLOWED_NS: u64 = 10 * SECOND_NS;

/// What comes of one way in which memory may fall.
struct Run {
    kills: Vec<(KernelVictim, u64)>,
}

pub(super) fn answer(course: &Course<'_>, all: &[Processes], shortage: Shortage) -> Kernel {
    if shortage.signal == Signal::AllocatableMemoryAvailable {
        return Kernel::Unknown(Unknown::PodsLimit);
    }
    if all.is_empty() {
        return Kernel::Unknown(Unknown::NoProcesses);
    }
    let is_before = |read: &&Processes| course.acted_ns.is_none_or(|acted_ns| read.read_ns <= acted_ns);
    let Some(read) = all.iter().filter(is_before).max_by_key(|read| read.read_ns) else {
        return Kernel::Unknown(Unknown::ProcessesTooLate);
    };
    if !read.worst.iter().any(|process| badness(read, process, 0).is_some()) {
        return Kernel::Unknown(Unknown::NoneMayBeKilled);
    }
    let swap = [0, read.swap_free_bytes];
    let ways = swap.into_iter().flat_map(|more_bytes| Fall::BOTH.map(|fall| (more_bytes, fall)));
    let runs: Vec<_> = ways.map(|(more_bytes, fall)| run(course, read, fall, more_bytes)).collect();
    stated(course, read, &runs)
}

fn badness(read: &Processes, process: &Process, grown_bytes: u64) -> Option<i64> {
    process.badness_pages(grown_bytes, read.page_bytes, read.total_pages)
}

fn run(course: &Course<'_>, read: &Processes, fall: Fall, more_bytes: u64) -> Run {
    let mut run = Run { kills: Vec::new() };
    let mut left: Vec<&Process> = read.worst.iter().collect();
    let Some(first_ns) = course.used_up_ns(fall, more_bytes, WITHIN_NS) else { return run };
    // By whom memory goes on to fall.
    let growing = growing(&left);
    let (mut at_ns, mut rate) = (first_ns, course.rate(fall));
    while run.kills.len() < MOST_KILLS && at_ns.saturating_sub(first_ns) <= FOLLOWED_NS {
        let added = |process: &Process| {
            let pod = process.pod.filter(|pod| growing.get(pod) == Some(&process.pid));
            pod.map_or(0, |pod| grown(course, pod, read.read_ns, at_ns, fall))
        };
        let scored =
            left.iter().filter_map(|process| Some((badness(read, process, added(process))?, *process)));
        // Of equals the kernel takes the last that it comes to, which was started last.
        let worst = scored.max_by_key(|(badness, process)| (*badness, process.start_ticks, process.pid));
        let Some((badness_pages, victim)) = worst else { break };
        let dies = |process: &Process| {
            let is_it = process.pid == victim.pid;
            let in_group = victim.group.is_some() && process.group == victim.group;
            is_it || in_group && badness(read, process, 0).is_some()
        };
        let mut freed_bytes = 0_u64;
        for process in left.iter().filter(|process| dies(process)) {
            freed_bytes = freed_bytes.saturating_add(process.unbacked_bytes).saturating_add(added(process));
            if let Some(pod) = process.pod.filter(|pod| growing.get(pod) == Some(&process.pid)) {
                rate = rate.saturating_sub(course.pod_rate(pod, fall));
            }
        }
        let before = left.len();
        left.retain(|process| !dies(process));
        let others = u32::try_from(before - left.len()).unwrap_or(u32::MAX).saturating_sub(1);
        run.kills.push((KernelVictim { process: victim.clone(), badness_pages, others }, at_ns));
        let lasts_ns = (u128::from(freed_bytes) * u128::from(SECOND_NS)).checked_div(u128::from(rate));
        let Some(lasts_ns) = lasts_ns else { break };
        at_ns = at_ns.saturating_add(u64::try_from(lasts_ns).unwrap_or(u64::MAX));
    }
    run
}

/// The process of each pod that its growth falls to: the largest.
fn growing(processes: &[&Process]) -> BTreeMap<CgroupId, u32> {
    let mut largest: BTreeMap<CgroupId, &Process> = BTreeMap::new();
    for process in processes {
        if let Some(pod) = process.pod {
            let known = largest.entry(pod).or_insert(process);
            if process.resident_bytes > known.resident_bytes {
                *known = process;
            }
        }
    }
    largest.into_iter().map(|(pod, process)| (pod, process.pid)).collect()
}

/// By how much a pod's memory grows between two moments.
fn grown(course: &Course<'_>, pod: CgroupId, from_ns: u64, to_ns: u64, fall: Fall) -> u64 {
    let held = |at_ns| course.held(pod, at_ns, fall).map_or(0, |held| held.freeable);
    held(to_ns).saturating_sub(held(from_ns))
}

/// Whether more than a quarter of what the node lost at last was not taken by the pods.
fn has_rest(course: &Course<'_>) -> bool {
    let node = course.rate(Fall::Fast);
    node.saturating_sub(course.pods_rate()) > node / 4
}

fn stated(course: &Course<'_>, read: &Processes, runs: &[Run]) -> Kernel {
    let ms = |at_ns: u64| after_ms(course.crossed_ns, at_ns);
    let Some(kills) = kills(runs, ms) else {
        // Memory that does not run out within the time falls by nothing, or hardly.
        let to_ns = course.shown_ns().max(course.crossed_ns);
        let low = Fall::BOTH.map(|fall| course.lowest(course.crossed_ns, to_ns, fall, &[]).bytes);
        let [one, other] = low;
        let assumptions = vec![Assumption::FallsOn, Assumption::KillsWhenUsedUp];
        return Kernel::Spares { lowest_bytes: Span::of(one).with(other), assumptions };
    };
    let mut assumptions = vec![Assumption::KillsWhenUsedUp];
    if kills.iter().any(|kill| kill.at_ms.to() > ms(course.shown_ns())) {
        assumptions.push(Assumption::FallsOn);
    }
    assumptions.push(Assumption::LargestProcessGrows);
    if has_rest(course) {
        assumptions.push(Assumption::RestGrowsNoProcess);
    }
    assumptions.extend([Assumption::OnlyLargestRead, Assumption::DefaultSysctls]);
    let part =
        |later_ns: u64, earlier_ns: u64| i64::try_from(after_ms(earlier_ns, later_ns)).unwrap_or(i64::MAX);
    let read_ms = part(read.read_ns, course.crossed_ns) - part(course.crossed_ns, read.read_ns);
    Kernel::Kills { kills, read_ms, assumptions }
}

/// The kills of all ways, the first, the second and so on with each other.
fn kills(runs: &[Run], ms: impl Fn(u64) -> u64) -> Option<AtLeastOne<Kill>> {
    let kill = |place: usize| {
        let mut kills: Vec<_> = runs.iter().filter_map(|run| run.kills.get(place)).collect();
        kills.sort_by_key(|(_, at_ns)| *at_ns);
        let mut victims: Vec<KernelVictim> = Vec::new();
        for (victim, _) in &kills {
            let is_it = |known: &KernelVictim| known.process == victim.process;
            if !victims.iter().any(is_it) {
                victims.push(victim.clone());
            }
        }
        let at_ms = kills.iter().map(|(_, at_ns)| ms(*at_ns));
        let at_ms = at_ms.fold(None, |span: Option<Span<u64>>, at_ms| {
            Some(span.map_or_else(|| Span::of(at_ms), |span| span.with(at_ms)))
        })?;
        Some(Kill { victims: AtLeastOne::of(victims)?, at_ms, is_certain: kills.len() == runs.len() })
    };
    AtLeastOne::of((0..MOST_KILLS).map_while(kill))
}
