use super::{Engine, Mode, Resource};
use crate::{
    model::CgroupId,
    policy::{pressure::Reclaim, threshold::Threshold},
};

/// Why nobody is being chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Waiting {
    /// It only observes.
    Observes,
    /// No threshold is met.
    NotShort,
    /// This threshold is met, and not yet for its grace period.
    Grace(Threshold),
    /// A victim may still hold processes.
    Victim(CgroupId),
    /// What the last victim is still giving back suffices.
    GivingBack(CgroupId),
    /// It was tried just now, and waits a moment.
    Pause,
    /// Nothing holds it: it wants readings, or has nobody to choose from.
    Nothing,
}

impl Engine {
    /// Why nobody is being chosen, as of the last look.
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
                let credit = Resource::of(reclaim.threshold.signal).map_or(0, |of| victim.credit(of));
                reclaim.available.saturating_add(credit) >= reclaim.target
            };
            if suffices(reclaim) {
                return Waiting::GivingBack(victim.cgroup);
            }
        }
        if self.may_decide(now_ns).is_none() { Waiting::Pause } else { Waiting::Nothing }
    }
}
