use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::{
    CgroupDriver, CpuWeightFormula, MemoryReservationPolicy, ReservedScope, SwapBehavior,
    admission::Rejection,
    model::{Adoption, ContainerKind, Limit, Quantity, Requirements},
    sample::{any_pod, app, container, list, node, pod},
};

fn files(plan: &CgroupPlan) -> Vec<String> {
    plan.values.to_text().iter().map(|(file, value)| format!("{file}={value}")).collect()
}

fn limited(name: &str) -> Pod {
    pod(
        name,
        vec![app("app", &[("cpu", "100m"), ("memory", "100Mi")], &[("cpu", "200m"), ("memory", "200Mi")])],
    )
}

#[test]
fn a_burstable_pod_is_planned_at_every_level() {
    let plan = plan(&node(), &Settings::default(), &[limited("web")]);
    assert_eq!(plan.node.path.as_str(), "/kubepods");
    assert_eq!(files(&plan.node), ["cpu.weight=157", "memory.max=8589934592"]);
    let qos: Vec<_> = plan.qos.iter().map(|(_, cgroup)| (cgroup.path.as_str(), files(cgroup))).collect();
    assert_eq!(
        qos,
        [
            ("/kubepods/burstable", vec![String::from("cpu.weight=4")]),
            ("/kubepods/besteffort", vec![String::from("cpu.weight=1")])
        ]
    );
    let web = &plan.pods[0];
    assert_eq!((web.qos_class, web.priority, web.critical), (QosClass::Burstable, 0, false));
    assert_eq!(web.requests, list(&[("cpu", "100m"), ("memory", "100Mi")]));
    assert_eq!(web.limits, list(&[("cpu", "200m"), ("memory", "200Mi")]));
    assert_eq!(web.ranking_request_bytes, 100 << 20);
    assert_eq!(web.cgroup.path.as_str(), "/kubepods/burstable/poduid-web");
    assert_eq!(files(&web.cgroup), ["cpu.max=20000 100000", "cpu.weight=4", "memory.max=209715200"]);
    let app = &web.containers[0];
    assert_eq!((app.kind, app.oom_score_adj), (ContainerKind::App, 988));
    assert_eq!(app.cgroup.path.as_str(), "/kubepods/burstable/poduid-web/app");
    assert_eq!(
        files(&app.cgroup),
        ["cpu.max=20000 100000", "cpu.weight=17", "memory.max=209715200", "memory.oom.group=1"]
    );
}

#[rstest]
#[case::none(None, &[], true)]
#[case::elsewhere(Some("/machine.slice/m.scope"), &[], false)]
#[case::like_named(Some("/kubepods-other/m"), &[], false)]
#[case::within(Some("/kubepods/burstable/other"), &[], true)]
#[case::one_container(None, &["a"], true)]
#[case::every_container(None, &["a", "b"], false)]
fn what_adopts_all_that_it_uses_elsewhere_is_outside_kubepods(
    #[case] own: Option<&str>,
    #[case] containers: &[&str],
    #[case] is_in_kubepods: bool,
) {
    let path = |text: &str| CgroupPath::parse(text).unwrap();
    let containers =
        containers.iter().map(|name| ((*name).to_owned(), path(&format!("/system.slice/{name}"))));
    let adopts = Some(Adoption { pod: own.map(path), containers: containers.collect() });
    let pod = Pod { adopts, ..pod("p", vec![app("a", &[], &[]), app("b", &[], &[])]) };
    let planned = plan(&node(), &Settings::default(), &[pod]);
    assert_eq!(planned.pods[0].is_in_kubepods(), is_in_kubepods);
}

