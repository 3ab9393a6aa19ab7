//! What would be evicted now under other conditions: runs the engine over the pods at present.
//!
//! Pods are evicted one after another, and each frees what its death is predicted to free, until nothing is short any
//! more. No pod grows meanwhile, and each takes all of its grace period.

use super::{
    engine::{
        Action, CandidateFacts, Candidates, Decision, Engine, EngineSettings, Input, Level, Mode, NodeSample,
        Outcome, Reading, Resource, Suppression, Usage, Waiting,
    },
    threshold::{Signal, Threshold, ThresholdValue},
};
use crate::model::CgroupId;

const MS: u64 = 1_000_000;

/// The node and its pods at one moment.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The eviction settings.
    pub settings: EngineSettings,
    /// The pods with their readings, in the order in which ties are broken.
    pub pods: Vec<(CandidateFacts, Reading)>,
    /// The node.
    pub node: NodeSample,
}

impl Scene {
    /// Replaces the hard threshold of `memory.available`.
    pub fn set_threshold(&mut self, value: ThresholdValue) {
        let hard = Threshold::hard(Signal::MemoryAvailable, value);
        let others = self.settings.thresholds.iter().copied();
        let others = others.filter(|one| !(one.is_hard() && one.signal == Signal::MemoryAvailable));
        self.settings.thresholds =
            super::engine::followed(&std::iter::once(hard).chain(others).collect::<Vec<_>>());
    }

    /// Adds anonymous memory to a pod's usage; returns whether the pod exists. Where memory is not counted, only the node
    /// has less.
    pub fn add(&mut self, cgroup: CgroupId, bytes: u64) -> bool {
        let Some((facts, reading)) = self.pods.iter_mut().find(|(facts, _)| facts.cgroup == cgroup) else {
            return false;
        };
        let in_kubepods = facts.in_kubepods;
        let before = reading.usage().copied().unwrap_or_default();
        if !matches!(reading, Reading::Uncounted { .. }) {
            *reading = Reading::Usage(Usage {
                current_bytes: before.current_bytes.saturating_add(bytes),
                working_set_bytes: before.working_set_bytes.saturating_add(bytes),
                anon_bytes: before.anon_bytes.saturating_add(bytes),
                ..before
            });
        }
        for level in self.levels(in_kubepods) {
            level.available = level.available.saturating_sub(bytes);
        }
        true
    }

    /// What memory of such a pod counts towards.
    fn levels(&mut self, in_kubepods: bool) -> impl Iterator<Item = &mut Level> {
        let NodeSample { memory, allocatable, .. } = &mut self.node;
        std::iter::once(memory).chain(allocatable.iter_mut().filter(move |_| in_kubepods))
    }

    fn give(&mut self, decision: &Decision) {
        let freed = decision.predicted_freed_bytes;
        let processes = decision.reading.freed_by_death(Resource::Pids);
        let in_kubepods = self.pods.get(decision.index.0).is_some_and(|(facts, _)| facts.in_kubepods);
        for level in self.levels(in_kubepods) {
            level.available = level.available.saturating_add(freed).min(level.capacity);
        }
        if let Some(level) = &mut self.node.pids {
            level.available = level.available.saturating_add(processes).min(level.capacity);
        }
    }
}

/// A pod that would be evicted.
#[derive(Clone, Debug, PartialEq)]
pub struct Eviction {
    /// The decision.
    pub decision: Decision,
    /// How long from now it is decided, in nanoseconds: soft thresholds have grace periods.
    pub after_ns: u64,
    /// The node's available memory after its death.
    pub available_bytes: u64,
}

/// The evictions that would follow.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Foreseen {
    /// The evictions, in order.
    pub evictions: Vec<Eviction>,
    /// Why they end.
    pub end: End,
}

/// Why no further pod would be evicted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum End {
    /// Nothing is short any more.
    #[default]
    Enough,
    /// A resource is short, and no candidate is left that may be evicted.
    NoneLeft,
    /// A resource is short, and the circuit breaker spares the others.
    Breaker,
    /// A resource is short, and would be even if every candidate was evicted: so none is.
    OutOfReach,
}

