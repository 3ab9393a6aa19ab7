//! What holds whatever comes in.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::{
    model::CgroupId,
    policy::{
        engine::{
            Action, Actions, BreakerSettings, CandidateFacts, Candidates, Engine, EngineSettings, Input,
            Level, Mode, NodeSample, Outcome, Reading, Refusal, Resource, Usage, followed,
        },
        threshold::{Signal, Threshold, ThresholdValue},
    },
};

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;
const SOFT_GRACE_MS: u64 = 2_000;

/// One thing that happens; times are steps forward.
#[derive(Clone, Debug)]
enum Happening {
    Look { after_ms: u64, node: Node },
    Usages { node: Node, used: Vec<Option<(u64, u64)>> },
    Answer(Answer),
    Progress { after_ms: u64, populated: bool, current_mib: Option<u64> },
    NewSet(Vec<CandidateFacts>),
    Configure(Box<EngineSettings>),
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Terminated,
    Signalled,
    Refused(Refusal),
}

/// What is left of what.
#[derive(Clone, Copy, Debug)]
struct Node {
    memory_mib: u64,
    allocatable_mib: Option<u64>,
    pids: Option<u64>,
    fill_mib: u64,
}

impl Node {
    fn sample(self, now_ns: u64) -> NodeSample {
        let level = |available, capacity| Level { available, capacity };
        NodeSample {
            now_ns,
            memory: level(self.memory_mib * MIB, 4_096 * MIB),
            allocatable: self.allocatable_mib.map(|mib| level(mib * MIB, 4_096 * MIB)),
            pids: self.pids.map(|pids| level(pids, 32_768)),
            fill_bytes_per_second: self.fill_mib * MIB,
        }
    }
}

fn node() -> impl Strategy<Value = Node> {
    let allocatable = prop::option::weighted(0.3, 0_u64..400);
    let pids = prop::option::weighted(0.3, 0_u64..3_000);
    (0_u64..600, allocatable, pids, 0_u64..400).prop_map(|(memory_mib, allocatable_mib, pids, fill_mib)| {
        Node { memory_mib, allocatable_mib, pids, fill_mib }
    })
}

fn facts() -> impl Strategy<Value = Vec<CandidateFacts>> {
    let one = (-2_i32..3, 0_u64..300, any::<bool>(), any::<bool>(), 0_u64..10);
    prop::collection::vec(one, 0..6).prop_map(|pods| {
        let number = |(place, (priority, request, critical, protected, grace)): (u64, _)| {
            let request: u64 = request;
            CandidateFacts {
                cgroup: CgroupId(place + 1),
                priority,
                request_bytes: request * MIB,
                critical,
                protected,
                grace_period_ns: grace * 1_000 * MS,
            }
        };
        (0..).zip(pods).map(number).collect()
    })
}

fn refusal() -> impl Strategy<Value = Refusal> {
    prop_oneof![
        Just(Refusal::Gone),
        Just(Refusal::Empty),
        Just(Refusal::Replaced),
        Just(Refusal::Unrecorded),
        Just(Refusal::Kernel(95)),
    ]
}

fn happening() -> impl Strategy<Value = Happening> {
    let used = prop::collection::vec(prop::option::of((0_u64..600, 0_u64..2_000)), 0..6);
    let answer = prop_oneof![
        2 => Just(Answer::Terminated),
        2 => Just(Answer::Signalled),
        1 => refusal().prop_map(Answer::Refused),
    ];
    prop_oneof![
        8 => (0_u64..3_000, node()).prop_map(|(after_ms, node)| Happening::Look { after_ms, node }),
        8 => (node(), used).prop_map(|(node, used)| Happening::Usages { node, used }),
        8 => answer.prop_map(Happening::Answer),
        6 => (0_u64..3_000, any::<bool>(), prop::option::of(0_u64..600)).prop_map(
            |(after_ms, populated, current_mib)| Happening::Progress { after_ms, populated, current_mib }
        ),
        2 => facts().prop_map(Happening::NewSet),
        1 => settings().prop_map(|settings| Happening::Configure(Box::new(settings))),
    ]
}

fn thresholds() -> impl Strategy<Value = Vec<Threshold>> {
    let one = |signal, amount, grace_period_ms| {
        prop::option::of(0_u64..100).prop_map(move |reclaim| Threshold {
            grace_period_ms,
            min_reclaim: reclaim.map(|reclaim| ThresholdValue::Amount(reclaim * MIB)),
            ..Threshold::hard(signal, ThresholdValue::Amount(amount))
        })
    };
    let all = (
        one(Signal::MemoryAvailable, 200 * MIB, 0),
        one(Signal::MemoryAvailable, 400 * MIB, SOFT_GRACE_MS),
        one(Signal::AllocatableMemoryAvailable, 100 * MIB, 0),
        one(Signal::PidAvailable, 1_000, 0),
        one(Signal::PidAvailable, 2_000, SOFT_GRACE_MS),
    );
    (all, prop::collection::vec(any::<bool>(), 5)).prop_map(|((a, b, c, d, e), kept)| {
        [a, b, c, d, e]
            .into_iter()
            .zip(kept)
            .filter_map(|(threshold, kept)| kept.then_some(threshold))
            .collect()
    })
}

