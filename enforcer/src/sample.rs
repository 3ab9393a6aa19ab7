//! Pods, a node and cgroup values for tests.

use crate::model::{
    Adoption, CgroupFile, CgroupPath, CgroupValue, CgroupValues, Container, Node, Pod, PodName, PodUid,
    Requirements,
};

/// A pod with those containers, which request nothing.
pub(crate) fn pod(name: &str, containers: &[&str]) -> Pod {
    let uid = PodUid::new(&format!("uid-{name}")).unwrap();
    let name = PodName { namespace: "default".into(), name: name.to_owned() };
    let containers = containers.iter().map(|name| Container::app(name, Requirements::default())).collect();
    Pod::new(name, uid, containers)
}

/// A pod with the containers `a` and `b` that adopts that cgroup, and those containers'.
pub(crate) fn adopting(name: &str, own: Option<&str>, containers: &[(&str, &str)]) -> Pod {
    let path = |text: &str| CgroupPath::parse(text).unwrap();
    let adopts = Adoption {
        pod: own.map(path),
        containers: containers.iter().map(|(name, text)| ((*name).to_owned(), path(text))).collect(),
    };
    Pod { adopts: Some(adopts), ..pod(name, &["a", "b"]) }
}

/// 4 cpus and 8 GiB.
pub(crate) fn node() -> Node {
    Node::new(4_000, 8 << 30)
}

/// The value that a file holds.
pub(crate) fn value(file: &str, text: &str) -> CgroupValue {
    CgroupFile::named(file).unwrap().parse(text).unwrap()
}

/// The values that files hold.
pub(crate) fn values(files: &[(&str, &str)]) -> CgroupValues {
    files.iter().map(|(file, text)| value(file, text)).collect()
}
