//! What the engine keeps of each pod that it may evict, from one sample to the next.

use postcard_schema::{Schema, schema::NamedType};
use serde::{Deserialize, Serialize, Serializer, ser::SerializeStruct as _};

use super::{
    action::{CandidateIndex, Exclusion, RankKey, Ranked},
    input::{CandidateFacts, Reading, Usage},
    settings::Resource,
    terminating::Release,
};
use crate::{
    few::Few,
    model::CgroupId,
    rank::{MemoryRankKey, PidRankKey},
    threshold::Signal,
};

/// Passed over until all are [forgiven](Candidates::forgive), or the cgroup is seen without a process.
pub(super) const UNTIL_FORGIVEN: u64 = u64::MAX;

/// How many cgroups to pass over are remembered while they are no candidates. Further ones are tried again when they
/// come back.
const MOST_AWAY: usize = 16;

/// The shortest interval between two readings that growth is computed from.
const GROWTH_SPAN_NS: u64 = 50_000_000;

/// For how long a reading replaces one that fails, as the kubelet's stats do (they are up to 10 s old). Otherwise a pod
/// would rank first, as one without stats, because the kernel had no memory for the answer.
const KEEP_NS: u64 = 10_000_000_000;

/// A reading stays the baseline of growth at least this long.
const BASELINE_NS: u64 = 500_000_000;

/// The candidates, and the memory that deciding among them needs: built where allocation is allowed, used where it is
/// not.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "Recorded")]
pub struct Candidates {
    slots: Vec<Slot>,
    /// Indexes of the slots, ordered by cgroup.
    by_cgroup: Vec<usize>,
    /// The candidates not tried yet, ranked by the latest readings; empty before the first ranking.
    pub(super) order: Vec<Ranked>,
    /// Cgroups that are passed over until all are forgiven, and are no candidates now.
    away: Few<CgroupId, MOST_AWAY>,
}

#[derive(Clone, Copy, Debug, Deserialize, Schema, Serialize)]
pub(super) struct Slot {
    pub(super) facts: CandidateFacts,
    pub(super) reading: Reading,
    /// Passed over until then.
    passed_over_until_ns: u64,
    /// Chosen by a dry run, and taken for dead until then: in earnest the next decisions would be made without it.
    chosen_until_ns: u64,
    pub(super) growth_bytes_per_second: i64,
    /// When `reading` was read.
    pub(super) read_ns: u64,
    baseline: Option<(u64, u64)>,
    /// Its memory since it is terminating.
    pub(super) release: Option<Release>,
}

/// What spares candidates besides themselves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// The signal that is short: its memory must count for that.
    pub(super) signal: Signal,
    /// Whether pods within their request may be evicted.
    pub(super) evict_within_request: bool,
    /// Whether there is time to await terminating pods.
    pub(super) await_terminating: bool,
}

impl Candidates {
    /// Prepares for these candidates; their order is kept.
    #[must_use]
    pub fn new(facts: &[CandidateFacts]) -> Self {
        let slot = |facts: &CandidateFacts| Slot {
            facts: *facts,
            reading: Reading::Missing,
            passed_over_until_ns: 0,
            chosen_until_ns: 0,
            growth_bytes_per_second: 0,
            read_ns: 0,
            baseline: None,
            release: None,
        };
        let slots: Vec<_> = facts.iter().map(slot).collect();
        let by_cgroup = by_cgroup(&slots);
        let order = Vec::with_capacity(slots.len());
        Self { slots, by_cgroup, order, away: Few::new() }
    }

