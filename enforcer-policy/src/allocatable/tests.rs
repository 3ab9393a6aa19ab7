use super::*;
use crate::threshold::{Threshold, ThresholdValue};

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

/// 1 cpu and 2 GiB for the system, as much for the kubelet, and 5 % of memory as the threshold.
fn reserving() -> Settings {
    let reserved = list(&[("cpu", "1"), ("memory", "2Gi"), ("pid", "500"), ("ephemeral-storage", "1Gi")]);
    let mut settings =
        Settings { system_reserved: reserved.clone(), kube_reserved: reserved, ..Settings::default() };
    settings.eviction.thresholds =
        vec![Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Share(0.05))];
    settings
}

#[test]
fn the_threshold_lies_between_what_is_enforced_and_what_may_be_requested() {
    let (node, settings) = (node("10Gi"), reserving());
    let enforced = enforced(&node, &settings);
    assert_eq!(
        enforced,
        list(&[("cpu", "8"), ("memory", "6Gi"), ("pods", "110"), ("pid", "31768")]),
        "of storage, which the node does not name, nothing is left nor missing"
    );
    let mut expected = enforced;
    let threshold = Quantity::from_units(536_870_920);
    expected.insert(ResourceName::new("memory"), Quantity::from_units(6 << 30).saturating_sub(threshold));
    assert_eq!(requestable(&node, &settings), expected);
}

#[test]
fn nothing_is_kept_unless_pods_are_enforced() {
    let settings = Settings { enforce_pods: false, ..reserving() };
    assert_eq!(enforced(&node("10Gi"), &settings), capacity(&node("10Gi")));
    assert_eq!(requestable(&node("10Gi"), &settings), requestable(&node("10Gi"), &reserving()));
}

#[test]
fn what_is_reserved_beyond_the_node_is_reported_and_leaves_nothing() {
    let (node, settings) = (node("4Gi"), reserving());
    let reported = validate(&node, &settings).unwrap_err();
    let [reported] = &reported[..] else { panic!("{reported:?}") };
    assert_eq!((reported.resource.as_str(), reported.capacity), ("memory", Quantity::from_units(4 << 30)));
    assert_eq!(reported.reserved, Quantity::from_units((4 << 30) + 214_748_368));
    assert!(reported.to_string().contains("memory"), "{reported}");
    assert_eq!(enforced(&node, &settings)["memory"], Quantity::ZERO);
    assert_eq!(requestable(&node, &settings)["memory"], Quantity::ZERO);
    assert_eq!(validate(&self::node("10Gi"), &settings), Ok(()));
}

#[test]
fn pods_are_bounded_by_cores_too() {
    assert_eq!(pods(3_999, 10, 110), 30);
    assert_eq!(pods(4_000, 0, 110), 110);
    assert_eq!(pods(64_000, u64::MAX, 110), 110);
}
