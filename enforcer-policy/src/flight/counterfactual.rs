//! What other settings would have done.
//!
//! A recording shows one course of events. While the other engine acts the same, its inputs are the recorded ones. From
//! the first difference on they are a model, and marked as such: the memory of a pod that only one of the two killed is
//! added to or subtracted from the available memory, and from what is left of the pods' limit if it counts towards that; a
//! pod that only the recorded engine killed keeps its last reading, and one that only the other killed is gone. How a
//! spared pod would have grown is unknown.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    file::Recording,
    record::{Given, Record, Step},
};
use crate::{
    engine::{
        Action, Actions, CandidateFacts, Candidates, Completion, Containment, Decision, Engine,
        EngineSettings, HookEnd, HookPlan, Input, Level, NodeSample, Outcome, Reading, Waiting,
    },
    model::CgroupId,
    threshold::Signal,
};

/// A decision under the other settings.
#[derive(Clone, Debug, PartialEq)]
pub struct OtherDecision {
    /// The decision.
    pub decision: Decision,
    /// Whether its inputs are a model: the two had parted before.
    pub modelled: bool,
    /// When the victim's usage was read, in nanoseconds of `CLOCK_BOOTTIME`. This may be earlier, as the recorded
    /// engine needed no fresh reading, or even later, as it had not read it yet. `None` if it was never read.
    pub read_ns: Option<u64>,
}

/// A recorded decision that the other settings do not make at that time.
#[derive(Clone, Debug, PartialEq)]
pub struct NoVictim {
    /// When the recorded decision was made, in nanoseconds of `CLOCK_BOOTTIME`.
    pub at_ns: u64,
    /// The recorded decision's number.
    pub number: u64,
    /// Why no victim is chosen then.
    pub why: Waiting,
}

/// What other settings would have done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counterfactual {
    /// Their decisions.
    pub decisions: Vec<OtherDecision>,
    /// Recorded decisions at whose time they would have evicted no pod.
    pub no_victims: Vec<NoVictim>,
    /// When the two parted, in nanoseconds of `CLOCK_BOOTTIME`; `None` if they acted the same.
    pub parted_ns: Option<u64>,
}

/// Runs a recording under other settings.
#[must_use]
pub fn under(recording: &Recording<'_>, settings: &EngineSettings) -> Counterfactual {
    let mut other = Counterfactual::default();
    let mut world: Option<World> = None;
    let first = first_readings(recording);
    for item in &recording.items {
        match (item.record(), &mut world) {
            (None | Some(Record::Lost(_)), world) => *world = None,
            (Some(Record::Key(engine)), world @ None) => {
                *world = Some(World::new(&engine, settings, &first));
            }
            (Some(Record::Candidates(facts)), Some(world)) => world.replace(facts, &first),
            // Pausing is an operator's order, not a setting to compare.
            (Some(Record::Settings(recorded)), Some(world)) => world.pause(recorded.paused),
            (Some(Record::Step(step)), Some(world)) => world.step(&step, &mut other),
            (
                Some(
                    Record::Key(_)
                    | Record::Settings(_)
                    | Record::Called { .. }
                    | Record::Candidates(_)
                    | Record::Step(_),
                ),
                _,
            ) => {}
        }
    }
    other
}

/// The first reading of each pod: it is used until then, as other settings may need one earlier.
fn first_readings(recording: &Recording<'_>) -> BTreeMap<CgroupId, (u64, Reading)> {
    let mut first = BTreeMap::new();
    let mut order: Vec<CgroupId> = Vec::new();
    for item in &recording.items {
        match item.record() {
            Some(Record::Key(engine)) => {
                order = engine.candidates().known().map(|(facts, _)| facts.cgroup).collect();
            }
            Some(Record::Candidates(facts)) => order = facts.iter().map(|facts| facts.cgroup).collect(),
            Some(Record::Step(step)) => {
                let Given::Usages { node, readings } = &step.given else { continue };
                let is_known = |reading: &Reading| !matches!(reading, Reading::Missing | Reading::Gone);
                for (cgroup, reading) in order.iter().zip(readings).filter(|(_, read)| is_known(read)) {
                    first.entry(*cgroup).or_insert((node.now_ns, *reading));
                }
            }
            Some(Record::Settings(_) | Record::Called { .. }) => {}
            None | Some(Record::Lost(_)) => order.clear(),
        }
    }
    first
}