/// Plays the evictions through.
#[must_use]
pub fn foresee(mut scene: Scene) -> Foreseen {
    let mut foreseen = Foreseen::default();
    // Hooks are assumed to have run.
    let settings =
        EngineSettings { mode: Mode::Enforce, paused: false, hook_timeout_ns: 0, ..scene.settings };
    let mut engine = Engine::new(&settings);
    engine.arm_loaded();
    // The worst case: pods that are being deleted free nothing by themselves, and volumes stay.
    let facts = |facts: &CandidateFacts| CandidateFacts { terminating: false, torn_down: false, ..*facts };
    let facts: Vec<_> = scene.pods.iter().map(|(of, _)| facts(of)).collect();
    drop(engine.replace(Candidates::new(&facts)));
    let began_ns = scene.node.now_ns;
    // Each pod is decided on once, and between two of them each threshold is awaited once.
    let most = (facts.len() + 1).saturating_mul(settings.thresholds.len() + 2);
    for _ in 0..most {
        let now_ns = scene.node.now_ns;
        let _actions = engine.step(Input::Node(scene.node));
        let readings: Vec<_> = scene.pods.iter().map(|(_, reading)| *reading).collect();
        let actions = engine.step(Input::Usages { node: scene.node, readings: &readings });
        if actions.iter().any(|action| matches!(action, Action::Evict)) {
            let Some(decision) = engine.decision().copied() else { break };
            if decision.dry_run {
                foreseen.end = End::Breaker;
                return foreseen;
            }
            end(&mut engine, &decision, now_ns);
            scene.give(&decision);
            if let Some((_, reading)) = scene.pods.get_mut(decision.index.0) {
                *reading = Reading::Gone;
            }
            let after_ns = now_ns.saturating_sub(began_ns);
            let available_bytes = scene.node.memory.available;
            foreseen.evictions.push(Eviction { decision, after_ns, available_bytes });
            scene.node.now_ns = now_ns.saturating_add(decision.grace_ns).saturating_add(1_000 * MS);
            continue;
        }
        let is_out_of_reach =
            |action: &Action| matches!(action, Action::Suppressed { reason: Suppression::OutOfReach, .. });
        if actions.iter().any(is_out_of_reach) {
            foreseen.end = End::OutOfReach;
            return foreseen;
        }
        match engine.waiting(now_ns) {
            Waiting::Grace(threshold) => {
                scene.node.now_ns = now_ns.saturating_add(threshold.grace_period_ms.saturating_mul(MS));
            }
            Waiting::NotShort => {
                foreseen.end = End::Enough;
                return foreseen;
            }
            Waiting::Observes
            | Waiting::Victim(_)
            | Waiting::GivingBack(_)
            | Waiting::Terminating
            | Waiting::Pause
            | Waiting::Nothing => {
                foreseen.end = End::NoneLeft;
                return foreseen;
            }
        }
    }
    foreseen.end = End::NoneLeft;
    foreseen
}

