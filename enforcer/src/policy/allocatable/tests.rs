use rstest::rstest;

use super::*;
use crate::policy::threshold::{Threshold, ThresholdValue};

fn list(entries: &[(&str, &str)]) -> ResourceList {
    entries.iter().map(|(name, text)| (ResourceName::new(name), text.parse().unwrap())).collect()
}

fn node(memory: &str) -> Node {
    Node {
        cpu_milli: 10_000,
        memory_bytes: memory.parse::<Quantity>().unwrap().units(),
        swap_bytes: 0,
        pods: 110,
        max_pids: Some(32_768),
        page_bytes: 4_096,
        swap_controller: false,
        other: ResourceList::new(),
    }
}

fn settings(kube: &[(&str, &str)], system: &[(&str, &str)]) -> Settings {
    with_threshold(
        Settings { kube_reserved: list(kube), system_reserved: list(system), ..Settings::default() },
        None,
    )
}

fn with_threshold(mut settings: Settings, memory_available: Option<ThresholdValue>) -> Settings {
    settings.eviction.thresholds =
        memory_available.map(|value| Threshold::hard(Signal::MemoryAvailable, value)).into_iter().collect();
    settings
}

const NONE: Option<ThresholdValue> = None;
const QUANTITY: Option<ThresholdValue> = Some(ThresholdValue::Amount(100 << 20));
const SHARE: Option<ThresholdValue> = Some(ThresholdValue::Share(0.05));

/// `pkg/kubelet/cm/node_container_manager_linux_test.go`, `TestNodeAllocatableForEnforcement` (cpu and memory of
/// kubepods) and `TestNodeAllocatableReservationForScheduling` (what is kept from being requested).
#[rstest]
#[case(&[("cpu", "100m"), ("memory", "100Mi")], &[("cpu", "50m"), ("memory", "50Mi")], NONE, ("9850m", "10090Mi"), ("150m", "150Mi"))]
#[case(&[("cpu", "100m"), ("memory", "100Mi")], &[("cpu", "50m"), ("memory", "50Mi")], QUANTITY, ("9850m", "10090Mi"), ("150m", "250Mi"))]
#[case(&[("cpu", "100m"), ("memory", "100Mi")], &[("cpu", "50m"), ("memory", "50Mi")], SHARE, ("9850m", "10090Mi"), ("150m", "694157320"))]
#[case(&[], &[], NONE, ("10", "10Gi"), ("0", "0"))]
#[case(&[("memory", "100Mi")], &[("cpu", "50m"), ("memory", "50Mi")], NONE, ("9950m", "10090Mi"), ("50m", "150Mi"))]
#[case(&[("cpu", "50m"), ("memory", "100Mi")], &[("memory", "50Mi")], NONE, ("9950m", "10090Mi"), ("50m", "150Mi"))]
fn the_node_keeps_what_is_reserved(
    #[case] kube: &[(&str, &str)],
    #[case] system: &[(&str, &str)],
    #[case] threshold: Option<ThresholdValue>,
    #[case] kubepods: (&str, &str),
    #[case] kept: (&str, &str),
) {
    let (node, settings) = (node("10Gi"), with_threshold(settings(kube, system), threshold));
    let expect = |list: &ResourceList, (cpu, memory): (&str, &str)| {
        assert_eq!(list[ResourceName::CPU], cpu.parse().unwrap());
        assert_eq!(list[ResourceName::MEMORY], memory.parse().unwrap());
    };
    expect(&enforced(&node, &settings), kubepods);
    let requestable = requestable(&node, &settings);
    let mut kept_back = capacity(&node);
    for (name, quantity) in &mut kept_back {
        *quantity = quantity.saturating_sub(requestable[name]);
    }
    expect(&kept_back, kept);
    assert_eq!(validate(&node, &settings), Ok(()));
}

/// `pkg/kubelet/cm/node_container_manager_linux_test.go`, `TestNodeAllocatableInputValidation`.
#[test]
fn no_more_is_reserved_than_there_is() {
    let settings = settings(&[("cpu", "5"), ("memory", "10Gi")], &[("cpu", "5"), ("memory", "10Gi")]);
    let settings = with_threshold(settings, Some(ThresholdValue::Amount(2 << 30)));
    let beyond = validate(&node("11Gi"), &settings).unwrap_err();
    assert_eq!(beyond.len(), 1);
    assert_eq!(beyond[0].resource.as_str(), "memory");
    assert_eq!(enforced(&node("11Gi"), &settings)[ResourceName::MEMORY], Quantity::ZERO);
}

/// `pkg/kubelet/nodestatus/setters_test.go`, `TestMachineInfo`: huge pages come out of memory, and no less than all.
#[rstest]
#[case("1", "1023")]
#[case("1025", "0")]
fn huge_pages_come_out_of_memory(#[case] huge: &str, #[case] memory: &str) {
    let node = Node { other: list(&[("hugepages-2Mi", huge)]), ..node("1024") };
    let requestable = requestable(&node, &settings(&[], &[]));
    assert_eq!(requestable[ResourceName::MEMORY], memory.parse().unwrap());
}

#[test]
fn nothing_is_kept_unless_pods_are_enforced() {
    let reserved = settings(&[("memory", "1Gi"), ("pid", "1000")], &[]);
    let limited = enforced(&node("10Gi"), &reserved);
    assert_eq!(
        (limited["memory"], limited["pid"]),
        (Quantity::from_units(9 << 30), Quantity::from_units(31_768))
    );
    let settings = Settings { enforce_pods: false, ..reserved };
    assert_eq!(enforced(&node("10Gi"), &settings)["memory"], Quantity::from_units(10 << 30));
}
