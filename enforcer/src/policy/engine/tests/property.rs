//! What holds whatever comes in.

use proptest::prelude::*;

use crate::{
    model::CgroupId,
    policy::engine::{
        Action, Actions, BreakerSettings, CandidateFacts, Candidates, Engine, EngineSettings, HardThreshold,
        Input, Mode, NodeSample, Outcome, Reading, Refusal, Usage,
    },
};

const MIB: u64 = 1 << 20;

/// One thing that happens; times are steps forward.
#[derive(Clone, Debug)]
enum Happening {
    Look { after_ms: u64, available_mib: u64 },
    Usages { available_mib: u64, used_mib: Vec<Option<u64>> },
    Answer { signalled: bool },
    Progress { after_ms: u64, populated: bool, current_mib: Option<u64> },
    NewSet(Vec<CandidateFacts>),
}

fn facts() -> impl Strategy<Value = Vec<CandidateFacts>> {
    let one = (-2_i32..3, 0_u64..300, any::<bool>(), any::<bool>());
    prop::collection::vec(one, 0..6).prop_map(|pods| {
        let number = |(place, (priority, request, critical, protected)): (u64, (i32, u64, bool, bool))| {
            CandidateFacts {
                cgroup: CgroupId(place + 1),
                priority,
                request_bytes: request * MIB,
                critical,
                protected,
            }
        };
        (0..).zip(pods).map(number).collect()
    })
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        4 => (0_u64..3_000, 0_u64..400)
            .prop_map(|(after_ms, available_mib)| Happening::Look { after_ms, available_mib }),
        4 => (0_u64..400, prop::collection::vec(prop::option::of(0_u64..600), 0..6))
            .prop_map(|(available_mib, used_mib)| Happening::Usages { available_mib, used_mib }),
        3 => any::<bool>().prop_map(|signalled| Happening::Answer { signalled }),
        3 => (0_u64..3_000, any::<bool>(), prop::option::of(0_u64..600)).prop_map(
            |(after_ms, populated, current_mib)| Happening::Progress { after_ms, populated, current_mib }
        ),
        1 => facts().prop_map(Happening::NewSet),
    ]
}

fn settings() -> impl Strategy<Value = EngineSettings> {
    let mode = prop_oneof![Just(Mode::Observe), Just(Mode::DryRun), Just(Mode::Enforce)];
    (mode, 0_u64..100, any::<bool>(), 0_u16..5).prop_map(|(mode, reclaim, within, max_kills)| {
        EngineSettings {
            mode,
            memory_available: Some(HardThreshold { bytes: 200 * MIB, min_reclaim_bytes: reclaim * MIB }),
            evict_within_request: within,
            breaker: BreakerSettings { max_kills, window_ns: 10_000_000_000 },
            dry_run_cool_down_ns: 1_000_000_000,
        }
    })
}

/// Feeds the engine and checks the rules that hold at every step; gives back all actions.
fn run(settings: EngineSettings, first: &[CandidateFacts], happenings: &[Happening]) -> Vec<Vec<Action>> {
    let mut engine = Engine::new(settings);
    let mut set = first.to_vec();
    drop(engine.replace(Candidates::new(&set)));
    let (mut now_ns, mut crossed, mut all) = (0_u64, false, Vec::new());
    // The victim that may hold processes, and whether it was signalled.
    let mut alive: Option<(u64, bool)> = None;
    for happening in happenings {
        let number = engine.victim().map_or(0, |(number, _)| number);
        let mut available = None;
        let actions: Actions = match happening {
            Happening::Look { after_ms, available_mib } => {
                now_ns += after_ms * 1_000_000;
                available = Some(available_mib * MIB);
                engine.step(Input::Node(NodeSample { now_ns, available_bytes: available_mib * MIB }))
            }
            Happening::Usages { available_mib, used_mib } => {
                available = Some(available_mib * MIB);
                let reading = |used: &Option<u64>| match used {
                    None => Reading::Missing,
                    Some(599) => Reading::Gone,
                    Some(mib) => Reading::Usage(Usage {
                        current_bytes: mib * MIB,
                        working_set_bytes: mib * MIB,
                        anon_bytes: mib * MIB,
                        ..Usage::default()
                    }),
                };
                let readings: Vec<_> = used_mib.iter().map(reading).collect();
                let node = NodeSample { now_ns, available_bytes: available_mib * MIB };
                engine.step(Input::Usages { node, readings: &readings })
            }
            Happening::Answer { signalled: true } => {
                alive = alive.map(|(number, _)| (number, true));
                engine.step(Input::Outcome(Outcome::Signalled { number, now_ns }))
            }
            Happening::Answer { signalled: false } => {
                engine.step(Input::Outcome(Outcome::Refused { number, now_ns, reason: Refusal::Empty }))
            }
            Happening::Progress { after_ms, populated, current_mib } => {
                now_ns += after_ms * 1_000_000;
                let current_bytes = current_mib.map(|mib| mib * MIB);
                let outcome = Outcome::Progress { number, now_ns, populated: *populated, current_bytes };
                if !populated && alive.is_some_and(|(_, signalled)| signalled) {
                    alive = None;
                }
                engine.step(Input::Outcome(outcome))
            }
            Happening::NewSet(facts) => {
                set.clone_from(facts);
                drop(engine.replace(Candidates::new(facts)));
                continue;
            }
        };
        for action in actions.iter() {
            match action {
                Action::Crossed { .. } => {
                    assert!(!crossed, "crossed twice");
                    crossed = true;
                }
                Action::Cleared { .. } => {
                    assert!(crossed, "cleared before it was crossed");
                    crossed = false;
                }
                Action::Completed(_) => assert_eq!(alive, None, "completed while it lives"),
                Action::Failed(failure) => {
                    assert_eq!(alive.map(|(number, _)| number), Some(failure.number));
                    alive = None;
                }
                Action::Evict => {
                    let decision = engine.decision().expect("a decision behind the action");
                    assert_ne!(settings.mode, Mode::Observe);
                    assert!(settings.mode == Mode::Enforce || decision.dry_run);
                    assert!(crossed, "evicts without a crossing");
                    let reclaim = settings.memory_available.unwrap().min_reclaim_bytes;
                    assert!(decision.observed_bytes < decision.threshold_bytes + reclaim, "not short");
                    assert!(available.is_none_or(|available| available == decision.observed_bytes));
                    let facts = set.iter().find(|facts| facts.cgroup == decision.cgroup).unwrap();
                    assert!(!facts.critical && !facts.protected);
                    assert_eq!(set[decision.index].cgroup, decision.cgroup);
                    if !decision.dry_run {
                        assert_eq!(alive, None, "a second victim");
                        alive = Some((decision.number, false));
                    }
                }
                Action::ReadUsages | Action::Suppressed { .. } | Action::LookAgainWithin(_) => {}
            }
        }
        all.push(actions.iter().copied().collect());
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_rules_hold_and_the_same_inputs_give_the_same_actions(
        settings in settings(),
        first in facts(),
        happenings in prop::collection::vec(happening(), 0..60),
    ) {
        prop_assert_eq!(run(settings, &first, &happenings), run(settings, &first, &happenings));
    }
}
