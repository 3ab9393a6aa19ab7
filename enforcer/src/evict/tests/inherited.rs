//! An eviction of an earlier process: it goes on under its id, once its victim is known.
use std::{
    process::{Child, Command},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use ulid::Ulid;

use super::{
    node::{MIB, Node, Pod},
    whole,
};
use crate::{
    clock,
    evict::{
        Asking, Candidate, End, Identity, InheritedEviction, Reflex, ReflexConfig, Report, Requested,
        Requester, pod_key,
    },
    model::{CgroupPath, PodUid},
    policy::{
        engine::{FailureReason, Inherited, Mode, Refusal, Shortage, followed},
        threshold::{Signal, Threshold, ThresholdValue},
    },
};

const SECOND: u64 = 1_000_000_000;
const GRACE_NS: u64 = 20 * SECOND;

/// Keeps what it was asked, and accepts it.
#[derive(Debug, Default)]
struct Accepting {
    requests: Mutex<Vec<(String, bool)>>,
    looks: Mutex<Vec<String>>,
    /// Whether an earlier process has requested it.
    was_requested: AtomicBool,
}

impl Requester for Accepting {
    fn request(
        &self,
        id: Ulid,
        pod: &Identity,
        _grace: Duration,
        is_again: bool,
        _is_withdrawn: &dyn Fn() -> bool,
    ) -> Requested {
        assert_eq!(id, ID);
        self.requests.lock().unwrap().push((pod.pod.name.clone(), is_again));
        Requested::Accepted
    }

    fn was_requested(&self, id: Ulid, pod: &Identity) -> bool {
        assert_eq!(id, ID);
        self.looks.lock().unwrap().push(pod.pod.name.clone());
        self.was_requested.load(Ordering::Relaxed)
    }
}

const ID: Ulid = Ulid(0x0192_0000_0000_0000_0000_0000_0000_0007);

/// A node on which a soft threshold is met, with the victim `soft` and another pod.
struct Scene {
    node: Node,
    victim: Arc<Candidate>,
    other: Arc<Candidate>,
    processes: Vec<Child>,
    requester: Arc<Accepting>,
}

impl Scene {
    fn new() -> Self {
        let node = Node::new(1024 * MIB);
        let mut processes = Vec::new();
        let mut add = |name, bytes| {
            let pod = Pod::new(name);
            node.add(&pod, bytes);
            let process = Command::new("sleep").arg("1000").spawn().unwrap();
            node.write(name, "cgroup.procs", &format!("{}\n", process.id()));
            processes.push(process);
            node.candidate(&pod)
        };
        // The other one would be chosen anew.
        let (victim, other) = (add("soft", 300 * MIB), add("other", 600 * MIB));
        Self { node, victim, other, processes, requester: Arc::default() }
    }

    /// Begins with the victim's eviction, requested so long ago. The soft threshold is met.
    fn begin(&self, requested_ago_ns: Option<u64>, uid: &PodUid) -> (Reflex, mpsc::Receiver<Report>) {
        self.begin_with(790 * MIB, requested_ago_ns, uid)
    }

    /// The same with so much available.
    fn begin_with(
        &self,
        available_bytes: u64,
        requested_ago_ns: Option<u64>,
        uid: &PodUid,
    ) -> (Reflex, mpsc::Receiver<Report>) {
        self.begin_as(available_bytes, self.facts(requested_ago_ns), uid)
    }

    /// The victim's eviction, requested so long ago.
    fn facts(&self, requested_ago_ns: Option<u64>) -> Inherited {
        let now_ns = clock::boottime_ns();
        let identity = self.victim.identity();
        Inherited {
            cgroup: self.victim.facts().cgroup,
            pod: pod_key(&identity.pod),
            shortage: Shortage {
                signal: Signal::MemoryAvailable,
                hard: false,
                threshold: 800 * MIB,
                observed: 790 * MIB,
            },
            crossed_ns: now_ns.saturating_sub(60 * SECOND),
            decided_ns: now_ns.saturating_sub(50 * SECOND),
            requested_ns: requested_ago_ns.map(|ago_ns| now_ns.saturating_sub(ago_ns)),
            signalled_ns: None,
            grace_ns: GRACE_NS,
            predicted_freed_bytes: 300 * MIB,
            current_bytes: Some(300 * MIB),
            process_count: None,
        }
    }

    /// Begins with this eviction and so much available.
    fn begin_as(
        &self,
        available_bytes: u64,
        facts: Inherited,
        uid: &PodUid,
    ) -> (Reflex, mpsc::Receiver<Report>) {
        let cgroup = self.victim.identity().cgroup.clone();
        self.begin_killed(available_bytes, facts, uid, &cgroup)
    }

    /// The same where that cgroup was killed.
    fn begin_killed(
        &self,
        available_bytes: u64,
        facts: Inherited,
        uid: &PodUid,
        killed: &CgroupPath,
    ) -> (Reflex, mpsc::Receiver<Report>) {
        let identity = self.victim.identity();
        let killed = [self.node.root().open(killed).unwrap()];
        let who = (ID, identity.pod.clone(), uid.clone(), identity.cgroup.clone());
        let inherited = InheritedEviction::open(who, (facts, 1), Some(&killed));
        let soft = Threshold {
            grace_period_ms: 1,
            ..Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(800 * MIB))
        };
        let hard = Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(200 * MIB));
        let mut config = whole::config(&self.node, Mode::Enforce);
        config.settings.thresholds = followed(&[soft, hard]);
        config.settings.max_pod_grace_period_ns = GRACE_NS;
        let config = ReflexConfig {
            armed: vec![soft, hard],
            requester: Some(Arc::clone(&self.requester) as Arc<dyn Requester>),
            inherited: Some(Arc::new(inherited)),
            ..config
        };
        self.node.set_available(available_bytes);
        whole::start_with(&config, &self.node, &[])
    }

    fn begin_requested(&self, ago_ns: u64) -> (Reflex, mpsc::Receiver<Report>) {
        self.begin(Some(ago_ns), &self.victim.identity().uid)
    }

    fn all(&self) -> Vec<Arc<Candidate>> {
        vec![Arc::clone(&self.victim), Arc::clone(&self.other)]
    }

    fn asked(&self) -> Vec<(String, bool)> {
        self.requester.requests.lock().unwrap().clone()
    }

    fn looked_at(&self) -> Vec<String> {
        self.requester.looks.lock().unwrap().clone()
    }

    /// Whether none of the processes got a signal that ends it.
    fn all_run(&mut self) -> bool {
        self.processes.iter_mut().all(|process| process.try_wait().unwrap().is_none())
    }

    fn ends(&self) {
        self.node.write("soft", "memory.current", "1048576\n");
        self.node.write("soft", "cgroup.events", "populated 0\nfrozen 0\n");
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ended = process.kill();
            let _collected = process.wait();
        }
    }
}

