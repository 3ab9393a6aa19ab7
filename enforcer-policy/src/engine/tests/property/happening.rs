//! What may happen to the engine, made at random.

use proptest::prelude::*;

use super::{LONGEST_JUMP_MS, MIB, MS, SOFT_GRACE_MS};
use crate::{
    engine::{
        BreakerSettings, CandidateFacts, EngineSettings, Level, Mode, NodeSample, PodKey, Refusal, followed,
    },
    model::CgroupId,
    threshold::{Signal, Threshold, ThresholdValue},
};

#[derive(Clone, Debug)]
pub(super) enum Happening {
    Look {
        after_ms: u64,
        node: Node,
    },
    Usages {
        node: Node,
        used: Vec<Option<(u64, u64)>>,
    },
    Answer(Answer),
    Progress {
        after_ms: u64,
        populated: bool,
        current_mib: Option<u64>,
    },
    NewSet(Vec<CandidateFacts>),
    Configure(Box<EngineSettings>),
    /// An operator arms every threshold.
    Arm,
    /// The clock goes back, or far ahead: no clock of a kernel that works does, and nothing may come of it but delay.
    Jump {
        back_ms: u64,
        ahead_ms: u64,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// Asked to end: by SIGTERM, or through the API server.
    Terminated {
        requested: bool,
    },
    Signalled,
    Refused(Refusal),
    /// What was run before has ended.
    Hook,
    /// Of who was asked to end only after it had been killed, if anybody: whether it was asked.
    Late(bool),
    /// Of the brake that was asked for first and not answered yet: whether it was done.
    Brake(bool),
}

/// What is left of what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) memory_mib: u64,
    pub(super) allocatable_mib: Option<u64>,
    pub(super) pids: Option<u64>,
    pub(super) fill_mib: u64,
    pub(super) free_lists_mib: u64,
}

impl Node {
    pub(super) fn sample(self, now_ns: u64) -> NodeSample {
        let level = |available, capacity| Level { available, capacity };
        NodeSample {
            now_ns,
            suspended_ns: 0,
            memory: level(self.memory_mib * MIB, 4_096 * MIB),
            allocatable: self.allocatable_mib.map(|mib| level(mib * MIB, 4_096 * MIB)),
            pids: self.pids.map(|pids| level(pids, 32_768)),
            fill_bytes_per_second: self.fill_mib * MIB,
            free_lists_bytes: self.free_lists_mib * MIB,
            unmapped_shmem_bytes: self.free_lists_mib * MIB,
            shmem_bytes: self.free_lists_mib * 2 * MIB,
        }
    }

    /// When the node's memory is exhausted; the pods' limit can be earlier.
    pub(super) fn exhausted_in_ns(self) -> Option<u64> {
        (self.memory_mib * 1_000 * MS).checked_div(self.fill_mib)
    }
}

pub(super) fn node() -> impl Strategy<Value = Node> {
    let allocatable = prop::option::weighted(0.3, 0_u64..400);
    let pids = prop::option::weighted(0.3, 0_u64..3_000);
    let free_lists = prop_oneof![3 => Just(0), 1 => 0_u64..300];
    (0_u64..600, allocatable, pids, prop_oneof![0_u64..200, 0_u64..4_000], free_lists).prop_map(
        |(memory_mib, allocatable_mib, pids, fill_mib, free_lists_mib)| Node {
            memory_mib,
            allocatable_mib,
            pids,
            fill_mib,
            free_lists_mib,
        },
    )
}

pub(super) fn facts() -> impl Strategy<Value = Vec<CandidateFacts>> {
    let spared = || prop::bool::weighted(0.15);
    let one = (-2_i32..3, 0_u64..300, spared(), spared(), 0_u64..10, spared());
    prop::collection::vec(one, 0..6).prop_map(|pods| {
        let number = |(place, (priority, request, critical, protected, grace, terminating)): (u64, _)| {
            let request: u64 = request;
            CandidateFacts {
                cgroup: CgroupId(place + 1),
                pod: PodKey { hash: place % 4 },
                priority,
                request_bytes: request * MIB,
                critical,
                protected,
                grace_period_ns: grace * 1_000 * MS,
                terminating,
                torn_down: place % 2 == 0,
                in_kubepods: place % 3 != 2,
            }
        };
        (0..).zip(pods).map(number).collect()
    })
}

