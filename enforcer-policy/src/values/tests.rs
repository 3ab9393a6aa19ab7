use std::collections::BTreeMap;

use proptest::prelude::*;
use rstest::rstest;

use super::Requested;
use crate::{
    CgroupDriver, CpuWeightFormula, MemoryProtection, MemoryReservationPolicy, ReservedScope, Settings,
    model::{
        CgroupFile, Container, ContainerKind, Limit, Node, Pod, QosClass, Quantity, Requirements,
        ResourceName,
    },
    oom_score, qos as class_of,
    sample::{any_pod, app, list, node as node_of, pod as pod_of},
    values,
};

fn tiered() -> Settings {
    Settings { memory_reservation_policy: MemoryReservationPolicy::TieredReservation, ..Settings::default() }
}

fn throttled(factor: f64) -> Settings {
    Settings { memory_throttling_factor: Some(factor), ..Settings::default() }
}

/// Values by file, as an operator reads them.
type Files = BTreeMap<String, String>;

fn text(files: &Files) -> Vec<String> {
    files.iter().map(|(file, value)| format!("{file}={value}")).collect()
}

/// Of one container in a pod of its own.
fn one(container: Container, node: &Node, settings: &Settings) -> Files {
    let pod = pod_of("p", vec![container]);
    values::container(&pod, &pod.containers[0], node, settings).to_text()
}

fn memory(request: &str, limit: &str) -> Container {
    let entry = |text: &str| {
        let name = ResourceName::new(ResourceName::MEMORY);
        text.parse().ok().map(|amount| (name, amount)).into_iter().collect()
    };
    let resources = Requirements { requests: entry(request), limits: entry(limit) };
    Container { name: String::from("c"), kind: ContainerKind::App, resources }
}

/// `pkg/kubelet/kuberuntime/kuberuntime_container_linux_test.go`, `TestGenerateContainerConfigWithMemoryQoSEnforced`,
/// and the rule of Kubernetes 1.37 for containers without either.
#[rstest]
#[case::halfway("128Mi", "256Mi", 0.9, Some("255012864"))]
#[case::no_limit("128Mi", "", 0.9, Some("30937186304"))]
#[case::the_whole("128Mi", "256Mi", 1.0, Some("268435456"))]
#[case::neither("", "", 0.9, Some("30923763712"))]
#[case::equal("128Mi", "128Mi", 0.9, None)]
#[case::within_a_page("128Mi", "134217729", 0.9, None)]
#[case::more_than_the_node("64Gi", "", 0.9, None)]
#[case::limit_only("", "256Mi", 0.5, Some("134217728"))]
fn memory_high_lies_between_request_and_limit(
    #[case] request: &str,
    #[case] limit: &str,
    #[case] factor: f64,
    #[case] high: Option<&str>,
) {
    let node = Node { memory_bytes: 32 << 30, ..node_of() };
    let files = one(memory(request, limit), &node, &throttled(factor));
    assert_eq!(files.get("memory.high").map(String::as_str), high);
    assert!(!one(memory(request, limit), &node, &Settings::default()).contains_key("memory.high"));
}

#[test]
fn memory_high_leads_towards_what_is_not_reserved_and_keeps_to_pages() {
    let mut settings = Settings { system_reserved: list(&[("memory", "2Gi")]), ..throttled(0.5) };
    let node = Node { page_bytes: 1 << 16, ..node_of() };
    assert_eq!(one(memory("", ""), &node, &settings)["memory.high"], (3_u64 << 30).to_string());
    // The kubelet reckons with the reservation even where kubepods is not held to it.
    settings.enforce_pods = false;
    assert_eq!(one(memory("", ""), &node, &settings)["memory.high"], (3_u64 << 30).to_string());
    let high: u64 = one(memory("", "1000001"), &node, &settings)["memory.high"].parse().unwrap();
    assert_eq!(high, 500_000 - 500_000 % (1 << 16));
}

