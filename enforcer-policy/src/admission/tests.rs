use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::{
    EvictionSettings, effective, lists,
    model::{
        Container, ContainerKind, Quantity, Requirements as Resources, ResourceList, Toleration,
        TolerationTaints,
    },
    sample::{Amounts as Texts, any_pod, app, list, node, pod},
};

/// The node of `pkg/kubelet/lifecycle/predicate_test.go`: 10m of cpu, 20 bytes of memory, 32 pods.
fn tiny() -> Node {
    Node { cpu_milli: 10, memory_bytes: 20, pods: 32, ..node() }
}

/// Without thresholds, which the tiny node could not keep.
fn settings() -> Settings {
    let eviction = EvictionSettings { thresholds: Vec::new(), ..EvictionSettings::default() };
    Settings { eviction, ..Settings::default() }
}

fn requesting(name: &str, requests: Texts<'_>) -> Pod {
    pod(name, vec![app("c", requests, &[])])
}

fn critical(pod: Pod) -> Pod {
    Pod { priority: Some(critical::CRITICAL_PRIORITY), ..pod }
}

fn message(admission: &Admission) -> (String, String) {
    let rejection = admission.rejection().unwrap();
    (rejection.reason().into_owned(), rejection.message())
}

/// `TestGeneralPredicates`, what concerns resources: (resource, requested, used, capacity).
#[rstest]
#[case::nothing_requested_fits_a_full_node(&[], &[("cpu", "9m"), ("memory", "19")], &[])]
#[case::neither_cpu_nor_memory(
    &[("cpu", "8m"), ("memory", "10")], &[("cpu", "5m"), ("memory", "19")], &[("cpu", 8, 5, 10), ("memory", 10, 19, 20)])]
#[case::exactly_what_is_left(&[("cpu", "1m"), ("memory", "1")], &[("cpu", "9m"), ("memory", "19")], &[])]
fn shortages_are_the_kubelets(
    #[case] requests: Texts<'_>,
    #[case] used: Texts<'_>,
    #[case] expected: &[(&str, u128, u128, u128)],
) {
    let (node, settings) = (tiny(), settings());
    let (running, new) = (requesting("running", used), requesting("new", requests));
    let mut admitter = Admitter::new(&node, &settings);
    admitter.keep(&running);
    let shortages = admitter.shortages(&new);
    let found: Vec<_> = shortages
        .iter()
        .map(|short| (short.resource.as_str(), short.requested, short.used, short.capacity))
        .collect();
    assert_eq!(found, expected);
}

/// `fitsRequest` looks at the pods first, then at cpu, memory and ephemeral storage, then at all others.
#[test]
fn the_first_shortage_is_the_reason() {
    let node = Node {
        pods: 1,
        other: list(&[("ephemeral-storage", "10"), ("hugepages-2Mi", "4Mi"), ("example.com/gpu", "1")]),
        ..tiny()
    };
    let all: &[_] = &[
        ("cpu", "11m"),
        ("memory", "21"),
        ("ephemeral-storage", "11"),
        ("hugepages-2Mi", "6Mi"),
        ("example.com/gpu", "2"),
    ];
    let mut settings = settings();
    let mut reasons = Vec::new();
    for left in 0..=all.len() {
        let pods = [requesting("first", &[]), requesting("second", &all[left.saturating_sub(1)..])];
        let pods = if left == 0 { &pods[..] } else { &pods[1..] };
        reasons.push(message(admit_all(&node, &settings, &[], pods).last().unwrap()));
    }
    let expected = [
        ("OutOfpods", "pods, requested: 1, used: 1, capacity: 1"),
        ("OutOfcpu", "cpu, requested: 11, used: 0, capacity: 10"),
        // The node's huge pages come out of its memory, which is less than they are.
        ("OutOfmemory", "memory, requested: 21, used: 0, capacity: 0"),
        ("OutOfephemeral-storage", "ephemeral-storage, requested: 11, used: 0, capacity: 10"),
        ("OutOfexample.com/gpu", "example.com/gpu, requested: 2, used: 0, capacity: 1"),
        ("OutOfexample.com/gpu", "example.com/gpu, requested: 2, used: 0, capacity: 1"),
    ];
    for ((reason, message), (expected, words)) in reasons.iter().zip(expected) {
        assert_eq!(reason, expected);
        assert_eq!(message, &format!("Node didn't have enough resource: {words}"));
    }
    // Reserved places are no places, and what the node has no word of is not there.
    settings.system_reserved = list(&[("pods", "1")]);
    let pods = [requesting("first", &[])];
    assert_eq!(message(&admit_all(&node, &settings, &[], &pods)[0]).0, "OutOfpods");
    let pods = [requesting("first", &[("hugepages-1Gi", "1Gi")])];
    assert_eq!(
        message(
            &admit_all(&tiny(), &Settings { system_reserved: ResourceList::new(), ..settings }, &[], &pods)
                [0]
        )
        .1,
        "Node didn't have enough resource: hugepages-1Gi, requested: 1073741824, used: 0, capacity: 0"
    );
}

