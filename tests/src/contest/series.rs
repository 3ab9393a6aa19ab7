//! All runs of one contender at one workload, summed up.

use std::collections::BTreeMap;

use super::outcome::Outcome;
use crate::figures::{float, rank};

/// The contender that the bars apply to.
pub const OURS: &str = "enforcer";

/// The monitor that knows the victims beforehand: the lower bound of all times.
pub const FLOOR: &str = "floor";

/// The runs of one contender at one workload.
#[derive(Clone, Debug)]
pub struct Series<'a> {
    /// The contender.
    pub contender: &'a str,
    /// The workload.
    pub workload: &'a str,
    /// Ordered by their numbers.
    pub runs: Vec<&'a Outcome>,
}

impl<'a> Series<'a> {
    /// Whether it is neither ours nor the floor.
    #[must_use]
    pub fn is_others(&self) -> bool {
        self.contender != OURS && self.contender != FLOOR
    }

    /// The values of a figure, in order of size; runs without it are left out.
    #[must_use]
    pub fn sorted(&self, figure: impl Fn(&Outcome) -> Option<f64>) -> Vec<f64> {
        let mut values: Vec<f64> = self.runs.iter().filter_map(|run| figure(run)).collect();
        values.sort_by(f64::total_cmp);
        values
    }

    /// From the crossing to each signal but the first, of all runs that were seen, in order of size.
    #[must_use]
    pub fn following(&self) -> Vec<f64> {
        let seen = self.runs.iter().filter(|run| run.seen);
        let mut values: Vec<f64> = seen.flat_map(|run| run.following_ms.iter().copied()).collect();
        values.sort_by(f64::total_cmp);
        values
    }

    /// Its median, if any run has one.
    #[must_use]
    pub fn median(&self, figure: impl Fn(&Outcome) -> Option<f64>) -> Option<f64> {
        let sorted = self.sorted(figure);
        (!sorted.is_empty()).then(|| rank(&sorted, 50))
    }

    /// How many runs satisfy a condition.
    #[must_use]
    pub fn count(&self, is: impl Fn(&Outcome) -> bool) -> usize {
        self.runs.iter().filter(|run| is(run)).count()
    }

    /// A figure of all runs together.
    #[must_use]
    pub fn sum(&self, figure: impl Fn(&Outcome) -> usize) -> usize {
        self.runs.iter().map(|run| figure(run)).sum()
    }

    /// The orders of death, the most frequent first, with how often each was seen.
    #[must_use]
    pub fn deaths(&self) -> Vec<(&'a [String], usize)> {
        let mut counts: BTreeMap<&[String], usize> = BTreeMap::new();
        for run in &self.runs {
            *counts.entry(run.died.as_slice()).or_default() += 1;
        }
        let mut deaths: Vec<_> = counts.into_iter().collect();
        deaths.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        deaths
    }
}

/// The series of some runs: by workload and then by contender, each in the order in which it first came.
#[must_use]
pub fn series(outcomes: &[Outcome]) -> Vec<Series<'_>> {
    let workloads = distinct(outcomes, |outcome| &outcome.workload);
    let contenders = distinct(outcomes, |outcome| &outcome.contender);
    let mut series = Vec::new();
    for workload in &workloads {
        for contender in &contenders {
            let of = |run: &&Outcome| run.workload == *workload && run.contender == *contender;
            let runs: Vec<_> = outcomes.iter().filter(of).collect();
            if !runs.is_empty() {
                series.push(Series { contender, workload, runs });
            }
        }
    }
    series
}

fn distinct<'a>(outcomes: &'a [Outcome], name: impl Fn(&'a Outcome) -> &'a String) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for outcome in outcomes {
        let name = name(outcome).as_str();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Bytes a second in MiB a second.
#[must_use]
pub fn mib_a_second(bytes: u64) -> f64 {
    float(bytes) / f64::from(1 << 20)
}

#[cfg(test)]
pub(super) mod samples {
    use super::Outcome;

    /// A run of ours without a fault.
    pub(crate) fn outcome(contender: &str, workload: &str, run: usize) -> Outcome {
        Outcome {
            contender: contender.into(),
            workload: workload.into(),
            run,
            threshold_bytes: 200 << 20,
            expected: vec!["hog".into()],
            died: vec!["hog".into()],
            right: true,
            crossed: true,
            uncertain_ms: 1.3,
            uncertain_signals: 0,
            seen: true,
            signal_ms: Some(4.0),
            following_ms: Vec::new(),
            dead_ms: Some(100.0),
            back_ms: Some(101.0),
            over_kills: 0,
            signals: 1,
            kernel_kills: 0,
            kernel_kills_spared: 0,
            kernel_kills_counted: 0,
            lowest_bytes: 190 << 20,
            rate_bytes: Some(100 << 20),
            journal_ms: Some(20.0),
            stall_ms: 10.0,
            cpu_ms: Some(5.0),
            resident_bytes: Some(10 << 20),
            watched_ms: 5_000.0,
            looks: 4_000,
            late_looks: 3,
            longest_look_ms: 2.5,
            first_signals: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{samples::outcome, *};

    #[test]
    fn runs_are_sorted_into_their_series() {
        let mut wrong = outcome("earlyoom", "leak", 2);
        wrong.died = vec!["larger".into(), "hog".into()];
        wrong.signal_ms = None;
        let outcomes = [
            outcome("enforcer", "leak", 1),
            outcome("earlyoom", "leak", 1),
            outcome("enforcer", "churn", 1),
            wrong,
            outcome("earlyoom", "leak", 3),
        ];
        let series = series(&outcomes);
        let names: Vec<_> = series.iter().map(|one| (one.workload, one.contender, one.runs.len())).collect();
        assert_eq!(names, [("leak", "enforcer", 1), ("leak", "earlyoom", 3), ("churn", "enforcer", 1)]);
        let theirs = &series[1];
        assert_eq!(theirs.deaths()[0].1, 2);
        assert_eq!(theirs.deaths()[1], (&["larger".to_owned(), "hog".to_owned()][..], 1));
        assert_eq!(theirs.sorted(|run| run.signal_ms).len(), 2);
        assert!(theirs.is_others() && !series[0].is_others());
    }
}
