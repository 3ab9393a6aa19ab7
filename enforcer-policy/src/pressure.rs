//! Which thresholds are met, since when, and what follows: `synchronize` of
//! `pkg/kubelet/eviction/eviction_manager.go`, from the observations to the threshold that is acted on.
//!
//! Time is an input. Nothing is allocated after [`Pressure::new`].

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use super::{
    EvictionSettings,
    few::Few,
    threshold::{NodeCondition, Signal, Threshold},
};

const MS: u64 = 1_000_000;

/// The grace period of a hard eviction in seconds (upstream `immediateEvictionGracePeriodSeconds`).
pub const HARD_GRACE_PERIOD_SECONDS: u64 = 1;

/// The level of a signal at one moment, in base units.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Observation {
    /// The amount left.
    pub available: u64,
    /// The total, which percentages refer to.
    pub capacity: u64,
    /// When it was measured, in nanoseconds of any clock that never goes back; `None` if unknown. A measurement that is
    /// no newer than at the last look is not acted on again.
    pub measured_ns: Option<u64>,
}

/// The levels of all signals at one moment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Observations([Option<Observation>; Signal::ALL.len()]);

impl Observations {
    /// Sets one observation.
    pub fn set(&mut self, signal: Signal, observation: Observation) {
        if let Some(slot) = self.0.get_mut(signal as usize) {
            *slot = Some(observation);
        }
    }

    /// The level of a signal; `None` if it was not observed.
    #[must_use]
    pub fn get(&self, signal: Signal) -> Option<Observation> {
        self.0.get(signal as usize).copied().flatten()
    }
}

/// A set of node conditions.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub struct Conditions {
    has: [bool; NodeCondition::ALL.len()],
}

impl Conditions {
    /// Whether the set contains it.
    #[must_use]
    pub fn has(self, condition: NodeCondition) -> bool {
        self.has.get(condition as usize).copied().unwrap_or(false)
    }

    /// The conditions in the set.
    pub fn iter(self) -> impl Iterator<Item = NodeCondition> {
        NodeCondition::ALL.into_iter().filter(move |condition| self.has(*condition))
    }

    fn insert(&mut self, condition: NodeCondition) {
        if let Some(slot) = self.has.get_mut(condition as usize) {
            *slot = true;
        }
    }
}

impl FromIterator<NodeCondition> for Conditions {
    fn from_iter<T: IntoIterator<Item = NodeCondition>>(conditions: T) -> Self {
        let mut all = Self::default();
        conditions.into_iter().for_each(|condition| all.insert(condition));
        all
    }
}

/// The result of one look.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// The conditions that the node has, which outlast their thresholds by the transition period.
    pub conditions: Conditions,
    /// The threshold to act on now: met for its grace period; `None` if there is nothing to do.
    pub reclaim: Option<Reclaim>,
}

/// The threshold that is acted on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reclaim {
    /// The threshold.
    pub threshold: Threshold,
    /// Its value in base units.
    pub amount: u64,
    /// The amount that must be available until it is no longer met: its value plus its minimum reclaim.
    pub target: u64,
    /// The amount available.
    pub available: u64,
}

impl Reclaim {
    /// How long the victim gets, in seconds: 1 for a hard threshold, else the smaller of what the administrator and the
    /// pod allow.
    #[must_use]
    pub fn grace_period_seconds(&self, settings: &EvictionSettings, pod_seconds: u64) -> u64 {
        if self.threshold.is_hard() {
            HARD_GRACE_PERIOD_SECONDS
        } else {
            settings.max_pod_grace_period_seconds.min(pod_seconds)
        }
    }
}

/// The most thresholds that can be distinguished: a hard and a soft one for each signal, with room to spare.
pub const MAX_THRESHOLDS: usize = 24;

/// The thresholds with their state, from one look to the next.
#[derive(Clone, Copy, Debug, Deserialize, Schema, Serialize)]
pub struct Pressure {
    thresholds: Few<Tracked, MAX_THRESHOLDS>,
    transition_ns: u64,
    /// When each signal was measured at the last look, if known.
    last: [Option<u64>; Signal::ALL.len()],
    /// When each condition was last observed.
    conditions: [Option<u64>; NodeCondition::ALL.len()],
}

/// The state of one threshold.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Schema, Serialize)]
pub struct Tracked {
    /// The threshold.
    pub threshold: Threshold,
    /// Since when it has been met, on the clock of [`Pressure::observe`]; `None` while it is not.
    pub since_ns: Option<u64>,
    /// Whether its grace period had passed at the last look: then it stays met until its minimum reclaim is available.
    acted_on: bool,
    /// The level at the last look; `None` if its signal was not observed.
    seen: Option<Seen>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Schema, Serialize)]
struct Seen {
    amount: u64,
    min_reclaim: u64,
    available: u64,
    /// Measured anew since the look before.
    is_new: bool,
}