/// `TestRemoveMissingExtendedResources`: an extended resource that the node does not know is left out of account, one
/// that it knows is not; limits never count.
#[rstest]
#[case::unknown(&[("foo.com/bar", "1")], &[], true)]
#[case::unknown_beside_known(&[("foo.com/bar", "1"), ("foo.com/baz", "1")], &[("foo.com/baz", "1")], true)]
#[case::known_and_too_much(&[("foo.com/bar", "2")], &[("foo.com/bar", "1")], false)]
#[case::known_and_none_left(&[("foo.com/bar", "1")], &[("foo.com/bar", "0")], false)]
#[case::native(&[("hugepages-2Mi", "2Mi")], &[("foo.com/bar", "1")], false)]
#[case::prefixed_native(&[("sub.kubernetes.io/bar", "1")], &[], false)]
fn what_no_process_offers_here_does_not_count(
    #[case] requests: Texts<'_>,
    #[case] offered: Texts<'_>,
    #[case] admitted: bool,
) {
    let node = Node { other: list(offered), ..node() };
    let app_pod = requesting("app", requests);
    let mut init_pod = app_pod.clone();
    init_pod.containers[0].kind = ContainerKind::Init;
    let mut limited = app_pod.clone();
    let resources = &mut limited.containers[0].resources;
    resources.limits = std::mem::take(&mut resources.requests);
    for (pod, expected) in [(app_pod, admitted), (init_pod, admitted), (limited, true)] {
        assert_eq!(admit_all(&node, &settings(), &[], &[pod])[0].is_admitted(), expected);
    }
}

const PRESSURE: NodeCondition = NodeCondition::MemoryPressure;
const DISK: NodeCondition = NodeCondition::DiskPressure;

/// `pkg/kubelet/eviction/eviction_manager_test.go`, `TestAdmitUnderNodeConditions`: Guaranteed, Burstable, BestEffort,
/// and a BestEffort one that tolerates memory pressure.
#[rstest]
#[case(&[], [true, true, true, true], "")]
#[case(&[PRESSURE], [true, true, false, true], "The node had condition: [MemoryPressure]. ")]
#[case(&[PRESSURE, DISK], [false, false, false, false], "The node had condition: [MemoryPressure DiskPressure]. ")]
#[case(&[DISK], [false, false, false, false], "The node had condition: [DiskPressure]. ")]
#[case(&[NodeCondition::PidPressure], [false, false, false, false], "The node had condition: [PIDPressure]. ")]
fn conditions_keep_pods_out(
    #[case] conditions: &[NodeCondition],
    #[case] expected: [bool; 4],
    #[case] words: &str,
) {
    let amounts: &[_] = &[("cpu", "100m"), ("memory", "1Gi")];
    let toleration =
        Toleration { taints: TolerationTaints::Key(MEMORY_PRESSURE_TAINT.to_owned()), effect: None };
    let pods = [
        pod("guaranteed", vec![app("c", amounts, amounts)]),
        requesting("burstable", amounts),
        requesting("best-effort", &[]),
        Pod { tolerations: vec![toleration], ..requesting("tolerant", &[]) },
    ];
    let admissions = admit_all(&node(), &settings(), conditions, &pods);
    assert_eq!(admissions.iter().map(Admission::is_admitted).collect::<Vec<_>>(), expected);
    for rejected in admissions.iter().filter(|admission| !admission.is_admitted()) {
        assert_eq!(message(rejected), (String::from("Evicted"), words.to_owned()));
    }
    let pods = pods.map(critical);
    assert!(admit_all(&node(), &settings(), conditions, &pods).iter().all(Admission::is_admitted));
}