/// The victim is signalled, and gone at once.
fn end(engine: &mut Engine, decision: &Decision, now_ns: u64) {
    let number = decision.number;
    let asked = Outcome::Terminated { number, now_ns };
    let killed = Outcome::Signalled { number, now_ns };
    let first = if decision.grace_ns > 0 { asked } else { killed };
    let gone =
        Outcome::Progress { number, now_ns, populated: false, current_bytes: None, process_count: None };
    for outcome in [first, gone] {
        let _reported = engine.step(Input::Outcome(outcome));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{BreakerSettings, PodKey, followed};

    const MIB: u64 = 1 << 20;

    fn pod(cgroup: u64, request_mib: u64, used_mib: u64) -> (CandidateFacts, Reading) {
        let facts = CandidateFacts {
            cgroup: CgroupId(cgroup),
            pod: PodKey { hash: cgroup },
            priority: 0,
            request_bytes: request_mib * MIB,
            critical: false,
            protected: false,
            grace_period_ns: 5_000 * MS,
            terminating: false,
            torn_down: false,
            in_kubepods: true,
        };
        let bytes = used_mib * MIB;
        let usage =
            Usage { current_bytes: bytes, working_set_bytes: bytes, anon_bytes: bytes, ..Usage::default() };
        (facts, Reading::Usage(usage))
    }

    fn scene(available_mib: u64, thresholds: &[Threshold]) -> Scene {
        Scene {
            settings: EngineSettings { thresholds: followed(thresholds), ..EngineSettings::default() },
            pods: vec![pod(1, 500, 400), pod(2, 100, 300), pod(3, 100, 700)],
            node: NodeSample {
                now_ns: 9,
                suspended_ns: 0,
                memory: Level { available: available_mib * MIB, capacity: 4_096 * MIB },
                allocatable: None,
                pids: None,
                fill_bytes_per_second: 0,
                free_lists_bytes: 0,
                unmapped_shmem_bytes: 0,
                shmem_bytes: 0,
            },
        }
    }

    fn hard(mib: u64) -> Threshold {
        Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(mib * MIB))
    }

    fn order(foreseen: &Foreseen) -> (Vec<(u64, u64)>, End) {
        let one = |eviction: &Eviction| (eviction.decision.cgroup.0, eviction.available_bytes / MIB);
        (foreseen.evictions.iter().map(one).collect(), foreseen.end)
    }

    #[test]
    fn as_it_is_no_pod_goes() {
        assert_eq!(order(&foresee(scene(1_000, &[hard(200)]))), (vec![], End::Enough));
    }

    #[test]
    fn a_higher_threshold_takes_as_many_as_it_needs() {
        let with = |mib: u64| {
            let mut scene = scene(1_000, &[hard(200)]);
            scene.set_threshold(ThresholdValue::Amount(mib * MIB));
            order(&foresee(scene))
        };
        assert_eq!(with(1_000), (vec![], End::Enough));
        assert_eq!(with(1_001), (vec![(3, 1_700)], End::Enough));
        assert_eq!(with(1_900), (vec![(3, 1_700), (2, 2_000)], End::Enough));
        assert_eq!(with(2_400), (vec![(3, 1_700), (2, 2_000), (1, 2_400)], End::Enough));
        assert_eq!(with(2_401), (vec![], End::OutOfReach));
    }

    #[test]
    fn a_pod_that_grows_may_go_itself_or_not() {
        let with = |cgroup: u64, mib: u64| {
            let mut scene = scene(1_000, &[hard(200)]);
            assert!(scene.add(CgroupId(cgroup), mib * MIB));
            order(&foresee(scene))
        };
        // What it took it gives back.
        assert_eq!(with(2, 900), (vec![(2, 1_300)], End::Enough));
        // Within its request it stays, and another goes.
        let mut within = scene(1_000, &[hard(950)]);
        assert!(within.add(CgroupId(1), 90 * MIB));
        assert_eq!(order(&foresee(within)), (vec![(3, 1_610)], End::Enough));
        assert!(!scene(1_000, &[]).add(CgroupId(9), 1));
    }

    #[test]
    fn a_soft_threshold_comes_after_its_grace_period() {
        let soft = Threshold { grace_period_ms: 30_000, ..hard(1_500) };
        let foreseen = foresee(scene(1_000, &[hard(200), soft]));
        assert_eq!(order(&foreseen), (vec![(3, 1_700)], End::Enough));
        assert_eq!(foreseen.evictions[0].after_ns, 30_000 * MS);
    }

    #[test]
    fn the_breaker_keeps_the_rest() {
        let mut scene = scene(1_000, &[hard(2_000)]);
        scene.settings.breaker = BreakerSettings { max_kills: 1, ..scene.settings.breaker };
        assert_eq!(order(&foresee(scene)), (vec![(3, 1_700)], End::Breaker));
    }
}
