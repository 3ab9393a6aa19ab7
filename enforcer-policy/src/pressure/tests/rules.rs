//! `pkg/kubelet/eviction/helpers_test.go`, the tables on thresholds and conditions.

use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn acted_on(pressure: &mut Pressure, now_ns: u64, observations: &Observations) -> Option<Signal> {
    pressure.observe(now_ns, observations).reclaim.map(|reclaim| reclaim.threshold.signal)
}

/// `TestThresholdsMet`: fewer than its value; equal is not met; and, once met, its minimum reclaim on top.
#[rstest]
#[case(500 * MIB, false, true)]
#[case(2 * GIB, false, false)]
#[case(GIB, false, false)]
#[case(GIB - 1, false, true)]
// 1.05Gi, as upstream has it.
#[case(1_127_428_915, true, true)]
#[case(GIB + 500 * MIB, true, false)]
#[case(2 * GIB, true, false)]
fn a_threshold_is_met_below_its_value(
    #[case] available: u64,
    #[case] enforce_reclaim: bool,
    #[case] met: bool,
) {
    let mut pressure = Pressure::new(&settings(&[hard()]));
    if enforce_reclaim {
        assert!(pressure.observe(0, &memory(0)).reclaim.is_some());
    }
    assert_eq!(pressure.observe(1, &memory(available)).reclaim.is_some(), met);
}

/// `TestPercentageThresholdsMet`: `memory.available` below 20 % with 5 % to reclaim, `nodefs.available` below 30 %.
#[rstest]
#[case(100, 100, false, &["memory.available", "nodefs.available"])]
#[case(300, 400, false, &[])]
#[case(300, 100, false, &["nodefs.available"])]
#[case(100, 400, false, &["memory.available"])]
#[case(225, 1_000, true, &["memory.available"])]
#[case(300, 1_000, true, &[])]
fn percentages_are_of_what_there_is(
    #[case] memory_mib: u64,
    #[case] disk_gib: u64,
    #[case] enforce_reclaim: bool,
    #[case] met: &[&str],
) {
    let share = |signal, value, reclaim| Threshold {
        min_reclaim: Some(ThresholdValue::Share(reclaim)),
        ..Threshold::hard(signal, ThresholdValue::Share(value))
    };
    let both = [share(Signal::MemoryAvailable, 0.2, 0.05), share(Signal::NodefsAvailable, 0.3, 0.0)];
    let look = |memory_mib: u64, disk_gib: u64| {
        left(&[
            (Signal::MemoryAvailable, memory_mib * MIB, 1_000 * MIB),
            (Signal::NodefsAvailable, disk_gib * GIB, 1_000 * GIB),
        ])
    };
    // One at a time, as only one is acted on.
    let is_met: Vec<_> = both
        .iter()
        .filter(|threshold| {
            let mut pressure = Pressure::new(&settings(&[**threshold]));
            if enforce_reclaim {
                pressure.observe(0, &look(0, 1_000));
            }
            pressure.observe(1, &look(memory_mib, disk_gib)).reclaim.is_some()
        })
        .map(|threshold| threshold.signal.as_str())
        .collect();
    assert_eq!(is_met, met);
}

/// `TestThresholdsFirstObservedAt` and `TestThresholdsMetGracePeriod`: the grace period runs from the first look at
/// which it was met without a break.
#[test]
fn a_grace_period_runs_while_its_threshold_is_met() {
    let mut pressure = Pressure::new(&settings(&[soft()]));
    assert_eq!(acted_on(&mut pressure, 0, &memory(GIB)), None);
    assert_eq!(acted_on(&mut pressure, MINUTE - 1, &memory(GIB)), None);
    assert_eq!(acted_on(&mut pressure, MINUTE, &memory(GIB)), Some(Signal::MemoryAvailable));
    assert_eq!(acted_on(&mut pressure, MINUTE + 1, &memory(2 * GIB)), None);
    assert_eq!(acted_on(&mut pressure, MINUTE + 2, &memory(GIB)), None, "its grace period starts again");
    let mut pressure = Pressure::new(&settings(&[hard()]));
    assert_eq!(acted_on(&mut pressure, 0, &memory(0)), Some(Signal::MemoryAvailable));
}

/// `TestThresholdsUpdatedStats`: what was not measured anew is not acted on again.
#[rstest]
#[case(None, None, true)]
#[case(Some(5), None, true)]
#[case(Some(5), Some(6), false)]
#[case(Some(5), Some(5), false)]
#[case(Some(6), Some(5), true)]
fn only_what_was_measured_anew_is_acted_on(
    #[case] now: Option<u64>,
    #[case] before: Option<u64>,
    #[case] acted: bool,
) {
    let measured = |measured_ns| {
        let mut observations = Observations::default();
        observations.set(Signal::MemoryAvailable, Observation { available: 0, capacity: GIB, measured_ns });
        observations
    };
    let mut pressure = Pressure::new(&settings(&[hard()]));
    if before.is_some() {
        pressure.observe(0, &measured(before));
    }
    assert_eq!(pressure.observe(1, &measured(now)).reclaim.is_some(), acted);
}