/// A toleration of another effect or taint does not help.
#[rstest]
#[case(TolerationTaints::Every, Some(TaintEffect::NoExecute), false)]
#[case(TolerationTaints::Every, Some(TaintEffect::NoSchedule), true)]
#[case(TolerationTaints::Key("node.kubernetes.io/disk-pressure".into()), None, false)]
#[case(TolerationTaints::KeyValue { key: MEMORY_PRESSURE_TAINT.into(), value: String::new() }, None, true)]
fn memory_pressure_is_tolerated(
    #[case] taints: TolerationTaints,
    #[case] effect: Option<TaintEffect>,
    #[case] admitted: bool,
) {
    let pod = Pod { tolerations: vec![Toleration { taints, effect }], ..requesting("p", &[]) };
    assert_eq!(under_conditions(&pod, &[PRESSURE]).is_ok(), admitted);
}

/// `pkg/kubelet/preemption/preemption_test.go`, `TestHandleAdmissionFailure` and the last cases of
/// `TestGetPodsToPreempt`, as whole admissions: four cpus, of which the running pods take all.
#[test]
fn a_critical_pod_makes_others_end_and_others_do_not() {
    let running = |name, cpu| requesting(name, &[("cpu", cpu)]);
    let pods = [
        running("small", "1"),
        running("large", "3"),
        requesting("plain", &[("cpu", "1")]),
        critical(requesting("dns", &[("cpu", "1")])),
        critical(requesting("late", &[("cpu", "3")])),
        critical(requesting("too-late", &[("cpu", "1")])),
        Pod { priority: Some(critical::CRITICAL_PRIORITY + 1_000), ..requesting("node", &[("cpu", "1")]) },
    ];
    let admissions = admit_all(&node(), &settings(), &[], &pods);
    let preempting = |name: &str| Admission::Admitted {
        preempt: vec![PodName { namespace: String::from("default"), name: name.to_owned() }],
    };
    assert_eq!(admissions[0], Admission::Rejected(Rejection::Preempted));
    assert_eq!(admissions[1], Admission::Rejected(Rejection::Preempted));
    assert_eq!(
        message(&admissions[1]),
        ("Preempting".into(), "Preempted in order to admit critical pod".into())
    );
    assert_eq!(
        message(&admissions[2]),
        (
            "OutOfcpu".into(),
            "Node didn't have enough resource: cpu, requested: 1000, used: 4000, capacity: 4000".into()
        )
    );
    // It ended the small one, and was then ended itself by one of a higher priority.
    assert_eq!(admissions[3], Admission::Rejected(Rejection::Preempted));
    assert_eq!(admissions[4], preempting("large"));
    assert_eq!(
        message(&admissions[5]),
        (
            "UnexpectedAdmissionError".into(),
            "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of \
             pods to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 1000), ]"
                .into()
        )
    );
    assert_eq!(admissions[6], preempting("dns"));
}

#[test]
fn who_runs_already_counts_even_beyond_what_there_is() {
    let (node, settings) = (node(), settings());
    let (large, small) = (requesting("large", &[("cpu", "9")]), requesting("small", &[("cpu", "1m")]));
    let nothing = requesting("nothing", &[]);
    let mut admitter = Admitter::new(&node, &settings);
    assert_eq!(admitter.keep(&large), Place(0));
    assert!(admitter.admit(&small, &[]).is_err());
    assert_eq!(admitter.admit(&nothing, &[]), Ok(Vec::new()));
    assert_eq!(admitter.keep(&small), Place(3));
}

