//! Opening a candidate, and who must never be one.
use std::{fs, sync::Arc};

use super::node::{MIB, Node, Pod, guard};
use crate::{
    cgroup::{Forbidden, Unseen},
    evict::{Candidate, OpenError, candidate::Target, stat},
    model::{CgroupPath, ContainerKind, Freshness, Knowledge, SpecOrigin, Unnamed},
    policy::{
        PodPlan,
        engine::{Reading, Resource},
    },
};

#[test]
fn a_cgroup_that_cannot_be_killed_is_no_candidate() {
    for file in ["cgroup.kill", "cgroup.events"] {
        let node = Node::new(0);
        let pod = Pod::new("a");
        node.add(&pod, MIB);
        fs::remove_file(node.dir("a").join(file)).unwrap();
        let error = node.open(&pod).unwrap_err();
        assert!(error.to_string().contains(file), "{error}");
    }
}

#[test]
fn brakes_and_containers_may_be_missing() {
    let node = Node::new(0);
    let pod = Pod::new("a");
    node.add(&pod, MIB);
    assert_eq!(node.open(&pod).unwrap().brakes.len(), 4);
    fs::remove_dir_all(node.dir("a").join("app")).unwrap();
    fs::remove_file(node.dir("a").join("memory.high")).unwrap();
    assert_eq!(node.open(&pod).unwrap().brakes.len(), 1);
}

#[test]
fn a_pod_that_holds_the_daemon_is_no_candidate() {
    let node = Node::new(0);
    let pod = Pod::new("a");
    node.add(&pod, MIB);
    node.write("a", "app/cgroup.procs", &format!("{}\n", std::process::id()));
    let error = node.open(&pod).unwrap_err();
    assert!(matches!(&error, OpenError::Forbidden { reason: Forbidden::HoldsDaemon, .. }), "{error}");
    assert_eq!(error.to_string(), "/kubepods/besteffort/poda is never evicted: it holds this daemon");
}

/// The pods' own limit is not relieved by its death.
#[test]
fn a_pod_outside_kubepods_is_known_as_such() {
    let node = Node::new(0);
    let pod = Pod::new("a");
    node.add(&pod, MIB);
    let is_in = |kubepods: &str| {
        let plan = PodPlan { kubepods: CgroupPath::parse(kubepods).unwrap(), ..pod.plan() };
        Candidate::open(&node.root(), &guard(), &plan).unwrap().facts().in_kubepods
    };
    assert!(is_in("/kubepods") && !is_in("/kubepods.slice"));
}

/// The kernel shows a process outside this daemon's PID namespace as 0.
#[test]
fn what_cannot_be_seen_spares_an_adopted_cgroup_and_no_pods_own() {
    let node = Node::new(0);
    let pod = Pod::new("a");
    node.add(&pod, MIB);
    node.write("a", "app/cgroup.procs", "0\n");
    node.write("a", "app/cgroup.kill", "");
    node.write("a", "app/cgroup.events", "populated 1\n");
    assert!(node.open(&pod).is_ok());
    let is_spared = |plan: &PodPlan, target: &CgroupPath| {
        let targets = std::slice::from_ref(target);
        let opened = Candidate::open_with_targets(&node.root(), &guard(), plan, targets);
        matches!(opened, Err(OpenError::Forbidden { reason: Forbidden::Unseen(Unseen::Outside), .. }))
    };
    let made = pod.plan();
    let (own, app) = (made.cgroup.path.clone(), made.containers[0].cgroup.path.clone());
    assert!(!is_spared(&made, &own) && !is_spared(&made, &app));
    assert!(is_spared(&PodPlan { adopted: true, ..made.clone() }, &own));
    let mut of_container = made;
    of_container.containers[0].adopted = true;
    assert!(is_spared(&of_container, &app));
}