    /// The number of candidates.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is no candidate.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Each candidate with its latest reading, in their order.
    pub fn known(&self) -> impl Iterator<Item = (&CandidateFacts, &Reading)> {
        self.slots.iter().map(|slot| (&slot.facts, &slot.reading))
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = (usize, &Slot)> {
        self.slots.iter().enumerate()
    }

    pub(super) fn slot(&self, index: usize) -> Option<&Slot> {
        self.slots.get(index)
    }

    /// Takes over the state of the candidates that were there before.
    pub(super) fn inherit(&mut self, before: &Self) {
        for slot in &mut self.slots {
            if let Some(known) = before.find(slot.facts.cgroup).and_then(|index| before.slot(index)) {
                *slot = Slot { facts: slot.facts, ..*known };
            }
        }
        for cgroup in before.away.iter() {
            self.pass_over(*cgroup, UNTIL_FORGIVEN);
        }
        for slot in before.slots.iter().filter(|slot| slot.passed_over_until_ns == UNTIL_FORGIVEN) {
            if self.find(slot.facts.cgroup).is_none() {
                self.pass_over(slot.facts.cgroup, UNTIL_FORGIVEN);
            }
        }
    }

    /// How many may hold processes, as far as is known.
    pub(super) fn alive(&self) -> usize {
        self.slots.iter().filter(|slot| !slot.reading.is_empty()).count()
    }

    pub(super) fn find(&self, cgroup: CgroupId) -> Option<usize> {
        let id = |index: &usize| self.slots.get(*index).map(|slot| slot.facts.cgroup);
        let place = self.by_cgroup.binary_search_by_key(&Some(cgroup), id).ok()?;
        self.by_cgroup.get(place).copied()
    }

    /// Passes it over until then, or until all are [forgiven](Self::forgive), or it is seen without a process.
    pub(super) fn pass_over(&mut self, cgroup: CgroupId, until_ns: u64) {
        if let Some(slot) = self.find(cgroup).and_then(|index| self.slots.get_mut(index)) {
            slot.passed_over_until_ns = until_ns;
        } else if until_ns == UNTIL_FORGIVEN && !self.away.iter().any(|away| *away == cgroup) {
            let _fits = self.away.push(cgroup);
        }
    }

    pub(super) fn forgive(&mut self) {
        self.away = Few::new();
        for slot in &mut self.slots {
            slot.passed_over_until_ns = 0;
        }
    }

    /// Takes it for dead until then.
    pub(super) fn choose(&mut self, index: CandidateIndex, until_ns: u64) {
        if let Some(slot) = self.slots.get_mut(index.0) {
            slot.chosen_until_ns = until_ns;
        }
    }

    pub(super) fn forget_chosen(&mut self) {
        for slot in &mut self.slots {
            slot.chosen_until_ns = 0;
        }
    }

    pub(super) fn take_readings(&mut self, now_ns: u64, readings: &[Reading]) {
        // The order was made from older readings.
        self.order.clear();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            slot.take_in(now_ns, readings.get(index).copied().unwrap_or(Reading::Missing));
        }
    }
}

fn by_cgroup(slots: &[Slot]) -> Vec<usize> {
    let mut by_cgroup: Vec<_> = (0..slots.len()).collect();
    by_cgroup.sort_by_key(|index| slots.get(*index).map(|slot| slot.facts.cgroup));
    by_cgroup
}

impl Slot {
    fn take_in(&mut self, now_ns: u64, reading: Reading) {
        if reading.is_empty() {
            // A process that starts in it later is a new one; it is a candidate like any other.
            self.passed_over_until_ns = 0;
        }
        let known = self.reading.usage().is_some() && now_ns.saturating_sub(self.read_ns) < KEEP_NS;
        if reading != Reading::Missing || !known {
            self.reading = reading;
            self.read_ns = now_ns;
        }
        self.watch_release(now_ns);
        let Some(usage) = reading.usage() else {
            self.baseline = None;
            self.growth_bytes_per_second = 0;
            return;
        };
        let Some((since_ns, before_bytes)) = self.baseline else {
            self.baseline = Some((now_ns, usage.working_set_bytes));
            return;
        };
        let span_ns = now_ns.saturating_sub(since_ns);
        if span_ns >= GROWTH_SPAN_NS {
            let grown = i128::from(usage.working_set_bytes) - i128::from(before_bytes);
            let a_second = grown * 1_000_000_000 / i128::from(span_ns);
            let bound = if a_second < 0 { i64::MIN } else { i64::MAX };
            self.growth_bytes_per_second = i64::try_from(a_second).unwrap_or(bound);
        }
        if span_ns >= BASELINE_NS {
            self.baseline = Some((now_ns, usage.working_set_bytes));
        }
    }

    fn watch_release(&mut self, now_ns: u64) {
        if !self.facts.terminating {
            // An end that came to nothing says nothing of a later one.
            self.release = None;
            return;
        }
        let bytes = self.reading.usage().map(Usage::freed_by_death_bytes);
        match (bytes, &mut self.release) {
            (Some(bytes), Some(release)) if self.read_ns == now_ns => release.look(now_ns, bytes),
            (Some(bytes), release @ None) => *release = Some(Release::new(now_ns, bytes)),
            (Some(_), Some(_)) | (None, _) => {}
        }
    }

    /// Whether a dry run has chosen it and takes it for dead.
    pub(super) fn is_chosen(&self, now_ns: u64) -> bool {
        now_ns < self.chosen_until_ns
    }