impl Tracked {
    /// Processes a look. The threshold is met if strictly less is available than its value, and once it was acted on,
    /// than that and the minimum reclaim (upstream `thresholdsMet`). Without an observation it is not met.
    fn look(&mut self, now_ns: u64, observation: Option<Observation>, is_new: bool) {
        self.seen = observation.map(|Observation { available, capacity, measured_ns: _ }| Seen {
            amount: self.threshold.value.amount(capacity),
            min_reclaim: self.threshold.min_reclaim.map_or(0, |reclaim| reclaim.amount(capacity)),
            available,
            is_new,
        });
        let met = self.seen.is_some_and(|seen| {
            let reclaim = if self.acted_on { seen.min_reclaim } else { 0 };
            seen.available < seen.amount.saturating_add(reclaim)
        });
        self.since_ns = if met { self.since_ns.or(Some(now_ns)) } else { None };
        let grace_ns = self.threshold.grace_period_ms.saturating_mul(MS);
        self.acted_on = self.since_ns.is_some_and(|since_ns| now_ns.saturating_sub(since_ns) >= grace_ns);
    }

    fn is_memory(&self) -> bool {
        matches!(self.threshold.signal, Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable)
    }

    /// Its amounts, and the amount available at the last look, if it was observed then.
    #[must_use]
    pub fn reclaim(&self) -> Option<Reclaim> {
        let Seen { amount, min_reclaim, available, is_new: _ } = self.seen?;
        let target = amount.saturating_add(min_reclaim);
        Some(Reclaim { threshold: self.threshold, amount, target, available })
    }

    fn is_due(&self) -> bool {
        self.acted_on && self.seen.is_some_and(|seen| seen.is_new)
    }
}

impl Pressure {
    /// Starts with nothing observed.
    #[must_use]
    pub fn new(settings: &EvictionSettings) -> Self {
        Self::of(settings.thresholds.iter().copied(), settings.pressure_transition_period_ms)
    }

    /// The same for these thresholds; those beyond [`MAX_THRESHOLDS`] are left out.
    pub(super) fn of(thresholds: impl Iterator<Item = Threshold>, transition_ms: u64) -> Self {
        let mut tracked = Few::new();
        for threshold in thresholds {
            let fits = tracked.push(Tracked { threshold, since_ns: None, acted_on: false, seen: None });
            debug_assert!(fits, "more thresholds than signals have");
        }
        Self {
            thresholds: tracked,
            transition_ns: transition_ms.saturating_mul(MS),
            last: [None; Signal::ALL.len()],
            conditions: [None; NodeCondition::ALL.len()],
        }
    }

    /// Takes over the state of thresholds that stay, and of the conditions.
    pub(super) fn inherit(&mut self, before: &Self) {
        for tracked in self.thresholds.iter_mut() {
            if let Some(known) = before.thresholds.iter().find(|known| known.threshold == tracked.threshold) {
                *tracked = *known;
            }
        }
        self.last = before.last;
        self.conditions = before.conditions;
    }

    /// Processes the present observations. `now_ns` never goes back; if it does, no time has passed. All time that passes by
    /// it counts towards grace periods.
    pub fn observe(&mut self, now_ns: u64, observations: &Observations) -> Verdict {
        for tracked in self.thresholds.iter_mut() {
            let signal = tracked.threshold.signal;
            let observation = observations.get(signal);
            // Upstream `thresholdsUpdatedStats`.
            let before = self.last.get(signal as usize).copied().flatten();
            let measured = observation.and_then(|observation| observation.measured_ns);
            let is_new =
                before.is_none_or(|before_ns| measured.is_none_or(|measured_ns| measured_ns > before_ns));
            tracked.look(now_ns, observation, is_new);
            if tracked.since_ns.is_some()
                && let Some(last) = self.conditions.get_mut(signal.condition() as usize)
            {
                *last = Some(now_ns);
            }
        }
        for (last, signal) in self.last.iter_mut().zip(Signal::ALL) {
            *last = observations.get(signal).and_then(|observation| observation.measured_ns);
        }
        Verdict { conditions: self.conditions(now_ns), reclaim: self.due().next() }
    }

    /// All thresholds, in the order in which they were given.
    pub fn thresholds(&self) -> impl Iterator<Item = &Tracked> {
        self.thresholds.iter()
    }

    /// The thresholds that are due, as of the last look: the grace period has passed, and the signal was measured anew.
    /// Memory comes first (upstream `thresholdsUpdatedStats`, `byEvictionPriority`, `getReclaimableThreshold`).
    pub fn due(&self) -> impl Iterator<Item = Reclaim> {
        let due = |memory: bool| {
            self.thresholds.iter().filter(move |tracked| tracked.is_due() && tracked.is_memory() == memory)
        };
        due(true).chain(due(false)).filter_map(Tracked::reclaim)
    }

    /// The conditions that were observed within the transition period (upstream `nodeConditionsObservedSince`).
    fn conditions(&self, now_ns: u64) -> Conditions {
        let mut conditions = Conditions::default();
        for condition in NodeCondition::ALL {
            let last = self.conditions.get(condition as usize).copied().flatten();
            // Even without a transition period the node has the conditions observed now.
            if last.is_some_and(|last| last == now_ns || now_ns.saturating_sub(last) < self.transition_ns) {
                conditions.insert(condition);
            }
        }
        conditions
    }
}

#[cfg(test)]
mod tests;
