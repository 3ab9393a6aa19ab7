//! Which reports of a kill are emitted at once, and which wait.
use std::{
    cell::RefCell,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use ulid::Ulid;

use super::{
    events::{candidates, decided, shortage},
    node::{MIB, Node, Pod, guard},
};
use crate::{
    evict::{Asking, Candidate, Listener, Recorded, Report, listener, queue::queue},
    policy::{CgroupPlan, ContainerPlan, pressure::Conditions, threshold::Signal},
};

/// Notes what it is called with, in order.
struct Notes(mpsc::Sender<(&'static str, &'static str)>);

impl Listener for Notes {
    fn see(&mut self, report: &Report) {
        self.0.send(("seen", kind(report))).unwrap();
    }

    fn emit(&mut self, report: Report) -> Recorded {
        self.0.send(("told", kind(&report))).unwrap();
        Recorded::Known(true)
    }
}

fn kind(report: &Report) -> &'static str {
    match report {
        Report::Crossed { .. } => "crossed",
        Report::Decided { .. } => "decided",
        Report::Conditions(_) => "conditions",
        Report::Sighted(_) => "sighted",
        _ => "another",
    }
}

fn crossed(hard: bool) -> Report {
    let mut shortage = shortage(199 * MIB);
    shortage.hard = hard;
    Report::Crossed { now_ns: 1, shortage }
}

/// What is noted of those reports up to the end of the queue, with `between` having been noted before the last is sent.
fn noted(held_back: Duration, reports: Vec<Report>, between: usize) -> Vec<(&'static str, &'static str)> {
    let (sender, receiver) = queue::<Report>(64).unwrap();
    let (log, noted) = mpsc::channel();
    let thread = thread::spawn(move || {
        listener::run(&receiver, Notes(log), held_back, None, |_, _| unreachable!());
    });
    let mut all = Vec::new();
    let count = reports.len();
    for (index, report) in reports.into_iter().enumerate() {
        if index + 1 == count {
            all.extend(noted.iter().take(between));
        }
        assert!(sender.offer(report).is_ok());
    }
    drop(sender);
    thread.join().unwrap();
    all.extend(noted);
    all
}

#[test]
fn what_goes_with_a_kill_is_seen_at_once_and_reported_with_what_cannot_wait() {
    let (_node, members) = candidates();
    let reports = vec![
        crossed(true),
        Report::Conditions(Conditions::default()),
        decided(members),
        Report::Sighted(Signal::MemoryAvailable),
    ];
    let noted = noted(Duration::from_hours(1), reports, 3);
    let seen = ["crossed", "conditions", "decided", "sighted"];
    assert_eq!(noted[..4], seen.map(|kind| ("seen", kind)));
    assert_eq!(noted[4..], seen.map(|kind| ("told", kind)));
}

#[test]
fn what_waits_is_reported_when_its_time_has_come() {
    // The last is sent when the one before has been emitted.
    let noted = noted(Duration::from_millis(1), vec![crossed(true), crossed(true)], 2);
    assert_eq!(noted, [("seen", "crossed"), ("told", "crossed")].repeat(2));
}

#[test]
fn what_waits_is_reported_at_the_end_and_when_it_is_too_much() {
    let noted = noted(Duration::from_hours(1), (0..40).map(|_| crossed(true)).collect(), 66);
    // 33 were emitted together, while 7 still wait.
    assert_eq!(noted[33..66], [("told", "crossed"); 33]);
    assert_eq!(noted[66..].iter().filter(|(how, _)| *how == "told").count(), 7);
}

#[test]
fn a_soft_threshold_does_not_wait() {
    let alone = noted(Duration::from_hours(1), vec![crossed(false), crossed(false)], 2);
    assert_eq!(alone[1], ("told", "crossed"));
}

/// What a victim's containers hold is gone by the time that its decision is reported. The kill is noted before that.
#[test]
fn the_containers_of_a_victim_are_read_at_once_and_its_decision_waits() {
    let (node, pod) = (Node::new(0), Pod::new("hog"));
    node.add(&pod, 1250 * MIB);
    node.write("hog", "app/memory.current", &format!("{}\n", 900 * MIB));
    let stat = format!("anon {}\nfile 0\nshmem 0\ninactive_file 0\n", 900 * MIB);
    node.write("hog", "app/memory.stat", &stat);
    let mut plan = pod.plan();
    // Its cgroup is gone already.
    let cgroup = CgroupPlan { path: plan.cgroup.path.child("side").unwrap(), ..plan.cgroup.clone() };
    plan.containers.push(ContainerPlan { name: "side".into(), cgroup, ..plan.containers[0].clone() });
    let candidate = Arc::new(Candidate::open(&node.root(), &guard(), &plan).unwrap());
    let (sender, receiver) = queue::<Report>(64).unwrap();
    let (log, noted) = mpsc::channel();
    let thread = thread::spawn(move || {
        listener::run(&receiver, Read(log), Duration::from_hours(1), None, |_, _| unreachable!());
    });
    assert!(sender.offer(decided(vec![candidate].into())).is_ok());
    let read = vec![("app".to_owned(), 900 * MIB)];
    assert_eq!(noted.recv().unwrap(), ("seen", read.clone()));
    node.write("hog", "app/memory.current", "0\n");
    drop(sender);
    thread.join().unwrap();
    assert_eq!(noted.recv().unwrap(), ("told", read));
}

/// Notes what it has of a victim's containers.
struct Read(mpsc::Sender<(&'static str, Vec<(String, u64)>)>);

impl Read {
    fn note(&self, how: &'static str, report: &Report) {
        let Report::Decided { containers, .. } = report else { panic!("{report:?}") };
        self.0.send((how, containers.clone())).unwrap();
    }
}

impl Listener for Read {
    fn see(&mut self, report: &Report) {
        self.note("seen", report);
    }

    fn emit(&mut self, report: Report) -> Recorded {
        self.note("told", &report);
        Recorded::Known(true)
    }
}

/// After a start the journal still syncs what the earlier process wrote: whoever emits the report waits for that.
#[test]
fn the_victim_of_an_earlier_process_is_asked_only_if_the_disk_has_its_decision() {
    let (_node, members) = candidates();
    for is_durable in [false, true] {
        let (sender, receiver) = queue::<Report>(64).unwrap();
        for asking in [Asking::Whether, Asking::Again] {
            let candidate = Arc::clone(&members[0]);
            let (id, number, grace_ns, graceless) = (Ulid::nil(), 1, 1, false);
            let report = Report::ToBeAsked { id, number, candidate, grace_ns, graceless, asking };
            assert!(sender.offer(report).is_ok());
        }
        drop(sender);
        let emit =
            move |report| is_durable || !matches!(report, Report::ToBeAsked { asking: Asking::Again, .. });
        let asked = RefCell::new(Vec::new());
        listener::run(&receiver, emit, Duration::from_millis(1), None, |victim, recorded| {
            asked.borrow_mut().push((victim.asking, recorded.wait()));
        });
        assert_eq!(asked.into_inner(), [(Asking::Whether, false), (Asking::Again, is_durable)]);
    }
}