/// `TestNodeConditions`, `TestNodeConditionsLastObservedAt`, `TestNodeConditionsObservedSince`.
#[test]
fn a_condition_outlasts_its_threshold_by_the_transition_period() {
    let mut pressure =
        Pressure::new(&EvictionSettings { pressure_transition_period_ms: 120_000, ..settings(&[soft()]) });
    let mut has = |now_ns, available| {
        pressure.observe(now_ns, &memory(available)).conditions.has(NodeCondition::MemoryPressure)
    };
    assert!(!has(0, 3 * GIB));
    assert!(has(MINUTE, GIB), "at once, before the grace period");
    assert!(has(2 * MINUTE, 3 * GIB));
    assert!(has(3 * MINUTE - 1, 3 * GIB));
    assert!(!has(3 * MINUTE, 3 * GIB));
    assert!(has(4 * MINUTE, GIB), "observed anew");
    let only: Vec<_> = pressure.observe(4 * MINUTE, &memory(GIB)).conditions.iter().collect();
    assert_eq!(only, [NodeCondition::MemoryPressure]);
}

/// `TestSortByEvictionPriority`, `TestGetReclaimableThreshold`: memory before everything else.
#[rstest]
#[case(&[], None)]
#[case(&[Signal::NodefsAvailable, Signal::PidAvailable, Signal::MemoryAvailable], Some(Signal::MemoryAvailable))]
#[case(&[Signal::NodefsAvailable, Signal::PidAvailable, Signal::AllocatableMemoryAvailable], Some(Signal::AllocatableMemoryAvailable))]
#[case(&[Signal::NodefsAvailable, Signal::PidAvailable], Some(Signal::NodefsAvailable))]
fn memory_is_acted_on_first(#[case] met: &[Signal], #[case] first: Option<Signal>) {
    let thresholds: Vec<_> =
        met.iter().map(|&signal| Threshold::hard(signal, ThresholdValue::Amount(1))).collect();
    let observed: Vec<_> = met.iter().map(|&signal| (signal, 0, 10)).collect();
    assert_eq!(acted_on(&mut Pressure::new(&settings(&thresholds)), 0, &left(&observed)), first);
}

#[test]
fn what_is_not_observed_is_not_met() {
    let mut pressure = Pressure::new(&settings(&[hard()]));
    assert!(pressure.observe(0, &memory(0)).reclaim.is_some());
    let verdict = pressure.observe(1, &Observations::default());
    assert_eq!(verdict.reclaim, None);
    assert!(verdict.conditions.has(NodeCondition::MemoryPressure));
}

/// `pkg/kubelet/nodestatus/setters_test.go`, `TestMemoryPressureCondition`: reason and message.
#[test]
fn a_condition_has_the_kubelets_words() {
    assert_eq!(
        NodeCondition::MemoryPressure.status(true),
        ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available")
    );
    assert_eq!(NodeCondition::MemoryPressure.status(false).0, "KubeletHasSufficientMemory");
}

proptest! {
    #[test]
    fn less_available_is_never_less_pressure(looks in prop::collection::vec((0..3 * MINUTE, 0..3 * GIB), 1..20), less in 0..GIB) {
        let both = settings(&[hard(), soft()]);
        let (mut here, mut there) = (Pressure::new(&both), Pressure::new(&both));
        let mut now_ns = 0;
        for (later, available) in looks {
            now_ns += later;
            let more = here.observe(now_ns, &memory(available));
            let fewer = there.observe(now_ns, &memory(available.saturating_sub(less)));
            prop_assert!(more.reclaim.is_none() || fewer.reclaim.is_some());
            prop_assert!(!more.conditions.has(NodeCondition::MemoryPressure) || fewer.conditions.has(NodeCondition::MemoryPressure));
        }
    }

    #[test]
    fn a_hard_threshold_is_acted_on_at_once_and_a_soft_one_after_its_grace(
        looks in prop::collection::vec((1..2 * MINUTE, 0..3 * GIB), 1..30),
    ) {
        let mut pressure = Pressure::new(&settings(&[hard(), soft()]));
        let (mut now_ns, mut since, mut last_met) = (0, None, None);
        for (later, available) in looks {
            now_ns += later;
            let verdict = pressure.observe(now_ns, &memory(available));
            if available < GIB {
                prop_assert_eq!(verdict.reclaim.map(|reclaim| reclaim.threshold.is_hard()), Some(true));
            }
            since = if available < 2 * GIB { since.or(Some(now_ns)) } else { None };
            if let Some(reclaim) = verdict.reclaim.filter(|reclaim| !reclaim.threshold.is_hard()) {
                prop_assert!(since.is_some_and(|since| now_ns - since >= MINUTE), "{:?}", reclaim);
            }
            if available < 2 * GIB {
                last_met = Some(now_ns);
            }
            if last_met.is_some_and(|last| now_ns - last < 5 * MINUTE) {
                prop_assert!(verdict.conditions.has(NodeCondition::MemoryPressure));
            }
        }
    }
}