pub(super) fn refusal() -> impl Strategy<Value = Refusal> {
    prop_oneof![
        Just(Refusal::Gone),
        Just(Refusal::Empty),
        Just(Refusal::Replaced),
        Just(Refusal::Unrecorded),
        Just(Refusal::Withdrawn),
        Just(Refusal::Budget),
        Just(Refusal::Kernel(95)),
    ]
}

/// What each candidate uses, in MiB and tasks; none where that cannot be read.
pub(super) fn used() -> impl Strategy<Value = Vec<Option<(u64, u64)>>> {
    let one = prop::option::weighted(0.9, (0_u64..600, 0_u64..2_000));
    prop::collection::vec(one, 4..6)
}

pub(super) fn happening() -> impl Strategy<Value = Happening> {
    let answer = prop_oneof![
        2 => any::<bool>().prop_map(|requested| Answer::Terminated { requested }),
        2 => Just(Answer::Signalled),
        1 => refusal().prop_map(Answer::Refused),
        1 => Just(Answer::Hook),
        1 => any::<bool>().prop_map(Answer::Late),
        2 => prop::bool::weighted(0.8).prop_map(Answer::Brake),
    ];
    prop_oneof![
        8 => (0_u64..3_000, node()).prop_map(|(after_ms, node)| Happening::Look { after_ms, node }),
        8 => (node(), used()).prop_map(|(node, used)| Happening::Usages { node, used }),
        8 => answer.prop_map(Happening::Answer),
        6 => (0_u64..3_000, any::<bool>(), prop::option::of(0_u64..600)).prop_map(
            |(after_ms, populated, current_mib)| Happening::Progress { after_ms, populated, current_mib }
        ),
        2 => facts().prop_map(Happening::NewSet),
        1 => settings().prop_map(|settings| Happening::Configure(Box::new(settings))),
        1 => Just(Happening::Arm),
        1 => (0_u64..LONGEST_JUMP_MS, prop_oneof![Just(0), 0_u64..LONGEST_JUMP_MS])
            .prop_map(|(back_ms, ahead_ms)| Happening::Jump { back_ms, ahead_ms }),
    ]
}

pub(super) fn thresholds() -> impl Strategy<Value = Vec<Threshold>> {
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

pub(super) fn settings() -> impl Strategy<Value = EngineSettings> {
    let mode = prop_oneof![1 => Just(Mode::Observe), 1 => Just(Mode::DryRun), 3 => Just(Mode::Enforce)];
    let paused = prop::bool::weighted(0.2);
    let hook_ms = prop_oneof![Just(0_u64), 1_u64..5_000];
    (mode, paused, thresholds(), any::<bool>(), 0_u16..5, 0_u64..10, hook_ms).prop_map(
        |(mode, paused, thresholds, within, max_kills, grace, hook_ms)| EngineSettings {
            paused,
            hook_timeout_ns: hook_ms * MS,
            mode,
            thresholds: followed(&thresholds),
            pressure_transition_period_ms: 1_000,
            max_pod_grace_period_ns: grace * 1_000 * MS,
            asks_first: max_kills > 2,
            evict_within_request: within,
            breaker: BreakerSettings { max_kills, window_ns: 10_000 * MS, max_share_permille: 500 },
            dry_run_cool_down_ns: 1_000 * MS,
        },
    )
}

/// An engine that acts, with pods that it may act on.
pub(super) fn busy() -> impl Strategy<Value = (EngineSettings, Vec<CandidateFacts>)> {
    (settings(), facts()).prop_map(|(settings, facts)| {
        let threshold = |grace_period_ms, mib: u64| Threshold {
            grace_period_ms,
            ..Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(mib * MIB))
        };
        let settings = EngineSettings {
            mode: Mode::Enforce,
            paused: false,
            thresholds: followed(&[threshold(0, 100), threshold(100, 500)]),
            max_pod_grace_period_ns: 10_000 * MS,
            breaker: BreakerSettings { max_kills: 50, window_ns: 10_000 * MS, max_share_permille: 1_000 },
            ..settings
        };
        let willing = |facts: CandidateFacts| CandidateFacts {
            critical: false,
            request_bytes: facts.request_bytes / 10,
            ..facts
        };
        (settings, facts.into_iter().map(willing).collect())
    })
}
