//! What holds of every plan.

use std::collections::{BTreeSet, HashSet};

use enforcer::{
    model::{CgroupPath, Node, Pod, QosClass, Quantity},
    policy::{
        CgroupDriver, CgroupPlan, CpuWeightFormula, MemoryReservationPolicy, Plan, PodPlan, Settings,
        SwapBehavior, plan,
    },
};

/// The largest `pids.max` that the kernel takes (`PID_MAX_LIMIT` in include/linux/threads.h).
const MOST_PIDS: u64 = 4 << 20;

/// The largest quota that the kernel takes, in microseconds (`max_bw_quota_period_us` in kernel/sched/core.c).
const MOST_QUOTA_US: u64 = (1 << 44) - 1;

/// 4 cpus, 8 GiB, swap, huge pages of two sizes.
pub fn node() -> Node {
    let other = [("hugepages-2Mi", 64 << 20), ("hugepages-1Gi", 1 << 30)];
    Node {
        cpu_milli: 4_000,
        memory_bytes: 8 << 30,
        swap_bytes: 4 << 30,
        pods: 110,
        max_pids: Some(32_768),
        page_bytes: 4_096,
        swap_controller: true,
        other: other
            .map(|(name, bytes)| (enforcer::model::ResourceName::new(name), Quantity::from_units(bytes)))
            .into(),
    }
}

/// The defaults, and everything else that can be switched.
pub fn settings() -> [Settings; 2] {
    let other = Settings {
        cgroup_driver: CgroupDriver::Systemd,
        cpu_weight_formula: CpuWeightFormula::Linear,
        cpu_cfs_quota_period_us: 5_000,
        pod_pids_limit: Some(1_024),
        single_process_oom_kill: true,
        memory_throttling_factor: Some(0.9),
        memory_reservation_policy: MemoryReservationPolicy::TieredReservation,
        swap_behavior: SwapBehavior::LimitedSwap,
        ..Settings::default()
    };
    [Settings::default(), other]
}

/// Plans these pods, of which no two have one name or uid, under those settings.
pub fn check(node: &Node, settings: &Settings, pods: &[Pod]) -> Plan {
    let planned = plan(node, settings, pods);
    assert_eq!(planned, plan(node, settings, pods), "the same pods give another plan");
    assert_eq!(planned.pods.len(), pods.len());
    let mut paths = HashSet::new();
    check_cgroup(&planned.node, &mut paths);
    for (class, cgroup) in &planned.qos {
        assert_ne!(*class, QosClass::Guaranteed);
        check_cgroup(cgroup, &mut paths);
        check_below(&cgroup.path, &planned.node.path);
    }
    for (pod, planned_pod) in pods.iter().zip(&planned.pods) {
        check_pod(pod, planned_pod, &planned, &mut paths);
    }
    for cgroup in &planned.reserved {
        check_files(cgroup);
    }
    planned
}

fn check_pod(pod: &Pod, planned: &PodPlan, whole: &Plan, paths: &mut HashSet<CgroupPath>) {
    assert_eq!((&planned.name, &planned.uid), (&pod.name, &pod.uid));
    let class_cgroup = whole.qos.iter().find(|(class, _)| *class == planned.qos_class);
    // What is adopted stands anywhere, and may be named by several: that is for the real hierarchy to find out.
    if !planned.adopted {
        check_below(&planned.cgroup.path, &class_cgroup.map_or(&whole.node, |(_, cgroup)| cgroup).path);
        check_path(&planned.cgroup, paths);
    }
    // What is not admitted has no cgroup: it may want huge pages of a size that has no file here.
    if planned.admission.is_admitted() {
        check_files(&planned.cgroup);
    }
    assert_eq!(planned.containers.len(), pod.containers.len());
    for container in &planned.containers {
        if container.adopted {
            check_files(&container.cgroup);
        } else {
            check_below(&container.cgroup.path, &planned.cgroup.path);
            check_cgroup(&container.cgroup, paths);
        }
        let score = container.oom_score_adj;
        let fits = match planned.qos_class {
            QosClass::Guaranteed => score == -997,
            QosClass::Burstable => score == -997 || (3..=999).contains(&score),
            QosClass::BestEffort => score == -997 || score == 1_000,
        };
        assert!(fits, "a container of a {:?} pod has the score {score}", planned.qos_class);
    }
    let names: BTreeSet<_> = planned.limits.keys().chain(planned.requests.keys()).collect();
    let known = pod.containers.iter().map(|container| &container.resources).chain(&pod.resources);
    let known: BTreeSet<_> = known
        .flat_map(|own| own.requests.keys().chain(own.limits.keys()))
        .chain(pod.overhead.keys())
        .collect();
    assert!(names.is_subset(&known), "resources out of nowhere: {names:?}");
}

fn check_below(path: &CgroupPath, parent: &CgroupPath) {
    assert_eq!(path.parent().as_ref(), Some(parent), "{path} is not right below {parent}");
}

fn check_cgroup(cgroup: &CgroupPlan, paths: &mut HashSet<CgroupPath>) {
    check_path(cgroup, paths);
    check_files(cgroup);
}

fn check_path(cgroup: &CgroupPlan, paths: &mut HashSet<CgroupPath>) {
    assert!(paths.insert(cgroup.path.clone()), "two cgroups are {}", cgroup.path);
    assert_eq!(CgroupPath::parse(cgroup.path.as_str()).as_ref(), Ok(&cgroup.path));
}

fn check_files(cgroup: &CgroupPlan) {
    for (file, value) in &cgroup.values.to_text() {
        assert!(kernel_takes(file, value), "{}: the kernel refuses {value:?} in {file}", cgroup.path);
    }
}

/// Whether a write of that value to that file succeeds, and means what it says.
pub fn kernel_takes(file: &str, value: &str) -> bool {
    let number = |text: &str| {
        let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
        text.parse::<u64>().ok().filter(|_| plain)
    };
    let amount = |text: &str| text == "max" || number(text).is_some();
    match file {
        "cpu.weight" => number(value).is_some_and(|weight| (1..=10_000).contains(&weight)),
        "cpu.max" => value.split_once(' ').is_some_and(|(quota, period)| {
            let quota_fits =
                quota == "max" || number(quota).is_some_and(|us| (1_000..=MOST_QUOTA_US).contains(&us));
            quota_fits && number(period).is_some_and(|us| (1_000..=1_000_000).contains(&us))
        }),
        "memory.min" | "memory.low" | "memory.high" | "memory.max" | "memory.swap.max" => amount(value),
        "pids.max" => value == "max" || number(value).is_some_and(|pids| pids <= MOST_PIDS),
        "memory.oom.group" => matches!(value, "0" | "1"),
        _ => {
            let size = file.strip_prefix("hugetlb.").and_then(|rest| rest.strip_suffix(".max"));
            // Those of `node`: another file is not there.
            size.is_some_and(|size| matches!(size, "2MB" | "1GB")) && amount(value)
        }
    }
}