/// The next report about an eviction; none but `ID`'s may be decided.
fn next(reports: &mpsc::Receiver<Report>) -> Report {
    loop {
        let report = whole::next(reports);
        assert!(!matches!(report, Report::Decided { .. }), "{report:?}");
        if !matches!(report, Report::Crossed { .. } | Report::Cleared { .. } | Report::Suppressed { .. }) {
            return report;
        }
    }
}

fn nothing_about_an_eviction(reports: &mpsc::Receiver<Report>) {
    while let Ok(report) = reports.recv_timeout(Duration::from_millis(500)) {
        let is_about_the_node =
            matches!(report, Report::Crossed { .. } | Report::Cleared { .. } | Report::Suppressed { .. });
        assert!(is_about_the_node, "{report:?}");
    }
}

#[test]
fn a_victim_that_ends_within_its_grace_is_completed_under_the_same_id() {
    let scene = Scene::new();
    let (reflex, reports) = scene.begin_requested(5 * SECOND);
    nothing_about_an_eviction(&reports);
    reflex.set_candidates(scene.all());
    assert!(matches!(next(&reports), Report::Inherited { is_asked: true, number: 1, .. }));
    nothing_about_an_eviction(&reports);
    scene.ends();
    let Report::Completed { id, completion, .. } = next(&reports) else { panic!("not completed") };
    assert_eq!((id, completion.moments.signalled_ns), (ID, None));
    assert_eq!(completion.freed_bytes, Some(299 * MIB));
    assert_eq!(scene.asked(), []);
    assert!(!scene.node.killed("soft") && !scene.node.killed("other"));
    reflex.stop();
}

