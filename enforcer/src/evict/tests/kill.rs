//! A kill: what is written where, and what is refused.
use std::{
    fs,
    sync::{Arc, Weak, mpsc},
    time::{Duration, Instant},
};

use rustix::fs::{CWD, MemfdFlags, OFlags, SealFlags};

use super::{
    node::{MIB, Node, Pod, guard},
    whole,
};
use crate::{
    evict::{
        Candidate, Report,
        close::{self, Work},
        executor,
        queue::queue,
        raised_limits::RaisedLimits,
        stat,
    },
    model::{CgroupId, CgroupPath},
    policy::{
        PodPlan,
        engine::{Mode, Refusal, Resource},
    },
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
    candidate.targets[0].kill = fs::File::open(node.dir("a").join("cgroup.kill")).unwrap().into();
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

/// What must never be killed may come into a cgroup after that was opened.
#[test]
fn what_holds_this_process_by_now_is_not_signalled() {
    let node = Node::new(0);
    let pod = Pod::new("a");
    node.add(&pod, MIB);
    for adopted in [false, true] {
        let plan = PodPlan { adopted, ..pod.plan() };
        let candidate = Candidate::open(&node.root(), &guard(), &plan).unwrap();
        assert!(!candidate.recheck());
        node.write("a", "app/cgroup.procs", &format!("{}\n", std::process::id()));
        assert!(candidate.recheck());
        assert_eq!(executor::signal(&candidate), Err(executor::FORBIDDEN));
        assert!(!node.killed("a"));
        assert_eq!(node.read("a", "cpu.max"), "20000 100000", "its limits stay");
        // It is as any other once that is gone.
        node.write("a", "app/cgroup.procs", "");
        assert!(!candidate.recheck());
        executor::signal(&candidate).unwrap();
        assert!(node.killed("a"));
        node.add(&pod, MIB);
    }
}

/// A pod whose name, and whose cgroup's path, another has by the time of the kill: the handles that were opened for the
/// decision lead to the former alone.
#[test]
fn a_pod_recreated_under_its_name_between_decision_and_kill_is_not_killed() {
    let node = Node::new(0);
    let pod = Pod::new("a");
    node.add(&pod, MIB);
    let decided = node.open(&pod).unwrap();
    let files = |name: &str| {
        ["cpu.max", "cpu.weight", "memory.high", "app/cpu.max", "app/memory.high"]
            .map(|file| node.read(name, file))
    };
    let before = files("a");
    // It ends by itself, and its cgroup with it.
    node.write("a", "cgroup.events", "populated 0\nfrozen 0\n");
    fs::rename(node.dir("a"), node.dir("gone")).unwrap();
    node.add(&pod, MIB);
    assert_eq!(executor::signal(&decided), Err(Refusal::Empty));
    assert!(!node.killed("a") && !node.killed("gone"));
    // Even if something of the former is left, nothing of the new one is touched.
    node.write("gone", "cgroup.events", "populated 1\nfrozen 0\n");
    executor::signal(&decided).unwrap();
    assert!(!node.killed("a") && node.killed("gone"));
    assert_eq!(files("a"), before, "its limits stay");
    // A decision that was made of the one, with the handles of the other, is none.
    let mut mixed = node.open(&pod).unwrap();
    assert_ne!(mixed.facts.cgroup, decided.facts.cgroup);
    mixed.facts.cgroup = decided.facts.cgroup;
    assert_eq!(executor::signal(&mixed), Err(Refusal::Replaced));
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

/// A limit that was raised for the death of one that adopted a cgroup: the kernel takes it back no more.
#[test]
fn a_limit_that_cannot_be_put_back_is_reported() {
    let node = Node::new(0);
    let pod = Pod::new("a");
    node.add(&pod, MIB);
    let adopted = PodPlan { adopted: true, ..pod.plan() };
    let mut candidate = Candidate::open(&node.root(), &guard(), &adopted).unwrap();
    let brake = candidate.brakes.iter_mut().find(|brake| brake.owner.is_some()).unwrap();
    let file = rustix::fs::memfd_create("limit", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&file, b"20000 100000\n").unwrap();
    brake.fd = file.try_clone().unwrap();
    let (raised, failed) = RaisedLimits::raise(&Arc::new(candidate), None);
    assert_eq!(failed, 0);
    rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE).unwrap();
    let (work, received) = queue(1).unwrap();
    let (sender, reports) = mpsc::channel();
    let thread = std::thread::spawn(move || close::run(&received, |report| drop(sender.send(report))));
    assert!(work.offer(Work::GiveBack(raised.unwrap())).is_ok());
    let Report::Stuck(stuck) = reports.recv_timeout(Duration::from_secs(10)).unwrap() else { panic!() };
    assert_eq!(stuck.value.to_string(), "20000 100000");
    assert!(stuck.error.is_some(), "{stuck:?}");
    // Once is enough, and those that could be are back.
    assert!(reports.recv_timeout(Duration::from_millis(500)).is_err());
    drop(work);
    thread.join().unwrap();
}

/// A value that is none stands for a file that the kernel refuses once.
#[test]
fn a_limit_that_cannot_be_put_back_at_once_is_put_back_later() {
    let node = Node::new(0);
    let pod = Pod::new("a");
    node.add(&pod, MIB);
    let adopted = PodPlan { adopted: true, ..pod.plan() };
    let candidate = Arc::new(Candidate::open(&node.root(), &guard(), &adopted).unwrap());
    let (work, received) = queue(1).unwrap();
    let (sender, reports) = mpsc::channel();
    let thread = std::thread::spawn(move || close::run(&received, |report| drop(sender.send(report))));
    let next = || {
        let Report::Stuck(stuck) = reports.recv_timeout(Duration::from_secs(10)).unwrap() else { panic!() };
        (stuck.value.to_string(), stuck.error.is_some())
    };
    let stick = || {
        let (raised, failed) = RaisedLimits::raise(&candidate, None);
        assert_eq!(failed, 0);
        node.write("a", "cpu.max", "?");
        assert!(work.offer(Work::GiveBack(raised.unwrap())).is_ok());
        assert_eq!(next(), (String::from("20000 100000"), true));
        node.write("a", "cpu.max", "max 100000\n");
    };
    stick();
    assert_eq!(next(), (String::from("20000 100000"), false));
    assert_eq!(node.read("a", "cpu.max"), "20000 100000");
    // At the end it is tried at once.
    stick();
    drop(work);
    thread.join().unwrap();
    assert_eq!(node.read("a", "cpu.max"), "20000 100000");
}

/// The thread that frees a victim's memory may be stuck for long: here in opening a pipe that has no other end.
#[test]
fn former_candidates_are_closed_while_a_victims_memory_is_being_freed() {
    let node = Node::new(1024 * MIB);
    let (hog, other) = (Pod::new("hog"), Pod::new("other"));
    node.add(&hog, 600 * MIB);
    node.add(&other, 100 * MIB);
    let (reflex, reports) = whole::start_with(&whole::config(&node, Mode::Enforce), &node, &[&hog]);
    let (list, pipe) = (node.dir("hog").join("cgroup.procs"), node.dir("hog").join("pipe"));
    rustix::fs::mkfifoat(CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    fs::remove_file(&list).unwrap();
    fs::hard_link(&pipe, &list).unwrap();
    node.set_available(199 * MIB);
    while !matches!(whole::next(&reports), Report::Signalled { .. }) {}
    node.set_available(1024 * MIB);
    // More than its queue has room for.
    let mut former: Vec<Weak<Candidate>> = Vec::new();
    for _ in 0..40 {
        let candidate = node.candidate(&other);
        former.push(Arc::downgrade(&candidate));
        reflex.set_candidates(vec![candidate]);
        std::thread::sleep(Duration::from_millis(20));
    }
    former.pop();
    let begin = Instant::now();
    while former.iter().any(|candidate| candidate.strong_count() > 0) {
        assert!(begin.elapsed() < Duration::from_secs(10), "they stay open");
        std::thread::sleep(Duration::from_millis(5));
    }
    fs::remove_file(&list).unwrap();
    fs::write(&list, "").unwrap();
    let end = rustix::fs::open(&pipe, OFlags::WRONLY | OFlags::NONBLOCK, rustix::fs::Mode::empty());
    drop(end.expect("it is stuck there"));
    reflex.stop();
}

/// The processes in the cgroup that the pod had before an edit are ranked and killed with it, and no other pod's are.
#[test]
fn a_pod_that_moves_is_measured_and_killed_in_both_places() {
    let node = Node::new(0);
    let (pod, former) = (Pod::new("a"), Pod::new("b"));
    node.add(&pod, MIB);
    node.add(&former, 7 * MIB);
    let root = node.root();
    let path = CgroupPath::parse("/kubepods/besteffort/podb").unwrap();
    let id = root.open(&path).unwrap().id();
    let gone = CgroupPath::parse("/kubepods/besteffort/podgone").unwrap();
    let open = |id| node.open(&pod).unwrap().with_former(&root, &[(gone.clone(), id), (path.clone(), id)]);
    let candidate = open(CgroupId(id.0 + 1)).unwrap();
    assert_eq!((candidate.targets.len(), candidate.is_moving), (1, false), "another cgroup by now");
    let candidate = open(id).unwrap();
    assert_eq!(candidate.usage().usage().unwrap().current_bytes, 8 * MIB);
    let order: Vec<_> = candidate.targets.iter().map(|target| target.dir.path().clone()).collect();
    assert_eq!(order, [path, candidate.dir.path().clone()], "what is moved on is met where it comes to");
    node.write("a", "cgroup.events", "populated 0\nfrozen 0\n");
    assert_eq!(executor::signal(&candidate).unwrap().brakes_failed, 0);
    assert!(node.killed("a") && node.killed("b"));
    assert!(node.read("b", "app/memory.high").starts_with("max"));
}
