//! Which thresholds are met, since when, and what follows: `synchronize` of
//! `pkg/kubelet/eviction/eviction_manager.go`, from the observations to the threshold that is acted on.
//!
//! Time comes in as a value. Nothing is allocated after [`Pressure::new`].

use super::{
    EvictionSettings,
    threshold::{NodeCondition, Signal, Threshold},
};

const MS: u64 = 1_000_000;

/// The grace period of a hard eviction in seconds (upstream `immediateEvictionGracePeriodSeconds`).
pub const HARD_GRACE_PERIOD_SECONDS: u64 = 1;

/// What a signal measures at one moment, in base units.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Observation {
    /// How much there is left.
    pub available: u64,
    /// How much there is in all; percentages are of this.
    pub capacity: u64,
    /// When it was measured, in nanoseconds of any clock that never goes back; none if that is not known. What was not
    /// measured anew since the last look is not acted on again.
    pub measured_ns: Option<u64>,
}

/// What all signals measure at one moment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Observations([Option<Observation>; Signal::ALL.len()]);

impl Observations {
    /// Takes one in.
    pub fn set(&mut self, signal: Signal, observation: Observation) {
        if let Some(slot) = self.0.get_mut(signal as usize) {
            *slot = Some(observation);
        }
    }

    /// What a signal measures; none if it was not observed.
    #[must_use]
    pub fn get(&self, signal: Signal) -> Option<Observation> {
        self.0.get(signal as usize).copied().flatten()
    }
}

/// A set of node conditions.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Conditions([bool; NodeCondition::ALL.len()]);

impl Conditions {
    /// Whether the node has it.
    #[must_use]
    pub fn has(self, condition: NodeCondition) -> bool {
        self.0.get(condition as usize).copied().unwrap_or(false)
    }

    /// Those that the node has.
    pub fn iter(self) -> impl Iterator<Item = NodeCondition> {
        NodeCondition::ALL.into_iter().filter(move |condition| self.has(*condition))
    }

    fn insert(&mut self, condition: NodeCondition) {
        if let Some(slot) = self.0.get_mut(condition as usize) {
            *slot = true;
        }
    }
}

/// What one look gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// The conditions that the node has, which outlast their thresholds by the transition period.
    pub conditions: Conditions,
    /// What is acted on now: a threshold that has been met for its grace period; none if there is nothing to do.
    pub reclaim: Option<Reclaim>,
}

/// The threshold that is acted on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reclaim {
    /// The threshold.
    pub threshold: Threshold,
    /// Its value in base units.
    pub amount: u64,
    /// What was available.
    pub available: u64,
}

impl Reclaim {
    /// How long the victim is given, in seconds: 1 for a hard threshold, else the smaller of what the administrator and
    /// the pod allow.
    #[must_use]
    pub fn grace_period_seconds(&self, settings: &EvictionSettings, pod_seconds: u64) -> u64 {
        if self.threshold.is_hard() {
            HARD_GRACE_PERIOD_SECONDS
        } else {
            settings.max_pod_grace_period_seconds.min(pod_seconds)
        }
    }
}

/// The thresholds and what is known of each, from one look to the next.
#[derive(Clone, Debug)]
pub struct Pressure {
    thresholds: Vec<Tracked>,
    transition_ns: u64,
    last: Observations,
    /// When each condition was last observed.
    conditions: [Option<u64>; NodeCondition::ALL.len()],
}

#[derive(Clone, Copy, Debug)]
struct Tracked {
    threshold: Threshold,
    /// Since when it has been met; none while it is not.
    since_ns: Option<u64>,
    /// Whether its grace period had passed at the last look: then it stays met until its minimum reclaim is there.
    acted_on: bool,
}

impl Tracked {
    /// Whether it is met: strictly less is available than its value, and once it was acted on, than that and the minimum
    /// reclaim (upstream `thresholdsMet`). What was not observed is not met.
    fn is_met(&self, observation: Option<Observation>) -> bool {
        let Some(Observation { available, capacity, measured_ns: _ }) = observation else { return false };
        let reclaim = self.threshold.min_reclaim.filter(|_| self.acted_on);
        let value = self.threshold.value.amount(capacity);
        available < value.saturating_add(reclaim.map_or(0, |reclaim| reclaim.amount(capacity)))
    }

    fn grace_passed(&self, now_ns: u64) -> bool {
        let grace_ns = self.threshold.grace_period_ms.saturating_mul(MS);
        self.since_ns.is_some_and(|since_ns| now_ns.saturating_sub(since_ns) >= grace_ns)
    }
}

impl Pressure {
    /// Begins, with nothing observed.
    #[must_use]
    pub fn new(settings: &EvictionSettings) -> Self {
        let tracked = |&threshold: &Threshold| Tracked { threshold, since_ns: None, acted_on: false };
        Self {
            thresholds: settings.thresholds.iter().map(tracked).collect(),
            transition_ns: settings.pressure_transition_period_ms.saturating_mul(MS),
            last: Observations::default(),
            conditions: [None; NodeCondition::ALL.len()],
        }
    }

    /// Takes in what is observed now. `now_ns` never goes back; where it does, no time has passed.
    pub fn observe(&mut self, now_ns: u64, observations: &Observations) -> Verdict {
        for tracked in &mut self.thresholds {
            let met = tracked.is_met(observations.get(tracked.threshold.signal));
            tracked.since_ns = if met { tracked.since_ns.or(Some(now_ns)) } else { None };
            tracked.acted_on = met && tracked.grace_passed(now_ns);
            if met && let Some(last) = self.conditions.get_mut(tracked.threshold.signal.condition() as usize)
            {
                *last = Some(now_ns);
            }
        }
        let verdict = Verdict { conditions: self.conditions(now_ns), reclaim: self.reclaim(observations) };
        self.last = *observations;
        verdict
    }

    /// The conditions that were observed within the transition period (upstream `nodeConditionsObservedSince`).
    fn conditions(&self, now_ns: u64) -> Conditions {
        let mut conditions = Conditions::default();
        for condition in NodeCondition::ALL {
            let last = self.conditions.get(condition as usize).copied().flatten();
            // Even without a transition period the node has what is observed right now.
            if last.is_some_and(|last| last == now_ns || now_ns.saturating_sub(last) < self.transition_ns) {
                conditions.insert(condition);
            }
        }
        conditions
    }

    /// The first threshold whose grace period has passed and that was measured anew, memory before all others (upstream
    /// `thresholdsUpdatedStats`, `byEvictionPriority`, `getReclaimableThreshold`).
    fn reclaim(&self, observations: &Observations) -> Option<Reclaim> {
        let is_due =
            |tracked: &&Tracked| tracked.acted_on && self.is_new(tracked.threshold.signal, observations);
        let is_memory = |tracked: &&Tracked| {
            matches!(tracked.threshold.signal, Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable)
        };
        let due = || self.thresholds.iter().filter(is_due);
        let Tracked { threshold, .. } = *due().find(is_memory).or_else(|| due().next())?;
        let Observation { available, capacity, .. } = observations.get(threshold.signal)?;
        Some(Reclaim { threshold, amount: threshold.value.amount(capacity), available })
    }

    fn is_new(&self, signal: Signal, observations: &Observations) -> bool {
        let measured = observations.get(signal).and_then(|observation| observation.measured_ns);
        match (self.last.get(signal), measured) {
            (None, _) | (Some(_), None) => true,
            (Some(last), Some(measured_ns)) => last.measured_ns.is_none_or(|last_ns| measured_ns > last_ns),
        }
    }
}

#[cfg(test)]
mod tests;