/// What admission counts of a pod (upstream `PodRequests`, with `PodLevelResources`): on four cpus, of which others
/// request all but this much, it fits with exactly that, and with a thousandth less it does not.
#[rstest]
// The pod level replaces the containers' sum, also where that is more.
#[case::pod_level(&[("cpu", "2")], &[(ContainerKind::App, "1"), (ContainerKind::App, "500m")], "2")]
#[case::pod_level_below_the_containers(&[("cpu", "1")], &[(ContainerKind::App, "1"), (ContainerKind::App, "1")], "1")]
// A resource that the pod level does not name is the containers'.
#[case::pod_level_of_another_resource(&[("memory", "1Gi")], &[(ContainerKind::App, "1500m")], "1500m")]
// Init containers run one at a time, before the others; sidecars run on beside whatever comes after them.
#[case::init_below(&[], &[(ContainerKind::Init, "500m"), (ContainerKind::App, "1")], "1")]
#[case::init_above(&[], &[(ContainerKind::Init, "3"), (ContainerKind::Init, "2"), (ContainerKind::App, "1")], "3")]
#[case::sidecar(&[], &[(ContainerKind::Sidecar, "500m"), (ContainerKind::App, "1")], "1500m")]
#[case::init_after_a_sidecar(
    &[], &[(ContainerKind::Sidecar, "500m"), (ContainerKind::Init, "2"), (ContainerKind::App, "1")], "2500m")]
#[case::init_before_a_sidecar(
    &[], &[(ContainerKind::Init, "2"), (ContainerKind::Sidecar, "500m"), (ContainerKind::App, "1")], "2")]
fn a_pod_counts_with_what_it_needs_at_once(
    #[case] pod_level: Texts<'_>,
    #[case] containers: &[(ContainerKind, &str)],
    #[case] counts: &str,
) {
    let containers =
        containers.iter().map(|(kind, cpu)| Container { kind: *kind, ..app("c", &[("cpu", *cpu)], &[]) });
    let resources = Resources { requests: list(pod_level), ..Resources::default() };
    let level = (!pod_level.is_empty()).then_some(resources);
    let counted = Pod { resources: level, ..pod("counted", containers.collect()) };
    let (node, settings) = (node(), settings());
    let rest = 4_000 - counts.parse::<Quantity>().unwrap().milli();
    for (others, fits) in [(rest, true), (rest + 1, false)] {
        let others = requesting("others", &[("cpu", &format!("{others}m"))]);
        let admissions = admit_all(&node, &settings, &[], &[others, counted.clone()]);
        assert_eq!(admissions[1].is_admitted(), fits, "{admissions:?}");
    }
}

/// An explicit request of 0 stays 0 beside a limit: it makes the pod Burstable, and takes nothing of the node.
#[test]
fn an_explicit_request_of_zero_takes_nothing() {
    let zero =
        pod("zero", vec![app("c", &[("cpu", "0"), ("memory", "0")], &[("cpu", "2"), ("memory", "1Gi")])]);
    assert_eq!(qos::class(&zero), QosClass::Burstable);
    let full = requesting("full", &[("cpu", "4"), ("memory", "8Gi")]);
    let admissions = admit_all(&node(), &settings(), &[], &[full, zero.clone()]);
    assert!(admissions[1].is_admitted(), "{admissions:?}");
    // It is not BestEffort, so memory pressure does not keep it out.
    assert!(under_conditions(&zero, &[PRESSURE]).is_ok());
}

/// Without a kubelet no signal of a disk is followed, so `DiskPressure` is never set, whatever is configured.
#[test]
fn disk_pressure_is_never_set_without_a_kubelet() {
    let followed = crate::engine::followed(&EvictionSettings::default().thresholds);
    assert!(!followed.is_empty());
    for threshold in followed.iter() {
        assert_ne!(threshold.signal.condition(), DISK, "{threshold:?}");
    }
}

fn any_priority() -> impl Strategy<Value = Option<i32>> {
    prop_oneof![
        4 => Just(None),
        2 => (-2..3).prop_map(Some),
        2 => (critical::CRITICAL_PRIORITY..critical::CRITICAL_PRIORITY + 3).prop_map(Some),
    ]
}

