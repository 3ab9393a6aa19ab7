//! When thresholds will be crossed if things go on as they do: a warning before the end.
//!
//! Pure: looks come in, warnings come out. What is warned of was so at two looks at the least, and is over only when it has
//! been calm for a while; so what hovers about the limit is told once.

mod rate;

pub use self::rate::Rate;
use super::threshold::{Signal, Threshold};

/// With less time left than this it is warned of.
pub const WARN_NS: u64 = 60_000_000_000;

/// It must have been so for at least this part of the time that is left: the further ahead, the less a moment says. A step
/// of less than a third of the headroom, which a slope shows for some seconds, is not told.
const SUSTAINED_SHARE: u64 = 8;

/// A pace that has been kept for less than a second says something of the next few, and nothing of a minute.
const URGENT_NS: u64 = 12_000_000_000;

/// With more time left than this it is calm again, and over when it has been for so long.
const CALM_NS: u64 = 2 * WARN_NS;
const CALM_FOR_NS: u64 = 15_000_000_000;

/// How a signal is, and goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Trend {
    /// Which.
    pub signal: Signal,
    /// What is left, in its base unit.
    pub available: u64,
    /// What there is in all.
    pub capacity: u64,
    /// How fast what is left changes, in its base unit a second; falling is below zero. None if it is not known yet.
    pub slope_per_second: Option<i64>,
    /// How fast it falls right now, in its base unit a second, if it does so steadily.
    pub pace_per_second: Option<u64>,
}

/// A threshold that will be crossed, or would have been.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossing {
    /// The threshold.
    pub threshold: Threshold,
    /// What it comes to, in the signal's base unit.
    pub amount: u64,
    /// What is left of the signal.
    pub available: u64,
    /// How fast it falls, a second; 0 if it does not.
    pub falling_per_second: u64,
    /// How long until it is crossed at that rate; none if it is not.
    pub left_ns: Option<u64>,
}

/// What is to be told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Warning {
    /// A threshold will be crossed soon.
    Rising(Crossing),
    /// That is over.
    Cleared {
        /// How it is now.
        ahead: Crossing,
        /// How long ago it was told.
        lasted_ns: u64,
    },
}

/// The thresholds, and what was told of each.
#[derive(Clone, Debug, Default)]
pub struct Forecast {
    watched: Vec<Watched>,
}

#[derive(Clone, Copy, Debug)]
struct Watched {
    threshold: Threshold,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Calm,
    /// Less than [`WARN_NS`] was left then, and it has not been calm since.
    Suspected {
        since_ns: u64,
    },
    Told {
        at_ns: u64,
        calm_since_ns: Option<u64>,
    },
}

impl Trend {
    /// When that threshold is crossed if it goes on so.
    #[must_use]
    pub fn ahead(&self, threshold: Threshold) -> Crossing {
        let amount = threshold.value.amount(self.capacity);
        let headroom = u128::from(self.available.saturating_sub(amount));
        let left_ns = |falling_per_second: u64| {
            let left_ns = (headroom * 1_000_000_000).checked_div(u128::from(falling_per_second))?;
            Some(u64::try_from(left_ns).unwrap_or(u64::MAX))
        };
        let slope = self.slope_per_second.filter(|slope| *slope < 0).map_or(0, i64::unsigned_abs);
        let is_urgent = |pace: &u64| left_ns(*pace).is_some_and(|left_ns| left_ns <= URGENT_NS);
        let falling_per_second = self.pace_per_second.filter(is_urgent).unwrap_or(0).max(slope);
        Crossing {
            threshold,
            amount,
            available: self.available,
            falling_per_second,
            left_ns: left_ns(falling_per_second),
        }
    }
}

impl Forecast {
    /// Takes the thresholds to look ahead to. What was told of one that stays is not told again.
    pub fn configure(&mut self, thresholds: &[Threshold]) {
        let before = std::mem::take(&mut self.watched);
        let state = |threshold: &Threshold| {
            before
                .iter()
                .find(|watched| watched.threshold == *threshold)
                .map_or(State::Calm, |known| known.state)
        };
        self.watched = thresholds
            .iter()
            .map(|threshold| Watched { threshold: *threshold, state: state(threshold) })
            .collect();
    }

