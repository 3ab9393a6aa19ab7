//! The order of the candidates, and which are excluded from it.
use super::{
    CandidateIndex, Engine, Excluded, Ranked, Reading, Resource,
    candidates::{Rules, Slot},
};
use crate::threshold::Signal;

/// The order of eviction at one moment.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Ranking {
    /// The candidates that may be evicted, first the first victim.
    pub order: Vec<Ranked>,
    /// The others, in the order of the candidates.
    pub excluded: Vec<Excluded>,
}

/// Sorts the first victim to the front.
pub(super) fn sort(order: &mut [Ranked]) {
    order.sort_unstable_by(|left, right| left.compare(right).0);
}

impl Engine {
    /// Takes one reading per candidate, in their order, and ranks as a decision at that time would. Decides nothing. What a dry
    /// run has chosen is ranked again, as it is still there.
    pub fn rank(&mut self, now_ns: u64, signal: Signal, readings: &[Reading]) -> Ranking {
        self.candidates.take_readings(now_ns, readings);
        self.candidates.forget_chosen();
        let mut order: Vec<_> = self.eligible(now_ns, signal).collect();
        sort(&mut order);
        Ranking { order, excluded: self.left_out(now_ns, signal).collect() }
    }

    pub(super) fn rules(&self, signal: Signal) -> Rules {
        Rules {
            signal,
            evict_within_request: self.settings.evict_within_request,
            await_terminating: self.awaits_others(),
        }
    }

    /// The candidates that may be evicted for a shortage of this, with their keys, unsorted.
    pub(super) fn eligible(&self, now_ns: u64, signal: Signal) -> impl Iterator<Item = Ranked> {
        let (rules, resource) = (self.rules(signal), Resource::or_memory(signal));
        let may_go = move |(index, slot): (usize, &Slot)| {
            slot.exclusion(now_ns, rules).is_none().then(|| slot.ranked(index, resource))
        };
        self.candidates.slots().filter_map(may_go)
    }

    /// The other candidates, and why.
    pub(super) fn left_out(&self, now_ns: u64, signal: Signal) -> impl Iterator<Item = Excluded> {
        let rules = self.rules(signal);
        self.candidates.slots().filter_map(move |(index, slot)| {
            let reason = slot.exclusion(now_ns, rules)?;
            Some(Excluded { index: CandidateIndex(index), cgroup: slot.facts.cgroup, reason })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::{CandidateFacts, Candidates, EngineSettings, Exclusion, PodKey, Usage},
        model::CgroupId,
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
            terminating: false,
            torn_down: false,
            in_kubepods: true,
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
        let reported = |ranking: Ranking| {
            let order: Vec<_> = ranking.order.iter().map(|ranked| ranked.cgroup.0).collect();
            let excluded: Vec<_> = ranking.excluded.iter().map(|one| (one.cgroup.0, one.reason)).collect();
            (order, excluded)
        };
        let excluded = vec![(3, Exclusion::Critical), (4, Exclusion::Protected), (5, Exclusion::Gone)];
        let by_memory = reported(engine.rank(1, Signal::MemoryAvailable, &readings));
        assert_eq!(by_memory, (vec![6, 1, 2], excluded.clone()));
        let by_pids = reported(engine.rank(2, Signal::PidAvailable, &readings));
        assert_eq!(by_pids, (vec![6, 2, 1], excluded));
    }
}