/// A pod's latest reading.
#[derive(Clone, Copy)]
struct Known {
    reading: Reading,
    read_ns: Option<u64>,
}

impl Known {
    fn new(cgroup: CgroupId, first: &BTreeMap<CgroupId, (u64, Reading)>) -> Self {
        match first.get(&cgroup) {
            Some((read_ns, reading)) => Self { reading: *reading, read_ns: Some(*read_ns) },
            None => Self { reading: Reading::Missing, read_ns: None },
        }
    }
}

/// The other engine, and how its world differs from the recorded one.
struct World {
    engine: Engine,
    /// The recorded engine's candidates: its readings are in their order.
    recorded: Vec<CgroupId>,
    /// The latest facts of each pod, also of those that are no candidates any more.
    facts: BTreeMap<CgroupId, CandidateFacts>,
    known: BTreeMap<CgroupId, Known>,
    /// The other engine's candidates.
    order: Vec<CgroupId>,
    /// Available memory beyond the recorded amounts: the node's, and what is left of the pods' limit.
    offset: i128,
    pods_offset: i128,
    /// Killed only by this engine, and only by the recorded one.
    dead: BTreeSet<CgroupId>,
    spared: BTreeSet<CgroupId>,
    /// The recorded victim, with its number.
    victim: Option<(u64, CgroupId)>,
    /// Whether this engine's victim is the recorded one, and dies as recorded.
    shared: bool,
    /// This engine's victim that the recorded one does not kill: its number, its cgroup, and what its death frees; it is
    /// dead at the next sample.
    dying: Option<(u64, CgroupId, u64)>,
}

impl World {
    fn new(recorded: &Engine, settings: &EngineSettings, first: &BTreeMap<CgroupId, (u64, Reading)>) -> Self {
        let mut engine = recorded.clone();
        // Whether there is anyone to ask is a fact of the node, which the other settings do not know.
        let EngineSettings { paused, asks_first, .. } = *recorded.settings();
        let settings = &EngineSettings { paused, asks_first, ..*settings };
        if settings != recorded.settings() {
            engine.configure(settings);
            // The settings count as having always been in force.
            engine.arm_loaded();
        }
        let known = |(facts, reading): (&CandidateFacts, &Reading)| {
            let known = match reading {
                Reading::Missing => Known::new(facts.cgroup, first),
                Reading::Gone | Reading::Usage(_) | Reading::Uncounted { .. } => {
                    Known { reading: *reading, read_ns: None }
                }
            };
            (facts.cgroup, known)
        };
        let known: BTreeMap<_, _> = recorded.candidates().known().map(known).collect();
        let order: Vec<_> = recorded.candidates().known().map(|(facts, _)| facts.cgroup).collect();
        Self {
            engine,
            recorded: order.clone(),
            facts: recorded.candidates().known().map(|(facts, _)| (facts.cgroup, *facts)).collect(),
            known,
            order,
            offset: 0,
            pods_offset: 0,
            dead: BTreeSet::new(),
            spared: BTreeSet::new(),
            victim: recorded.victim(),
            shared: true,
            dying: None,
        }
    }

    fn replace(&mut self, facts: Vec<CandidateFacts>, first: &BTreeMap<CgroupId, (u64, Reading)>) {
        self.recorded = facts.iter().map(|facts| facts.cgroup).collect();
        self.facts.extend(facts.iter().map(|facts| (facts.cgroup, *facts)));
        let mut all = facts;
        // A pod that only the recorded engine killed still exists here.
        let there: BTreeSet<_> = self.recorded.iter().copied().collect();
        all.extend(
            self.spared
                .iter()
                .filter(|cgroup| !there.contains(cgroup))
                .filter_map(|cgroup| self.facts.get(cgroup).copied()),
        );
        self.known = all
            .iter()
            .map(|facts| {
                let known = self.known.get(&facts.cgroup).copied();
                (facts.cgroup, known.unwrap_or_else(|| Known::new(facts.cgroup, first)))
            })
            .collect();
        self.order = all.iter().map(|facts| facts.cgroup).collect();
        drop(self.engine.replace(Candidates::new(&all)));
    }