/// `pkg/kubelet/cm/helpers_linux_test.go`, `TestResourceConfigForPodWithEnforceMemoryQoS` has the pods; these are the
/// containers, by `generateLinuxContainerResources`.
#[rstest]
#[case(QosClass::Guaranteed, "128Mi", "memory.min", Some("134217728"))]
#[case(QosClass::Burstable, "128Mi", "memory.low", Some("134217728"))]
#[case(QosClass::Guaranteed, "0", "memory.min", None)]
#[case(QosClass::Burstable, "", "memory.low", None)]
fn a_containers_request_is_protected(
    #[case] class: QosClass,
    #[case] request: &str,
    #[case] file: &str,
    #[case] expected: Option<&str>,
) {
    let pod = Pod { stored_qos_class: Some(class), ..pod_of("p", vec![memory(request, "256Mi")]) };
    let files =
        |settings: Settings| values::container(&pod, &pod.containers[0], &node_of(), &settings).to_text();
    let protection = |files: &Files| -> Vec<(String, String)> {
        let files = files.iter().filter(|(file, _)| ["memory.min", "memory.low"].contains(&file.as_str()));
        files.map(|(file, value)| (file.clone(), value.clone())).collect()
    };
    let expected: Vec<_> = expected.map(|value| (file.to_owned(), value.to_owned())).into_iter().collect();
    assert_eq!(protection(&files(tiered())), expected);
    assert_eq!(protection(&files(Settings::default())), []);
}

/// A missing cpu request is the limit; an explicit one of 0 is not (upstream `calculateLinuxResources`).
#[rstest]
#[case::missing(&[], "39")]
#[case::of_zero(&[("cpu", "0")], "1")]
#[case::as_large(&[("cpu", "1")], "39")]
fn a_cpu_request_beside_a_limit(#[case] requests: &[(&str, &str)], #[case] weight: &str) {
    let settings = Settings { cpu_weight_formula: CpuWeightFormula::Linear, ..Settings::default() };
    let files = one(app("c", requests, &[("cpu", "1")]), &node_of(), &settings);
    assert_eq!((files["cpu.weight"].as_str(), files["cpu.max"].as_str()), (weight, "100000 100000"));
}

/// `memoryProtection: request`, whatever the kubelet's field says.
#[rstest]
fn every_request_is_protected_absolutely_where_it_is_to_be(
    #[values(QosClass::Guaranteed, QosClass::Burstable)] class: QosClass,
    #[values(Settings::default(), tiered())] settings: Settings,
) {
    let settings = Settings { memory_protection: MemoryProtection::Request, ..settings };
    let pod = Pod { stored_qos_class: Some(class), ..pod_of("p", vec![memory("128Mi", "256Mi")]) };
    let requests = [list(&[("memory", "128Mi")])];
    for values in [
        values::pod(&pod, &node_of(), &settings),
        values::container(&pod, &pod.containers[0], &node_of(), &settings),
        values::qos(&settings, Requested::sum(&requests)),
        values::node(&node_of(), &settings, Requested::sum(&requests)),
    ] {
        assert_eq!((values.memory_min, values.memory_low), (Some(Limit::Amount(128 << 20)), None));
    }
    // What requests nothing has nothing to protect.
    let pod = pod_of("p", vec![memory("", "")]);
    for values in [
        values::pod(&pod, &node_of(), &settings),
        values::container(&pod, &pod.containers[0], &node_of(), &settings),
        values::qos(&settings, Requested::default()),
    ] {
        assert_eq!((values.memory_min, values.memory_low), (None, None));
    }
}

#[test]
fn a_best_effort_pods_overhead_is_not_protected() {
    let pod = Pod { overhead: list(&[("memory", "1Gi")]), ..pod_of("p", vec![app("c", &[], &[])]) };
    assert_eq!(text(&values::pod(&pod, &node_of(), &tiered()).to_text()), ["cpu.weight=1"]);
}

/// `pkg/kubelet/cm/qos_container_manager_linux_test.go`, `TestQoSContainerCgroup`, `TestQoSContainerCgroupPolicyNone`.
#[test]
fn what_classes_request_is_protected_at_their_level() {
    let requests = [list(&[("memory", "128Mi")]), list(&[("memory", "256Mi")]), list(&[("memory", "128Mi")])];
    let (all, burstable) = (Requested::sum(&requests), Requested::sum(&requests[1..]));
    assert_eq!(values::node(&node_of(), &tiered(), all).memory_min, Some(Limit::Amount(536_870_912)));
    assert_eq!(values::qos(&tiered(), burstable).memory_low, Some(Limit::Amount(402_653_184)));
    assert_eq!(values::node(&node_of(), &Settings::default(), all).memory_min, None);
    assert_eq!(text(&values::qos(&Settings::default(), burstable).to_text()), ["cpu.weight=1"]);
    assert_eq!(text(&values::qos(&tiered(), Requested::default()).to_text()), ["cpu.weight=1"]);
}