#[test]
fn a_grace_that_is_over_ends_with_a_kill_once_the_victim_is_known() {
    let scene = Scene::new();
    let (reflex, reports) = scene.begin_requested(GRACE_NS + 11 * SECOND);
    nothing_about_an_eviction(&reports);
    // Another pod that is known is none that it could be.
    reflex.set_candidates(vec![Arc::clone(&scene.other)]);
    nothing_about_an_eviction(&reports);
    reflex.set_candidates(scene.all());
    assert!(matches!(next(&reports), Report::Inherited { .. }));
    let Report::Signalled { id, .. } = next(&reports) else { panic!("not killed") };
    assert_eq!(id, ID);
    assert!(scene.node.killed("soft") && !scene.node.killed("other"));
    reflex.stop();
}

#[test]
fn a_hard_threshold_kills_the_same_victim_and_no_other() {
    let scene = Scene::new();
    let (reflex, reports) = scene.begin_requested(5 * SECOND);
    scene.node.set_available(100 * MIB);
    nothing_about_an_eviction(&reports);
    reflex.set_candidates(scene.all());
    assert!(matches!(next(&reports), Report::Inherited { .. }));
    let Report::Signalled { id, cut_short, .. } = next(&reports) else { panic!("not killed") };
    assert_eq!((id, cut_short), (ID, Some(crate::policy::engine::KillReason::HardThreshold)));
    nothing_about_an_eviction(&reports);
    assert!(scene.node.killed("soft") && !scene.node.killed("other"));
    reflex.stop();
}

/// The pod was made anew under its name and, as it were, in the same cgroup.
#[test]
fn a_pod_of_another_uid_is_not_the_victim() {
    let scene = Scene::new();
    let (reflex, reports) = scene.begin(Some(GRACE_NS + 11 * SECOND), &PodUid::new("before").unwrap());
    reflex.set_candidates(scene.all());
    nothing_about_an_eviction(&reports);
    assert!(!scene.node.killed("soft") && !scene.node.killed("other"));
    scene.ends();
    let Report::InheritedEnded { eviction, end: End::Completed(_) } = next(&reports) else { panic!() };
    assert_eq!(eviction.id, ID);
    reflex.stop();
}

#[test]
fn a_victim_that_ends_before_it_is_known_is_completed() {
    let scene = Scene::new();
    let (reflex, reports) = scene.begin_requested(5 * SECOND);
    scene.ends();
    assert!(matches!(next(&reports), Report::InheritedEnded { end: End::Completed(_), .. }));
    reflex.stop();
}

#[test]
fn one_that_may_not_have_been_requested_is_looked_at_first() {
    let scene = Scene::new();
    let (reflex, reports) = scene.begin(None, &scene.victim.identity().uid);
    nothing_about_an_eviction(&reports);
    assert_eq!((scene.asked(), scene.looked_at()), (Vec::new(), Vec::new()), "it is not known yet");
    reflex.set_candidates(scene.all());
    assert!(matches!(next(&reports), Report::Inherited { is_asked: false, .. }));
    assert!(matches!(next(&reports), Report::ToBeAsked { id: ID, asking: Asking::Whether, .. }));
    // Memory is still short.
    assert!(matches!(next(&reports), Report::ToBeAsked { id: ID, asking: Asking::Again, .. }));
    assert!(matches!(next(&reports), Report::Requested { number: 1, .. }));
    assert_eq!(scene.asked(), [(String::from("soft"), true)]);
    assert_eq!(scene.looked_at(), ["soft"]);
    scene.ends();
    let Report::Completed { id, .. } = next(&reports) else { panic!("not completed") };
    assert_eq!(id, ID);
    reflex.stop();
}

/// Much time may have passed since the decision.
#[test]
fn one_that_was_not_requested_is_left_alone_without_a_shortage() {
    let mut scene = Scene::new();
    let (reflex, reports) = scene.begin_with(900 * MIB, None, &scene.victim.identity().uid);
    reflex.set_candidates(scene.all());
    assert!(matches!(next(&reports), Report::Inherited { is_asked: false, .. }));
    assert!(matches!(next(&reports), Report::ToBeAsked { id: ID, asking: Asking::Whether, .. }));
    let Report::Failed { id, failure, .. } = next(&reports) else { panic!("not ended") };
    assert_eq!((id, failure.reason), (ID, FailureReason::Relieved));
    nothing_about_an_eviction(&reports);
    assert_eq!((scene.asked(), scene.looked_at()), (Vec::new(), vec![String::from("soft")]));
    assert!(!scene.node.killed("soft") && !scene.node.killed("other"));
    assert!(scene.all_run());
    reflex.stop();
}

