//! Containers that run again after their pod was killed.
use std::{fs, process::Command};

use super::node::{MIB, Node, Pod, guard};
use crate::{
    clock,
    evict::{Candidate, EndError, check_again, kill_again},
    model::CgroupPath,
};

/// A pod of which only the container is killed.
fn beside_kubelet(node: &Node) -> Candidate {
    let pod = Pod::new("a");
    node.add(&pod, MIB);
    node.write("a", "app/cgroup.kill", "");
    node.write("a", "app/cgroup.events", "populated 1\n");
    let app = CgroupPath::parse("kubepods/besteffort/poda/app").unwrap();
    Candidate::open_with_targets(&node.root(), &guard(), &pod.plan(), &[app]).unwrap()
}

#[test]
fn a_container_lives_while_a_process_of_it_is_not_dying() {
    let node = Node::new(0);
    let candidate = beside_kubelet(&node);
    assert_eq!(candidate.living_containers(None), [], "no process can be seen");
    let before_ms = clock::boottime_ms();
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    node.write("a", "app/cgroup.procs", &format!("{}\n", child.id()));
    let living = candidate.living_containers(Some(before_ms));
    assert_eq!(living.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["app"]);
    assert_eq!(candidate.living_containers(None), living);
    assert_eq!(candidate.living_containers(Some(before_ms + 60_000)), [], "it was there before the kill");
    kill_again(&candidate).unwrap();
    assert_eq!(node.read("a", "app/cgroup.kill"), "1");
    assert!(!node.killed("a"), "the sandbox is in the pod's own cgroup");
    child.kill().unwrap();
    // Until it is waited for, it is a zombie in that cgroup.
    let is_dead = || fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap().contains(") Z ");
    while !is_dead() {
        std::thread::yield_now();
    }
    assert_eq!(candidate.living_containers(None), []);
    child.wait().unwrap();
}

#[test]
fn what_must_never_be_killed_is_not_killed_again() {
    let node = Node::new(0);
    let candidate = beside_kubelet(&node);
    node.write("a", "app/cgroup.procs", &format!("{}\n", std::process::id()));
    assert!(matches!(check_again(&candidate), Err(EndError::Forbidden(_))));
    assert!(matches!(kill_again(&candidate), Err(EndError::Forbidden(_))));
    assert_eq!(node.read("a", "app/cgroup.kill"), "");
}