/// `pkg/kubelet/cm/qos_container_manager_linux_test.go`, `TestQOSCPUConfigUpdate`: shares of the Burstable class.
#[rstest]
#[case(&[], &[], 1)]
#[case(&["1"], &[], 39)]
#[case(&["1"], &["1"], 39)]
#[case(&["1", "500m", "1m"], &[], 59)]
fn a_class_weighs_what_its_pods_request(
    #[case] burstable: &[&str],
    #[case] guaranteed: &[&str],
    #[case] weight: u64,
) {
    let one = |cpu: &&str| pod("b", vec![app("c", &[("cpu", *cpu)], &[])]);
    let whole = |cpu: &&str| {
        let amounts: &[_] = &[("cpu", *cpu), ("memory", "1Gi")];
        pod("g", vec![app("c", amounts, amounts)])
    };
    let mut pods: Vec<_> = burstable.iter().map(one).chain(guaranteed.iter().map(whole)).collect();
    pods.push(pod("besteffort", vec![app("c", &[], &[])]));
    let plan = plan(&node(), &Settings::default(), &pods);
    assert_eq!(files(&plan.qos[0].1), [format!("cpu.weight={weight}")]);
    assert_eq!(files(&plan.qos[1].1), ["cpu.weight=1"]);
}

#[test]
fn settings_reach_every_level() {
    let settings = Settings {
        cgroup_root: CgroupPath::parse("/machine").unwrap(),
        cpu_weight_formula: CpuWeightFormula::Linear,
        cpu_cfs_quota: false,
        pod_pids_limit: Some(100),
        single_process_oom_kill: true,
        system_reserved: list(&[("cpu", "1"), ("memory", "1Gi"), ("pid", "768")]),
        kube_reserved: list(&[("memory", "1Gi"), ("hugepages-2Mi", "2Mi")]),
        ..Settings::default()
    };
    let node = Node {
        max_pids: Some(32_768),
        other: list(&[("hugepages-2Mi", "64Mi"), ("hugepages-1Gi", "0"), ("example.com/gpu", "2")]),
        ..node()
    };
    let plan = plan(&node, &settings, &[limited("web")]);
    assert_eq!(
        files(&plan.node),
        [
            "cpu.weight=118",
            "hugetlb.1GB.max=0",
            "hugetlb.2MB.max=65011712",
            "memory.max=6442450944",
            "pids.max=32000"
        ]
    );
    let web = &plan.pods[0];
    assert_eq!(web.cgroup.path.as_str(), "/machine/kubepods/burstable/poduid-web");
    assert_eq!(
        files(&web.cgroup),
        ["cpu.weight=4", "hugetlb.1GB.max=0", "hugetlb.2MB.max=0", "memory.max=209715200", "pids.max=100"]
    );
    assert_eq!(
        files(&web.containers[0].cgroup),
        ["cpu.weight=4", "hugetlb.1GB.max=0", "hugetlb.2MB.max=0", "memory.max=209715200"]
    );
}

/// `pkg/kubelet/kuberuntime/kuberuntime_container_linux_test.go`, `TestGenerateLinuxContainerResourcesWithSwap` and
/// `TestGetContainerSwapBehavior`, on its node of 40Gi memory and 5Gi swap.
#[rstest]
#[case("1Gi", None, SwapBehavior::LimitedSwap, true, 0, Some("134217728"))]
#[case("2Gi", None, SwapBehavior::LimitedSwap, true, 0, Some("268435456"))]
#[case("1Gi", Some("2Gi"), SwapBehavior::LimitedSwap, true, 0, Some("134217728"))]
#[case("1Gi", Some("1Gi"), SwapBehavior::LimitedSwap, true, 0, Some("0"))]
#[case("0", None, SwapBehavior::LimitedSwap, true, 0, Some("0"))]
#[case("41Gi", None, SwapBehavior::LimitedSwap, true, 0, Some("0"))]
#[case("1Gi", None, SwapBehavior::LimitedSwap, true, 2_000_000_000, Some("0"))]
#[case("1Gi", None, SwapBehavior::NoSwap, true, 0, Some("0"))]
#[case("1Gi", None, SwapBehavior::LimitedSwap, false, 0, None)]
fn swap_is_shared_by_request(
    #[case] request: &str,
    #[case] limit: Option<&str>,
    #[case] swap_behavior: SwapBehavior,
    #[case] swap_controller: bool,
    #[case] priority: i32,
    #[case] expected: Option<&str>,
) {
    let node = Node { memory_bytes: 40 << 30, swap_bytes: 5 << 30, swap_controller, ..node() };
    let limits: Vec<_> = limit.into_iter().map(|limit| ("memory", limit)).collect();
    // The second container keeps the pod Burstable whatever the first one requests.
    let containers = vec![app("c", &[("memory", request)], &limits), app("d", &[("cpu", "1")], &[])];
    let pod = Pod { priority: Some(priority), ..pod("p", containers) };
    let plan = plan(&node, &Settings { swap_behavior, ..Settings::default() }, &[pod]);
    assert_eq!(plan.pods[0].qos_class, QosClass::Burstable);
    let swap = plan.pods[0].containers[0].cgroup.values.memory_swap_max;
    assert_eq!(swap.map(|limit| limit.to_string()).as_deref(), expected);
}

