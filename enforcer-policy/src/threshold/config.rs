//! The thresholds of a configuration: `ParseThresholdConfig` of `pkg/kubelet/eviction/helpers.go`.

use std::{fmt, time::Duration};

use super::{Signal, Threshold, ThresholdError, parse, parse_minimum_reclaim};
use crate::{
    EvictionSettings,
    duration::{self, DurationError},
};

/// The thresholds as written in a configuration: names of signals with values, in their order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Written<'a> {
    /// `evictionHard`; `None` if it is absent, which is not the same as empty.
    pub hard: Option<&'a [(String, String)]>,
    /// `evictionSoft`.
    pub soft: &'a [(String, String)],
    /// `evictionSoftGracePeriod`.
    pub soft_grace_period: &'a [(String, String)],
    /// `evictionMinimumReclaim`.
    pub minimum_reclaim: &'a [(String, String)],
    /// `mergeDefaultEvictionSettings`: whether signals that `evictionHard` does not name keep their defaults.
    pub merge_defaults: bool,
    /// Whether `enforceNodeAllocatable` names `pods`.
    pub enforce_pods: bool,
}

/// The configuration fields that contain thresholds.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Map {
    /// `evictionHard`.
    Hard,
    /// `evictionSoft`.
    Soft,
    /// `evictionSoftGracePeriod`.
    SoftGracePeriod,
    /// `evictionMinimumReclaim`.
    MinimumReclaim,
}

impl Map {
    /// The field's name.
    #[must_use]
    pub fn field(self) -> &'static str {
        match self {
            Self::Hard => "evictionHard",
            Self::Soft => "evictionSoft",
            Self::SoftGracePeriod => "evictionSoftGracePeriod",
            Self::MinimumReclaim => "evictionMinimumReclaim",
        }
    }
}

/// A wrong entry.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{}.{}: {problem}", .map.field(), .signal.escape_debug())]
pub struct InvalidThreshold {
    /// The field that contains it.
    pub map: Map,
    /// The signal's name as written.
    pub signal: String,
    /// What is wrong.
    pub problem: Problem,
}

/// What is wrong with an entry.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// There is no such signal.
    #[error("not a signal: it must be one of {}", Names)]
    Signal,
    /// The value is not a threshold.
    #[error(transparent)]
    Value(#[from] ThresholdError),
    /// The value is not a duration.
    #[error(transparent)]
    GracePeriod(#[from] DurationError),
    /// A soft threshold without `evictionSoftGracePeriod`.
    #[error("a soft threshold needs a grace period: add evictionSoftGracePeriod.{0}, such as 1m30s")]
    NoGracePeriod(Signal),
}

struct Names;

impl fmt::Display for Names {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = Signal::ALL.iter().map(|signal| signal.as_str()).collect();
        formatter.write_str(&names.join(", "))
    }
}

/// Reads every threshold: the hard ones, the soft ones, then those of `allocatableMemory.available`. Reports all
/// errors.
///
/// Without `evictionHard` the defaults apply; with it only the signals that it names, unless the defaults are merged
/// in. A soft threshold with a grace period of 0 is a hard one. Each hard threshold of `memory.available` also applies
/// to kubepods if pods are limited to node allocatable (upstream `addAllocatableThresholds`).
pub fn from_configuration(written: &Written<'_>) -> Result<Vec<Threshold>, Vec<InvalidThreshold>> {
    let mut wrong = Vec::new();
    let mut thresholds = hard(written, &mut wrong);
    let periods =
        read(Map::SoftGracePeriod, written.soft_grace_period, &mut wrong, |text| Ok(duration::parse(text)?));
    let soft = read(Map::Soft, written.soft, &mut wrong, |text| Ok(parse(text)?));
    for (signal, value) in soft {
        let Some(value) = value else { continue };
        let Some((_, period)) = periods.iter().find(|(of, _)| *of == signal) else {
            // A grace period that is present but wrong is reported already.
            if !written.soft_grace_period.iter().any(|(name, _)| name == signal.as_str()) {
                let problem = Problem::NoGracePeriod(signal);
                wrong.push(InvalidThreshold { map: Map::Soft, signal: signal.to_string(), problem });
            }
            continue;
        };
        thresholds
            .push(Threshold { grace_period_ms: milliseconds(*period), ..Threshold::hard(signal, value) });
    }
    let reclaims = read(Map::MinimumReclaim, written.minimum_reclaim, &mut wrong, |text| {
        Ok(parse_minimum_reclaim(text)?)
    });
    for threshold in &mut thresholds {
        let reclaim = reclaims.iter().find(|(signal, _)| *signal == threshold.signal);
        threshold.min_reclaim = reclaim.map(|(_, value)| *value);
    }
    if written.enforce_pods {
        add_allocatable(&mut thresholds);
    }
    if wrong.is_empty() { Ok(thresholds) } else { Err(wrong) }
}

/// Copies each hard threshold of `memory.available` to `allocatableMemory.available`.
pub(super) fn add_allocatable(thresholds: &mut Vec<Threshold>) {
    let copies: Vec<_> = thresholds
        .iter()
        .filter(|threshold| threshold.signal == Signal::MemoryAvailable && threshold.is_hard())
        .map(|threshold| Threshold { signal: Signal::AllocatableMemoryAvailable, ..*threshold })
        .collect();
    thresholds.extend(copies);
}

fn hard(written: &Written<'_>, wrong: &mut Vec<InvalidThreshold>) -> Vec<Threshold> {
    let defaults = EvictionSettings::default()
        .thresholds
        .into_iter()
        .filter(|threshold| threshold.signal != Signal::AllocatableMemoryAvailable);
    let Some(given) = written.hard else { return defaults.collect() };
    let read = read(Map::Hard, given, wrong, |text| Ok(parse(text)?));
    let mut thresholds: Vec<_> = read
        .iter()
        .filter_map(|(signal, value)| value.map(|value| Threshold::hard(*signal, value)))
        .collect();
    if written.merge_defaults {
        let named = |signal: Signal| given.iter().any(|(name, _)| name == signal.as_str());
        thresholds.extend(defaults.filter(|threshold| !named(threshold.signal)));
    }
    thresholds
}

/// The valid entries of a map; the others go into `wrong`.
fn read<T>(
    map: Map,
    entries: &[(String, String)],
    wrong: &mut Vec<InvalidThreshold>,
    value: impl Fn(&str) -> Result<T, Problem>,
) -> Vec<(Signal, T)> {
    let mut values = Vec::new();
    for (name, text) in entries {
        let entry =
            Signal::from_name(name).ok_or(Problem::Signal).and_then(|signal| Ok((signal, value(text)?)));
        match entry {
            Ok(entry) => values.push(entry),
            Err(problem) => wrong.push(InvalidThreshold { map, signal: name.clone(), problem }),
        }
    }
    values
}

/// Rounds up: a period above 0 never becomes 0, which would make a soft threshold hard.
fn milliseconds(period: Duration) -> u64 {
    u64::try_from(period.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
