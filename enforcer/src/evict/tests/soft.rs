//! A soft eviction whose victim another ends: who is asked, and what follows from the answer.
use std::{
    process::{Child, Command},
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use ulid::Ulid;

use super::{
    node::{MIB, Node, Pod},
    whole,
};
use crate::{
    evict::{Identity, Reflex, ReflexConfig, Report, Requested, Requester},
    policy::{
        engine::{FailureReason, KillReason, Mode, Refusal, Suppression, followed},
        threshold::{Signal, Threshold, ThresholdValue},
    },
};

const GRACE: Duration = Duration::from_secs(10);

/// Gives one answer, and keeps what it was asked.
#[derive(Debug)]
struct Answering {
    answer: Requested,
    /// The pod, its grace period, and whether it may have been asked before.
    asked: Mutex<Vec<(String, Duration, bool)>>,
}

impl Requester for Answering {
    fn request(
        &self,
        _id: Ulid,
        pod: &Identity,
        grace: Duration,
        is_again: bool,
        _is_withdrawn: &dyn Fn() -> bool,
    ) -> Requested {
        self.asked.lock().unwrap().push((pod.pod.name.clone(), grace, is_again));
        self.answer
    }

    fn was_requested(&self, _id: Ulid, pod: &Identity) -> bool {
        panic!("{} was chosen by this process", pod.pod)
    }
}

struct Scene {
    node: Node,
    process: Child,
    requester: Arc<Answering>,
    reports: mpsc::Receiver<Report>,
    reflex: Option<Reflex>,
}

impl Scene {
    /// A node on which a soft threshold is crossed, and one pod with a process.
    fn new(answer: Requested) -> Self {
        Self::with_grace(answer, GRACE)
    }

    /// The same if pods get at most that grace period.
    fn with_grace(answer: Requested, most: Duration) -> Self {
        let node = Node::new(1024 * MIB);
        let pod = Pod::new("soft");
        node.add(&pod, 600 * MIB);
        let process = Command::new("sleep").arg("1000").spawn().unwrap();
        node.write("soft", "cgroup.procs", &format!("{}\n", process.id()));
        let soft = Threshold {
            grace_period_ms: 1,
            ..Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(800 * MIB))
        };
        let requester = Arc::new(Answering { answer, asked: Mutex::default() });
        let mut config = whole::config(&node, Mode::Enforce);
        config.settings.thresholds = followed(&[soft]);
        config.settings.max_pod_grace_period_ns = u64::try_from(most.as_nanos()).unwrap();
        let config = ReflexConfig { requester: Some(Arc::clone(&requester) as Arc<dyn Requester>), ..config };
        let (reflex, reports) = whole::start_with(&config, &node, &[&pod]);
        if most.is_zero() {
            // A reload does not change who is asked.
            reflex.configure(config.settings);
        }
        // Not so fast that there would be no time to ask.
        node.set_available(900 * MIB);
        std::thread::sleep(Duration::from_secs(1));
        node.set_available(790 * MIB);
        Self { node, process, requester, reports, reflex: Some(reflex) }
    }

    fn until(&self, wanted: fn(&Report) -> bool) -> Report {
        loop {
            let report = whole::next(&self.reports);
            if wanted(&report) {
                return report;
            }
        }
    }

    fn asked(&self) -> Vec<(String, Duration, bool)> {
        self.requester.asked.lock().unwrap().clone()
    }

    /// Ends the reflex, and returns whether the process still ran.
    fn close(&mut self) -> bool {
        drop(self.reflex.take());
        let ran = self.process.try_wait().unwrap().is_none();
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        ran
    }
}

#[test]
fn a_victim_that_another_ends_gets_no_signal() {
    let mut scene = Scene::new(Requested::Accepted);
    scene.until(|report| matches!(report, Report::Requested { .. }));
    assert_eq!(scene.asked(), [(String::from("soft"), GRACE, false)]);
    scene.node.write("soft", "cgroup.events", "populated 0\nfrozen 0\n");
    let Report::Completed { completion, .. } = scene.until(|report| {
        assert!(!matches!(report, Report::Terminated { .. } | Report::Signalled { .. }), "{report:?}");
        matches!(report, Report::Completed { .. })
    }) else {
        unreachable!()
    };
    assert!(completion.moments.requested_ns.is_some());
    assert!(!scene.node.killed("soft"));
    assert!(scene.close(), "it was signalled");
}

#[test]
fn a_victim_that_no_one_else_ends_gets_sigterm() {
    let mut scene = Scene::new(Requested::Unanswered);
    scene.until(|report| matches!(report, Report::Terminated { .. }));
    assert_eq!(scene.asked().len(), 1);
    let status = scene.process.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15));
    drop(scene.reflex.take());
}

#[test]
fn a_victim_with_a_budget_is_left_alone() {
    let mut scene = Scene::new(Requested::Budget);
    let Report::Failed { failure, .. } = scene.until(|report| matches!(report, Report::Failed { .. })) else {
        unreachable!()
    };
    assert_eq!(failure.reason, FailureReason::Refused(Refusal::Budget));
    let suppressed = scene.until(|report| matches!(report, Report::Suppressed { .. }));
    assert!(matches!(suppressed, Report::Suppressed { reason: Suppression::DisruptionBudget, .. }));
    whole::nothing_more(&scene.reports);
    assert_eq!(scene.asked().len(), 1);
    assert!(scene.close(), "it was signalled");
}

/// Its budget counts too, and the kubelet ends it.
#[test]
fn about_a_victim_without_a_grace_period_another_is_asked_first() {
    let mut scene = Scene::with_grace(Requested::Accepted, Duration::ZERO);
    scene.until(|report| {
        assert!(!matches!(report, Report::Terminated { .. } | Report::Signalled { .. }), "{report:?}");
        matches!(report, Report::Requested { .. })
    });
    assert_eq!(scene.asked(), [(String::from("soft"), Duration::from_secs(1), false)]);
    assert!(!scene.node.killed("soft"));
    assert!(scene.close(), "it was signalled");
}

#[test]
fn a_victim_without_a_grace_period_that_no_one_else_ends_is_killed_at_once() {
    let mut scene = Scene::with_grace(Requested::Unanswered, Duration::ZERO);
    let Report::Signalled { cut_short, moments, .. } = scene.until(|report| {
        assert!(!matches!(report, Report::Terminated { .. }), "{report:?}");
        matches!(report, Report::Signalled { .. })
    }) else {
        unreachable!()
    };
    // A request may have been made whose answer was lost: the API server is looked at first.
    assert_eq!((cut_short, moments.asked_ns()), (Some(KillReason::Unanswered), None));
    assert_eq!(scene.asked().len(), 1);
    assert!(scene.node.killed("soft"));
    assert!(scene.close(), "it got SIGTERM");
}

#[test]
fn a_budget_spares_a_victim_without_a_grace_period() {
    let mut scene = Scene::with_grace(Requested::Budget, Duration::ZERO);
    let Report::Failed { failure, .. } = scene.until(|report| matches!(report, Report::Failed { .. })) else {
        unreachable!()
    };
    assert_eq!(failure.reason, FailureReason::Refused(Refusal::Budget));
    assert!(!scene.node.killed("soft"));
    assert!(scene.close(), "it was signalled");
}
