//! The evictions whose pods the API server is still to remove.

use std::time::Instant;

use super::{
    super::message::{Action, PodRef},
    Entry, Now, Outbox, Stage,
};
use crate::model::CgroupId;

/// An eviction whose pod the API server is to remove and has not removed yet: until then the kubelet may start its
/// containers again.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OpenEviction {
    /// The eviction's id.
    pub id: String,
    /// The pod.
    pub pod: PodRef,
    /// How far its removal is.
    pub removal: Removal,
    /// When it was killed last, in milliseconds of `CLOCK_BOOTTIME`; `None` if that is not known. Kills of containers that were
    /// started again do not count.
    pub killed_ms: Option<u64>,
    /// How often containers of it were killed again, as far as the journal says.
    pub repeats: u32,
    /// The containers' cgroups of the last time, if an earlier process reported it: it may have ended before it killed them.
    pub unsure: Vec<CgroupId>,
    /// When it is given up.
    pub expiry: Instant,
}

/// How far a pod's removal is at the API server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Removal {
    /// The API server removes the pod.
    Accepted,
    /// It is being asked, and has not refused.
    Asked,
    /// It could not be asked, or it refused: it is asked again.
    Waiting,
}

impl Outbox {
    /// The evictions whose pods are to be removed and are not gone. One that only has a status set, or for which nothing is
    /// asked, is not among them, nor one of which that is not known yet, nor a soft one that the kubelet ends within its grace
    /// period.
    #[must_use]
    pub fn open(&self, now: Now) -> Vec<OpenEviction> {
        let removes = |entry: &Entry| {
            let action = entry.owner.and_then(|owner| self.settings.action(owner));
            matches!(action, Some(Action::Evict | Action::Delete))
        };
        let open = self.entries.iter().filter_map(|(id, entry)| {
            let removal = match entry.stage {
                Stage::Confirm if entry.is_marked_failed || !entry.is_killed => return None,
                Stage::Confirm => Removal::Accepted,
                Stage::Look | Stage::Act(_) if !removes(entry) => return None,
                Stage::Look | Stage::Act(_) if entry.failures == 0 => Removal::Asked,
                Stage::Look | Stage::Act(_) => Removal::Waiting,
            };
            let (pod, repeats, expiry) = (entry.pod.clone(), entry.repeats, entry.expiry);
            let (killed_ms, unsure) = (entry.killed_ms, entry.unsure.clone());
            (now.instant < expiry).then(|| OpenEviction {
                id: id.clone(),
                pod,
                removal,
                killed_ms,
                repeats,
                unsure,
                expiry,
            })
        });
        open.collect()
    }
}

#[cfg(test)]
mod tests;