/// `pkg/kubelet/cm/node_container_manager_linux_test.go`, `TestGetCgroupConfig`.
#[rstest]
#[case(&[], ReservedScope::All, &[])]
#[case(&[("cpu", "100m"), ("memory", "200Mi"), ("pid", "10")], ReservedScope::Compressible, &["cpu.weight=4"])]
#[case(&[("memory", "200Mi")], ReservedScope::Compressible, &[])]
#[case(&[("memory", "200Mi")], ReservedScope::All, &["memory.max=209715200"])]
#[case(&[("cpu", "100m"), ("memory", "200Mi")], ReservedScope::All, &["cpu.weight=4", "memory.max=209715200"])]
#[case(
    &[("pid", "1000"), ("hugepages-2Mi", "4Mi"), ("ephemeral-storage", "1Gi")],
    ReservedScope::All, &["hugetlb.2MB.max=4194304", "pids.max=1000"]
)]
fn a_reserved_cgroup_is_held_to_what_is_reserved(
    #[case] reserved: &[(&str, &str)],
    #[case] scope: ReservedScope,
    #[case] expected: &[&str],
) {
    let reserved = list(reserved);
    assert_eq!(text(&values::reserved(&reserved, scope, &Settings::default()).to_text()), expected);
    let mut protected = values::reserved(&reserved, scope, &tiered());
    assert_eq!(protected.memory_min.take(), protected.memory_max);
    assert_eq!(text(&protected.to_text()), expected);
}

#[rstest]
#[case::limited("200m", true, 50_000, "10000 50000")]
#[case::unlimited("", true, 50_000, "max 50000")]
#[case::off("200m", false, 50_000, "")]
#[case::default_period("", true, 100_000, "")]
fn a_containers_period_is_set_whatever_its_limit(
    #[case] limit: &str,
    #[case] cpu_cfs_quota: bool,
    #[case] cpu_cfs_quota_period_us: u64,
    #[case] expected: &str,
) {
    let limits = [("cpu", limit)];
    let limits = if limit.is_empty() { &[][..] } else { &limits[..] };
    let settings = Settings { cpu_cfs_quota, cpu_cfs_quota_period_us, ..Settings::default() };
    let files = one(app("c", &[], limits), &node_of(), &settings);
    assert_eq!(files.get("cpu.max").map_or("", String::as_str), expected);
}

#[test]
fn quotas_are_planned_as_systemd_keeps_them() {
    let settings = Settings { cgroup_driver: CgroupDriver::Systemd, ..Settings::default() };
    let pod = pod_of("p", vec![app("c", &[], &[("cpu", "1234m"), ("memory", "1Gi")])]);
    assert_eq!(values::pod(&pod, &node_of(), &Settings::default()).to_text()["cpu.max"], "123400 100000");
    assert_eq!(values::pod(&pod, &node_of(), &settings).to_text()["cpu.max"], "124000 100000");
    assert_eq!(
        values::container(&pod, &pod.containers[0], &node_of(), &settings).to_text()["cpu.max"],
        "124000 100000"
    );
}

#[test]
fn no_limit_on_tasks_is_none() {
    let settings = Settings { pod_pids_limit: Some(0), ..Settings::default() };
    let pod = pod_of("p", vec![app("c", &[], &[])]);
    assert_eq!(text(&values::pod(&pod, &node_of(), &settings).to_text()), ["cpu.weight=1"]);
}

/// A pod of one container that requests this much, and at the most twice as much as its limit.
fn requesting(cpu_milli: u64, memory_bytes: u64) -> Pod {
    let amounts = |factor: u64| {
        [
            (ResourceName::new(ResourceName::CPU), Quantity::from_milli(cpu_milli * factor)),
            (ResourceName::new(ResourceName::MEMORY), Quantity::from_units(memory_bytes * factor)),
        ]
        .into()
    };
    let mut pod = pod_of("p", vec![app("c", &[], &[])]);
    pod.containers[0].resources = Requirements { requests: amounts(1), limits: amounts(2) };
    pod
}

fn any_settings() -> impl Strategy<Value = Settings> {
    (any::<[bool; 4]>(), 1_000_u64..=1_000_000, proptest::option::of(0.01_f64..=1.0)).prop_map(
        |([quadratic, systemd, quota, tiered], period_us, factor)| Settings {
            cpu_weight_formula: if quadratic { CpuWeightFormula::Kubelet } else { CpuWeightFormula::Linear },
            cgroup_driver: if systemd { CgroupDriver::Systemd } else { CgroupDriver::Cgroupfs },
            cpu_cfs_quota: quota,
            cpu_cfs_quota_period_us: period_us,
            memory_throttling_factor: factor,
            memory_reservation_policy: if tiered {
                MemoryReservationPolicy::TieredReservation
            } else {
                MemoryReservationPolicy::None
            },
            ..Settings::default()
        },
    )
}