#[test]
fn guaranteed_and_best_effort_do_not_swap() {
    let node = Node { swap_bytes: 5 << 30, swap_controller: true, ..node() };
    let settings = Settings { swap_behavior: SwapBehavior::LimitedSwap, ..Settings::default() };
    let all: &[_] = &[("cpu", "1"), ("memory", "1Gi")];
    for containers in [vec![app("c", all, all)], vec![app("c", &[], &[])]] {
        let plan = plan(&node, &settings, &[pod("p", containers)]);
        assert_eq!(plan.pods[0].containers[0].cgroup.values.memory_swap_max, Some(Limit::Amount(0)));
    }
}

/// A sidecar's limit counts for the init containers after it (`ResourceConfigForPod`, by `AggregateContainerLimits`).
#[test]
fn a_sidecars_limit_covers_later_init_containers() {
    let limits: &[_] = &[("cpu", "1"), ("memory", "1Gi")];
    let sidecar = container(ContainerKind::Sidecar, "s", limits, limits);
    let init = container(ContainerKind::Init, "i", &[], &[]);
    let main = app("c", &[], limits);
    let limited = |containers| {
        let plan = plan(&node(), &Settings::default(), &[pod("p", containers)]);
        plan.pods[0].cgroup.values.memory_max
    };
    assert_eq!(limited(vec![sidecar.clone(), init.clone(), main.clone()]), Some(Limit::Amount(2 << 30)));
    assert_eq!(limited(vec![init, sidecar, main]), None);
}

/// `PodLimits`: a limit of 0 is no limit, and overhead does not make it one.
#[test]
fn overhead_raises_only_what_is_limited() {
    let containers = vec![app("c", &[("cpu", "1")], &[("cpu", "2"), ("memory", "0")])];
    let pod = Pod { overhead: list(&[("cpu", "1"), ("memory", "1Gi")]), ..pod("p", containers) };
    let plan = plan(&node(), &Settings::default(), &[pod]);
    assert_eq!(plan.pods[0].requests, list(&[("cpu", "2"), ("memory", "1Gi")]));
    assert_eq!(plan.pods[0].limits, list(&[("cpu", "3"), ("memory", "0")]));
    assert_eq!(plan.pods[0].ranking_request_bytes, 0);
    assert_eq!(files(&plan.pods[0].cgroup), ["cpu.max=300000 100000", "cpu.weight=79"]);
}

#[test]
fn a_stored_class_holds() {
    let pod = Pod { stored_qos_class: Some(QosClass::Guaranteed), ..limited("web") };
    let plan = plan(&node(), &Settings::default(), &[pod]);
    assert_eq!(plan.pods[0].cgroup.path.as_str(), "/kubepods/poduid-web");
    assert_eq!(plan.pods[0].containers[0].oom_score_adj, -997);
}

