//! Kills that are reported from counters alone.
use std::collections::BTreeMap;

use ulid::Ulid;

use super::{
    Detected, Incident, OomCounts, Output, Reconciliation, Timeline, World,
    ledger::{Claim, Ledger, Seen},
    scene,
};
use crate::{model::CgroupId, sense::record::Limited};

/// A cgroup with counted kills that no record explains; its counters and those above it are being read again.
#[derive(Clone, Debug)]
pub(super) struct Rebuilding {
    pub(super) id: Ulid,
    pub(super) cgroup: CgroupId,
    /// The reading that shows them. Later readings may show kills whose records are still to come.
    pub(super) seen: Seen,
}

impl Rebuilding {
    /// Reports the kills that are still unexplained. `bound` is the reading up to which the cgroup is reported. Returns
    /// its latest reading, which the caller takes again.
    pub(super) fn emit(
        &self,
        bound: Seen,
        readings: &BTreeMap<CgroupId, Option<OomCounts>>,
        ledger: &mut Ledger,
        world: &impl World,
        out: &mut Vec<Output>,
    ) -> Option<Seen> {
        let (Claim { before, moved }, latest) = ledger.rebuild(self.cgroup, bound);
        if moved.oom_kill == 0 {
            return latest;
        }
        let limit = self.limit(moved, readings, ledger, world);
        let above =
            limit.is_some_and(|limit| limit != Limited::Cgroup(self.cgroup) && limit != Limited::Machine);
        let counters = OomCounts { oom: if above { 1 } else { moved.oom }, ..moved };
        let (scope, limit_owner) = scene::scope(limit, world);
        let place = scene::place(Some(self.cgroup), world);
        out.push(Output::Detected(Detected {
            incident_id: self.id,
            scope,
            limit_owner: limit_owner.clone(),
            trigger: None,
            victim: None,
            place: Some(place.clone()),
            reconstructed: true,
        }));
        out.push(Output::Incident(Incident {
            incident_id: self.id,
            scope,
            limit_owner,
            limit_source: scene::source(false, limit),
            trigger: None,
            place: Some(place),
            kills: moved.oom_kill,
            victims: Vec::new(),
            timeline_ms: Timeline::default(),
            counters,
            counters_before: before,
            counters_after: before.plus(moved),
            reconciled: true,
            reconciliation: Reconciliation::Matched,
            reconstructed: true,
        }));
        latest
    }

    /// The limit owner by the counter that moved; the machine if all could be compared and none moved. `None` if other
    /// incidents took the movement.
    fn limit(
        &self,
        moved: OomCounts,
        readings: &BTreeMap<CgroupId, Option<OomCounts>>,
        ledger: &mut Ledger,
        world: &impl World,
    ) -> Option<Limited> {
        if moved.oom > 0 {
            return Some(Limited::Cgroup(self.cgroup));
        }
        let mut comparable = !ledger.was_taken(self.cgroup, self.seen.at_ns);
        for above in scene::ancestors(self.cgroup, world) {
            match readings.get(&above).copied().flatten() {
                Some(counts) if ledger.knows(above) => {
                    if ledger.hit(above, counts, self.seen.at_ns) {
                        return Some(Limited::Cgroup(above));
                    }
                    comparable &= !ledger.was_taken(above, self.seen.at_ns);
                }
                // The root has neither the file nor a limit.
                Some(_) | None => comparable &= world.parent(above).is_none(),
            }
        }
        comparable.then_some(Limited::Machine)
    }
}