/// What `kernel/sched/core.c` (`cpu_weight_write_u64`, `tg_set_cfs_bandwidth`) and `mm/memcontrol.c` take.
fn check_files(files: &Files, page_bytes: u64) -> Result<(), TestCaseError> {
    let bytes = |file: &str| files.get(file).map(|value| value.parse::<u64>().unwrap());
    let weight = bytes("cpu.weight").unwrap();
    prop_assert!((1..=10_000).contains(&weight));
    if let Some((quota, period)) = files.get("cpu.max").and_then(|value| value.split_once(' ')) {
        prop_assert!((1_000..=1_000_000).contains(&period.parse::<u64>().unwrap()));
        prop_assert!(quota == "max" || quota.parse::<u64>().unwrap() >= 1_000);
    }
    prop_assert!(bytes("memory.min").is_none() || bytes("memory.low").is_none());
    prop_assert_eq!(bytes("memory.high").unwrap_or(0) % page_bytes, 0);
    let order = ["memory.min", "memory.low", "memory.high", "memory.max"];
    let planned: Vec<_> = order.into_iter().filter_map(bytes).collect();
    prop_assert!(planned.is_sorted(), "{files:?}");
    Ok(())
}

proptest! {
    #[test]
    fn files_hold_what_the_kernel_takes(
        cpu_milli in 0_u64..300_000,
        memory_bytes in 0_u64..=8 << 30,
        settings in any_settings(),
        page_bytes in prop_oneof![Just(4_096_u64), Just(65_536)],
    ) {
        let node = Node { page_bytes, ..node_of() };
        let pod = requesting(cpu_milli, memory_bytes);
        check_files(&values::pod(&pod, &node, &settings).to_text(), page_bytes)?;
        check_files(&values::container(&pod, &pod.containers[0], &node, &settings).to_text(), page_bytes)?;
    }

    #[test]
    fn no_value_is_the_kernels_default_and_each_is_read_as_it_is_printed(
        pod in any_pod(),
        settings in any_settings(),
    ) {
        let values = pod.containers.iter().map(|c| values::container(&pod, c, &node_of(), &settings));
        for value in values.chain([values::pod(&pod, &node_of(), &settings)]).flat_map(|v| v.iter().collect::<Vec<_>>()) {
            let file = value.file();
            prop_assert_eq!(file.parse(&value.to_string()), Some(value.clone()));
            // The weight is always planned: it is the kernel's default by chance.
            prop_assert!(file == CgroupFile::CpuWeight || value != file.default_value(), "{file}={value}");
        }
    }

    #[test]
    fn weights_keep_the_ratio_of_requests(less in 600_u64..20_000, factor in 1_u64..12) {
        let weight = |cpu_milli| -> u64 {
            values::pod(&requesting(cpu_milli, 0), &node_of(), &Settings::default()).cpu_weight.unwrap()
        };
        let (one, many) = (weight(less), weight(less * factor));
        // Each may be one more than its part, of at least 23, for the first weight is 1.
        prop_assert!(many.abs_diff(one * factor) <= factor, "{one} : {many}, not 1 : {factor}");
    }

    #[test]
    fn more_requested_is_never_worse(
        (cpu_less, cpu_more) in (0_u64..300_000, 0_u64..10_000),
        (memory_less, memory_more) in (1_u64..4 << 30, 0_u64..2 << 30),
        settings in any_settings(),
    ) {
        let low = requesting(cpu_less, memory_less);
        let high = requesting(cpu_less + cpu_more, memory_less + memory_more);
        prop_assert_eq!(class_of::class(&low), class_of::class(&high));
        let score = |pod: &Pod| oom_score::score(pod, &pod.containers[0], node_of().memory_bytes);
        prop_assert!(score(&high) <= score(&low));
        let files = |pod: &Pod| {
            let container = values::container(pod, &pod.containers[0], &node_of(), &settings);
            [values::pod(pod, &node_of(), &settings).to_text(), container.to_text()]
        };
        for (low, high) in files(&low).iter().zip(&files(&high)) {
            for file in ["cpu.weight", "memory.low", "memory.high", "memory.max"] {
                let value = |files: &Files| files.get(file).map(|value| value.parse::<u64>().unwrap());
                if let (Some(low), Some(high)) = (value(low), value(high)) {
                    prop_assert!(low <= high, "{file}: {low} for less, {high} for more");
                }
            }
        }
    }
}
