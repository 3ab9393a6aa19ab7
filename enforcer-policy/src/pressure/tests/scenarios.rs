//! `pkg/kubelet/eviction/eviction_manager_test.go`: the scenarios of memory and process ids, step by step, with a clock
//! that the test sets.

use super::*;
use crate::{
    admission, critical, effective, message,
    model::{Pod, QosClass, ResourceName},
    qos,
    rank::{self, MemoryRankKey, PidRankKey},
    sample::{app, pod},
    threshold::ThresholdValue::Amount,
};

/// A pod and what it uses.
struct Running {
    pod: Pod,
    usage: u64,
}

fn running(
    name: &str,
    priority: i32,
    requests: &[(&str, &str)],
    limits: &[(&str, &str)],
    usage: u64,
) -> Running {
    let pod = Pod { priority: Some(priority), ..pod(name, vec![app("c", requests, limits)]) };
    Running { pod, usage }
}

const LOW: i32 = -1;
const DEFAULT: i32 = 0;
const HIGH: i32 = 1;

/// The five pods of `TestMemoryPressure`, `TestMinReclaim` and `TestAllocatableMemoryPressure`, in upstream's order.
fn five() -> Vec<Running> {
    let guaranteed = [("cpu", "100m"), ("memory", "1Gi")];
    let burstable = [("cpu", "100m"), ("memory", "100Mi")];
    let limits = [("cpu", "200m"), ("memory", "1Gi")];
    vec![
        running("guaranteed-low-priority-high-usage", LOW, &guaranteed, &guaranteed, 900 * MIB),
        running("burstable-below-requests", DEFAULT, &burstable, &limits, 50 * MIB),
        running("burstable-above-requests", DEFAULT, &burstable, &limits, 400 * MIB),
        running("best-effort-high-priority-high-usage", HIGH, &[], &[], 400 * MIB),
        running("best-effort-low-priority-low-usage", LOW, &[], &[], 100 * MIB),
    ]
}

const VICTIM: &str = "best-effort-low-priority-low-usage";

/// A node: its thresholds, its pods, and what the last look gave.
struct Manager {
    settings: EvictionSettings,
    pressure: Pressure,
    pods: Vec<Running>,
    now_ns: u64,
    verdict: Option<Verdict>,
}

/// Who is evicted, and with which grace period in seconds.
type Evicted = Option<(String, u64)>;

impl Manager {
    fn new(thresholds: &[Threshold], pods: Vec<Running>) -> Self {
        let settings = EvictionSettings { max_pod_grace_period_seconds: 5, ..settings(thresholds) };
        Self { pressure: Pressure::new(&settings), settings, pods, now_ns: MINUTE, verdict: None }
    }

    /// Lets time pass, then looks, and evicts one pod if there is reason to.
    fn after(&mut self, minutes: u64, signal: Signal, available: u64, capacity: u64) -> Evicted {
        self.now_ns += minutes * MINUTE;
        let verdict = self.pressure.observe(self.now_ns, &left(&[(signal, available, capacity)]));
        self.verdict = Some(verdict);
        let reclaim = verdict.reclaim?;
        let victim = self.ranked(signal).into_iter().find(|running| !critical::is_critical(&running.pod))?;
        let seconds = victim.pod.termination_grace_period_seconds;
        Some((victim.pod.name.name.clone(), reclaim.grace_period_seconds(&self.settings, seconds)))
    }

    fn ranked(&self, signal: Signal) -> Vec<&Running> {
        let mut order: Vec<_> = (0..).zip(&self.pods).collect();
        if signal == Signal::PidAvailable {
            rank::by_pids(&mut order, |(order, running)| PidRankKey {
                process_count: Some(running.usage),
                priority: running.pod.priority(),
                order: *order,
            });
        } else {
            rank::by_memory(&mut order, |(order, running)| MemoryRankKey {
                usage_bytes: Some(running.usage),
                request_bytes: effective::ranking_request(&running.pod, ResourceName::MEMORY).units(),
                priority: running.pod.priority(),
                order: *order,
            });
        }
        order.into_iter().map(|(_, running)| running).collect()
    }

    fn memory(&mut self, minutes: u64, available: u64) -> Evicted {
        self.after(minutes, Signal::MemoryAvailable, available, 4 * GIB)
    }

    fn conditions(&self) -> Vec<NodeCondition> {
        self.verdict.map(|verdict| verdict.conditions.iter().collect()).unwrap_or_default()
    }

