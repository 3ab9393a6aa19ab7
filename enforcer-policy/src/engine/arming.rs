//! Which thresholds evict: a typo in one must not empty the node.
//!
//! A threshold that is crossed when it is first measured after loading says nothing about the node: it may have a wrong
//! digit. It decides as in dry-run until as much as it demands was available once, or an operator arms it. An unchanged
//! threshold stays armed, also over a restart.

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use super::{Action, Actions, Engine, MAX_THRESHOLDS, NodeSample, Reading, Resource, Thresholds, push};
use crate::{pressure::Reclaim, threshold::Signal, threshold::Threshold};

/// Whether a threshold evicts.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub(super) enum Arm {
    /// It was loaded, and its signal has not been measured since.
    #[default]
    Loaded,
    /// It was crossed when its signal was first measured, and has been since.
    Unarmed,
    /// It evicts.
    Armed,
}

/// The state of one threshold after a sample.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own: none excludes another")]
pub(super) struct Sight {
    /// Whether its signal was measured.
    pub(super) is_measured: bool,
    pub(super) is_met: bool,
    /// Whether it was met at the sample before.
    pub(super) was_met: bool,
    /// Whether a configuration has lowered the capacity of its signal since the sample before.
    pub(super) is_lowered: bool,
}

impl Arm {
    fn after(self, sight: Sight) -> Self {
        let Sight { is_measured, is_met, was_met, is_lowered } = sight;
        match self {
            _ if !is_measured => self,
            Self::Loaded if is_met => Self::Unarmed,
            Self::Armed if is_met && !was_met && is_lowered => Self::Unarmed,
            Self::Unarmed if is_met => self,
            Self::Loaded | Self::Unarmed | Self::Armed => Self::Armed,
        }
    }
}

/// Which thresholds evict, in the order of the settings.
#[derive(Clone, Copy, Debug, Default, Deserialize, Schema, Serialize)]
pub(super) struct Arms {
    of: [Arm; MAX_THRESHOLDS],
    /// Until when each is ignored: it was decided on, and that only reported, or it cannot be reached.
    quiet_until_ns: [u64; MAX_THRESHOLDS],
    /// The limit of all pods together, as last measured.
    limit_bytes: u64,
    /// Whether the set of armed thresholds has changed since it was reported.
    is_new: bool,
}

impl Arms {
    /// Switches to other thresholds; those that stay remain armed or unarmed.
    pub(super) fn inherit(&mut self, before: &Thresholds, after: &Thresholds) {
        let known = *self;
        *self = Self {
            limit_bytes: known.limit_bytes,
            is_new: known.is_new || before != after,
            ..Self::default()
        };
        for (threshold, arm) in after.iter().zip(&mut self.of) {
            if let Some(place) = before.iter().position(|other| other == threshold) {
                *arm = known.of.get(place).copied().unwrap_or_default();
            }
        }
    }

    /// Whether the pods' limit was lowered since the sample before.
    pub(super) fn is_lowered(&mut self, node: &NodeSample) -> bool {
        let Some(level) = node.allocatable else { return false };
        level.capacity < std::mem::replace(&mut self.limit_bytes, level.capacity)
    }

    pub(super) fn look(&mut self, place: usize, sight: Sight) {
        let (Some(arm), Some(quiet_until_ns)) = (self.of.get_mut(place), self.quiet_until_ns.get_mut(place))
        else {
            return;
        };
        let after = arm.after(sight);
        if after != *arm {
            *arm = after;
            // Decisions that were only reported are carried out from now on.
            *quiet_until_ns = 0;
            self.is_new = true;
        }
    }
}

impl Engine {
    /// Restores which thresholds an earlier process had armed; called before anything else.
    pub fn remember_armed(&mut self, was_armed: impl Fn(&Threshold) -> bool) {
        for (threshold, arm) in self.settings.thresholds.iter().zip(&mut self.arms.of) {
            if was_armed(threshold) {
                *arm = Arm::Armed;
            }
        }
        self.arms.is_new = true;
    }

    /// Arms the loaded thresholds that were not measured yet: for an engine that must treat its thresholds as
    /// unchanged.
    pub(crate) fn arm_loaded(&mut self) {
        for arm in self.arms.of.iter_mut().filter(|arm| **arm == Arm::Loaded) {
            *arm = Arm::Armed;
        }
    }