/// Beside a kubelet.
#[test]
fn its_containers_alone_are_killed_if_they_are_known_and_else_all_of_it() {
    let node = Node::new(0);
    let pod = Pod::new("a");
    node.add(&pod, MIB);
    node.write("a", "app/cgroup.kill", "");
    node.write("a", "app/cgroup.events", "populated 1\n");
    let targets = |plan: &PodPlan| -> Vec<String> {
        let candidate = Candidate::open_containers(&node.root(), &guard(), plan).unwrap();
        candidate.targets.iter().map(|target| target.dir.path().to_string()).collect()
    };
    let (own, app) = ("/kubepods/besteffort/poda", "/kubepods/besteffort/poda/app");
    let mut plan = pod.plan();
    assert_eq!(targets(&plan), [app]);
    // A start after a crash looks at what was to be killed: the sandbox lives on in the pod's own cgroup.
    let candidate = Candidate::open_containers(&node.root(), &guard(), &plan).unwrap();
    assert_eq!((candidate.is_whole, &*candidate.pledged), (false, &[candidate.targets[0].dir.id()][..]));
    let candidate = node.open(&pod).unwrap();
    assert_eq!((candidate.is_whole, &*candidate.pledged), (true, &[][..]));
    let mut other = plan.containers[0].clone();
    other.cgroup.path = CgroupPath::parse(&format!("{own}/other")).unwrap();
    for (kind, killed) in
        [(ContainerKind::Init, app), (ContainerKind::Sidecar, own), (ContainerKind::App, own)]
    {
        other.kind = kind;
        plan.containers = vec![pod.plan().containers[0].clone(), other.clone()];
        assert_eq!(targets(&plan), [killed], "{kind:?}");
    }
    plan.containers = vec![other];
    assert_eq!(targets(&plan), [own], "the runtime has its own names for them");
}

#[test]
fn no_target_is_ever_the_root() {
    let node = Node::new(0);
    let pod = Pod::new("a");
    node.add(&pod, MIB);
    let opened = Candidate::open_with_targets(&node.root(), &guard(), &pod.plan(), &[CgroupPath::root()]);
    assert!(matches!(opened, Err(OpenError::Forbidden { reason: Forbidden::Root, .. })));
}

#[test]
fn of_a_kubelets_pod_only_containers_that_have_a_cgroup_are_killed() {
    for placed in [
        Knowledge::Names { is_settled: true },
        Knowledge::Spec {
            is_settled: true,
            origin: SpecOrigin { source: "kubelet", freshness: Freshness::Live },
            is_terminating: false,
        },
    ] {
        let candidate = opened_without_its_sandbox(placed);
        assert_eq!(candidate, vec![String::from("/kubepods/besteffort/poda/app")], "{placed:?}");
    }
}

/// What is killed of a pod with a container in a cgroup and one without; one without any cannot be opened.
fn opened_without_its_sandbox(placed: Knowledge) -> Vec<String> {
    let node = Node::new(0);
    let pod = Pod::new("a");
    node.add(&pod, MIB);
    node.write("a", "app/cgroup.kill", "");
    node.write("a", "app/cgroup.events", "populated 1\n");
    let mut plan = pod.plan();
    plan.placed = Some(placed);
    let mut gone = plan.containers[0].clone();
    gone.cgroup.path = CgroupPath::parse("/kubepods/besteffort/poda/gone").unwrap();
    plan.containers.push(gone.clone());
    let candidate = Candidate::open_containers(&node.root(), &guard(), &plan).unwrap();
    assert!(!candidate.is_whole);
    plan.containers = vec![gone];
    let refused = Candidate::open_containers(&node.root(), &guard(), &plan);
    assert!(matches!(refused, Err(OpenError::Unnamed { .. })), "{refused:?}");
    candidate.targets.iter().map(|target| target.dir.path().to_string()).collect()
}