    fn has_pressure(&self) -> bool {
        !self.conditions().is_empty()
    }

    /// Whether a new BestEffort and a new Burstable pod would be admitted.
    fn admits(&self) -> (bool, bool) {
        let best_effort = pod("new-best-effort", vec![app("c", &[], &[])]);
        let burstable = pod(
            "new-burstable",
            vec![app("c", &[("cpu", "100m"), ("memory", "100Mi")], &[("cpu", "200m"), ("memory", "200Mi")])],
        );
        let admits = |pod: &Pod| admission::under_conditions(pod, &self.conditions()).is_ok();
        (admits(&best_effort), admits(&burstable))
    }
}

fn victim(seconds: u64) -> (String, u64) {
    (VICTIM.to_owned(), seconds)
}

/// `TestMemoryPressure`: hard below 1Gi, soft below 2Gi for 2 minutes.
#[test]
fn memory_pressure() {
    let soft =
        Threshold { grace_period_ms: 120_000, ..Threshold::hard(Signal::MemoryAvailable, Amount(2 * GIB)) };
    let mut node = Manager::new(&[Threshold::hard(Signal::MemoryAvailable, Amount(GIB)), soft], five());
    assert_eq!(node.memory(0, 2 * GIB), None);
    assert!(!node.has_pressure());
    assert_eq!(node.admits(), (true, true));

    // The soft threshold is met; its grace period is not over.
    assert_eq!(node.memory(1, 1500 * MIB), None);
    assert!(node.has_pressure());

    assert_eq!(node.memory(3, 1500 * MIB), Some(victim(5)));
    assert!(node.has_pressure());

    assert_eq!(node.memory(20, 3 * GIB), None);
    assert!(!node.has_pressure());

    assert_eq!(node.memory(1, 500 * MIB), Some(victim(1)));
    assert!(node.has_pressure());
    assert_eq!(node.admits(), (false, true));

    // No pressure any more, and the transition period is not over.
    assert_eq!(node.memory(1, 2 * GIB), None);
    assert!(node.has_pressure());
    assert_eq!(node.admits(), (false, true));

    assert_eq!(node.memory(5, 2 * GIB), None);
    assert!(!node.has_pressure());
    assert_eq!(node.admits(), (true, true));
}

/// `TestMinReclaim`: hard below 1Gi, 500Mi to be reclaimed.
#[test]
fn min_reclaim() {
    let mut node = Manager::new(&[hard()], five());
    assert_eq!(node.memory(0, 2 * GIB), None);
    assert!(!node.has_pressure());
    assert_eq!(node.memory(1, 500 * MIB), Some(victim(1)));
    assert!(node.has_pressure());
    // Above the threshold, and not above threshold and minimum reclaim: 1.2Gi.
    assert_eq!(node.memory(1, 1_288_490_189), Some(victim(1)));
    assert!(node.has_pressure());
    assert_eq!(node.memory(1, 2 * GIB), None);
    assert!(node.has_pressure());
    assert_eq!(node.memory(5, 2 * GIB), None);
    assert!(!node.has_pressure());
}

/// `TestAllocatableMemoryPressure`: of kubepods' limit.
#[test]
fn allocatable_memory_pressure() {
    let signal = Signal::AllocatableMemoryAvailable;
    let mut node = Manager::new(&[Threshold::hard(signal, Amount(GIB))], five());
    assert_eq!(node.after(0, signal, 4 * GIB, 5 * GIB), None);
    assert!(!node.has_pressure());
    assert_eq!(node.admits(), (true, true));

    let guaranteed = [("cpu", "100m"), ("memory", "1Gi")];
    node.pods.push(running("guaranteed-high-2", DEFAULT, &guaranteed, &guaranteed, GIB));
    assert_eq!(node.after(1, signal, 500 * MIB, 5 * GIB), Some(victim(1)));
    assert!(node.has_pressure());
    assert_eq!(node.admits(), (false, true));

    node.pods.pop();
    assert_eq!(node.after(1, signal, 2 * GIB, 5 * GIB), None);
    assert!(node.has_pressure());
    assert_eq!(node.admits(), (false, true));

    assert_eq!(node.after(5, signal, 2 * GIB, 5 * GIB), None);
    assert!(!node.has_pressure());
    assert_eq!(node.admits(), (true, true));
}