    /// Arms all thresholds at an operator's order.
    pub(super) fn arm(&mut self, actions: &mut Actions) {
        self.arms.of = [Arm::Armed; MAX_THRESHOLDS];
        self.forget_reported();
        self.arms.is_new = true;
        self.report_arming(actions);
    }

    /// The thresholds that evict.
    #[must_use]
    pub fn armed(&self) -> Thresholds {
        self.thresholds_that_are(Arm::Armed)
    }

    /// The thresholds that were crossed when they were loaded, and decide without evicting.
    #[must_use]
    pub fn unarmed(&self) -> Thresholds {
        self.thresholds_that_are(Arm::Unarmed)
    }

    fn thresholds_that_are(&self, which: Arm) -> Thresholds {
        let mut thresholds = Thresholds::new();
        for (threshold, _) in
            self.settings.thresholds.iter().zip(&self.arms.of).filter(|(_, arm)| **arm == which)
        {
            push(&mut thresholds, *threshold);
        }
        thresholds
    }

    pub(super) fn is_armed(&self, threshold: &Threshold) -> bool {
        self.place(threshold).and_then(|place| self.arms.of.get(place)) == Some(&Arm::Armed)
    }

    fn place(&self, threshold: &Threshold) -> Option<usize> {
        self.settings.thresholds.iter().position(|other| other == threshold)
    }

    /// Whether it is ignored for now.
    pub(super) fn is_quiet(&self, threshold: &Threshold, now_ns: u64) -> bool {
        let until_ns = self.place(threshold).and_then(|place| self.arms.quiet_until_ns.get(place));
        until_ns.is_some_and(|until_ns| now_ns < *until_ns)
    }

    /// Ends all pauses: what was only reported neither delays nor changes another decision.
    pub(super) fn forget_reported(&mut self) {
        self.arms.quiet_until_ns = [0; MAX_THRESHOLDS];
        self.candidates.forget_chosen();
    }

    /// Ignores it until then.
    pub(super) fn quiet(&mut self, threshold: &Threshold, until_ns: u64) {
        if let Some(quiet) = self.place(threshold).and_then(|place| self.arms.quiet_until_ns.get_mut(place)) {
            *quiet = until_ns;
        }
    }

    pub(super) fn report_arming(&mut self, actions: &mut Actions) {
        if std::mem::take(&mut self.arms.is_new) {
            push(actions, Action::Arming);
        }
    }

    /// Whether the demanded amount cannot be reached by the latest readings even if every candidate is evicted: then no
    /// pod is killed in vain. The demanded amount is the threshold, or its minimum reclaim once the threshold itself is
    /// available.
    pub(super) fn is_out_of_reach(&self, now_ns: u64, reclaim: &Reclaim) -> bool {
        let Some(resource) = Resource::of(reclaim.threshold.signal) else { return true };
        let goal = if reclaim.available < reclaim.amount { reclaim.amount } else { reclaim.target };
        let mut within_reach = reclaim.available.saturating_add(self.coming(now_ns, reclaim));
        for (_, slot) in self.candidates.slots() {
            let is_counted = slot.is_chosen(now_ns)
                || resource == Resource::Memory && slot.is_releasing(now_ns) && self.awaits_others();
            let may_help = slot.facts.counts_for(reclaim.threshold.signal) && !slot.reading.is_empty();
            if slot.facts.critical || slot.facts.protected || !may_help || is_counted {
                continue;
            }
            within_reach = within_reach.saturating_add(match (resource, &slot.reading) {
                // A usage that could not be read may be enough.
                (_, Reading::Missing) => return false,
                // An upper bound: shared memory and kernel memory are charged too, and may come back.
                (Resource::Memory, Reading::Usage(usage)) => {
                    usage.current_bytes.max(usage.working_set_bytes).max(usage.freed_by_death_bytes())
                }
                // What is not counted is not evicted for.
                (Resource::Memory, Reading::Gone | Reading::Uncounted { .. }) => 0,
                (Resource::Pids, reading) => reading.process_count().unwrap_or(0),
            });
        }
        within_reach < goal
    }
}

/// Whether the signal's capacity is the pods' limit.
pub(super) fn is_of_pods(signal: Signal) -> bool {
    signal == Signal::AllocatableMemoryAvailable
}