    /// Whether a threshold may be crossed soon, or has been: then it is worth while to look at everybody, and often.
    #[must_use]
    pub fn is_of_concern(&self, trends: &[Trend]) -> bool {
        self.watched.iter().any(|watched| {
            let signal = watched.threshold.signal;
            let trend = trends.iter().find(|trend| trend.signal == signal);
            !matches!(watched.state, State::Calm)
                || trend.is_some_and(|trend| is_soon(&trend.ahead(watched.threshold)))
        })
    }

    /// The least that is left until a threshold, if any comes nearer.
    #[must_use]
    pub fn least_left_ns(&self, trends: &[Trend]) -> Option<u64> {
        let left_ns = |watched: &Watched| {
            let trend = trends.iter().find(|trend| trend.signal == watched.threshold.signal)?;
            trend.ahead(watched.threshold).left_ns
        };
        self.watched.iter().filter_map(left_ns).min()
    }

    /// How long until the first hard, or soft, threshold of `memory.available` is crossed; none if it is not.
    #[must_use]
    pub fn left_ns(&self, trends: &[Trend], hard: bool) -> Option<u64> {
        let trend = trends.iter().find(|trend| trend.signal == Signal::MemoryAvailable)?;
        let thresholds = self.watched.iter().map(|watched| watched.threshold);
        let own = thresholds
            .filter(|threshold| threshold.signal == Signal::MemoryAvailable && threshold.is_hard() == hard);
        own.filter_map(|threshold| {
            let ahead = trend.ahead(threshold);
            // One that is crossed needs no time.
            if ahead.available <= ahead.amount { Some(0) } else { ahead.left_ns }
        })
        .min()
    }

    /// Takes in how the signals are at that time; those that could not be measured are left out, and stay as they were.
    pub fn look(&mut self, now_ns: u64, trends: &[Trend]) -> Vec<Warning> {
        let mut warnings = Vec::new();
        for watched in &mut self.watched {
            let Some(trend) = trends.iter().find(|trend| trend.signal == watched.threshold.signal) else {
                continue;
            };
            let ahead = trend.ahead(watched.threshold);
            watched.state = match watched.state {
                State::Calm if is_soon(&ahead) => State::Suspected { since_ns: now_ns },
                State::Suspected { since_ns } if !is_calm(&ahead) => {
                    let suspected_ns = now_ns.saturating_sub(since_ns);
                    if is_soon(&ahead) && is_sustained(&ahead, suspected_ns) {
                        warnings.push(Warning::Rising(ahead));
                        State::Told { at_ns: now_ns, calm_since_ns: None }
                    } else {
                        State::Suspected { since_ns }
                    }
                }
                State::Calm | State::Suspected { .. } => State::Calm,
                State::Told { at_ns, calm_since_ns: _ } if !is_calm(&ahead) => {
                    State::Told { at_ns, calm_since_ns: None }
                }
                State::Told { at_ns, calm_since_ns } => {
                    let since_ns = calm_since_ns.unwrap_or(now_ns);
                    if now_ns.saturating_sub(since_ns) >= CALM_FOR_NS {
                        let lasted_ns = now_ns.saturating_sub(at_ns);
                        warnings.push(Warning::Cleared { ahead, lasted_ns });
                        State::Calm
                    } else {
                        State::Told { at_ns, calm_since_ns: Some(since_ns) }
                    }
                }
            };
        }
        warnings
    }
}

/// Whether it will be crossed soon. One that is crossed is told as that, and not warned of any more.
fn is_soon(ahead: &Crossing) -> bool {
    ahead.available > ahead.amount && ahead.left_ns.is_some_and(|left_ns| left_ns <= WARN_NS)
}

/// Whether it has been so for long enough to be told.
fn is_sustained(ahead: &Crossing, suspected_ns: u64) -> bool {
    suspected_ns > 0 && ahead.left_ns.is_some_and(|left_ns| suspected_ns >= left_ns / SUSTAINED_SHARE)
}

fn is_calm(ahead: &Crossing) -> bool {
    ahead.available > ahead.amount && ahead.left_ns.is_none_or(|left_ns| left_ns > CALM_NS)
}

#[cfg(test)]
mod tests;