    /// Why it may not be evicted; `None` if it may.
    pub(super) fn exclusion(
        &self,
        now_ns: u64,
        Rules { signal, evict_within_request, await_terminating }: Rules,
    ) -> Option<Exclusion> {
        let resource = Resource::or_memory(signal);
        if self.facts.critical {
            return Some(Exclusion::Critical);
        }
        if self.facts.protected {
            return Some(Exclusion::Protected);
        }
        if !self.facts.counts_for(signal) {
            return Some(Exclusion::OutsideKubepods);
        }
        if now_ns < self.passed_over_until_ns {
            return Some(Exclusion::PassedOver);
        }
        if self.is_chosen(now_ns) {
            return Some(Exclusion::Chosen);
        }
        let usage = match self.reading {
            Reading::Gone => return Some(Exclusion::Gone),
            Reading::Missing => {
                // Its usage may be within its request.
                let may_be = resource == Resource::Memory && self.facts.request_bytes > 0;
                return (may_be && !evict_within_request).then_some(Exclusion::WithinRequest);
            }
            // An unknown usage evicts no pod.
            Reading::Uncounted { .. } if resource == Resource::Memory => {
                return Some(Exclusion::UsageUnknown);
            }
            Reading::Uncounted { process_count } => Usage { process_count, ..Usage::default() },
            Reading::Usage(usage) => usage,
        };
        match resource {
            Resource::Memory if await_terminating && self.is_releasing(now_ns) => {
                Some(Exclusion::Terminating)
            }
            Resource::Memory if usage.working_set_bytes == 0 => Some(Exclusion::Empty),
            Resource::Memory => {
                let within = usage.working_set_bytes <= self.facts.request_bytes;
                (within && !evict_within_request).then_some(Exclusion::WithinRequest)
            }
            Resource::Pids => match usage.process_count {
                Some(0) => Some(Exclusion::Empty),
                Some(_) => None,
                // Upstream `processUsage` takes it for 0, so that pods are evicted that may have no more than one.
                None => Some(Exclusion::UsageUnknown),
            },
        }
    }

    pub(super) fn ranked(&self, index: usize, resource: Resource) -> Ranked {
        let usage = self.reading.usage();
        let (priority, order) = (self.facts.priority, u32::try_from(index).unwrap_or(u32::MAX));
        let standing = match resource {
            Resource::Memory => RankKey::Memory(MemoryRankKey {
                usage_bytes: usage.map(|usage| usage.working_set_bytes),
                request_bytes: self.facts.request_bytes,
                priority,
                order,
            }),
            Resource::Pids => {
                RankKey::Pids(PidRankKey { process_count: self.reading.process_count(), priority, order })
            }
        };
        Ranked { index: CandidateIndex(index), cgroup: self.facts.cgroup, standing, read_ns: self.read_ns }
    }
}

/// What is recorded of [`Candidates`]: the order by cgroup follows from the slots.
#[derive(Deserialize, Schema)]
struct Recorded {
    slots: Vec<Slot>,
    order: Vec<Ranked>,
    away: Few<CgroupId, MOST_AWAY>,
}

impl Serialize for Candidates {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { slots, by_cgroup: _, order, away } = self;
        let mut recorded = serializer.serialize_struct("Recorded", 3)?;
        recorded.serialize_field("slots", slots)?;
        recorded.serialize_field("order", order)?;
        recorded.serialize_field("away", away)?;
        recorded.end()
    }
}

impl From<Recorded> for Candidates {
    fn from(Recorded { slots, order: recorded, away }: Recorded) -> Self {
        let by_cgroup = by_cgroup(&slots);
        let mut order = Vec::with_capacity(slots.len());
        order.extend(recorded);
        Self { slots, by_cgroup, order, away }
    }
}

impl Schema for Candidates {
    const SCHEMA: &'static NamedType = Recorded::SCHEMA;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{PodKey, Usage};

    fn facts(cgroup: u64) -> CandidateFacts {
        CandidateFacts {
            cgroup: CgroupId(cgroup),
            pod: PodKey { hash: cgroup },
            priority: 0,
            request_bytes: 0,
            critical: false,
            protected: false,
            grace_period_ns: 0,
            terminating: false,
            torn_down: false,
            in_kubepods: true,
        }
    }

    fn using(bytes: u64) -> Reading {
        Reading::Usage(Usage { working_set_bytes: bytes, ..Usage::default() })
    }

    #[test]
    fn a_new_set_keeps_what_was_learnt_of_the_same_cgroup() {
        let mut before = Candidates::new(&[facts(7), facts(3)]);
        before.pass_over(CgroupId(3), 2_000);
        before.take_readings(0, &[using(0), using(100)]);
        before.take_readings(1_000_000_000, &[using(0), using(300)]);
        let mut after = Candidates::new(&[facts(9), facts(3)]);
        after.inherit(&before);
        let (new, same) = (after.slot(0).unwrap(), after.slot(1).unwrap());
        assert_eq!((new.passed_over_until_ns, same.passed_over_until_ns), (0, 2_000));
        assert_eq!((new.growth_bytes_per_second, same.growth_bytes_per_second), (0, 200));
    }

