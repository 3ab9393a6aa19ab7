//! What a recording holds, by time.

use std::collections::BTreeMap;

use super::{AtLeastOne, Here, OwnEnd, OwnEviction};
use crate::{
    engine::{
        Action, Actions, CandidateFacts, Completion, Decision, EngineSettings, HookPlan, NodeSample, Outcome,
        Reading, Shortage, Usage,
    },
    flight::{
        file::Recording,
        record::{Given, Record, Step},
    },
    model::CgroupId,
};

const MS: u64 = 1_000_000;

/// A pod with its readings.
#[derive(Clone, Debug)]
pub(super) struct Pod {
    pub(super) facts: CandidateFacts,
    /// Its usages with their times, in order.
    pub(super) readings: Vec<(u64, Usage)>,
    /// Since when it is known to hold no process.
    gone_ns: Option<u64>,
}

impl Pod {
    /// Whether it was known to hold no process then.
    pub(super) fn is_gone(&self, at_ns: u64) -> bool {
        self.gone_ns.is_some_and(|gone_ns| gone_ns <= at_ns)
    }
}

/// A decision that was recorded.
#[derive(Clone, Copy, Debug)]
struct Decided {
    decision: Decision,
    id: Option<u128>,
    end: Option<Ended>,
}

/// How an eviction that was carried out has ended.
#[derive(Clone, Copy, Debug)]
enum Ended {
    Over { at_ns: u64, freed_bytes: Option<u64> },
    Failed,
}

/// Where records are missing: between two steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gap {
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
}

/// The contents of a recording.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// In the order of their times; others are left out.
    pub(super) samples: Vec<NodeSample>,
    pub(super) pods: BTreeMap<CgroupId, Pod>,
    pub(super) gaps: Vec<Gap>,
    /// When the first step was.
    pub(super) begins_ns: Option<u64>,
    /// The candidates, from when on.
    sets: Vec<(u64, Vec<CgroupId>)>,
    settings: Vec<(u64, EngineSettings)>,
    decided: Vec<Decided>,
    /// When the daemon did something to a pod.
    acts_ns: Vec<u64>,
    /// When shortages were over.
    cleared: Vec<(u64, Shortage)>,
}

impl Known {
    pub(super) fn of(recording: &Recording<'_>) -> Self {
        let mut reader = Reader::default();
        for item in &recording.items {
            reader.take(item.record());
        }
        if let Some(from_ns) = reader.gap_from_ns {
            reader.known.gaps.push(Gap { from_ns, to_ns: u64::MAX });
        }
        reader.known
    }

    /// The shortages with a decision: when each was crossed, and what its first decision saw of it.
    pub(super) fn shortages(&self) -> Vec<(u64, Shortage)> {
        let mut all: Vec<(u64, Shortage)> = Vec::new();
        for Decision { crossed_ns, shortage, .. } in self.decided.iter().map(|decided| &decided.decision) {
            if !all.iter().any(|(at_ns, known)| is_same((*at_ns, *known), (*crossed_ns, *shortage))) {
                all.push((*crossed_ns, *shortage));
            }
        }
        all
    }

    /// The shortage in which that eviction was decided, as in [`Self::shortages`].
    pub(super) fn shortage_of(&self, eviction: u128) -> Option<(u64, Shortage)> {
        let Decision { crossed_ns, shortage, .. } =
            self.decided.iter().find(|decided| decided.id == Some(eviction))?.decision;
        self.shortages().into_iter().find(|known| is_same(*known, (crossed_ns, shortage)))
    }

    /// The decisions in a shortage.
    pub(super) fn decisions(&self, crossed_ns: u64, shortage: Shortage) -> impl Iterator<Item = &Decision> {
        self.decided(crossed_ns, shortage).map(|decided| &decided.decision)
    }

    fn decided(&self, crossed_ns: u64, shortage: Shortage) -> impl Iterator<Item = &Decided> {
        self.decided.iter().filter(move |Decided { decision, .. }| {
            is_same((decision.crossed_ns, decision.shortage), (crossed_ns, shortage))
        })
    }

    /// What the daemon did in a shortage; `None` if it decided nothing.
    pub(super) fn here(&self, crossed_ns: u64, shortage: Shortage) -> Option<Here> {
        let own = |Decided { decision, id, end }: &Decided| OwnEviction {
            number: decision.number,
            id: *id,
            pod: decision.cgroup,
            decided_ms: after_ms(crossed_ns, decision.decided_ns),
            end: match *end {
                _ if decision.dry_run => OwnEnd::DryRun,
                Some(Ended::Over { at_ns, freed_bytes }) => {
                    OwnEnd::Over { over_ms: after_ms(crossed_ns, at_ns), freed_bytes }
                }
                Some(Ended::Failed) => OwnEnd::Failed,
                None => OwnEnd::NotRecorded,
            },
        };
        let evictions = AtLeastOne::of(self.decided(crossed_ns, shortage).map(own))?;
        let is_end = |(at_ns, of): &&(u64, Shortage)| {
            *at_ns >= crossed_ns && of.signal == shortage.signal && of.hard == shortage.hard
        };
        let over_ns = self.cleared.iter().find(is_end).map_or(u64::MAX, |(at_ns, _)| *at_ns);
        let seen = self.samples.iter().filter(|node| (crossed_ns..=over_ns).contains(&node.now_ns));
        let lowest_bytes = seen.map(|node| node.memory.available).min();
        Some(Here { evictions, lowest_bytes })
    }

    /// The first moment from then on at which the daemon did something to a pod.
    pub(super) fn acted_ns(&self, from_ns: u64) -> Option<u64> {
        self.acts_ns.iter().copied().filter(|at_ns| *at_ns >= from_ns).min()
    }

