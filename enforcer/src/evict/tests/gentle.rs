//! An end with grace: who gets SIGTERM, and who SIGKILL afterwards. The processes are real, the cgroup is not.
use std::{
    os::unix::process::ExitStatusExt as _,
    process::{Child, Command},
    thread,
    time::Duration,
};

use super::node::{MIB, Node, Pod};
use crate::{
    cgroup::Forbidden,
    evict::{EndError, Ending, Endings, Sent, end},
    policy::engine::Spared,
};

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(100);

fn scene() -> (Node, Pod) {
    let (node, pod) = (Node::new(0), Pod::new("a"));
    node.add(&pod, MIB);
    (node, pod)
}

/// A process that does nothing for long.
fn process() -> Child {
    Command::new("sleep").arg("1000").spawn().unwrap()
}

#[test]
fn each_process_gets_sigterm_and_no_other_does() {
    let (node, pod) = scene();
    let (mut own, mut container, mut stranger) = (process(), process(), process());
    node.write("a", "cgroup.procs", &format!("{}\n", own.id()));
    node.write("a", "app/cgroup.procs", &format!("{}\n", container.id()));
    let candidate = node.open(&pod).unwrap();
    let ending = thread::scope(|scope| {
        let ending = scope.spawn(|| end(&candidate, LONG, || None, |_| ()));
        assert_eq!(own.wait().unwrap().signal(), Some(15));
        assert_eq!(container.wait().unwrap().signal(), Some(15));
        node.write("a", "cgroup.events", "populated 0\nfrozen 0\n");
        ending.join().unwrap()
    });
    assert_eq!(ending.unwrap(), Ending::OnTerm);
    assert!(!node.killed("a"));
    assert!(stranger.try_wait().unwrap().is_none());
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn who_does_not_end_within_the_grace_is_killed() {
    let (node, pod) = scene();
    let candidate = node.open(&pod).unwrap();
    let ending = thread::scope(|scope| {
        let ending = scope.spawn(|| end(&candidate, SHORT, || None, |_| ()));
        while !node.killed("a") {
            thread::sleep(Duration::from_millis(5));
        }
        node.write("a", "cgroup.events", "populated 0\nfrozen 0\n");
        ending.join().unwrap()
    });
    assert_eq!(ending.unwrap(), Ending::OnKill);
}

#[test]
fn an_empty_pod_has_ended_already() {
    let (node, pod) = scene();
    node.write("a", "cgroup.events", "populated 0\nfrozen 0\n");
    assert_eq!(end(&node.open(&pod).unwrap(), LONG, || None, |_| ()).unwrap(), Ending::OnTerm);
    assert!(!node.killed("a"));
}

#[test]
fn one_thread_ends_many_pods_and_each_has_its_own_grace() {
    let endings = Endings::start().unwrap();
    let (sender, ended) = std::sync::mpsc::channel();
    let node = Node::new(0);
    let begin = |name: &'static str, grace: Duration| {
        let pod = Pod::new(name);
        node.add(&pod, MIB);
        let sender = sender.clone();
        endings.end(node.candidate(&pod), grace, move |ending| {
            sender.send((name, ending.unwrap(), thread::current().id())).unwrap();
        });
    };
    begin("patient", LONG);
    begin("first", SHORT);
    begin("second", SHORT);
    for name in ["first", "second"] {
        while !node.killed(name) {
            thread::sleep(Duration::from_millis(5));
        }
        node.write(name, "cgroup.events", "populated 0\nfrozen 0\n");
    }
    let mut over = [ended.recv().unwrap(), ended.recv().unwrap()];
    over.sort_by_key(|(name, ..)| *name);
    assert_eq!(
        over.map(|(name, ending, _)| (name, ending)),
        [("first", Ending::OnKill), ("second", Ending::OnKill)]
    );
    node.write("patient", "cgroup.events", "populated 0\nfrozen 0\n");
    let (name, ending, of) = ended.recv().unwrap();
    assert_eq!((name, ending), ("patient", Ending::OnTerm));
    assert!(!node.killed("patient"));
    assert!(over.iter().all(|(_, _, thread)| *thread == of && *thread != thread::current().id()));
}

/// What must never be killed may have come in since the candidate was opened.
#[test]
fn what_holds_init_or_the_daemon_gets_no_signal() {
    let (node, pod) = scene();
    let candidate = node.open(&pod).unwrap();
    let mut neighbour = process();
    for (pid, expected) in [(1, Forbidden::HoldsInit), (std::process::id(), Forbidden::HoldsDaemon)] {
        node.write("a", "app/cgroup.procs", &format!("{}\n{pid}\n", neighbour.id()));
        assert!(
            matches!(end(&candidate, SHORT, || None, |_| ()), Err(EndError::Forbidden(reason)) if reason == expected)
        );
    }
    assert!(!node.killed("a"));
    assert!(neighbour.try_wait().unwrap().is_none());
    neighbour.kill().unwrap();
    neighbour.wait().unwrap();
}

#[test]
fn one_that_comes_in_during_the_grace_stops_the_kill() {
    let (node, pod) = scene();
    let candidate = node.open(&pod).unwrap();
    let ending = thread::scope(|scope| {
        let ending = scope.spawn(|| end(&candidate, Duration::from_secs(1), || None, |_| ()));
        thread::sleep(Duration::from_millis(300));
        node.write("a", "cgroup.procs", "1\n");
        ending.join().unwrap()
    });
    assert!(matches!(ending, Err(EndError::Forbidden(Forbidden::HoldsInit))));
    assert!(!node.killed("a"));
}

#[test]
fn who_is_spared_within_the_grace_was_asked_and_is_not_killed() {
    let (node, pod) = scene();
    let candidate = node.open(&pod).unwrap();
    let mut sent = Vec::new();
    let ending = end(&candidate, SHORT, || Some(Spared::Protected), |what| sent.push(what));
    assert!(matches!(ending, Err(EndError::Spared(Spared::Protected))));
    assert_eq!(sent, [Sent::Term]);
    assert!(!node.killed("a"));
}
