use rstest::rstest;

use super::*;
use crate::{
    model::{Container, ContainerKind, Requirements},
    sample::{container, list, pod},
};

const MIB: u64 = 1 << 20;

/// `name=request in Mi`, `*name` for a sidecar, `-name` for an init container; without a request, `name=`.
fn containers(text: &str) -> Vec<Container> {
    let one = |text: &str| {
        let (kind, text) = match text.split_at(1) {
            ("*", rest) => (ContainerKind::Sidecar, rest),
            ("-", rest) => (ContainerKind::Init, rest),
            _ => (ContainerKind::App, text),
        };
        let (name, request) = text.split_once('=').unwrap();
        if request.is_empty() {
            container(kind, name, &[], &[])
        } else {
            container(kind, name, &[("memory", &format!("{request}Mi"))], &[])
        }
    };
    text.split(' ').map(one).collect()
}

/// `pkg/kubelet/eviction/helpers_test.go`, `TestEvictionMessage`: who is blamed, with request and usage in Mi.
#[rstest]
#[case("-init1=100 *restartableInit1=200 regular1=200", &[("restartableInit1", 150), ("regular1", 100)], &[])]
#[case("-init1=100 *restartableInit1=200 -init2=150 regular1=200", &[("init1", 150)], &[("init1", 100, 150)])]
#[case("-init1=100 *restartableInit1=200 *restartableInit2=200 regular1=200",
    &[("restartableInit1", 250), ("restartableInit2", 150), ("regular1", 200)], &[("restartableInit1", 200, 250)])]
#[case("-init1=100 *restartableInit1=200 regular1=200 regular2=300",
    &[("restartableInit1", 200), ("regular1", 250), ("regular2", 250)], &[("regular1", 200, 250)])]
#[case("-init1=100 *restartableInit1=200 regular1=200",
    &[("restartableInit1", 200), ("regular1", 150), ("ephemeral1", 250)], &[])]
#[case("-init1=100 *restartableInit1= *restartableInit2=300 regular1=",
    &[("restartableInit1", 250), ("restartableInit2", 250), ("regular1", 200)],
    &[("restartableInit1", 0, 250), ("regular1", 0, 200)])]
#[case("-init1=100 -init2=100 -init3=100 *restartableInit1=100 *restartableInit2=200 *restartableInit3=300 regular1=300 regular2=200 regular3=100",
    &[("restartableInit1", 150), ("restartableInit2", 250), ("restartableInit3", 250), ("regular1", 50), ("regular2", 250), ("regular3", 400)],
    &[("restartableInit1", 100, 150), ("restartableInit2", 200, 250), ("regular2", 200, 250), ("regular3", 100, 400)])]
fn containers_above_their_request_are_named(
    #[case] declared: &str,
    #[case] usages: &[(&str, u64)],
    #[case] blamed: &[(&str, u64, u64)],
) {
    let pod = pod("p", containers(declared));
    let usages =
        Usages { pod: None, containers: usages.iter().map(|(name, mib)| (*name, mib * MIB)).collect() };
    let message =
        evicted(Signal::MemoryAvailable, 2048 * MIB, 1500 * MIB, "p", &Requests::of(&pod), Some(&usages));
    let mib = |number: u64| if number == 0 { String::from("0") } else { format!("{number}Mi") };
    let mut expected =
        String::from("The node was low on resource: memory. Threshold quantity: 2Gi, available: 1500Mi. ");
    for (name, request, usage) in blamed {
        expected.push_str(&format!(
            "Container {name} was using {}, request is {}, has larger consumption of memory. ",
            mib(*usage),
            mib(*request)
        ));
    }
    assert_eq!(message.text, expected);
    let joined = |parts: Vec<String>| parts.join(",");
    let expected = BTreeMap::from([
        (OFFENDING_CONTAINERS, joined(blamed.iter().map(|(name, ..)| (*name).to_owned()).collect())),
        (OFFENDING_CONTAINERS_USAGE, joined(blamed.iter().map(|(.., usage)| mib(*usage)).collect())),
        (STARVED_RESOURCE, String::from("memory")),
    ]);
    assert_eq!(message.annotations, expected);
}

/// The same test, its row with pod-level resources.
#[test]
fn a_pod_above_its_own_request_is_named_first() {
    let mut pod = pod("podName", containers("regular1= regular2="));
    pod.resources =
        Some(Requirements { requests: list(&[("memory", "250Mi")]), limits: list(&[("memory", "1000Mi")]) });
    let usages =
        Usages { pod: Some(600 * MIB), containers: vec![("regular1", 250 * MIB), ("regular2", 350 * MIB)] };
    let message =
        evicted(Signal::AllocatableMemoryAvailable, MIB, 0, "podName", &Requests::of(&pod), Some(&usages));
    let sentence = "Pod podName was using 600Mi, request is 250Mi, has larger consumption of memory. Container regular1 was";
    assert!(message.text.contains(sentence), "{}", message.text);
    assert_eq!(message.annotations[OFFENDING_POD], "podName");
    assert_eq!(message.annotations[OFFENDING_POD_USAGE], "600Mi");
    assert_eq!(message.annotations[OFFENDING_CONTAINERS], "regular1,regular2");
    assert_eq!(message.annotations[OFFENDING_CONTAINERS_USAGE], "250Mi,350Mi");
}

/// `pkg/kubelet/eviction/eviction_manager_test.go`, `TestPIDPressure_VerifyPodStatus` and `TestMemoryPressure_VerifyPodStatus`.
#[test]
fn without_usages_only_the_shortage_is_reported() {
    let pod = pod("p", containers("c=100"));
    let message = evicted(Signal::PidAvailable, 1200, 500, "p", &Requests::of(&pod), None);
    assert_eq!(
        message.text,
        "The node was low on resource: pids. Threshold quantity: 1200, available: 500. "
    );
    assert!(message.annotations.is_empty());
    assert_eq!(
        shortage(Signal::MemoryAvailable, 2 << 30, 1500 * MIB),
        "The node was low on resource: memory. Threshold quantity: 2Gi, available: 1500Mi. "
    );
    assert!(
        shortage(Signal::NodefsInodesFree, 2000, 104_857_600)
            .contains("inodes. Threshold quantity: 2k, available: 104857600")
    );
}

/// The formats of `pkg/kubelet/eviction/helpers.go`.
#[test]
fn a_message_names_a_resource_if_the_node_was_short_of_it() {
    for signal in Signal::ALL {
        assert_eq!(named_resource(&shortage(signal, 2 << 30, MIB)), Some(signal.resource()));
    }
    assert_eq!(named_resource("The node was low on resource: memory."), Some("memory"));
    for other in [
        "",
        "The node was low on resource: ",
        "The node was low on resource: memory-like. ",
        "The node had condition: [MemoryPressure]. ",
        "Container app exceeded its local ephemeral storage limit \"1Gi\". ",
        "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
        "Usage of EmptyDir volume \"The node was low on resource: memory. \" exceeds the limit \"1Gi\". ",
    ] {
        assert_eq!(named_resource(other), None, "{other}");
    }
}