fn settings() -> impl Strategy<Value = EngineSettings> {
    let mode = prop_oneof![1 => Just(Mode::Observe), 1 => Just(Mode::DryRun), 3 => Just(Mode::Enforce)];
    (mode, thresholds(), any::<bool>(), 0_u16..5, 0_u64..10).prop_map(
        |(mode, thresholds, within, max_kills, grace)| EngineSettings {
            mode,
            thresholds: followed(&thresholds),
            pressure_transition_period_ms: 1_000,
            max_pod_grace_period_ns: grace * 1_000 * MS,
            evict_within_request: within,
            breaker: BreakerSettings { max_kills, window_ns: 10_000 * MS, max_share_permille: 500 },
            dry_run_cool_down_ns: 1_000 * MS,
        },
    )
}

/// How far the one eviction that may be under way has come, as far as the outside has to know.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Course {
    /// Asked for; `grace` says how.
    Asked { number: u64, grace: bool },
    /// Sent SIGTERM.
    Terminated { number: u64 },
    /// To be killed after SIGTERM.
    ToBeKilled { number: u64 },
    /// Sent SIGKILL.
    Killed { number: u64 },
}

/// Feeds the engine, and checks the rules that hold at every step.
struct Watcher {
    engine: Engine,
    settings: EngineSettings,
    set: Vec<CandidateFacts>,
    now_ns: u64,
    /// Which thresholds are told as crossed.
    crossed: BTreeMap<(Signal, bool), bool>,
    course: Option<Course>,
    kills_ns: Vec<u64>,
    all: Vec<Vec<Action>>,
}

impl Watcher {
    fn feed(&mut self, happening: &Happening) {
        let number = self.engine.victim().map_or(0, |(number, _)| number);
        let now_ns = self.now_ns;
        let actions: Actions = match happening {
            Happening::Look { after_ms, node } => {
                self.now_ns += after_ms * MS;
                self.engine.step(Input::Node(node.sample(self.now_ns)))
            }
            Happening::Usages { node, used } => {
                let reading = |used: &Option<(u64, u64)>| match used {
                    None => Reading::Missing,
                    Some((599, _)) => Reading::Gone,
                    Some((mib, processes)) => Reading::Usage(Usage {
                        current_bytes: mib * MIB,
                        working_set_bytes: mib * MIB,
                        anon_bytes: mib * MIB,
                        process_count: Some(*processes),
                        ..Usage::default()
                    }),
                };
                let readings: Vec<_> = used.iter().map(reading).collect();
                self.engine.step(Input::Usages { node: node.sample(now_ns), readings: &readings })
            }
            Happening::Answer(answer) => {
                // Only what was asked for is answered.
                let outcome = match (answer, self.course) {
                    (Answer::Terminated, Some(Course::Asked { number, grace: true })) => {
                        self.course = Some(Course::Terminated { number });
                        Outcome::Terminated { number, now_ns }
                    }
                    (
                        Answer::Signalled,
                        Some(Course::Asked { number, grace: false } | Course::ToBeKilled { number }),
                    ) => {
                        self.course = Some(Course::Killed { number });
                        Outcome::Signalled { number, now_ns }
                    }
                    (
                        Answer::Refused(reason),
                        Some(Course::Asked { number, .. } | Course::ToBeKilled { number }),
                    ) => {
                        let over = matches!(reason, Refusal::Gone | Refusal::Empty)
                            && matches!(self.course, Some(Course::ToBeKilled { .. }));
                        if over {
                            self.course = None;
                        }
                        Outcome::Refused { number, now_ns, reason: *reason }
                    }
                    _ => return,
                };
                self.engine.step(Input::Outcome(outcome))
            }
            Happening::Progress { after_ms, populated, current_mib } => {
                self.now_ns += after_ms * MS;
                let asked = matches!(self.course, Some(Course::Asked { .. }));
                if !populated && !asked {
                    self.course = None;
                }
                self.engine.step(Input::Outcome(Outcome::Progress {
                    number,
                    now_ns: self.now_ns,
                    populated: *populated,
                    current_bytes: current_mib.map(|mib| mib * MIB),
                    process_count: None,
                }))
            }
            Happening::NewSet(facts) => {
                self.set.clone_from(facts);
                drop(self.engine.replace(Candidates::new(facts)));
                return;
            }
            Happening::Configure(settings) => {
                let kept = |(signal, hard): &(Signal, bool)| {
                    let same =
                        |threshold: &&Threshold| threshold.signal == *signal && threshold.is_hard() == *hard;
                    let of = |settings: &EngineSettings| settings.thresholds.iter().find(same).copied();
                    of(settings).is_some() && of(settings) == of(&self.settings)
                };
                self.crossed.retain(|key, _| kept(key));
                self.engine.configure(settings);
                self.settings = **settings;
                return;
            }
        };
        for action in actions.iter() {
            self.check(action);
        }
        self.all.push(actions.iter().copied().collect());
    }