#[test]
fn one_that_was_requested_after_all_goes_on_without_a_shortage_too() {
    let scene = Scene::new();
    scene.requester.was_requested.store(true, Ordering::Relaxed);
    let (reflex, reports) = scene.begin_with(900 * MIB, None, &scene.victim.identity().uid);
    reflex.set_candidates(scene.all());
    assert!(matches!(next(&reports), Report::Inherited { is_asked: false, .. }));
    assert!(matches!(next(&reports), Report::ToBeAsked { asking: Asking::Whether, .. }));
    assert!(matches!(next(&reports), Report::Requested { number: 1, .. }));
    nothing_about_an_eviction(&reports);
    scene.ends();
    let Report::Completed { id, completion, .. } = next(&reports) else { panic!("not completed") };
    assert_eq!((id, completion.moments.signalled_ns), (ID, None));
    assert_eq!(scene.asked(), []);
    reflex.stop();
}

#[test]
fn a_victim_that_stays_unknown_is_given_up() {
    let scene = Scene::new();
    let (reflex, reports) = scene.begin_requested(GRACE_NS + 11 * SECOND);
    let Report::InheritedEnded { end: End::Failed(failure), .. } = next(&reports) else { panic!() };
    assert_eq!(failure.reason, FailureReason::Refused(Refusal::Unknown));
    assert!(!scene.node.killed("soft"));
    reflex.stop();
}

#[test]
fn no_other_is_killed_while_a_victim_that_an_earlier_process_killed_is_dying() {
    let scene = Scene::new();
    let (uid, facts) = (&scene.victim.identity().uid, scene.facts(None));
    let shortage = Shortage { hard: true, threshold: 200 * MIB, observed: 190 * MIB, ..facts.shortage };
    let killed_ns = facts.decided_ns;
    // It has ten seconds to die, however busy the machine is.
    let predicted_freed_bytes = 8 * 1024 * MIB;
    let facts =
        Inherited { shortage, signalled_ns: Some(killed_ns), grace_ns: 0, predicted_freed_bytes, ..facts };
    let (reflex, reports) = scene.begin_as(100 * MIB, facts, uid);
    nothing_about_an_eviction(&reports);
    reflex.set_candidates(scene.all());
    assert!(matches!(next(&reports), Report::Inherited { is_asked: true, number: 1, .. }));
    nothing_about_an_eviction(&reports);
    scene.node.set_available(900 * MIB);
    scene.ends();
    let Report::Completed { id, completion, .. } = next(&reports) else { panic!("not completed") };
    assert_eq!((id, completion.moments.signalled_ns), (ID, Some(killed_ns)));
    assert_eq!(completion.freed_bytes, Some(299 * MIB));
    assert_eq!(scene.asked(), []);
    assert!(!scene.node.killed("soft") && !scene.node.killed("other"), "neither again");
    reflex.stop();
}

/// A kubelet starts what was dead already again while the rest is dying.
#[test]
fn a_container_that_was_started_since_does_not_keep_a_killed_victim_alive() {
    let scene = Scene::new();
    let (uid, facts) = (&scene.victim.identity().uid, scene.facts(None));
    let predicted_freed_bytes = 8 * 1024 * MIB;
    let facts =
        Inherited { signalled_ns: Some(facts.decided_ns), grace_ns: 0, predicted_freed_bytes, ..facts };
    scene.node.write("soft", "app/cgroup.events", "populated 1\n");
    let killed = scene.victim.identity().cgroup.child("app").unwrap();
    let (reflex, reports) = scene.begin_killed(100 * MIB, facts, uid, &killed);
    reflex.set_candidates(scene.all());
    assert!(matches!(next(&reports), Report::Inherited { is_asked: true, .. }));
    nothing_about_an_eviction(&reports);
    scene.node.set_available(900 * MIB);
    scene.node.write("soft", "app/cgroup.events", "populated 0\n");
    assert!(matches!(next(&reports), Report::Completed { .. }));
    reflex.stop();
}

#[test]
fn a_killed_victim_that_is_never_known_and_does_not_die_is_given_up() {
    let scene = Scene::new();
    let (uid, facts) = (&scene.victim.identity().uid, scene.facts(None));
    let facts = Inherited { signalled_ns: Some(facts.decided_ns), grace_ns: 0, ..facts };
    let (reflex, reports) = scene.begin_as(790 * MIB, facts, uid);
    let Report::InheritedEnded { end: End::Failed(failure), .. } = next(&reports) else { panic!() };
    assert_eq!(failure.reason, FailureReason::StillPopulated);
    reflex.stop();
}