    fn pause(&mut self, paused: bool) {
        let settings = *self.engine.settings();
        if paused != settings.paused {
            self.engine.configure(&EngineSettings { paused, ..settings });
        }
    }

    fn step(&mut self, step: &Step, other: &mut Counterfactual) {
        let now_ns = step.given.now_ns();
        let together = other.parted_ns.is_none();
        let actions = match &step.given {
            Given::Node(_) | Given::Outcome(_) if together => self.engine.step(step.given.input()),
            Given::Node(node) => {
                self.forget(now_ns);
                let node = self.node(*node);
                self.engine.step(Input::Node(node))
            }
            Given::Usages { node, readings } => {
                for (cgroup, reading) in self.recorded.iter().zip(readings) {
                    let reported_otherwise = self.spared.contains(cgroup) || self.dead.contains(cgroup);
                    if let Some(known) = self.known.get_mut(cgroup).filter(|_| !reported_otherwise) {
                        known.reading = *reading;
                        known.read_ns = Some(now_ns);
                    }
                }
                if together { self.engine.step(step.given.input()) } else { self.usages(*node) }
            }
            Given::Outcome(outcome) => match self.translated(*outcome) {
                Some(outcome) => self.engine.step(Input::Outcome(outcome)),
                None => Actions::new(),
            },
            // The operator knew the recorded thresholds, not the others; those count as armed.
            Given::Arm { .. } => self.engine.step(step.given.input()),
        };
        self.carry_out(step, now_ns, &actions, other);
        self.account(step, now_ns, other);
    }

    /// Carries out the engine's actions until there are no more.
    fn carry_out(&mut self, step: &Step, now_ns: u64, first: &Actions, other: &mut Counterfactual) {
        let mut next = Some(*first);
        while let Some(actions) = next.take() {
            for action in actions.iter() {
                match *action {
                    Action::ReadUsages(_) => {
                        let asked = |action: &Action| matches!(action, Action::ReadUsages(_));
                        if let Given::Node(node) = step.given
                            && !step.actions.iter().any(asked)
                        {
                            next = Some(self.usages(node));
                        }
                    }
                    Action::Evict => next = self.evict(step, now_ns, other),
                    Action::Kill { number, reason: _ } => {
                        let killed = |action: &Action| matches!(action, Action::Kill { .. });
                        if !(self.is_shared() && step.actions.iter().any(killed)) {
                            part(now_ns, other);
                            next = Some(self.kill(number, now_ns));
                        }
                    }
                    Action::Ask { number } => {
                        let asked = |action: &Action| matches!(action, Action::Ask { .. });
                        if !(self.is_shared() && step.actions.iter().any(asked)) {
                            part(now_ns, other);
                            let outcome = Outcome::Terminated { number, now_ns };
                            next = Some(self.engine.step(Input::Outcome(outcome)));
                        }
                    }
                    // Throttling does not affect the choice of victims: if the recorded engine did not request it, or
                    // its outcome is not known here, it succeeds at once.
                    Action::Contain(Containment { brake, .. }) => {
                        let asked = |action: &Action| matches!(action, Action::Contain(_));
                        if other.parted_ns.is_some() || !step.actions.iter().any(asked) {
                            let outcome = Outcome::Contained { brake, now_ns };
                            let _reported = self.engine.step(Input::Outcome(outcome));
                        }
                    }
                    Action::Ease { brake } => {
                        let asked = |action: &Action| matches!(action, Action::Ease { .. });
                        if other.parted_ns.is_some() || !step.actions.iter().any(asked) {
                            let outcome = Outcome::Eased { brake, now_ns, given_back: true };
                            let _reported = self.engine.step(Input::Outcome(outcome));
                        }
                    }
                    Action::Contained { .. }
                    | Action::Uncontained { .. }
                    | Action::Eased { .. }
                    | Action::Crossed { .. }
                    | Action::Cleared { .. }
                    | Action::Conditions(_)
                    | Action::Arming
                    | Action::Completed(_)
                    | Action::Failed(_)
                    | Action::SharedMemoryHeld { .. }
                    | Action::SharedMemoryFreed { .. }
                    | Action::Suppressed { .. }
                    | Action::LookAgainWithin(_) => {}
                }
            }
        }
    }

