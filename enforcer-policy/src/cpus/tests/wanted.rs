//! Tests of who gets CPUs of its own.

use rstest::rstest;

use crate::{
    cpus::{Wanted, wanted, wanted_cpus},
    model::{ContainerKind, QosClass, Requirements},
    qos,
    sample::{app, container, list, pod},
};

fn of(cpu: &str) -> Vec<(&str, &str)> {
    vec![("cpu", cpu), ("memory", "1Gi")]
}

#[rstest]
#[case("2", Some(2))]
#[case("1", Some(1))]
#[case("2000m", Some(2))]
#[case("1500m", None)]
#[case("999m", None)]
#[case("1001m", None)]
#[case("1.0001", None)]
#[case("0.5", None)]
#[case("5000000000", Some(u32::MAX))]
#[case("9223372036854775807", None)]
fn a_guaranteed_container_with_a_whole_request_gets_cpus(#[case] cpu: &str, #[case] cpus: Option<u32>) {
    let pod = pod("a", vec![app("c", &of(cpu), &of(cpu))]);
    assert_eq!(qos::class(&pod), QosClass::Guaranteed);
    assert_eq!(wanted_cpus(&pod, &pod.containers[0], qos::class(&pod)), cpus);
}

#[test]
fn other_classes_get_none() {
    let burstable = pod("a", vec![app("c", &of("2"), &of("3"))]);
    assert!(wanted(&burstable, qos::class(&burstable)).is_empty());
    assert!(wanted(&burstable, QosClass::BestEffort).is_empty());
}

#[test]
fn sidecars_and_app_containers_get_them_and_init_containers_do_not() {
    let one = |kind, name| container(kind, name, &of("2"), &of("2"));
    let containers = vec![
        one(ContainerKind::Init, "first"),
        one(ContainerKind::Sidecar, "beside"),
        app("c", &of("3"), &of("3")),
        app("shared", &of("100m"), &of("100m")),
        one(ContainerKind::Ephemeral, "debug"),
    ];
    let pod = pod("a", containers);
    let names: Vec<_> = wanted(&pod, QosClass::Guaranteed)
        .into_iter()
        .map(|Wanted { pod, container, cpus }| (pod.to_string(), container, cpus))
        .collect();
    let uid = || String::from("uid-a");
    assert_eq!(names, [(uid(), String::from("beside"), 2), (uid(), String::from("c"), 3)]);
}

#[test]
fn a_pod_with_pod_level_resources_gets_none() {
    let mut pod = pod("a", vec![app("c", &of("2"), &of("2"))]);
    pod.resources = Some(Requirements::default());
    assert_eq!(wanted(&pod, QosClass::Guaranteed).len(), 1, "an empty pod level says nothing");
    pod.resources = Some(Requirements { requests: list(&of("2")), limits: list(&of("2")) });
    assert_eq!(qos::class(&pod), QosClass::Guaranteed);
    assert!(wanted(&pod, QosClass::Guaranteed).is_empty());
}
