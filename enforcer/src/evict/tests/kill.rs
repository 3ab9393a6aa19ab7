//! A kill: what is written where, and what is refused.
use super::node::{MIB, Node, Pod, guard};
use crate::{
    evict::{Candidate, executor, stat},
    model::{CgroupId, CgroupPath},
    policy::engine::{Refusal, Resource},
};

#[test]
fn a_kill_lets_go_of_the_brakes() {
    let node = Node::new(0);
    let pod = Pod::new("a");
    node.add(&pod, MIB);
    let signalled = executor::signal(&node.open(&pod).unwrap()).unwrap();
    assert_eq!(signalled.brakes_failed, 0);
    assert!(node.killed("a"));
    for file in ["cpu.max", "memory.high", "app/cpu.max", "app/memory.high"] {
        assert!(node.read("a", file).starts_with("max"), "{file}");
    }
    assert_eq!(node.read("a", "cpu.weight"), "10000");
}

#[test]
fn one_that_cannot_be_killed_keeps_its_limits() {
    let node = Node::new(0);
    let pod = Pod::new("a");
    node.add(&pod, MIB);
    let mut candidate = node.open(&pod).unwrap();
    // Open for reading only: the kernel refuses the write.
    candidate.targets[0].kill = std::fs::File::open(node.dir("a").join("cgroup.kill")).unwrap().into();
    assert!(matches!(executor::signal(&candidate), Err(Refusal::Kernel(_))));
    for file in ["cpu.max", "app/cpu.max", "memory.high", "app/memory.high"] {
        assert!(!node.read("a", file).starts_with("max"), "{file}");
    }
    assert_eq!(node.read("a", "cpu.weight"), "1");
}

#[test]
fn an_empty_cgroup_is_not_signalled() {
    let node = Node::new(0);
    let pod = Pod::new("a");
    node.add(&pod, MIB);
    let candidate = node.open(&pod).unwrap();
    node.write("a", "cgroup.events", "populated 0\nfrozen 0\n");
    assert_eq!(executor::signal(&candidate), Err(Refusal::Empty));
    assert!(!node.killed("a"));
    assert_eq!(node.read("a", "cpu.max"), "20000 100000");
}

#[test]
fn another_cgroup_than_the_one_decided_on_is_not_signalled() {
    let node = Node::new(0);
    let pod = Pod::new("a");
    node.add(&pod, MIB);
    let mut candidate = node.open(&pod).unwrap();
    candidate.facts.cgroup = CgroupId(candidate.facts.cgroup.0 + 1);
    assert_eq!(executor::signal(&candidate), Err(Refusal::Replaced));
    assert!(!node.killed("a"));
}

#[test]
fn beside_a_kubelet_only_the_targets_are_killed() {
    let node = Node::new(0);
    let pod = Pod::new("a");
    node.add(&pod, MIB);
    node.write("a", "app/cgroup.kill", "");
    node.write("a", "app/cgroup.events", "populated 1\n");
    let app = CgroupPath::parse("kubepods/besteffort/poda/app").unwrap();
    let candidate = Candidate::open_with_targets(&node.root(), &guard(), &pod.plan(), &[app]).unwrap();
    executor::signal(&candidate).unwrap();
    assert_eq!(node.read("a", "app/cgroup.kill"), "1");
    assert!(!node.killed("a"));
    assert_eq!(node.read("a", "cpu.weight"), "1");
    // The sandbox lives on; the victim is dead all the same.
    node.write("a", "app/cgroup.events", "populated 0\n");
    let mut buffer = [0; stat::BUFFER_BYTES];
    assert!(!executor::progress(&candidate, Resource::Memory, &mut buffer).populated);
}
