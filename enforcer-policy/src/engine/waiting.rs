//! Explains an engine that evicts no pod, for readers of a replay.

use super::{Engine, Mode};
use crate::{model::CgroupId, pressure::Reclaim, threshold::Threshold};

/// Why no victim is being chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Waiting {
    /// The mode is `observe`.
    Observes,
    /// No threshold is met.
    NotShort,
    /// This threshold is met, but not yet for its grace period.
    Grace(Threshold),
    /// A victim may still hold processes.
    Victim(CgroupId),
    /// The memory that the last victim still releases suffices.
    GivingBack(CgroupId),
    /// The memory that terminating pods are releasing suffices, or that of dead victims' volumes.
    Terminating,
    /// A decision was tried just now; the next try waits a moment.
    Pause,
    /// Nothing prevents it: the engine waits for readings, or there is no candidate.
    Nothing,
}

impl Engine {
    /// Why no victim is being chosen, as of the last sample.
    #[must_use]
    pub fn waiting(&self, now_ns: u64) -> Waiting {
        if self.mode == Mode::Observe {
            return Waiting::Observes;
        }
        let Some(reclaim) = self.pressure.due().next() else {
            let met = self.pressure.thresholds().find(|tracked| tracked.since_ns.is_some());
            return met.map_or(Waiting::NotShort, |tracked| Waiting::Grace(tracked.threshold));
        };
        if let Some(victim) = self.victim {
            if victim.is_alive() {
                return Waiting::Victim(victim.cgroup);
            }
            let suffices = |reclaim: Reclaim| {
                let credit = victim.credit_for(reclaim.threshold.signal);
                reclaim.available.saturating_add(credit) >= reclaim.target
            };
            if suffices(reclaim) {
                return Waiting::GivingBack(victim.cgroup);
            }
        }
        if self.waits_for_others(now_ns) {
            return Waiting::Terminating;
        }
        if self.may_decide(now_ns).is_none() { Waiting::Pause } else { Waiting::Nothing }
    }
}
