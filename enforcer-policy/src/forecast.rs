//! When thresholds will be crossed at the current rate: a warning ahead of the shortage.
//!
//! Pure: samples come in, warnings come out. A warning needs at least two samples, and is over only after a calm while;
//! so a level near the limit is reported once.

mod rate;

pub use self::rate::Rate;
use super::threshold::{Signal, Threshold};

/// With less time left than this it warns.
pub const WARN_NS: u64 = 60_000_000_000;

/// The danger must have lasted for at least this part of the time left: the further ahead, the less a moment proves. A
/// step of less than a third of the headroom, which a slope shows for some seconds, causes no warning.
const SUSTAINED_SHARE: u64 = 8;

/// A pace that has lasted for less than a second predicts the next few seconds, but not a minute.
const URGENT_NS: u64 = 12_000_000_000;

/// With more time left than this the threshold is calm; the warning is over once that has lasted for so long.
const CALM_NS: u64 = 2 * WARN_NS;
const CALM_FOR_NS: u64 = 15_000_000_000;

/// The level of a signal and its trend.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Trend {
    /// The signal.
    pub signal: Signal,
    /// The amount left, in its base unit.
    pub available: u64,
    /// The total.
    pub capacity: u64,
    /// How fast the amount left changes, in base units a second; negative when falling. `None` if not known yet.
    pub slope_per_second: Option<i64>,
    /// How fast it falls right now, in base units a second, if it falls steadily.
    pub pace_per_second: Option<u64>,
}

/// A threshold that will be crossed, or would have been.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossing {
    /// The threshold.
    pub threshold: Threshold,
    /// The threshold as an amount, in the signal's base unit.
    pub amount: u64,
    /// The amount left of the signal.
    pub available: u64,
    /// How fast it falls a second; 0 if it does not.
    pub falling_per_second: u64,
    /// How long until it is crossed at that rate; `None` if it will not be.
    pub left_ns: Option<u64>,
}

/// A warning, or its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Warning {
    /// A threshold will be crossed soon.
    Rising(Crossing),
    /// The warning is over.
    Cleared {
        /// The trend now.
        ahead: Crossing,
        /// The time since the warning.
        lasted_ns: u64,
    },
}

/// The thresholds, and the state of each.
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
    Warned {
        at_ns: u64,
        calm_since_ns: Option<u64>,
    },
}

impl Trend {
    /// When the threshold is crossed at the current rate.
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
    /// Sets the thresholds to watch. A warning about one that stays is not repeated.
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

    /// Whether a threshold may be crossed soon, or has been: then all pods are worth reading, and often.
    #[must_use]
    pub fn is_of_concern(&self, trends: &[Trend]) -> bool {
        self.watched.iter().any(|watched| {
            let signal = watched.threshold.signal;
            let trend = trends.iter().find(|trend| trend.signal == signal);
            !matches!(watched.state, State::Calm)
                || trend.is_some_and(|trend| is_soon(&trend.ahead(watched.threshold)))
        })
    }

    /// The least time left until a threshold, if any comes nearer.
    #[must_use]
    pub fn least_left_ns(&self, trends: &[Trend]) -> Option<u64> {
        let left_ns = |watched: &Watched| {
            let trend = trends.iter().find(|trend| trend.signal == watched.threshold.signal)?;
            trend.ahead(watched.threshold).left_ns
        };
        self.watched.iter().filter_map(left_ns).min()
    }

    /// How long until the first hard, or soft, threshold of `memory.available` is crossed; `None` if none will be.
    #[must_use]
    pub fn left_ns(&self, trends: &[Trend], hard: bool) -> Option<u64> {
        let trend = trends.iter().find(|trend| trend.signal == Signal::MemoryAvailable)?;
        let thresholds = self.watched.iter().map(|watched| watched.threshold);
        let own = thresholds
            .filter(|threshold| threshold.signal == Signal::MemoryAvailable && threshold.is_hard() == hard);
        own.filter_map(|threshold| {
            let ahead = trend.ahead(threshold);
            // A threshold that is crossed already.
            if ahead.available <= ahead.amount { Some(0) } else { ahead.left_ns }
        })
        .min()
    }

    /// Processes the trends at that time. Signals that could not be measured are absent, and keep their state.
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
                        State::Warned { at_ns: now_ns, calm_since_ns: None }
                    } else {
                        State::Suspected { since_ns }
                    }
                }
                State::Calm | State::Suspected { .. } => State::Calm,
                State::Warned { at_ns, calm_since_ns: _ } if !is_calm(&ahead) => {
                    State::Warned { at_ns, calm_since_ns: None }
                }
                State::Warned { at_ns, calm_since_ns } => {
                    let since_ns = calm_since_ns.unwrap_or(now_ns);
                    if now_ns.saturating_sub(since_ns) >= CALM_FOR_NS {
                        let lasted_ns = now_ns.saturating_sub(at_ns);
                        warnings.push(Warning::Cleared { ahead, lasted_ns });
                        State::Calm
                    } else {
                        State::Warned { at_ns, calm_since_ns: Some(since_ns) }
                    }
                }
            };
        }
        warnings
    }
}

/// Whether it will be crossed soon. A crossed threshold is reported as such, and not warned of any more.
fn is_soon(ahead: &Crossing) -> bool {
    ahead.available > ahead.amount && ahead.left_ns.is_some_and(|left_ns| left_ns <= WARN_NS)
}

/// Whether this has lasted long enough for a warning.
fn is_sustained(ahead: &Crossing, suspected_ns: u64) -> bool {
    suspected_ns > 0 && ahead.left_ns.is_some_and(|left_ns| suspected_ns >= left_ns / SUSTAINED_SHARE)
}

fn is_calm(ahead: &Crossing) -> bool {
    ahead.available > ahead.amount && ahead.left_ns.is_none_or(|left_ns| left_ns > CALM_NS)
}

#[cfg(test)]
mod tests;