    #[test]
    fn who_is_passed_over_comes_back_when_the_time_is_up_or_all_are_forgiven() {
        let mut candidates = Candidates::new(&[facts(3)]);
        let passed_over = |candidates: &Candidates, now_ns| {
            let signal = Signal::MemoryAvailable;
            let rules = Rules { signal, evict_within_request: true, await_terminating: true };
            let reason = candidates.slot(0).unwrap().exclusion(now_ns, rules);
            reason == Some(Exclusion::PassedOver)
        };
        candidates.pass_over(CgroupId(3), 100);
        assert!(passed_over(&candidates, 99) && !passed_over(&candidates, 100));
        candidates.pass_over(CgroupId(3), u64::MAX);
        assert!(passed_over(&candidates, u64::MAX - 1));
        candidates.forgive();
        assert!(!passed_over(&candidates, 0));
    }

    #[test]
    fn who_is_passed_over_is_so_wherever_it_was_meanwhile_until_it_is_seen_empty() {
        let is_passed_over = |candidates: &Candidates| {
            let slot = candidates.slot(candidates.find(CgroupId(3)).unwrap()).unwrap();
            slot.passed_over_until_ns == UNTIL_FORGIVEN
        };
        let after = |before: &Candidates, cgroup| {
            let mut after = Candidates::new(&[facts(cgroup)]);
            after.inherit(before);
            after
        };
        // It failed while it was a candidate, and while it was none.
        let mut was = Candidates::new(&[facts(3)]);
        was.pass_over(CgroupId(3), UNTIL_FORGIVEN);
        let mut was_not = Candidates::new(&[facts(7)]);
        was_not.pass_over(CgroupId(3), UNTIL_FORGIVEN);
        for before in [was, was_not] {
            let mut back = after(&after(&after(&before, 8), 9), 3);
            assert!(is_passed_over(&back));
            back.take_readings(0, &[using(100)]);
            assert!(is_passed_over(&back));
            let none_left = Usage { process_count: Some(0), ..Usage::default() };
            back.take_readings(1, &[Reading::Usage(none_left)]);
            back.take_readings(2, &[using(100)]);
            assert!(!is_passed_over(&back) && !is_passed_over(&after(&back, 3)), "filled again");
            let mut forgiven = after(&before, 8);
            forgiven.forgive();
            assert!(!is_passed_over(&after(&forgiven, 3)));
        }
        let mut many = Candidates::new(&[facts(1)]);
        for cgroup in 2..100 {
            many.pass_over(CgroupId(cgroup), UNTIL_FORGIVEN);
        }
        assert_eq!(many.away.len(), MOST_AWAY);
    }

    #[test]
    fn a_reading_that_fails_leaves_the_one_before_for_a_while() {
        let mut candidates = Candidates::new(&[facts(1)]);
        let reading = |candidates: &Candidates| candidates.slot(0).unwrap().reading;
        candidates.take_readings(5, &[using(100)]);
        candidates.take_readings(KEEP_NS + 4, &[Reading::Missing]);
        assert_eq!(reading(&candidates), using(100));
        candidates.take_readings(KEEP_NS + 5, &[Reading::Missing]);
        assert_eq!(reading(&candidates), Reading::Missing);
        candidates.take_readings(KEEP_NS + 6, &[using(1)]);
        candidates.take_readings(KEEP_NS + 7, &[Reading::Gone]);
        assert_eq!(reading(&candidates), Reading::Gone);
    }

    #[test]
    fn growth_is_measured_over_a_span_that_reports_something() {
        let mut candidates = Candidates::new(&[facts(1)]);
        let growth = |candidates: &Candidates| candidates.slot(0).unwrap().growth_bytes_per_second;
        candidates.take_readings(0, &[using(1_000)]);
        candidates.take_readings(GROWTH_SPAN_NS - 1, &[using(9_000)]);
        assert_eq!(growth(&candidates), 0);
        candidates.take_readings(100_000_000, &[using(2_000)]);
        assert_eq!(growth(&candidates), 10_000);
        candidates.take_readings(500_000_000, &[using(500)]);
        assert_eq!(growth(&candidates), -1_000);
        candidates.take_readings(600_000_000, &[Reading::Missing]);
        assert_eq!(growth(&candidates), 0);
    }
}