    fn evict(&mut self, step: &Step, now_ns: u64, other: &mut Counterfactual) -> Option<Actions> {
        let decision = *self.engine.decision()?;
        let same = step.decision.is_some_and(|recorded| recorded.cgroup == decision.cgroup);
        if !same {
            part(now_ns, other);
        }
        let modelled = other.parted_ns.is_some_and(|parted_ns| parted_ns < now_ns);
        let read_ns = self.known.get(&decision.cgroup).and_then(|known| known.read_ns);
        other.decisions.push(OtherDecision { decision, modelled, read_ns });
        let hooks = |decision: Decision| matches!(decision.hook, HookPlan::Awaited { .. });
        let acts_alike = |recorded: Decision| {
            !recorded.dry_run
                && (recorded.grace_ns > 0) == (decision.grace_ns > 0)
                && recorded.graceless == decision.graceless
                && hooks(recorded) == hooks(decision)
        };
        if decision.dry_run {
            return None;
        }
        self.shared = same && step.decision.is_some_and(acts_alike);
        if self.shared {
            return None;
        }
        part(now_ns, other);
        if hooks(decision) {
            // How long the hook would have run is unknown.
            let outcome = Outcome::HookEnded { number: decision.number, now_ns, end: HookEnd::Exited(0) };
            return Some(self.engine.step(Input::Outcome(outcome)));
        }
        if decision.grace_ns > 0 {
            // It is assumed to take all of its grace period.
            let outcome = Outcome::Terminated { number: decision.number, now_ns };
            return Some(self.engine.step(Input::Outcome(outcome)));
        }
        Some(self.kill(decision.number, now_ns))
    }

    fn kill(&mut self, number: u64, now_ns: u64) -> Actions {
        self.shared = false;
        let worth = self.engine.decision().map_or(0, |decision| decision.predicted_freed_bytes);
        if let Some((_, cgroup)) = self.engine.victim() {
            self.dead.insert(cgroup);
            if let Some(known) = self.known.get_mut(&cgroup) {
                known.reading = Reading::Gone;
            }
            self.spared.remove(&cgroup);
            self.dying = Some((number, cgroup, worth));
        }
        self.engine.step(Input::Outcome(Outcome::Signalled { number, now_ns }))
    }

    /// The victim that only this engine killed is dead by now, and its memory is back.
    fn forget(&mut self, now_ns: u64) {
        let Some((number, cgroup, worth)) = self.dying.take() else { return };
        self.shift(cgroup, i128::from(worth));
        let gone =
            Outcome::Progress { number, now_ns, populated: false, current_bytes: None, process_count: None };
        let _completed = self.engine.step(Input::Outcome(gone));
    }

    /// So much more is available in this world, as that pod does not hold it.
    fn shift(&mut self, cgroup: CgroupId, bytes: i128) {
        self.offset += bytes;
        // As in the engine, memory of a pod whose facts are not known counts for each signal.
        let facts = self.facts.get(&cgroup);
        if facts.is_none_or(|facts| facts.counts_for(Signal::AllocatableMemoryAvailable)) {
            self.pods_offset += bytes;
        }
    }

