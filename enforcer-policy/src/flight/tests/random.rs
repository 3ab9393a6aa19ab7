//! Whatever goes in: kept, written, read and run again, it is the same.

use proptest::prelude::*;
use serde::Serialize;

use crate::{
    engine::{
        BreakerSettings, CandidateFacts, Candidates, Engine, EngineSettings, HookEnd, Level, Mode,
        NodeSample, Outcome, PodKey, Reading, Refusal, Usage, followed,
    },
    flight::{
        Given, Member, Origin, Record, RecordRef, Recording, StepRef, Writer,
        codec::{decode, encode},
        replay, under,
    },
    model::CgroupId,
    threshold::{Signal, Threshold, ThresholdValue},
};

/// One thing that happens.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Given(Given),
    Candidates(Vec<CandidateFacts>),
    Settings(Box<EngineSettings>),
    Key,
    Called(u128),
}

fn level() -> impl Strategy<Value = Level> {
    (0_u64..1_000, prop_oneof![Just(0_u64), Just(1_000), any::<u64>()])
        .prop_map(|(available, capacity)| Level { available, capacity })
}

fn sample() -> impl Strategy<Value = NodeSample> {
    // Mostly a few milliseconds on; now and then any time at all.
    let now_ns = prop_oneof![9 => (0_u64..20).prop_map(|step| step * 50_000_000), 1 => any::<u64>()];
    (now_ns, level(), prop::option::of(level()), prop::option::of(level()), 0_u64..2_000).prop_map(
        |(now_ns, memory, allocatable, pids, fill_bytes_per_second)| NodeSample {
            free_lists_bytes: fill_bytes_per_second / 7,
            unmapped_shmem_bytes: fill_bytes_per_second / 3,
            shmem_bytes: fill_bytes_per_second / 2,
            now_ns,
            suspended_ns: now_ns / 5,
            memory,
            allocatable,
            pids,
            fill_bytes_per_second,
        },
    )
}

fn reading() -> impl Strategy<Value = Reading> {
    let amount = || prop_oneof![9 => 0_u64..1_000, 1 => any::<u64>()];
    let usage = (amount(), amount(), amount(), amount(), amount(), prop::option::of(amount())).prop_map(
        |(current_bytes, working_set_bytes, anon_bytes, file_bytes, shmem_bytes, process_count)| {
            Reading::Usage(Usage {
                current_bytes,
                working_set_bytes,
                anon_bytes,
                file_bytes,
                shmem_bytes,
                file_mapped_bytes: file_bytes / 2,
                process_count,
            })
        },
    );
    prop_oneof![8 => usage, 1 => Just(Reading::Missing), 1 => Just(Reading::Gone)]
}

fn outcome() -> impl Strategy<Value = Outcome> {
    let refusal = prop_oneof![
        Just(Refusal::Gone),
        Just(Refusal::Empty),
        Just(Refusal::Replaced),
        Just(Refusal::Unrecorded),
        Just(Refusal::Withdrawn),
        Just(Refusal::Budget),
        Just(Refusal::Unknown),
        any::<i32>().prop_map(Refusal::Kernel),
    ];
    let number = || 0_u64..4;
    let at = || (0_u64..20).prop_map(|step| step * 50_000_000);
    prop_oneof![
        (number(), at()).prop_map(|(number, now_ns)| Outcome::Terminated { number, now_ns }),
        (number(), at()).prop_map(|(number, now_ns)| Outcome::Requested { number, now_ns }),
        (number(), at()).prop_map(|(number, now_ns)| Outcome::Unrequested { number, now_ns }),
        (number(), at()).prop_map(|(number, now_ns)| Outcome::Signalled { number, now_ns }),
        (number(), at(), refusal).prop_map(|(number, now_ns, reason)| Outcome::Refused {
            number,
            now_ns,
            reason
        }),
        (number(), at(), any::<i32>()).prop_map(|(number, now_ns, status)| Outcome::HookEnded {
            number,
            now_ns,
            end: HookEnd::Exited(status)
        }),
        (number(), at(), any::<bool>(), prop::option::of(0_u64..1_000), prop::option::of(0_u64..10))
            .prop_map(|(number, now_ns, populated, current_bytes, process_count)| Outcome::Progress {
                number,
                now_ns,
                populated,
                current_bytes,
                process_count
            }),
    ]
}