#[test]
fn a_systemd_plan_has_slices_and_scopes() {
    let root = CgroupPath::parse("/machine").unwrap();
    let settings =
        Settings { cgroup_root: root, cgroup_driver: CgroupDriver::Systemd, ..Settings::default() };
    let plan = plan(&node(), &settings, &[limited("web")]);
    assert_eq!(plan.node.path.as_str(), "/machine.slice/machine-kubepods.slice");
    let burstable = format!("{}/machine-kubepods-burstable.slice", plan.node.path);
    assert_eq!(plan.qos[0].1.path.as_str(), burstable);
    let web = format!("{burstable}/machine-kubepods-burstable-poduid_web.slice");
    assert_eq!(plan.pods[0].cgroup.path.as_str(), web);
    let app = format!("{web}/enforcer-uid_web-app.scope");
    assert_eq!(plan.pods[0].containers[0].cgroup.path.as_str(), app);
}

#[test]
fn a_mirror_pod_keeps_its_uid_but_for_its_cgroup() {
    let annotations = [("kubernetes.io/config.mirror", "x"), ("kubernetes.io/config.hash", "0a1b")];
    let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let pod = Pod { annotations, ..limited("web") };
    let plan = plan(&node(), &Settings::default(), std::slice::from_ref(&pod));
    assert_eq!(plan.pods[0].uid, pod.uid);
    assert_eq!(plan.pods[0].cgroup.path.as_str(), "/kubepods/burstable/pod0a1b");
}

#[test]
fn requested_memory_is_protected_at_every_level() {
    let settings = Settings {
        memory_reservation_policy: MemoryReservationPolicy::TieredReservation,
        ..Settings::default()
    };
    let equal = &[("cpu", "1"), ("memory", "1Gi")];
    let guaranteed = pod("g", vec![app("c", equal, equal)]);
    let plan = plan(&node(), &settings, &[guaranteed, limited("b"), pod("e", vec![app("c", &[], &[])])]);
    let protection = |cgroup: &CgroupPlan| {
        let bytes = |limit: Option<Limit>| limit.map_or(0, |limit| limit.amount().unwrap());
        (bytes(cgroup.values.memory_min), bytes(cgroup.values.memory_low))
    };
    let (one, other) = (1_u64 << 30, 100_u64 << 20);
    assert_eq!(protection(&plan.node), (one + other, 0));
    assert_eq!(protection(&plan.qos[0].1), (0, other));
    assert_eq!(protection(&plan.qos[1].1), (0, 0));
    let pods: Vec<_> = plan.pods.iter().map(|pod| protection(&pod.cgroup)).collect();
    assert_eq!(pods, [(one, 0), (0, other), (0, 0)]);
    let containers: Vec<_> = plan.pods.iter().map(|pod| protection(&pod.containers[0].cgroup)).collect();
    assert_eq!(containers, pods);
}

#[test]
fn reserved_cgroups_are_planned_where_they_are() {
    let reserved = |path: &str, scope| Some(ReservedCgroup { path: CgroupPath::parse(path).unwrap(), scope });
    let mut settings = Settings {
        cgroup_driver: CgroupDriver::Systemd,
        system_reserved: list(&[("cpu", "1"), ("memory", "1Gi")]),
        kube_reserved: list(&[("cpu", "2"), ("memory", "2Gi")]),
        system_reserved_cgroup: reserved("/system.slice", ReservedScope::All),
        kube_reserved_cgroup: reserved("/kubelet", ReservedScope::Compressible),
        ..Settings::default()
    };
    let reported = |settings: &Settings| -> Vec<_> {
        let reserved = plan(&node(), settings, &[]).reserved;
        reserved.iter().map(|cgroup| (cgroup.path.to_string(), files(cgroup).join(" "))).collect()
    };
    let of = |path: &str, files: &str| (path.to_owned(), files.to_owned());
    assert_eq!(
        reported(&settings),
        [of("/system.slice", "cpu.weight=39 memory.max=1073741824"), of("/kubelet.slice", "cpu.weight=79")]
    );
    settings.kube_reserved_cgroup = reserved("/system.slice", ReservedScope::Compressible);
    assert_eq!(reported(&settings), [of("/system.slice", "cpu.weight=79 memory.max=1073741824")]);
    assert_eq!(reported(&Settings::default()), []);
}

