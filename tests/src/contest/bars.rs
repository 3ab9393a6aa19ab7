//! The bars for our own figures, and whether they hold.

use super::series::{FLOOR, OURS, Series};
use crate::figures::rank;

#[cfg(test)]
mod tests;

/// From the crossing to the first signal, for 99 runs of 100.
pub const SIGNAL_P99_MS: f64 = 50.0;

/// From the crossing to each signal but the first, for 99 of 100.
pub const FOLLOWING_P99_MS: f64 = 10.0;

/// From each signal to its event in our own log.
pub const JOURNAL_MS: f64 = 100.0;

/// How many times faster than the best of the others.
pub const FASTER: f64 = 5.0;

/// From the crossing to the victim's death, as a multiple of the floor's.
pub const DEAD_OVER_FLOOR: f64 = 1.10;

/// Runs needed for a median of stalls.
pub const STALL_RUNS: usize = 10;

/// How finely the Guaranteed pod measures its stalls: it writes every 2 ms.
pub const STALL_GRAIN_MS: f64 = 2.0;

/// The sampler's resolution of a crossing; smaller differences are unknown.
pub const LOOK_MS: f64 = 0.5;

/// A signal that comes earlier than this before the crossing is no answer to it.
const EARLY_MS: f64 = -5.0;

/// One bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// The requirement.
    pub name: &'static str,
    /// The verdict.
    pub verdict: Verdict,
    /// The deciding figures.
    pub because: String,
}

/// The verdict on a bar.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// It holds.
    Holds,
    /// It does not.
    Fails,
    /// The runs do not decide it.
    Open,
}

