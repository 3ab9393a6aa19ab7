//! The order in which candidates come, and who is left out of it.
use super::{Engine, Excluded, Ranked, Reading, Resource};

/// Who would be evicted before whom, as of one moment.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Standings {
    /// Those who may be evicted, the first of them first.
    pub order: Vec<Ranked>,
    /// Those who may not, in the order of the candidates.
    pub excluded: Vec<Excluded>,
}

/// Puts whoever is evicted first to the front.
pub(super) fn sort(order: &mut [Ranked]) {
    order.sort_unstable_by(|left, right| left.compare(right).0);
}

impl Engine {
    /// Takes these readings in, one for each candidate in their order, and ranks by them as a decision at that time would.
    /// Nothing is decided.
    pub fn rank(&mut self, now_ns: u64, resource: Resource, readings: &[Reading]) -> Standings {
        self.candidates.take_readings(now_ns, readings);
        let mut order: Vec<_> = self.eligible(now_ns, resource).collect();
        sort(&mut order);
        Standings { order, excluded: self.left_out(now_ns, resource).collect() }
    }

    /// Those who may be evicted for a shortage of this, with their keys, not in order yet.
    pub(super) fn eligible(&self, now_ns: u64, resource: Resource) -> impl Iterator<Item = Ranked> {
        let within = self.settings.evict_within_request;
        let may_go = move |(index, slot): (usize, &super::candidates::Slot)| {
            slot.exclusion(now_ns, resource, within).is_none().then(|| slot.ranked(index, resource))
        };
        self.candidates.slots().filter_map(may_go)
    }

    /// Those who may not, and why.
    pub(super) fn left_out(&self, now_ns: u64, resource: Resource) -> impl Iterator<Item = Excluded> {
        let within = self.settings.evict_within_request;
        self.candidates.slots().filter_map(move |(index, slot)| {
            let reason = slot.exclusion(now_ns, resource, within)?;
            Some(Excluded { index, cgroup: slot.facts.cgroup, reason })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::CgroupId,
        policy::engine::{CandidateFacts, Candidates, EngineSettings, Exclusion, PodKey, Usage},
    };

    fn facts(cgroup: u64, priority: i32) -> CandidateFacts {
        CandidateFacts {
            cgroup: CgroupId(cgroup),
            pod: PodKey { hash: cgroup },
            priority,
            request_bytes: 100,
            critical: cgroup == 3,
            protected: cgroup == 4,
            grace_period_ns: 0,
        }
    }

    #[test]
    fn readings_are_ranked_as_a_decision_would_and_who_may_not_go_is_reported() {
        let mut engine = Engine::new(&EngineSettings::default());
        let all = [facts(1, 5), facts(2, 0), facts(3, 0), facts(4, 0), facts(5, 0), facts(6, 0)];
        drop(engine.replace(Candidates::new(&all)));
        let using = |bytes| {
            let usage =
                Usage { working_set_bytes: bytes, process_count: Some(bytes / 50), ..Usage::default() };
            Reading::Usage(usage)
        };
        let readings = [using(900), using(50), using(1_000), using(1_000), Reading::Gone, Reading::Missing];
        let reported = |standings: Standings| {
            let order: Vec<_> = standings.order.iter().map(|ranked| ranked.cgroup.0).collect();
            let excluded: Vec<_> = standings.excluded.iter().map(|one| (one.cgroup.0, one.reason)).collect();
            (order, excluded)
        };
        let excluded = vec![(3, Exclusion::Critical), (4, Exclusion::Protected), (5, Exclusion::Gone)];
        let by_memory = reported(engine.rank(1, Resource::Memory, &readings));
        assert_eq!(by_memory, (vec![6, 1, 2], excluded.clone()));
        let by_pids = reported(engine.rank(2, Resource::Pids, &readings));
        assert_eq!(by_pids, (vec![6, 2, 1], excluded));
    }
}