/// `pkg/kubelet/types/pod_update_test.go`, `TestIsCriticalPod`, `TestIsNodeCriticalPod`.
#[rstest]
#[case(None, 0, false)]
#[case(Some((critical::CONFIG_SOURCE, "file")), 0, true)]
#[case(Some((critical::CONFIG_SOURCE, "http")), 0, true)]
#[case(Some((critical::CONFIG_SOURCE, "api")), 0, false)]
#[case(Some((critical::CONFIG_MIRROR, "")), 0, true)]
#[case(None, 2_000_000_000, true)]
#[case(None, i32::MAX, true)]
#[case(None, 1_999_999_999, false)]
#[case(Some((critical::CONFIG_SOURCE, "api")), 2_000_000_000, true)]
fn critical_pods_are_known(
    #[case] annotation: Option<(&str, &str)>,
    #[case] priority: i32,
    #[case] expected: bool,
) {
    let annotations = annotation.map(|(key, value)| (key.to_owned(), value.to_owned())).into_iter().collect();
    let mut pod = Pod { priority: Some(priority), annotations, ..limited("p") };
    assert_eq!(critical::is_critical(&pod), expected);
    assert!(!critical::is_node_critical(&pod));
    pod.priority_class_name = Some(String::from("system-node-critical"));
    assert_eq!(critical::is_node_critical(&pod), expected);
    assert_eq!(oom_score::score(&pod, &pod.containers[0], 8 << 30), if expected { -997 } else { 988 });
}

#[test]
fn a_node_without_memory_does_not_divide_by_it() {
    let node = Node { memory_bytes: 0, cpu_milli: 0, ..node() };
    let plan = plan(&node, &Settings::default(), &[limited("web")]);
    assert_eq!(plan.pods[0].containers[0].oom_score_adj, oom_score::BURSTABLE_MIN);
    assert_eq!(files(&plan.node), ["cpu.weight=1"]);
}

/// One container that requests and may use this part, in thousandths, of 4 cpus and 8 GiB.
fn part(request: u64, limit: u64) -> Pod {
    let amounts = |part: u64| {
        [
            (ResourceName::new(ResourceName::CPU), Quantity::from_milli(4 * part)),
            (ResourceName::new(ResourceName::MEMORY), Quantity::from_units((8 << 30) / 1000 * part)),
        ]
        .into()
    };
    let mut pod = pod("p", vec![app("c", &[], &[])]);
    pod.containers[0].resources = Requirements { requests: amounts(request), limits: amounts(limit) };
    pod
}

proptest! {
    #[test]
    fn who_requests_more_is_no_worse_off(limit in 1_u64..=1000, less in 0_u64..1000, more in 0_u64..1000) {
        let (low, high) = (part(less.min(limit), limit), part((less + more).min(limit), limit));
        let score = |pod: &Pod| oom_score::score(pod, &pod.containers[0], 8 << 30);
        prop_assert!(qos::class(&low) >= qos::class(&high));
        prop_assert!(score(&low) >= score(&high));
    }

    #[test]
    fn classes_do_not_meet_in_their_scores(pod in any_pod(), memory_bytes in 0_u64..1 << 40) {
        for container in &pod.containers {
            let score = oom_score::score(&pod, container, memory_bytes);
            match qos::class(&pod) {
                QosClass::Guaranteed => prop_assert_eq!(score, -997),
                QosClass::Burstable => prop_assert!((3..=999).contains(&score)),
                QosClass::BestEffort => prop_assert_eq!(score, 1000),
            }
        }
    }

    #[test]
    fn a_pod_requests_no_less_than_its_containers(pod in any_pod()) {
        let pod = Pod { resources: None, ..pod };
        let together = effective::requests(&pod);
        for container in &pod.containers {
            for (name, &request) in &container.resources.requests {
                prop_assert!(together[name] >= request);
            }
        }
        let ranking = effective::ranking_request(&pod, ResourceName::MEMORY);
        prop_assert!(ranking.is_zero() || ranking == together["memory"]);
    }

    #[test]
    fn a_plan_is_whole_and_stays_below_its_root(pods in proptest::collection::vec(any_pod(), 0..4)) {
        let node = Node { swap_controller: true, ..node() };
        let root = CgroupPath::parse("/machine").unwrap();
        let settings = Settings { cgroup_root: root, ..Settings::default() };
        let plan = plan(&node, &settings, &pods);
        prop_assert_eq!(plan.pods.len(), pods.len());
        for (planned, pod) in plan.pods.iter().zip(&pods) {
            prop_assert_eq!(planned.containers.len(), pod.containers.len());
            for cgroup in planned.containers.iter().map(|container| &container.cgroup).chain([&planned.cgroup]) {
                prop_assert!(cgroup.path.as_str().starts_with("/machine/kubepods/"));
                let weight = cgroup.values.cpu_weight.unwrap();
                prop_assert!((1..=10_000).contains(&weight));
            }
        }
    }
}

