//! What holds whatever comes in.

mod happening;
mod watcher;

use proptest::prelude::*;

use self::{
    happening::{Answer, Happening, Node, busy, facts, happening, node, settings, used},
    watcher::{reading, run},
};
use crate::engine::{
    BreakerSettings, CandidateFacts, Candidates, Decision, Engine, EngineSettings, HookPlan, Input, Mode,
};

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;
const LONGEST_JUMP_MS: u64 = 60_000;
const SOFT_GRACE_MS: u64 = 2_000;

fn breaking(settings: &EngineSettings, max_kills: u16, max_share_permille: u16) -> EngineSettings {
    let mut breaking = *settings;
    breaking.breaker = BreakerSettings { max_kills, window_ns: 10_000 * MS, max_share_permille };
    breaking
}

/// How much later, the node, and what each candidate uses then.
type Look = (u64, Node, Vec<Option<(u64, u64)>>);

/// What is decided first of these looks.
fn first_decision(settings: &EngineSettings, facts: &[CandidateFacts], looks: &[Look]) -> Option<Decision> {
    let mut engine = Engine::new(settings);
    engine.remember_armed(|_| true);
    drop(engine.replace(Candidates::new(facts)));
    let mut now_ns = 0;
    for (after_ms, node, used) in looks {
        now_ns += after_ms * MS;
        let node = node.sample(now_ns);
        let used = used.iter().copied().chain(std::iter::repeat(None));
        let readings: Vec<_> = used.map(reading).take(facts.len()).collect();
        engine.step(Input::Node(node));
        engine.step(Input::Usages { node, readings: &readings });
        if let Some(decision) = engine.decision() {
            return Some(*decision);
        }
    }
    None
}

proptest! {
    #[test]
    fn the_rules_hold_and_the_same_inputs_give_the_same_actions(
        settings in settings(),
        first in facts(),
        happenings in prop::collection::vec(happening(), 0..80),
    ) {
        prop_assert_eq!(run(&settings, &first, &happenings), run(&settings, &first, &happenings));
    }

    /// The same while one after the other is killed, so that the breaker opens, by its share too.
    #[test]
    fn the_rules_hold_while_many_are_killed(
        (settings, first) in busy(),
        (share, max_kills) in (0_u16..1_100, 5_u16..40),
        settings_between in prop::option::weighted(0.3, (0_usize..30, 5_u16..40)),
        waits in prop::collection::vec(0_u64..600, 30),
    ) {
        let short = Node { memory_mib: 10, allocatable_mib: None, pids: None, fill_mib: 0, free_lists_mib: 0 };
        let mut happenings = Vec::new();
        for (place, after_ms) in waits.into_iter().enumerate() {
            if let Some((_, max_kills)) = settings_between.filter(|(between, _)| *between == place) {
                happenings.push(Happening::Configure(Box::new(breaking(&settings, max_kills, share))));
            }
            happenings.extend([
                Happening::Look { after_ms, node: short },
                Happening::Usages { node: short, used: vec![Some((500, 1)); 6] },
                Happening::Answer(Answer::Signalled),
                Happening::Progress { after_ms: 1, populated: false, current_mib: None },
            ]);
        }
        run(&breaking(&settings, max_kills, share), &first, &happenings);
    }

    /// In all but that nothing is run or signalled.
    #[test]
    fn a_dry_run_decides_as_in_earnest(
        settings in settings(),
        first in facts(),
        looks in prop::collection::vec((0_u64..3_000, node(), used()), 1..20),
    ) {
        let decision = |mode| {
            let mut settings = settings;
            settings.mode = mode;
            let decision = first_decision(&settings, &first, &looks)?;
            Some(Decision { dry_run: false, hook: HookPlan::Off, ..decision })
        };
        prop_assert_eq!(decision(Mode::DryRun), decision(Mode::Enforce));
    }

    /// The same where pods are held back more often.
    #[test]
    fn the_rules_hold_while_much_is_done(
        (settings, first) in busy(),
        happenings in prop::collection::vec(happening(), 20..100),
    ) {
        prop_assert_eq!(run(&settings, &first, &happenings), run(&settings, &first, &happenings));
    }
}