fn candidates() -> impl Strategy<Value = Vec<CandidateFacts>> {
    let one = (1_u64..9, any::<i32>(), 0_u64..1_000, any::<bool>(), any::<bool>(), 0_u64..4).prop_map(
        |(cgroup, priority, request_bytes, critical, protected, grace)| CandidateFacts {
            cgroup: CgroupId(cgroup),
            pod: PodKey { hash: cgroup },
            priority,
            request_bytes,
            critical,
            protected,
            grace_period_ns: grace * 100_000_000,
            terminating: grace == 0,
            torn_down: grace == 1,
            in_kubepods: grace != 2,
        },
    );
    prop::collection::vec(one, 0..6)
}

pub(super) fn settings() -> impl Strategy<Value = EngineSettings> {
    let value = || {
        prop_oneof![
            (0_u64..1_000).prop_map(ThresholdValue::Amount),
            (0_u8..=100).prop_map(|percent| ThresholdValue::Share(f32::from(percent) / 100.0)),
        ]
    };
    let signal = prop_oneof![
        2 => Just(Signal::MemoryAvailable),
        1 => Just(Signal::AllocatableMemoryAvailable),
        1 => Just(Signal::PidAvailable),
    ];
    let threshold = (signal, value(), prop_oneof![Just(0_u64), 1_u64..500], prop::option::of(value()))
        .prop_map(|(signal, value, grace_period_ms, min_reclaim)| Threshold {
            signal,
            value,
            grace_period_ms,
            min_reclaim,
        });
    let mode = prop_oneof![1 => Just(Mode::Observe), 2 => Just(Mode::DryRun), 4 => Just(Mode::Enforce)];
    let mode = (mode, prop::bool::weighted(0.2));
    (mode, prop::collection::vec(threshold, 0..5), 0_u64..400, 0_u64..400, any::<bool>(), 0_u16..4).prop_map(
        |((mode, paused), thresholds, transition_ms, grace_ms, evict_within_request, max_kills)| {
            EngineSettings {
                mode,
                paused,
                hook_timeout_ns: grace_ms * 1_000_000,
                thresholds: followed(&thresholds),
                pressure_transition_period_ms: transition_ms,
                max_pod_grace_period_ns: grace_ms * 1_000_000,
                asks_first: max_kills > 1,
                evict_within_request,
                breaker: BreakerSettings { max_kills, window_ns: 500_000_000, max_share_permille: 500 },
                dry_run_cool_down_ns: 100_000_000,
            }
        },
    )
}

pub(super) fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        8 => sample().prop_map(|node| Event::Given(Given::Node(node))),
        8 => (sample(), prop::collection::vec(reading(), 0..7))
            .prop_map(|(node, readings)| Event::Given(Given::Usages { node, readings })),
        8 => outcome().prop_map(|outcome| Event::Given(Given::Outcome(outcome))),
        1 => (0_u64..1_000).prop_map(|now_ns| Event::Given(Given::Arm { now_ns })),
        2 => candidates().prop_map(Event::Candidates),
        1 => settings().prop_map(|settings| Event::Settings(Box::new(settings))),
        1 => Just(Event::Key),
        1 => any::<u128>().prop_map(Event::Called),
    ];
    prop::collection::vec(event, 0..60)
}

/// A record as the recorder keeps it.
pub(super) fn encoded(record: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(record, &mut bytes);
    bytes
}

/// What the recorder would keep of it, record by record.
pub(super) fn keep(first: &EngineSettings, events: &[Event]) -> Vec<Vec<u8>> {
    let mut engine = Engine::new(first);
    let mut kept = Vec::new();
    let mut keep = |record: RecordRef<'_>| kept.push(encoded(&record));
    keep(RecordRef::Key(&engine));
    for event in events {
        match event {
            Event::Given(given) => {
                let input = given.input();
                let actions = engine.step(input);
                keep(RecordRef::Step(StepRef::new(&input, &actions, engine.decision())));
            }
            Event::Candidates(facts) => {
                let candidates = Candidates::new(facts);
                keep(RecordRef::Candidates(&candidates));
                drop(engine.replace(candidates));
            }
            Event::Settings(settings) => {
                keep(RecordRef::Settings(settings));
                engine.configure(settings);
            }
            Event::Key => keep(RecordRef::Key(&engine)),
            Event::Called(id) => keep(RecordRef::Called { number: 1, id: *id }),
        }
    }
    kept
}