    /// The settings in force then.
    pub(super) fn settings(&self, at_ns: u64) -> Option<&EngineSettings> {
        let mut before = self.settings.iter().rev();
        before.find(|(from_ns, _)| *from_ns <= at_ns).map(|(_, settings)| settings)
    }

    /// The pods that were candidates then, in their order.
    pub(super) fn candidates(&self, at_ns: u64) -> &[CgroupId] {
        let mut before = self.sets.iter().rev();
        before.find(|(from_ns, _)| *from_ns <= at_ns).map_or(&[], |(_, set)| set)
    }
}

/// From one moment to another, in milliseconds.
pub(super) fn after_ms(from_ns: u64, to_ns: u64) -> u64 {
    to_ns.saturating_sub(from_ns) / MS
}

/// Whether two decisions saw the same shortage, if not the same level.
fn is_same((one_ns, one): (u64, Shortage), (other_ns, other): (u64, Shortage)) -> bool {
    one_ns == other_ns && one.signal == other.signal && one.hard == other.hard
}

#[derive(Default)]
struct Reader {
    known: Known,
    now_ns: u64,
    order: Vec<CgroupId>,
    /// Since when records are missing.
    gap_from_ns: Option<u64>,
}

impl Reader {
    fn take(&mut self, record: Option<Record>) {
        match record {
            Some(Record::Key(engine)) => {
                self.known.settings.push((self.now_ns, *engine.settings()));
                let facts: Vec<_> = engine.candidates().known().map(|(facts, _)| *facts).collect();
                self.candidates(&facts);
            }
            Some(Record::Settings(settings)) => self.known.settings.push((self.now_ns, *settings)),
            Some(Record::Candidates(facts)) => self.candidates(&facts),
            Some(Record::Step(step)) => self.step(&step),
            Some(Record::Called { number, id }) => {
                if let Some(decided) = self.by_number(number) {
                    decided.id = Some(id);
                }
            }
            None | Some(Record::Lost(_)) => {
                self.gap_from_ns.get_or_insert(self.now_ns);
                self.order.clear();
            }
        }
    }

    fn candidates(&mut self, facts: &[CandidateFacts]) {
        self.order = facts.iter().map(|facts| facts.cgroup).collect();
        self.known.sets.push((self.now_ns, self.order.clone()));
        for facts in facts {
            let fresh = || Pod { facts: *facts, readings: Vec::new(), gone_ns: None };
            self.known.pods.entry(facts.cgroup).or_insert_with(fresh).facts = *facts;
        }
    }

    fn step(&mut self, step: &Step) {
        self.now_ns = step.given.now_ns();
        self.known.begins_ns.get_or_insert(self.now_ns);
        if let Some(from_ns) = self.gap_from_ns.take() {
            self.known.gaps.push(Gap { from_ns, to_ns: self.now_ns });
        }
        match &step.given {
            Given::Node(node) => self.sample(*node),
            Given::Usages { node, readings } => {
                self.sample(*node);
                self.readings(node.now_ns, readings);
            }
            Given::Outcome(outcome) => self.outcome(*outcome),
            Given::Arm { now_ns: _ } => {}
        }
        let evicts = step.actions.iter().any(|action| matches!(action, Action::Evict));
        if let Some(decision) = step.decision.filter(|_| evicts) {
            self.known.decided.push(Decided { decision, id: None, end: None });
            if !decision.dry_run && matches!(decision.hook, HookPlan::Awaited { .. }) {
                self.known.acts_ns.push(decision.decided_ns);
            }
        }
        self.actions(&step.actions);
    }

    fn sample(&mut self, node: NodeSample) {
        if self.known.samples.last().is_none_or(|last| last.now_ns <= node.now_ns) {
            self.known.samples.push(node);
        }
    }

    fn readings(&mut self, now_ns: u64, readings: &[Reading]) {
        for (cgroup, reading) in self.order.iter().zip(readings) {
            let Some(pod) = self.known.pods.get_mut(cgroup) else { continue };
            if reading.is_empty() {
                pod.gone_ns.get_or_insert(now_ns);
            } else if let Some(usage) = reading.usage() {
                pod.gone_ns = None;
                if pod.readings.last().is_none_or(|(before_ns, _)| *before_ns < now_ns) {
                    pod.readings.push((now_ns, *usage));
                }
            }
        }
    }

    fn outcome(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Terminated { now_ns, .. }
            | Outcome::Requested { now_ns, .. }
            | Outcome::Signalled { now_ns, .. }
            | Outcome::Contained { now_ns, .. } => self.known.acts_ns.push(now_ns),
            Outcome::Unrequested { .. }
            | Outcome::Refused { .. }
            | Outcome::HookEnded { .. }
            | Outcome::Progress { .. }
            | Outcome::Uncontained { .. }
            | Outcome::Eased { .. } => {}
        }
    }

    fn actions(&mut self, actions: &Actions) {
        for action in actions.iter() {
            match *action {
                Action::Cleared { now_ns, shortage, crossed_ns: _ } => {
                    self.known.cleared.push((now_ns, shortage));
                }
                Action::Completed(Completion { number, freed_bytes, .. }) => {
                    self.end(number, Ended::Over { at_ns: self.now_ns, freed_bytes });
                }
                Action::Failed(failure) => self.end(failure.number, Ended::Failed),
                _ => {}
            }
        }
    }

    fn end(&mut self, number: u64, end: Ended) {
        if let Some(decided) = self.by_number(number) {
            decided.end = Some(end);
        }
    }

    fn by_number(&mut self, number: u64) -> Option<&mut Decided> {
        self.known.decided.iter_mut().rev().find(|decided| decided.decision.number == number)
    }
}
