use rstest::rstest;

use super::*;
use crate::threshold::ThresholdValue::{self, Amount, Share};

/// Reads `signal=value,signal=value`.
fn entries(text: &str) -> Vec<(String, String)> {
    let entry =
        |entry: &str| entry.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())).unwrap();
    text.split(',').filter(|text| !text.is_empty()).map(entry).collect()
}

fn parse(
    hard: &str,
    soft: &str,
    grace: &str,
    reclaim: &str,
    enforce_pods: bool,
) -> Result<Vec<Threshold>, Vec<String>> {
    from_configuration(&Written {
        hard: Some(&entries(hard)),
        soft: &entries(soft),
        soft_grace_period: &entries(grace),
        minimum_reclaim: &entries(reclaim),
        merge_defaults: false,
        enforce_pods,
    })
    .map_err(|wrong| wrong.iter().map(ToString::to_string).collect())
}

fn threshold(
    signal: &str,
    value: ThresholdValue,
    grace_s: u64,
    reclaim: Option<ThresholdValue>,
) -> Threshold {
    let signal = Signal::from_name(signal).unwrap();
    Threshold { signal, value, grace_period_ms: grace_s * 1_000, min_reclaim: reclaim }
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// `pkg/kubelet/eviction/helpers_test.go`, `TestParseThresholdConfig`: what is read.
#[test]
fn thresholds_are_the_kubelets() {
    assert_eq!(parse("", "", "", "", false), Ok(vec![]));
    assert_eq!(
        parse(
            "memory.available=150Mi",
            "memory.available=300Mi",
            "memory.available=30s",
            "memory.available=0",
            true
        ),
        Ok(vec![
            threshold("memory.available", Amount(150 * MIB), 0, Some(Amount(0))),
            threshold("memory.available", Amount(300 * MIB), 30, Some(Amount(0))),
            threshold("allocatableMemory.available", Amount(150 * MIB), 0, Some(Amount(0))),
        ])
    );
    assert_eq!(
        parse(
            "memory.available=10%",
            "memory.available=30%",
            "memory.available=30s",
            "memory.available=5%",
            false
        ),
        Ok(vec![
            threshold("memory.available", Share(0.1), 0, Some(Share(0.05))),
            threshold("memory.available", Share(0.3), 30, Some(Share(0.05))),
        ])
    );
    for (what, unit) in [("available", MIB), ("inodesFree", MIB)] {
        let both = |image: &str, node: &str| format!("imagefs.{what}={image},nodefs.{what}={node}");
        let (image, node) = (format!("imagefs.{what}"), format!("nodefs.{what}"));
        assert_eq!(
            parse(
                &both("150Mi", "100Mi"),
                &both("300Mi", "200Mi"),
                &both("30s", "30s"),
                &both("2Gi", "1Gi"),
                false
            ),
            Ok(vec![
                threshold(&image, Amount(150 * unit), 0, Some(Amount(2 * GIB))),
                threshold(&node, Amount(100 * unit), 0, Some(Amount(GIB))),
                threshold(&image, Amount(300 * unit), 30, Some(Amount(2 * GIB))),
                threshold(&node, Amount(200 * unit), 30, Some(Amount(GIB))),
            ])
        );
    }
    assert_eq!(
        parse(
            "imagefs.available=15%,nodefs.available=10.5%",
            "imagefs.available=30%,nodefs.available=20.5%",
            "imagefs.available=30s,nodefs.available=30s",
            "imagefs.available=10%,nodefs.available=5%",
            false
        ),
        Ok(vec![
            threshold("imagefs.available", Share(0.15), 0, Some(Share(0.1))),
            threshold("nodefs.available", Share(0.105), 0, Some(Share(0.05))),
            threshold("imagefs.available", Share(0.3), 30, Some(Share(0.1))),
            threshold("nodefs.available", Share(0.205), 30, Some(Share(0.05))),
        ])
    );
    for off in ["memory.available=0%", "memory.available=100%"] {
        assert_eq!(parse(off, off, "", "", false), Ok(vec![]));
    }
}

/// The same test: what is refused. Each names the entry that is wrong.
#[rstest]
#[case("mem.available=150Mi", "", "", "", "evictionHard.mem.available: not a signal")]
#[case("memory.available=-150Mi", "", "", "", "evictionHard.memory.available: ")]
#[case("memory.available=-15%", "", "", "", "evictionHard.memory.available: ")]
#[case("memory.available=150%", "", "", "", "evictionHard.memory.available: ")]
#[case("", "memory.available=-150Mi", "", "", "evictionSoft.memory.available: ")]
#[case("memory.available=150Mi,invalid.foo=150Mi", "", "", "", "evictionHard.invalid.foo: not a signal")]
#[case(
    "",
    "memory.available=150Mi",
    "",
    "",
    "evictionSoft.memory.available: a soft threshold needs a grace period"
)]
#[case(
    "",
    "memory.available=150Mi",
    "memory.available=-30s",
    "",
    "evictionSoftGracePeriod.memory.available: \"-30s\" is negative"
)]
#[case("", "", "", "memory.available=-300Mi", "evictionMinimumReclaim.memory.available: ")]
#[case("", "", "", "mem.available=300Mi", "evictionMinimumReclaim.mem.available: not a signal")]
#[case("", "", "", "memory.available=", "evictionMinimumReclaim.memory.available: \"\"")]
#[case("", "", "", "memory.available=-15%", "evictionMinimumReclaim.memory.available: ")]
#[case("", "", "", "memory.available=10..5%", "evictionMinimumReclaim.memory.available: ")]
#[case("memory.available=", "", "", "", "evictionHard.memory.available: \"\"")]
#[case("memory.available=10..5%", "", "", "", "evictionHard.memory.available: ")]
#[case(
    "",
    "memory.available=150Mi",
    "mem.available=30s",
    "",
    "evictionSoftGracePeriod.mem.available: not a signal"
)]
#[case(
    "",
    "memory.available=150Mi",
    "memory.available=30mins",
    "",
    "evictionSoftGracePeriod.memory.available: \"30mins\""
)]
fn what_the_kubelet_refuses_is_refused(
    #[case] hard: &str,
    #[case] soft: &str,
    #[case] grace: &str,
    #[case] reclaim: &str,
    #[case] reported: &str,
) {
    let wrong = parse(hard, soft, grace, reclaim, false).unwrap_err();
    assert!(wrong[0].starts_with(reported), "{wrong:?}");
}

