//! Pods and a node for tests.

use crate::model::{Container, Node, Pod, PodName, PodUid, Requirements};

/// A pod with those containers, which request nothing.
pub(crate) fn pod(name: &str, containers: &[&str]) -> Pod {
    let uid = PodUid::new(&format!("uid-{name}")).unwrap();
    let name = PodName { namespace: "default".into(), name: name.to_owned() };
    let containers = containers.iter().map(|name| Container::app(name, Requirements::default())).collect();
    Pod::new(name, uid, containers)
}

/// 4 cpus and 8 GiB.
pub(crate) fn node() -> Node {
    Node::new(4_000, 8 << 30)
}