/// All bars, judged by these series.
#[must_use]
pub fn bars(series: &[Series<'_>]) -> Vec<Bar> {
    let ours: Vec<_> = series.iter().filter(|one| one.contender == OURS).collect();
    vec![
        right(&ours),
        none("no kernel OOM kill of a spared pod", &ours, |one| one.sum(|run| run.kernel_kills_spared)),
        none("no over-kill", &ours, |one| one.sum(|run| if run.seen { run.over_kills } else { 0 })),
        signal(&ours),
        following(&ours),
        journal(&ours),
        faster(&ours, series),
        dead(&ours, series),
        stall(&ours, series),
    ]
}

fn bar(name: &'static str, holds: bool, because: String) -> Bar {
    Bar { name, verdict: if holds { Verdict::Holds } else { Verdict::Fails }, because }
}

fn open(name: &'static str, because: impl Into<String>) -> Bar {
    Bar { name, verdict: Verdict::Open, because: because.into() }
}

fn right(ours: &[&Series<'_>]) -> Bar {
    let name = "the right victims in every run";
    let runs: usize = ours.iter().map(|one| one.runs.len()).sum();
    if runs == 0 {
        return open(name, format!("{OURS} was not run"));
    }
    let wrong: Vec<_> = ours
        .iter()
        .map(|one| (one.workload, one.count(|run| !run.right)))
        .filter(|(_, wrong)| *wrong > 0)
        .map(|(workload, wrong)| format!("{wrong} wrong at {workload}"))
        .collect();
    let said = if wrong.is_empty() { format!("{runs} of {runs}") } else { wrong.join(", ") };
    bar(name, wrong.is_empty(), said)
}

fn none(name: &'static str, ours: &[&Series<'_>], count: impl Fn(&Series<'_>) -> usize) -> Bar {
    if ours.is_empty() {
        return open(name, format!("{OURS} was not run"));
    }
    let found: Vec<_> = ours
        .iter()
        .map(|one| (one.workload, count(one)))
        .filter(|(_, count)| *count > 0)
        .map(|(workload, count)| format!("{count} at {workload}"))
        .collect();
    bar(name, found.is_empty(), if found.is_empty() { "0".to_owned() } else { found.join(", ") })
}

fn signal(ours: &[&Series<'_>]) -> Bar {
    let name = "crossing -> signal: p99 <= 50 ms";
    let mut all: Vec<f64> =
        ours.iter().flat_map(|one| one.sorted(|run| run.if_seen(run.signal_ms))).collect();
    if all.is_empty() {
        return open(name, format!("{OURS} was not seen to signal after a crossing"));
    }
    all.sort_by(f64::total_cmp);
    let p99 = rank(&all, 99);
    bar(name, p99 <= SIGNAL_P99_MS, format!("{p99:.1} ms of {} runs", all.len()))
}

fn following(ours: &[&Series<'_>]) -> Bar {
    let name = "crossing -> each following signal: p99 <= 10 ms";
    let mut all: Vec<f64> = ours.iter().flat_map(|one| one.following()).collect();
    if all.is_empty() {
        return open(name, format!("{OURS} was not seen to signal a second pod"));
    }
    all.sort_by(f64::total_cmp);
    let (median, p99) = (rank(&all, 50), rank(&all, 99));
    let said = format!("{p99:.1} ms, median {median:.1} ms, of {} signals", all.len());
    bar(name, p99 <= FOLLOWING_P99_MS, said)
}

fn journal(ours: &[&Series<'_>]) -> Bar {
    let name = "signal -> its event in the journal: <= 100 ms";
    let longest = ours.iter().flat_map(|one| one.sorted(|run| run.journal_ms)).max_by(f64::total_cmp);
    let Some(longest_ms) = longest else { return open(name, format!("{OURS} reported no signal")) };
    bar(name, longest_ms <= JOURNAL_MS, format!("{longest_ms:.1} ms at the longest"))
}

/// The median of those signals that answer a crossing.
fn answer_ms(one: &Series<'_>) -> Option<f64> {
    one.median(|run| run.if_seen(run.signal_ms).filter(|ms| *ms >= EARLY_MS))
}

fn faster(ours: &[&Series<'_>], series: &[Series<'_>]) -> Bar {
    let name = "crossing -> signal: 5 times faster than the best of the others";
    let mut worst: Option<(f64, String)> = None;
    for own in ours {
        let Some(own_ms) = answer_ms(own) else { continue };
        let others = series.iter().filter(|one| one.is_others() && one.workload == own.workload);
        let best = others
            .filter_map(|one| Some((answer_ms(one)?, one.contender)))
            .min_by(|left, right| left.0.total_cmp(&right.0));
        let Some((best_ms, best)) = best else { continue };
        let ratio = best_ms.max(LOOK_MS) / own_ms.max(LOOK_MS);
        if worst.as_ref().is_none_or(|(least, _)| ratio < *least) {
            let workload = own.workload;
            let said =
                format!("{ratio:.1} times at {workload}: {own_ms:.1} ms, and {best_ms:.1} ms of {best}");
            worst = Some((ratio, said));
        }
    }
    match worst {
        Some((ratio, said)) => bar(name, ratio >= FASTER, said),
        None => open(name, "no workload was answered by us and by another"),
    }
}

fn dead(ours: &[&Series<'_>], series: &[Series<'_>]) -> Bar {
    let name = "crossing -> dead: within 10 % of the floor";
    let mut worst: Option<(f64, String)> = None;
    for own in ours {
        let floor = series.iter().find(|one| one.contender == FLOOR && one.workload == own.workload);
        let Some(floor_ms) = floor.and_then(|one| one.median(|run| run.if_seen(run.dead_ms))) else {
            continue;
        };
        let Some(own_ms) = own.median(|run| run.if_seen(run.dead_ms)) else { continue };
        let ratio = own_ms.max(LOOK_MS) / floor_ms.max(LOOK_MS);
        if worst.as_ref().is_none_or(|(most, _)| ratio > *most) {
            let workload = own.workload;
            let said =
                format!("{ratio:.2} times the floor at {workload}: {own_ms:.1} ms and {floor_ms:.1} ms");
            worst = Some((ratio, said));
        }
    }
    match worst {
        Some((ratio, said)) => bar(name, ratio <= DEAD_OVER_FLOOR, said),
        None => open(name, "no workload was run by us and by the floor"),
    }
}

fn stall(ours: &[&Series<'_>], series: &[Series<'_>]) -> Bar {
    let name = "longest stall of the Guaranteed pod: median not worse than the best";
    let mut said = Vec::new();
    let (mut compared, mut few) = (0, false);
    for own in ours {
        let Some(own_ms) = own.median(|run| Some(run.stall_ms)) else { continue };
        let others: Vec<_> =
            series.iter().filter(|one| one.is_others() && one.workload == own.workload).collect();
        let best = others
            .iter()
            .filter_map(|one| Some((one.median(|run| Some(run.stall_ms))?, one.contender)))
            .min_by(|left, right| left.0.total_cmp(&right.0));
        let Some((best_ms, best)) = best else { continue };
        compared += 1;
        few |= own.runs.len() < STALL_RUNS || others.iter().any(|one| one.runs.len() < STALL_RUNS);
        if own_ms > best_ms + STALL_GRAIN_MS {
            said.push(format!("{own_ms:.1} ms at {}, and {best_ms:.1} ms of {best}", own.workload));
        }
    }
    let said = match (compared, said.is_empty()) {
        (0, _) => return open(name, "no workload was run by us and by another"),
        (_, true) => format!("at none of {compared} workloads"),
        (_, false) => said.join("; "),
    };
    if few {
        return open(name, format!("fewer than {STALL_RUNS} runs; so far worse: {said}"));
    }
    bar(name, said.starts_with("at none"), format!("worse: {said}"))
}