/// `TestMemoryPressure_VerifyPodStatus`.
#[test]
fn the_evicted_pod_is_reported_why() {
    let limits = [("cpu", "100m"), ("memory", "1Gi")];
    let pods = vec![
        running("below-requests", DEFAULT, &limits, &limits, 900 * MIB),
        running("above-requests", DEFAULT, &[("cpu", "100m"), ("memory", "100Mi")], &limits, 700 * MIB),
    ];
    let mut node = Manager::new(&[Threshold::hard(Signal::MemoryAvailable, Amount(2 * GIB))], pods);
    assert_eq!(node.memory(0, 1500 * MIB), Some((String::from("above-requests"), 1)));
    let reclaim = node.verdict.unwrap().reclaim.unwrap();
    let reported = message::evicted(
        reclaim.threshold.signal,
        reclaim.amount,
        reclaim.available,
        "above-requests",
        &message::Requests::of(&node.pods[1].pod),
        None,
    );
    assert_eq!(
        reported.text,
        "The node was low on resource: memory. Threshold quantity: 2Gi, available: 1500Mi. "
    );
}

/// `TestAdmitUnderNodeConditions`: Guaranteed, Burstable and BestEffort under no, one and two conditions.
#[test]
fn admission_under_conditions() {
    let requests = [("cpu", "1"), ("memory", "1Gi")];
    let pods = [
        (QosClass::Guaranteed, pod("g", vec![app("c", &requests, &requests)])),
        (QosClass::Burstable, pod("b", vec![app("c", &requests, &[("cpu", "2"), ("memory", "2Gi")])])),
        (QosClass::BestEffort, pod("be", vec![app("c", &[], &[])])),
    ];
    assert!(pods.iter().all(|(class, pod)| qos::class(pod) == *class));
    let admitted = |conditions: &[NodeCondition]| -> Vec<bool> {
        pods.iter().map(|(_, pod)| admission::under_conditions(pod, conditions).is_ok()).collect()
    };
    assert_eq!(admitted(&[]), [true, true, true]);
    assert_eq!(admitted(&[NodeCondition::MemoryPressure]), [true, true, false]);
    assert_eq!(
        admitted(&[NodeCondition::MemoryPressure, NodeCondition::DiskPressure]),
        [false, false, false]
    );
}

/// `TestStaticCriticalPodsAreNotEvicted`: the next in the order goes.
#[test]
fn a_critical_pod_is_passed_over() {
    let mut pods = five();
    let mut first = running("static", LOW, &[], &[], 1000 * MIB);
    first.pod.annotations.insert(critical::CONFIG_SOURCE.to_owned(), String::from("file"));
    pods.push(first);
    let mut node = Manager::new(&[Threshold::hard(Signal::MemoryAvailable, Amount(GIB))], pods);
    assert_eq!(node.ranked(Signal::MemoryAvailable)[0].pod.name.name, "static");
    assert_eq!(node.memory(0, 500 * MIB), Some(victim(1)));
}

/// `TestPIDPressure`: hard below 1200, soft below 1500 for 2 minutes, of 2000.
#[test]
fn pid_pressure() {
    let signal = Signal::PidAvailable;
    let soft = Threshold { grace_period_ms: 120_000, ..Threshold::hard(signal, Amount(1500)) };
    let pods = [
        ("high-priority-high-usage", HIGH, 900),
        ("default-priority-low-usage", DEFAULT, 100),
        ("default-priority-medium-usage", DEFAULT, 400),
        ("low-priority-high-usage", LOW, 600),
        ("low-priority-low-usage", LOW, 50),
    ];
    let pods = pods.map(|(name, priority, count)| running(name, priority, &[], &[], count)).into();
    let mut node = Manager::new(&[Threshold::hard(signal, Amount(1200)), soft], pods);
    let victim = |seconds| (String::from("low-priority-high-usage"), seconds);
    assert_eq!(node.after(0, signal, 1700, 2000), None);
    assert!(!node.has_pressure());
    assert_eq!(node.after(1, signal, 1300, 2000), None);
    assert!(node.has_pressure());
    assert_eq!(node.after(3, signal, 1300, 2000), Some(victim(5)));
    assert_eq!(node.after(20, signal, 1700, 2000), None);
    assert!(!node.has_pressure());
    assert_eq!(node.after(1, signal, 800, 2000), Some(victim(1)));
    assert_eq!(node.admits(), (false, false), "any other condition than memory's alone admits none");
    assert_eq!(node.after(1, signal, 1700, 2000), None);
    assert!(node.has_pressure());
    assert_eq!(node.after(5, signal, 1700, 2000), None);
    assert_eq!(node.admits(), (true, true));
}
