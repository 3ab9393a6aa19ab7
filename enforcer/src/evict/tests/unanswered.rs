//! A soft eviction whose report thread stands still: what it waits for is a disk, and that may be what the shortage stalls.

use std::{
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use super::node::{MIB, Node, Pod};
use crate::{
    evict::{EvictionIntents, Listener, Recorded, Reflex, ReflexConfig, Report},
    journal::Intents,
    policy::{
        engine::{EngineSettings, FailureReason, Mode, Spared, followed},
        threshold::{Signal, Threshold, ThresholdValue},
    },
};

/// Hard below 200 MiB, soft below 400 MiB.
fn config(node: &Node) -> ReflexConfig {
    let threshold = |mib: u64, grace_period_ms| Threshold {
        grace_period_ms,
        ..Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(mib * MIB))
    };
    let settings = EngineSettings {
        // The fall to below the soft one is forgotten when that is due: nothing fills any more.
        thresholds: followed(&[threshold(200, 0), threshold(400, 1_000)]),
        max_pod_grace_period_ns: 60_000_000_000,
        ..super::whole::config(node, Mode::Enforce).settings
    };
    ReflexConfig { settings, ..super::whole::config(node, Mode::Enforce) }
}

/// Starts a reflex whose report thread stops at the first report that `which` names, until the sender is dropped.
fn stalling(node: &Node, which: fn(&Report) -> bool) -> (Reflex, mpsc::Sender<()>, mpsc::Receiver<()>) {
    let (release, wait) = mpsc::channel::<()>();
    let (stopped, is_stopped) = mpsc::channel();
    let mut wait = Some(wait);
    let reports = move |report: Report| {
        if which(&report)
            && let Some(wait) = wait.take()
        {
            stopped.send(()).unwrap();
            // Until the sender is gone.
            let _gone = wait.recv();
        }
        true
    };
    let reflex = Reflex::spawn(&config(node), None, Vec::new(), None, reports).unwrap();
    (reflex, release, is_stopped)
}

fn until(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "it does not come to pass");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_hard_threshold_does_not_wait_for_the_report_thread() {
    let node = Node::new(1024 * MIB);
    let hog = Pod::new("hog");
    node.add(&hog, 600 * MIB);
    let (reflex, release, is_stopped) = stalling(&node, |report| matches!(report, Report::Decided { .. }));
    reflex.set_candidates(vec![node.candidate(&hog)]);
    node.set_available(300 * MIB);
    is_stopped.recv_timeout(Duration::from_secs(20)).unwrap();
    thread::sleep(Duration::from_millis(300));
    assert!(!node.killed("hog"), "it is to be asked first");
    node.set_available(100 * MIB);
    until(|| node.killed("hog"));
    drop(release);
}

/// Emits reports at once, and has whoever asks a victim to end wait until the sender is dropped.
struct Awaiting {
    emitted: mpsc::Sender<Report>,
    disk: Arc<Mutex<mpsc::Receiver<()>>>,
}

impl Listener for Awaiting {
    fn emit(&mut self, report: Report) -> Recorded {
        drop(self.emitted.send(report));
        let disk = Arc::clone(&self.disk);
        Recorded::Awaited(Arc::new(move || disk.lock().unwrap().recv().is_ok()))
    }
}

/// And it is not asked to end afterwards: another may have its cgroup by then.
#[test]
fn a_kill_is_reported_while_the_disk_is_awaited_for_a_soft_decision() {
    let node = Node::new(1024 * MIB);
    let hog = Pod::new("hog");
    node.add(&hog, 600 * MIB);
    // No kernel kills it here.
    let mut process = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    node.write("hog", "cgroup.procs", &format!("{}\n", process.id()));
    let ((emitted, reports), (release, disk)) = (mpsc::channel(), mpsc::channel::<()>());
    let listener = Awaiting { emitted, disk: Arc::new(Mutex::new(disk)) };
    let reflex = Reflex::spawn(&config(&node), None, Vec::new(), None, listener).unwrap();
    let until_reported = |which: fn(&Report) -> bool| {
        while !which(&reports.recv_timeout(Duration::from_secs(20)).unwrap()) {}
    };
    reflex.set_candidates(vec![node.candidate(&hog)]);
    node.set_available(300 * MIB);
    until_reported(|report| matches!(report, Report::Decided { decision, .. } if decision.grace_ns > 0));
    thread::sleep(Duration::from_millis(300));
    node.set_available(100 * MIB);
    until_reported(|report| {
        assert!(!matches!(report, Report::Terminated { .. }), "the disk does not have the decision");
        matches!(report, Report::Signalled { .. })
    });
    release.send(()).unwrap();
    thread::sleep(Duration::from_millis(200));
    assert!(process.try_wait().unwrap().is_none(), "it got SIGTERM");
    process.kill().unwrap();
    process.wait().unwrap();
}