pub(super) fn file(records: &[Vec<u8>]) -> Vec<u8> {
    let origin = Origin {
        node: "n".into(),
        boot_id: "b".into(),
        config_hash: "h".into(),
        boottime_ns: 5,
        realtime_ns: 1_000_000,
        seed: u128::MAX,
    };
    let mut writer = Writer::new("1.2.3", &origin);
    let member = |cgroup| Member {
        cgroup: CgroupId(cgroup),
        namespace: "default".into(),
        name: format!("pod{cgroup}"),
        uid: format!("u{cgroup}"),
        qos_class: "Burstable".into(),
    };
    writer.names(&(1..9).map(member).collect::<Vec<_>>());
    for record in records {
        writer.record(record);
    }
    writer.finish()
}

proptest! {
    #[test]
    fn what_is_kept_is_run_again_the_same(first in settings(), events in events()) {
        let records = keep(&first, &events);
        let file = file(&records);
        let recording = Recording::read(&file).unwrap();
        prop_assert!(recording.whole);
        prop_assert_eq!(recording.origin.as_ref().map(|origin| origin.wall_ns(5)), Some(1_000_000));
        prop_assert_eq!(recording.names.len(), 8);
        let items: Vec<_> = recording.items.iter().map(|item| item.record().unwrap()).collect();
        prop_assert_eq!(items.len(), records.len());
        for (item, record) in items.iter().zip(&records) {
            // What is put without a copy is what the type itself would put.
            prop_assert_eq!(&encoded(item), record);
        }
        let steps = events.iter().filter(|event| matches!(event, Event::Given(_))).count();
        let account = replay(&recording);
        prop_assert_eq!(account.difference, None);
        prop_assert_eq!((account.equal, account.unverified), (u64::try_from(steps).unwrap(), 0));
        // The settings that were in force all along change nothing.
        let changed = events.iter().any(|event| matches!(event, Event::Settings(_)));
        if !changed {
            let other = under(&recording, &first);
            prop_assert_eq!(other.no_victims, vec![]);
            prop_assert_eq!(other.parted_ns, None);
            let theirs: Vec<_> = replay(&recording).decisions().map(|(decision, _)| *decision).collect();
            let ours: Vec<_> = other.decisions.iter().map(|one| one.decision).collect();
            prop_assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn other_settings_never_fail(first in settings(), second in settings(), events in events()) {
        let file = file(&keep(&first, &events));
        let other = under(&Recording::read(&file).unwrap(), &second);
        let observes = second.mode == Mode::Observe;
        prop_assert!(!observes || other.decisions.is_empty());
    }

    /// A change anywhere in what was recorded of a step is found.
    #[test]
    fn another_action_than_recorded_is_a_difference(first in settings(), events in events(), place: prop::sample::Index) {
        let mut records = keep(&first, &events);
        let steps: Vec<_> = records.iter().enumerate().filter(|(_, record)| record[0] == 3).map(|(at, _)| at).collect();
        prop_assume!(!steps.is_empty());
        let at = steps[place.index(steps.len())];
        let Some(Record::Step(mut step)) = decode(&records[at]) else { panic!() };
        prop_assume!(step.actions.push(crate::engine::Action::LookAgainWithin(1)));
        records[at] = encoded(&Record::Step(step));
        let file = file(&records);
        let account = replay(&Recording::read(&file).unwrap());
        let difference = account.difference.unwrap();
        prop_assert!(difference.recorded.contains("LookAgainWithin(1)"), "{:?}", difference);
        // From there on nothing is claimed, until the whole state is known again.
        prop_assert!(account.equal < u64::try_from(steps.len()).unwrap());
    }

    /// A record that is missing is found at the next whole state, or makes no difference to it.
    #[test]
    fn a_loss_is_reported_and_bridged(first in settings(), events in events(), place: prop::sample::Index) {
        let mut records = keep(&first, &events);
        let cut = place.index(records.len());
        records[cut] = encoded(&RecordRef::Lost(1));
        let file = file(&records);
        let recording = Recording::read(&file).unwrap();
        prop_assert!(recording.whole);
        let account = replay(&recording);
        prop_assert_eq!(&account.difference, &None);
        let gaps = account.moments.iter().filter(|moment| matches!(moment.what, crate::flight::Happening::Gap { lost: 1 }));
        prop_assert_eq!(gaps.count(), 1);
        let next_key = records.iter().skip(cut).position(|record| record[0] == 0).map_or(records.len(), |at| cut + at);
        let blind = records[cut..next_key].iter().filter(|record| record[0] == 3).count();
        prop_assert_eq!(account.unverified, u64::try_from(blind).unwrap());
    }
}