    /// Records what only the recorded engine did.
    fn account(&mut self, step: &Step, now_ns: u64, other: &mut Counterfactual) {
        if let Some(decision) = &step.decision {
            if !decision.dry_run {
                self.victim = Some((decision.number, decision.cgroup));
            }
            let also = other.decisions.last().is_some_and(|latest| {
                latest.decision.decided_ns == decision.decided_ns && latest.decision.cgroup == decision.cgroup
            });
            if !also {
                let is_decided = other
                    .decisions
                    .last()
                    .is_some_and(|latest| latest.decision.decided_ns == decision.decided_ns);
                if !is_decided {
                    let why = self.engine.waiting(now_ns);
                    other.no_victims.push(NoVictim { at_ns: now_ns, number: decision.number, why });
                }
                part(now_ns, other);
                if !decision.dry_run && !self.dead.contains(&decision.cgroup) {
                    self.spared.insert(decision.cgroup);
                }
            } else if !decision.dry_run
                && self.engine.victim().map(|(_, cgroup)| cgroup) != Some(decision.cgroup)
            {
                // Chosen here too, but only in a dry run.
                self.spared.insert(decision.cgroup);
                part(now_ns, other);
            }
        }
        for action in step.actions.iter() {
            if let Action::Completed(Completion { cgroup, predicted_freed_bytes, freed_bytes, .. }) = action {
                if self.spared.contains(cgroup) || self.dead.contains(cgroup) {
                    self.shift(*cgroup, -i128::from(freed_bytes.unwrap_or(*predicted_freed_bytes)));
                }
                self.victim = None;
            }
        }
    }

    /// Whether both engines are evicting the same pod.
    fn is_shared(&self) -> bool {
        match (self.victim, self.engine.victim()) {
            (Some((_, there)), Some((_, here))) => self.shared && there == here,
            _ => false,
        }
    }

    /// The recorded outcome, if it applies to this engine too.
    fn translated(&self, outcome: Outcome) -> Option<Outcome> {
        let (ours, _) = self.engine.victim().filter(|_| self.is_shared())?;
        let (theirs, _) = self.victim?;
        let about = |number: u64| (number == theirs).then_some(ours);
        Some(match outcome {
            Outcome::Terminated { number, now_ns } => Outcome::Terminated { number: about(number)?, now_ns },
            Outcome::Requested { number, now_ns } => Outcome::Requested { number: about(number)?, now_ns },
            Outcome::Unrequested { number, now_ns } => {
                Outcome::Unrequested { number: about(number)?, now_ns }
            }
            Outcome::Signalled { number, now_ns } => Outcome::Signalled { number: about(number)?, now_ns },
            Outcome::HookEnded { number, now_ns, end } => {
                Outcome::HookEnded { number: about(number)?, now_ns, end }
            }
            Outcome::Refused { number, now_ns, reason } => {
                Outcome::Refused { number: about(number)?, now_ns, reason }
            }
            Outcome::Progress { number, now_ns, populated, current_bytes, process_count } => {
                Outcome::Progress { number: about(number)?, now_ns, populated, current_bytes, process_count }
            }
            // These were answered when they were requested.
            Outcome::Contained { .. } | Outcome::Uncontained { .. } | Outcome::Eased { .. } => return None,
        })
    }

    /// The node sample, adjusted to this world.
    fn node(&self, node: NodeSample) -> NodeSample {
        let memory = shifted(node.memory, self.offset);
        let allocatable = node.allocatable.map(|level| shifted(level, self.pods_offset));
        NodeSample { memory, allocatable, ..node }
    }

    fn usages(&mut self, node: NodeSample) -> Actions {
        let reading =
            |cgroup: &CgroupId| self.known.get(cgroup).map_or(Reading::Missing, |known| known.reading);
        let readings: Vec<_> = self.order.iter().map(reading).collect();
        let node = self.node(node);
        self.engine.step(Input::Usages { node, readings: &readings })
    }
}

/// The level with so much more available.
fn shifted(level: Level, bytes: i128) -> Level {
    if bytes == 0 {
        return level;
    }
    let Level { available, capacity } = level;
    let more = (i128::from(available) + bytes).clamp(0, i128::from(capacity));
    Level { available: u64::try_from(more).unwrap_or(available), capacity }
}

/// Records that the two engines part here.
fn part(now_ns: u64, other: &mut Counterfactual) {
    other.parted_ns.get_or_insert(now_ns);
}