/// A container that has just been started again, while the sandbox lives and when it has ended.
#[test]
fn a_container_without_a_name_is_killed_too_while_it_cannot_be_the_next_sandbox() {
    let node = Node::new(0);
    let pod = Pod::new("a");
    node.add(&pod, MIB);
    for cgroup in ["app", "young", "sandbox"] {
        fs::create_dir_all(node.dir("a").join(cgroup)).unwrap();
        node.write("a", &format!("{cgroup}/cgroup.kill"), "");
        node.write("a", &format!("{cgroup}/cgroup.events"), "populated 1\n");
    }
    let path = |name: &str| CgroupPath::parse(&format!("/kubepods/besteffort/poda/{name}")).unwrap();
    let with = |sandbox: Option<&str>| {
        let mut plan = pod.plan();
        let origin = SpecOrigin { source: "kubelet", freshness: Freshness::Live };
        plan.placed = Some(Knowledge::Spec { is_settled: true, origin, is_terminating: false });
        let containers = vec![path("young"), path("gone")];
        plan.unnamed = Some(Arc::new(Unnamed { containers, sandbox: sandbox.map(path) }));
        plan
    };
    let targets = |plan: &PodPlan| {
        let candidate = Candidate::open_containers(&node.root(), &guard(), plan)?;
        let name = |target: &Target| target.dir.path().names().last().map(str::to_owned);
        Ok::<Vec<String>, OpenError>(candidate.targets.iter().filter_map(name).collect())
    };
    assert_eq!(targets(&with(Some("sandbox"))).unwrap(), ["app", "young"]);
    assert_eq!(targets(&with(None)).unwrap(), ["app", "young"]);
    // Also if it is the only one that is left.
    let mut alone = with(Some("sandbox"));
    alone.containers.clear();
    assert_eq!(targets(&alone).unwrap(), ["young"]);
    node.write("a", "sandbox/cgroup.events", "populated 0\n");
    for plan in [&with(Some("sandbox")), &with(Some("never-there")), &alone] {
        assert!(matches!(targets(plan), Err(OpenError::Unnamed { .. })), "{plan:?}");
    }
}

#[test]
fn usage_is_read_anew_and_nonsense_is_missing() {
    let node = Node::new(0);
    let pod = Pod::new("a");
    node.add(&pod, 5 * MIB);
    let candidate = node.open(&pod).unwrap();
    let mut buffer = [0; stat::BUFFER_BYTES];
    let used = |reading: Reading| reading.usage().map(|usage| usage.working_set_bytes);
    assert_eq!(used(candidate.read_usage(Resource::Memory, &mut buffer)), Some(5 * MIB));
    node.write("a", "memory.stat", "anon 1\nfile 2097152\nshmem 0\ninactive_file 1048576\n");
    assert_eq!(used(candidate.read_usage(Resource::Memory, &mut buffer)), Some(4 * MIB));
    node.write("a", "memory.stat", "anon 1\n");
    assert_eq!(candidate.read_usage(Resource::Memory, &mut buffer), Reading::Missing);
}

#[test]
fn a_reader_beside_the_reflex_reads_the_same_by_files_of_its_own() {
    let node = Node::new(0);
    let pod = Pod::new("a");
    node.add(&pod, 5 * MIB);
    node.write("a", "pids.current", "7\n");
    let candidate = node.open(&pod).unwrap();
    assert_eq!(candidate.usage_apart(), candidate.usage());
    assert_eq!(candidate.usage_apart().usage().and_then(|usage| usage.process_count), Some(7));
    node.write("a", "memory.stat", "anon 1\n");
    assert_eq!(candidate.usage_apart(), Reading::Missing);
    node.write("a", "cgroup.events", "populated 0\nfrozen 0\n");
    assert_eq!(candidate.usage_apart(), candidate.usage());
    assert!(candidate.usage_apart().is_empty());
    fs::remove_dir_all(node.dir("a")).unwrap();
    // The reflex's own files are open still, and are what the kernel answers for.
    assert!(candidate.usage_apart().is_empty());
}
