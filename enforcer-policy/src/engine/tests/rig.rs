//! The engine, the readings it is given, and a clock.

use crate::{
    engine::{
        Action, Actions, CandidateFacts, Candidates, Completion, Engine, EngineSettings, Input, Mode,
        NodeSample, Outcome, PodKey, Reading, Resource, Usage, followed,
    },
    model::CgroupId,
    pressure::Conditions,
    threshold::{Signal, Threshold, ThresholdValue},
};

pub(super) const MIB: u64 = 1 << 20;
pub(super) const GIB: u64 = 1 << 30;
pub(super) const MS: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1_000 * MS;
pub(super) const MINUTE: u64 = 60 * SECOND;

pub(super) fn candidate(cgroup: u64, priority: i32, request_bytes: u64) -> CandidateFacts {
    CandidateFacts {
        cgroup: CgroupId(cgroup),
        pod: PodKey { hash: cgroup },
        priority,
        request_bytes,
        critical: false,
        protected: false,
        grace_period_ns: 30 * SECOND,
        terminating: false,
        torn_down: false,
        in_kubepods: true,
    }
}

pub(super) fn using(bytes: u64) -> Reading {
    Reading::Usage(Usage {
        current_bytes: bytes,
        working_set_bytes: bytes,
        anon_bytes: bytes,
        file_bytes: 0,
        shmem_bytes: 0,
        file_mapped_bytes: 0,
        process_count: None,
    })
}

/// The engine, the readings it is given, and a clock.
#[derive(Clone, Debug)]
pub(super) struct Rig {
    pub(super) engine: Engine,
    pub(super) readings: Vec<Reading>,
    pub(super) now_ns: u64,
    /// The conditions that were reported last.
    pub(super) conditions: Option<Conditions>,
    /// How often it was reported that thresholds are armed, or no longer are.
    pub(super) arming: u32,
    /// The resource that the last requested readings are for.
    pub(super) wished: Option<Resource>,
}

impl Rig {
    pub(super) fn new(settings: &EngineSettings, pods: &[(CandidateFacts, Reading)]) -> Self {
        let mut engine = Engine::new(settings);
        engine.remember_armed(|_| true);
        let facts: Vec<_> = pods.iter().map(|(facts, _)| *facts).collect();
        drop(engine.replace(Candidates::new(&facts)));
        Self {
            engine,
            readings: pods.iter().map(|(_, reading)| *reading).collect(),
            now_ns: SECOND,
            conditions: None,
            arming: 0,
            wished: None,
        }
    }

    /// The pods of upstream's `TestMemoryPressure`; the last is the victim.
    pub(super) fn upstream(settings: &EngineSettings) -> Self {
        Self::new(
            settings,
            &[
                (candidate(1, -1, GIB), using(900 * MIB)),
                (candidate(2, 0, 100 * MIB), using(50 * MIB)),
                (candidate(3, 0, 100 * MIB), using(400 * MIB)),
                (candidate(4, 1, 0), using(400 * MIB)),
                (candidate(5, -1, 0), using(100 * MIB)),
            ],
        )
    }

    /// Looks at the node, and answers the engine's request for readings.
    pub(super) fn look(&mut self, available_bytes: u64) -> Vec<Action> {
        self.see(NodeSample::memory(self.now_ns, available_bytes, 16 * GIB))
    }

    pub(super) fn see(&mut self, node: NodeSample) -> Vec<Action> {
        let actions = self.engine.step(Input::Node(node));
        let mut reported = self.note(&actions);
        let wished = reported.iter().find_map(|action| match action {
            Action::ReadUsages(resource) => Some(*resource),
            _ => None,
        });
        if wished.is_some() {
            self.wished = wished;
            reported.retain(|action| !matches!(action, Action::ReadUsages(_) | Action::LookAgainWithin(_)));
            let actions = self.engine.step(Input::Usages { node, readings: &self.readings });
            reported.extend(self.note(&actions));
        }
        reported
    }

    pub(super) fn pass(&mut self, ns: u64) -> &mut Self {
        self.now_ns += ns;
        self
    }

    pub(super) fn on_outcome(&mut self, outcome: Outcome) -> Vec<Action> {
        let actions = self.engine.step(Input::Outcome(outcome));
        self.note(&actions)
    }

    /// All but the conditions and what is armed, which are kept apart.
    fn note(&mut self, actions: &Actions) -> Vec<Action> {
        let mut reported = Vec::new();
        for action in actions.iter() {
            match action {
                Action::Conditions(conditions) => self.conditions = Some(*conditions),
                Action::Arming => self.arming += 1,
                other => reported.push(*other),
            }
        }
        reported
    }

    pub(super) fn number(&self) -> u64 {
        self.engine.decision().unwrap().number
    }

    pub(super) fn signalled(&mut self) -> Vec<Action> {
        self.on_outcome(Outcome::Signalled { number: self.number(), now_ns: self.now_ns })
    }

    pub(super) fn progress(&mut self, populated: bool, current_bytes: u64) -> Vec<Action> {
        let (number, now_ns) = (self.number(), self.now_ns);
        self.on_outcome(Outcome::Progress {
            number,
            now_ns,
            populated,
            current_bytes: Some(current_bytes),
            process_count: None,
        })
    }

    /// Signals the victim, which dies.
    pub(super) fn dies(&mut self) -> Completion {
        self.signalled();
        self.pass(5 * MS);
        match self.progress(false, 0)[..] {
            [Action::Completed(completion)] => completion,
            ref other => panic!("not completed: {other:?}"),
        }
    }
}

pub(super) fn evicts(actions: &[Action]) -> bool {
    actions.contains(&Action::Evict)
}

pub(super) fn enforcing(bytes: u64, min_reclaim_bytes: u64) -> EngineSettings {
    EngineSettings {
        mode: Mode::Enforce,
        thresholds: followed(&[Threshold {
            min_reclaim: Some(ThresholdValue::Amount(min_reclaim_bytes)),
            ..Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(bytes))
        }]),
        pressure_transition_period_ms: 0,
        ..EngineSettings::default()
    }
}