fn any_pods() -> impl Strategy<Value = Vec<Pod>> {
    proptest::collection::vec((any_pod(), any_priority()), 0..24).prop_map(|pods| {
        let named = |(number, (pod, priority)): (usize, (Pod, _))| {
            let name = PodName { namespace: String::from("default"), name: format!("p{number}") };
            Pod { name, priority, ..pod }
        };
        pods.into_iter().enumerate().map(named).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// After every pod, what runs takes no more than there is.
    #[test]
    fn the_node_is_never_promised_twice(pods in any_pods(), most_pods in 0_u64..12) {
        let (node, settings) = (Node { pods: most_pods, ..node() }, Settings::default());
        for end in 0..=pods.len() {
            let admissions = admit_all(&node, &settings, &[], &pods[..end]);
            let running = pods.iter().zip(&admissions).filter(|(_, admission)| admission.is_admitted());
            let (mut count, mut cpu_milli, mut memory_bytes) = (0_u64, 0_u64, 0_u64);
            for (pod, _) in running {
                let requests = effective::requests(pod);
                count += 1;
                cpu_milli += lists::get(&requests, "cpu").milli();
                memory_bytes += lists::get(&requests, "memory").units();
            }
            prop_assert!(count <= most_pods && cpu_milli <= 4_000 && memory_bytes <= (8 << 30) - (100 << 20));
        }
    }

    /// What is decided on a pod is decided by those before it alone; later ones change it only by preempting.
    #[test]
    fn the_order_decides(pods in any_pods()) {
        let (node, settings) = (node(), Settings::default());
        let all = admit_all(&node, &settings, &[], &pods);
        prop_assert_eq!(&admit_all(&node, &settings, &[], &pods), &all);
        for end in 0..pods.len() {
            let before = admit_all(&node, &settings, &[], &pods[..end]);
            for (first, last) in before.iter().zip(&all) {
                prop_assert!(first == last || *last == Admission::Rejected(Rejection::Preempted));
            }
        }
    }

    /// Only a critical pod makes others end, only those that may be preempted, and in each class none in vain: those
    /// of its class taken before it, and of the classes that count beside it, would not have sufficed without it.
    #[test]
    fn no_pod_ends_in_vain(pods in any_pods(), most_pods in 4_u64..20) {
        // So large that many run when a critical one comes; BestEffort ones give nothing but their places.
        let node = Node { cpu_milli: 32_000, memory_bytes: 32 << 30, pods: most_pods, ..node() };
        let settings = Settings::default();
        let mut admitter = Admitter::new(&node, &settings);
        for pod in &pods {
            let running = admitter.running.clone();
            let shortages = admitter.shortages(pod);
            let Ok(victims) = admitter.admit(pod, &[]) else { continue };
            prop_assert_eq!(victims.is_empty(), shortages.is_empty());
            prop_assert!(victims.is_empty() || critical::is_critical(pod));
            let standing = |place: &Place| running[place.0].as_ref().map(Running::standing).unwrap();
            let lacking = Requirements::new(shortages.iter().map(|short| Requirement {
                resource: short.resource.clone(),
                quantity: short.lacking(),
            }));
            prop_assert!(lacking.without(victims.iter().map(standing)).is_empty());
            for victim in &victims {
                let other = running[victim.0].as_ref().unwrap().pod;
                prop_assert!(critical::may_preempt(pod, other));
            }
            // The last one of each class is there because those before it left something lacking.
            for class in QosClass::ALL {
                let of_class = |place: &&Place| qos::class(running[place.0].as_ref().unwrap().pod) == class;
                let Some(last) = victims.iter().rfind(of_class) else { continue };
                let cheaper_or_chosen: Vec<_> = running
                    .iter()
                    .enumerate()
                    .filter_map(|(place, other)| Some((Place(place), other.as_ref()?)))
                    .filter(|(place, other)| {
                        let cheaper = qos::class(other.pod) > class && critical::may_preempt(pod, other.pod);
                        place != last && (cheaper || victims.contains(place))
                    })
                    .map(|(_, other)| other.standing())
                    .collect();
                prop_assert!(!lacking.without(cheaper_or_chosen.iter().copied()).is_empty());
            }
        }
    }
}