    fn check(&mut self, action: &Action) {
        match action {
            Action::Crossed { shortage, .. } => {
                let was = self.crossed.insert((shortage.signal, shortage.hard), true);
                assert_ne!(was, Some(true), "crossed twice");
            }
            Action::Cleared { shortage, .. } => {
                let was = self.crossed.insert((shortage.signal, shortage.hard), false);
                assert_eq!(was, Some(true), "cleared before it was crossed");
            }
            Action::Completed(_) => assert_eq!(self.course, None, "completed while it lives"),
            Action::Failed(failure) => {
                let number = match self.course.take() {
                    Some(
                        Course::Asked { number, .. }
                        | Course::ToBeKilled { number }
                        | Course::Killed { number },
                    ) => Some(number),
                    Some(Course::Terminated { .. }) | None => None,
                };
                assert_eq!(number, Some(failure.number), "failed, and was not asked for or killed");
            }
            Action::Evict => self.check_decision(),
            Action::Kill { number, .. } => {
                assert_eq!(self.course, Some(Course::Terminated { number: *number }), "no grace to end");
                self.course = Some(Course::ToBeKilled { number: *number });
            }
            Action::Conditions(_)
            | Action::ReadUsages(_)
            | Action::Suppressed { .. }
            | Action::LookAgainWithin(_) => {}
        }
    }

    fn check_decision(&mut self) {
        let decision = *self.engine.decision().expect("a decision behind the action");
        assert_ne!(self.settings.mode, Mode::Observe);
        assert!(self.settings.mode == Mode::Enforce || decision.dry_run);
        let shortage = decision.shortage;
        assert_eq!(self.crossed.get(&(shortage.signal, shortage.hard)), Some(&true), "no crossing");
        let mut thresholds = self.settings.thresholds.iter();
        let threshold = thresholds
            .find(|threshold| threshold.signal == shortage.signal && threshold.is_hard() == shortage.hard)
            .expect("one of the thresholds");
        let reclaim = threshold.min_reclaim.map_or(0, |reclaim| reclaim.amount(0));
        assert!(shortage.observed < shortage.threshold + reclaim, "not short");
        let waited_ns = decision.decided_ns - decision.crossed_ns;
        assert!(waited_ns >= threshold.grace_period_ms * MS, "before its grace period");
        let facts = self.set.iter().find(|facts| facts.cgroup == decision.cgroup).unwrap();
        assert!(!facts.critical && !facts.protected);
        assert_eq!(self.set[decision.index].cgroup, decision.cgroup);
        let grace_ns = facts.grace_period_ns.min(self.settings.max_pod_grace_period_ns);
        assert_eq!(decision.grace_ns, if shortage.hard { 0 } else { grace_ns });
        if shortage.resource() == Resource::Memory && !self.settings.evict_within_request {
            let usage = decision.reading.usage();
            assert!(usage.is_none_or(|usage| usage.working_set_bytes > facts.request_bytes));
        }
        if decision.dry_run {
            return;
        }
        assert_eq!(self.course, None, "a second victim");
        let window_ns = self.settings.breaker.window_ns;
        let recent = self.kills_ns.iter().filter(|at_ns| self.now_ns - **at_ns < window_ns).count();
        assert!(recent < usize::from(self.settings.breaker.max_kills), "beyond the breaker");
        self.course = Some(Course::Asked { number: decision.number, grace: decision.grace_ns > 0 });
    }
}

/// Feeds the engine and checks it; gives back all actions.
fn run(settings: &EngineSettings, first: &[CandidateFacts], happenings: &[Happening]) -> Vec<Vec<Action>> {
    let mut engine = Engine::new(settings);
    drop(engine.replace(Candidates::new(first)));
    let mut watcher = Watcher {
        engine,
        settings: *settings,
        set: first.to_vec(),
        now_ns: 0,
        crossed: BTreeMap::new(),
        course: None,
        kills_ns: Vec::new(),
        all: Vec::new(),
    };
    for happening in happenings {
        let before = watcher.course;
        watcher.feed(happening);
        let begun = |course| matches!(course, Some(Course::Terminated { .. } | Course::Killed { .. }));
        let asked = matches!(before, Some(Course::Asked { .. }));
        if asked && begun(watcher.course) {
            watcher.kills_ns.push(watcher.now_ns);
        }
        if let Happening::Configure(_) = happening {
            // A new breaker knows of no kills.
            watcher.kills_ns.clear();
        }
    }
    watcher.all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_rules_hold_and_the_same_inputs_give_the_same_actions(
        settings in settings(),
        first in facts(),
        happenings in prop::collection::vec(happening(), 0..80),
    ) {
        prop_assert_eq!(run(&settings, &first, &happenings), run(&settings, &first, &happenings));
    }
}
