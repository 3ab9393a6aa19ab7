//! Pods for the tests of this room.

use proptest::prelude::*;

use crate::model::{
    Container, ContainerKind, Node, Pod, PodName, PodUid, Quantity, Requirements, ResourceList, ResourceName,
};

pub(crate) type Amounts<'text> = &'text [(&'text str, &'text str)];

pub(super) fn list(amounts: Amounts<'_>) -> ResourceList {
    amounts.iter().map(|(name, text)| (ResourceName::new(name), text.parse().unwrap())).collect()
}

pub(super) fn container(
    kind: ContainerKind,
    name: &str,
    requests: Amounts<'_>,
    limits: Amounts<'_>,
) -> Container {
    let resources = Requirements { requests: list(requests), limits: list(limits) };
    Container { name: name.to_owned(), kind, resources }
}

pub(crate) fn app(name: &str, requests: Amounts<'_>, limits: Amounts<'_>) -> Container {
    container(ContainerKind::App, name, requests, limits)
}

pub(crate) fn pod(name: &str, containers: Vec<Container>) -> Pod {
    let uid = PodUid::new(&format!("uid-{name}")).unwrap();
    Pod::new(PodName { namespace: String::from("default"), name: name.to_owned() }, uid, containers)
}

/// 4 cpus and 8 GiB.
pub(crate) fn node() -> Node {
    Node::new(4_000, 8 << 30)
}

/// Cpu up to 8, memory up to 8 GiB, each there or not, sometimes 0.
fn any_list() -> impl Strategy<Value = ResourceList> {
    let cpu = prop_oneof![Just(0_u64), 1_u64..8_000].prop_map(Quantity::from_milli);
    let memory = prop_oneof![Just(0_u64), 1_u64..8 << 30].prop_map(Quantity::from_units);
    (proptest::option::of(cpu), proptest::option::of(memory)).prop_map(|(cpu, memory)| {
        let entries = [(ResourceName::CPU, cpu), (ResourceName::MEMORY, memory)];
        entries.into_iter().filter_map(|(name, amount)| Some((ResourceName::new(name), amount?))).collect()
    })
}

fn any_requirements() -> impl Strategy<Value = Requirements> {
    (any_list(), any_list()).prop_map(|(requests, limits)| Requirements { requests, limits })
}

fn any_container() -> impl Strategy<Value = Container> {
    let kind = prop_oneof![
        4 => Just(ContainerKind::App),
        1 => Just(ContainerKind::Init),
        1 => Just(ContainerKind::Sidecar),
    ];
    (kind, "\\PC{0,8}|[a-z]{1,8}", any_requirements()).prop_map(|(kind, name, resources)| Container {
        name,
        kind,
        resources,
    })
}

/// Pods of every class, with and without overhead and pod-level resources; requests may be above limits.
pub(super) fn any_pod() -> impl Strategy<Value = Pod> {
    (
        proptest::collection::vec(any_container(), 0..5),
        proptest::option::weighted(0.3, any_requirements()),
        any_list(),
    )
        .prop_map(|(containers, resources, overhead)| Pod {
            overhead,
            resources,
            ..pod("any", containers)
        })
}