/// Pods come one by one, and each plan is made anew.
#[test]
fn cgroups_of_equal_values_hold_them_once() {
    let amounts: &[_] = &[("cpu", "100m"), ("memory", "1Gi")];
    let one = |name: &str| pod(name, vec![app("a", amounts, &[]), app("b", amounts, &[])]);
    let pods = ["first", "second", "third"].map(one);
    let plan_of = |pods: &[Pod]| plan(&node(), &Settings::default(), pods);
    let mut before = plan_of(&[]);
    for count in 1..=pods.len() {
        let mut next = plan_of(&pods[..count]);
        next.share_with(&before);
        assert_eq!(next, plan_of(&pods[..count]));
        before = next;
    }
    let values = |pod: &PodPlan| -> Vec<*const CgroupValues> {
        pod.cgroups().map(|cgroup| std::ptr::from_ref(&*cgroup.values)).collect()
    };
    let first = values(&before.pods[0]);
    assert_eq!(first[1], first[2]);
    assert!(before.pods.iter().all(|pod| values(pod) == first));
}

#[test]
fn who_is_not_admitted_is_computed_in_full_and_counts_nowhere() {
    let settings = Settings {
        memory_reservation_policy: MemoryReservationPolicy::TieredReservation,
        ..Settings::default()
    };
    let amounts: &[_] = &[("cpu", "3"), ("memory", "1Gi")];
    let one = |name: &str| pod(name, vec![app("c", amounts, &[])]);
    let critical = |name: &str| Pod { priority: Some(2_000_000_000), ..one(name) };
    let lone = plan(&node(), &settings, &[one("first")]);
    let two = plan(&node(), &settings, &[one("first"), one("second")]);
    assert_eq!((&two.node, &two.qos), (&lone.node, &lone.qos));
    assert_eq!(two.pods[0], lone.pods[0]);
    assert_eq!(two.pods[0].admission, Admission::plain());
    let second = &two.pods[1];
    assert_eq!(second.admission.rejection().unwrap().reason(), "OutOfcpu");
    assert_eq!(second.cgroup.values, two.pods[0].cgroup.values);
    assert_eq!(second.requests, two.pods[0].requests);

    let preempting = plan(&node(), &settings, &[one("first"), critical("dns")]);
    assert_eq!((&preempting.node, &preempting.qos), (&lone.node, &lone.qos));
    assert_eq!(preempting.pods[0].admission, Admission::Rejected(Rejection::Preempted));
    assert_eq!(
        preempting.pods[1].admission,
        Admission::Admitted { preempt: vec![preempting.pods[0].name.clone()] }
    );
}

#[test]
fn what_was_decided_is_not_decided_again() {
    let pods = [limited("a"), limited("b")];
    let decided = [(&pods[0], Admission::Rejected(Rejection::Preempted)), (&pods[1], Admission::plain())];
    let plan = plan_decided(&node(), &Settings::default(), &decided);
    let lone = super::plan(&node(), &Settings::default(), &pods[1..]);
    assert_eq!((&plan.qos, &plan.pods[1]), (&lone.qos, &lone.pods[0]));
    assert_eq!(plan.pods[0].admission, decided[0].1);
}
