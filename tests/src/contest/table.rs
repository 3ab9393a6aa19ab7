//! The figures as a table for people.

use super::{
    bars::{Bar, Verdict},
    series::{Series, mib_a_second},
};
use crate::figures::{float, mib, rank};

/// The head of each workload's part.
const HEAD: &str = "                runs right unseen  signal ms       p99  next ms       p99  dead ms  back ms  over  kernel kills  lowest  stall ms  cpu ms     RSS  died";

/// The whole table: a part for each workload, a line for each contender, and the bars.
#[must_use]
pub fn table(series: &[Series<'_>], bars: &[Bar]) -> String {
    let mut text = String::new();
    let mut workload = "";
    for one in series {
        if one.workload != workload {
            workload = one.workload;
            text.push_str(&part(one, series));
        }
        text.push_str(&line(one));
    }
    text.push('\n');
    for Bar { name, verdict, because } in bars {
        let word = match verdict {
            Verdict::Holds => "ok",
            Verdict::Fails => "FAILS",
            Verdict::Open => "open",
        };
        text.push_str(&format!("{word:<6} {name}: {because}\n"));
    }
    text
}

fn part(first: &Series<'_>, series: &[Series<'_>]) -> String {
    let of = || series.iter().filter(|one| one.workload == first.workload);
    let expected = first.runs.first().map_or(String::new(), |run| names(&run.expected));
    let mut rates: Vec<f64> =
        of().flat_map(|one| one.sorted(|run| run.rate_bytes.map(mib_a_second))).collect();
    rates.sort_by(f64::total_cmp);
    let rate = match rates.as_slice() {
        [] => "never crossed".to_owned(),
        [least, ..] => {
            format!("grew by {:.0} MiB/s, {least:.0} to {:.0}", rank(&rates, 50), rank(&rates, 100))
        }
    };
    let (late, looks) =
        (of().map(|one| one.sum(|run| run.late_looks)).sum(), of().map(|one| one.sum(|run| run.looks)).sum());
    let longest = of().flat_map(|one| one.sorted(|run| Some(run.longest_look_ms))).fold(0.0, f64::max);
    let threshold_mib = first.runs.first().map_or(0.0, |run| mib(run.threshold_bytes));
    format!(
        "\n{}: right is {expected}; memory.available<{threshold_mib:.0}Mi; {rate}; \
         {:.2} % of the sampler's looks late, by {longest:.1} ms at the most\n{HEAD}\n",
        first.workload,
        100.0 * share(late, looks),
    )
}

fn share(part: usize, whole: usize) -> f64 {
    let float = |count: usize| float(u64::try_from(count).unwrap_or(u64::MAX));
    if whole == 0 { 0.0 } else { float(part) / float(whole) }
}

fn line(one: &Series<'_>) -> String {
    let signals = one.sorted(|run| run.if_seen(run.signal_ms));
    let p99 = (!signals.is_empty()).then(|| rank(&signals, 99));
    let following = one.following();
    let next = |percent| (!following.is_empty()).then(|| rank(&following, percent));
    let deaths: Vec<_> =
        one.deaths().iter().map(|(died, count)| format!("{}x {}", count, names(died))).collect();
    let lowest = one.runs.iter().map(|run| run.lowest_bytes).min().unwrap_or(0);
    format!(
        "{:<14} {:>5} {:>5} {:>6} {:>10} {:>9} {:>8} {:>9} {:>8} {:>8} {:>5} {:>13} {:>6}M {:>9} {:>7} {:>6}M  {}\n",
        one.contender,
        one.runs.len(),
        format!("{}/{}", one.count(|run| run.right), one.runs.len()),
        one.count(|run| !run.seen),
        figure(one.median(|run| run.if_seen(run.signal_ms))),
        figure(p99),
        figure(next(50)),
        figure(next(99)),
        figure(one.median(|run| run.if_seen(run.dead_ms))),
        figure(one.median(|run| run.if_seen(run.back_ms))),
        one.sum(|run| if run.seen { run.over_kills } else { 0 }),
        format!("{} ({} spared)", one.sum(|run| run.kernel_kills), one.sum(|run| run.kernel_kills_spared)),
        lowest >> 20,
        figure(one.median(|run| Some(run.stall_ms))),
        figure(one.median(|run| run.cpu_ms)),
        figure(one.median(|run| run.resident_bytes.map(mib))),
        deaths.join(", "),
    )
}

fn names(pods: &[String]) -> String {
    if pods.is_empty() { "nobody".to_owned() } else { pods.join(">") }
}

fn figure(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            bars::bars,
            series::{samples::outcome, series},
        },
        *,
    };

    #[test]
    fn every_contender_has_its_line() {
        let mut bare = outcome("bare", "hog-100", 1);
        (bare.cpu_ms, bare.resident_bytes, bare.kernel_kills) = (None, None, 1);
        let mut churn = outcome("enforcer", "churn", 1);
        (churn.expected, churn.died, churn.signal_ms, churn.rate_bytes) = (vec![], vec![], None, None);
        let outcomes = [outcome("enforcer", "hog-100", 1), bare, churn];
        let series = series(&outcomes);
        let text = table(&series, &bars(&series));
        assert!(text.contains("hog-100: right is hog; memory.available<200Mi; grew by 100 MiB/s"), "{text}");
        assert!(text.contains("churn: right is nobody; memory.available<200Mi; never crossed"), "{text}");
        assert!(text.contains("1 (0 spared)"), "{text}");
        assert!(text.contains("ok     the right victims in every run: 2 of 2"), "{text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("enforcer ")).count(), 2, "{text}");
        let bare = text.lines().find(|line| line.starts_with("bare ")).unwrap();
        assert!(bare.ends_with("-      -M  1x hog"), "{bare}");
    }
}