/// A pod whose decision was lost does not stay the victim: the next decision is made from the readings of its time.
#[test]
fn a_soft_decision_that_finds_no_room_is_not_waited_for() {
    let node = Node::new(1024 * MIB);
    let (first, second) = (Pod::new("first"), Pod::new("second"));
    node.add(&first, 600 * MIB);
    node.add(&second, 400 * MIB);
    let (reflex, release, is_stopped) = stalling(&node, |_| true);
    reflex.set_candidates(vec![node.candidate(&first), node.candidate(&second)]);
    while reflex.stats().reports_dropped == 0 {
        let failed = reflex.stats().samples_failed;
        std::fs::write(node.meminfo(), "").unwrap();
        until(|| reflex.stats().samples_failed > failed);
        let (failed, samples) = (reflex.stats().samples_failed, reflex.stats().samples);
        node.set_available(1024 * MIB);
        until(|| reflex.stats().samples - samples > reflex.stats().samples_failed - failed);
    }
    is_stopped.recv_timeout(Duration::from_secs(20)).unwrap();
    let dropped = reflex.stats().reports_dropped;
    node.set_available(300 * MIB);
    // The crossing, the conditions, the decision, and that it failed.
    until(|| reflex.stats().reports_dropped >= dropped + 4);
    for (pod, used) in [("first", 100 * MIB), ("second", 700 * MIB)] {
        node.write(pod, "memory.stat", &format!("anon {used}\nfile 0\nshmem 0\ninactive_file 0\n"));
        node.write(pod, "memory.current", &format!("{used}\n"));
    }
    node.set_available(100 * MIB);
    until(|| node.killed("second"));
    assert!(!node.killed("first"));
    drop(release);
}

/// Why a pod was not asked to end, after what happens while its decision is written: no process gets a signal, and nothing
/// is left on the intent page.
fn spared_by(meanwhile: impl FnOnce(&Node, &Reflex, EngineSettings)) -> FailureReason {
    let node = Node::new(1024 * MIB);
    let pod = Pod::new("soft");
    node.add(&pod, 600 * MIB);
    let mut process = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    node.write("soft", "cgroup.procs", &format!("{}\n", process.id()));
    let soft = Threshold {
        grace_period_ms: 1,
        ..Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(800 * MIB))
    };
    let mut config = super::whole::config(&node, Mode::Enforce);
    config.settings.thresholds = followed(&[soft]);
    config.settings.max_pod_grace_period_ns = 10_000_000_000;
    let (sender, reports) = mpsc::channel();
    let (written, disk) = mpsc::channel::<()>();
    let forward = move |report| {
        let is_decision = matches!(report, Report::Decided { .. });
        drop(sender.send(report));
        if is_decision {
            // Later ones are only reported.
            let _written = disk.recv();
        }
        true
    };
    let run_dir = tempfile::tempdir().unwrap();
    let intents = Intents::open_lasting(run_dir.path(), "b").unwrap().reflex;
    let intents = EvictionIntents::new(intents, Arc::default());
    let reflex = Reflex::spawn(&config, Some(intents), Vec::new(), None, forward).unwrap();
    reflex.set_candidates(vec![node.candidate(&pod)]);
    // Not so fast that there would be no time to ask.
    node.set_available(900 * MIB);
    thread::sleep(Duration::from_secs(1));
    node.set_available(790 * MIB);
    while !matches!(super::whole::next(&reports), Report::Decided { .. }) {}
    meanwhile(&node, &reflex, config.settings);
    thread::sleep(Duration::from_millis(200));
    written.send(()).unwrap();
    let failure = loop {
        match super::whole::next(&reports) {
            Report::Failed { failure, .. } => break failure,
            Report::Terminated { .. } | Report::Signalled { .. } => panic!("it was signalled"),
            _ => {}
        }
    };
    assert_eq!(super::whole::left(run_dir.path()), Vec::<String>::new());
    // As in a pause: the next decision is only reported, and needs no disk.
    drop(written);
    assert!(process.try_wait().unwrap().is_none());
    process.kill().unwrap();
    process.wait().unwrap();
    drop(reflex);
    failure.reason
}

/// The order is acknowledged, and then the disk answers: no process gets SIGTERM any more.
#[test]
fn a_pod_that_is_spared_while_its_decision_is_written_is_not_asked_to_end() {
    let reason = spared_by(|_, reflex, settings| {
        reflex.configure(EngineSettings { paused: true, ..settings });
    });
    assert_eq!(reason, FailureReason::Spared(Spared::Paused));
}

#[test]
fn a_pod_is_not_asked_to_end_for_a_shortage_that_ends_while_its_decision_is_written() {
    let reason = spared_by(|node, _, _| node.set_available(900 * MIB));
    assert_eq!(reason, FailureReason::Relieved);
}