#[test]
fn everything_that_is_wrong_is_reported_at_once() {
    let wrong = parse(
        "a=1,memory.available=x",
        "pid.available=5",
        "b=1s,memory.available=1x",
        "nodefs.available=-1",
        true,
    );
    assert_eq!(wrong.unwrap_err().len(), 6);
}

#[test]
fn defaults_hold_unless_something_is_said() {
    let thresholds = |hard: Option<&str>, merge_defaults| {
        let hard = hard.map(entries);
        let written =
            Written { hard: hard.as_deref(), merge_defaults, enforce_pods: true, ..Written::default() };
        from_configuration(&written).unwrap()
    };
    assert_eq!(thresholds(None, false), EvictionSettings::default().thresholds);
    assert_eq!(thresholds(None, true), EvictionSettings::default().thresholds);
    assert_eq!(thresholds(Some(""), false), []);
    assert_eq!(thresholds(Some(""), true), EvictionSettings::default().thresholds);
    let merged = thresholds(Some("nodefs.available=5%,memory.available=0%"), true);
    let names: Vec<_> = merged.iter().map(|threshold| threshold.signal.as_str()).collect();
    assert_eq!(names, ["nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree"]);
    assert_eq!(merged[0].value, Share(0.05));
}

/// `TestAddAllocatableThresholds`.
#[rstest]
#[case("imagefs.available", 0, 1)]
#[case("memory.available", 10, 1)]
#[case("memory.available", 0, 2)]
fn only_hard_memory_thresholds_hold_for_kubepods(
    #[case] signal: &str,
    #[case] grace_s: u64,
    #[case] count: usize,
) {
    let mut thresholds = vec![threshold(signal, Amount(150 * MIB), grace_s, Some(Amount(0)))];
    add_allocatable(&mut thresholds);
    assert_eq!(thresholds.len(), count);
    if let Some(copy) = thresholds.get(1) {
        assert_eq!(*copy, threshold("allocatableMemory.available", Amount(150 * MIB), 0, Some(Amount(0))));
    }
}

#[test]
fn a_soft_threshold_without_grace_is_a_hard_one() {
    let thresholds = parse("", "memory.available=1Gi", "memory.available=0s", "", true).unwrap();
    assert!(thresholds[0].is_hard());
    assert_eq!(thresholds[1].signal, Signal::AllocatableMemoryAvailable);
    let short = parse("", "memory.available=1Gi", "memory.available=1ns", "", true).unwrap();
    assert!(!short[0].is_hard(), "it has a grace period, however short");
}
