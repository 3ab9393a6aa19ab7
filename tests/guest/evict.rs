//! Real pressure, real cgroups, real kills: the reflex alone, without the daemon around it.

use std::{
    path::Path,
    sync::{Arc, mpsc},
    time::Duration,
};

use enforcer::{
    cgroup::{CgroupDir, Guard},
    evict::{Candidate, Reflex, ReflexConfig, Report},
    model::{CgroupPath, PodName, PodUid, QosClass},
    policy::{
        PodPlan,
        engine::{EngineSettings, Mode, followed},
        flight::{Recording, replay},
        threshold::{Signal, Threshold, ThresholdValue},
    },
    recorder::{Provenance, Recorder},
    sense::{Meminfo, PROC_MEMINFO},
};
use enforcer_tests::{
    cgroup::{Cgroup, ROOT},
    load::Load,
    wait::TIMEOUT,
};

const MIB: u64 = 1 << 20;

fn available_bytes() -> u64 {
    Meminfo::open(Path::new(PROC_MEMINFO)).unwrap().read().unwrap().available_bytes
}

/// A pod whose cgroup is there.
fn plan(name: &str, path: &str, request_bytes: u64) -> PodPlan {
    let full_name = PodName { namespace: "default".into(), name: name.into() };
    PodPlan {
        qos_class: QosClass::Burstable,
        ranking_request_bytes: request_bytes,
        ..PodPlan::new(full_name, PodUid::new(name).unwrap(), CgroupPath::parse(path).unwrap())
    }
}

/// The reflex, and what it went through.
struct Watch {
    reflex: Reflex,
    reports: mpsc::Receiver<Report>,
    recorder: Recorder,
    _folder: tempfile::TempDir,
}

impl Watch {
    fn begin(mode: Mode, threshold_bytes: u64, pods: &[PodPlan]) -> Self {
        let settings = EngineSettings {
            mode,
            thresholds: followed(&[Threshold::hard(
                Signal::MemoryAvailable,
                ThresholdValue::Amount(threshold_bytes),
            )]),
            ..EngineSettings::default()
        };
        let (sender, reports) = mpsc::channel();
        let forward = move |report| {
            // The scenario may end before the last report. Which conditions follow is not looked at here, nor what is armed.
            if !matches!(report, Report::Conditions(_) | Report::Arming { .. }) {
                drop(sender.send(report));
            }
            true
        };
        let folder = tempfile::tempdir().unwrap();
        let (recorder, tap) =
            Recorder::start(folder.path(), Provenance::default(), |message| panic!("{message}")).unwrap();
        let armed = settings.thresholds.iter().copied().collect();
        let config = ReflexConfig { settings, armed, ..ReflexConfig::default() };
        let reflex = Reflex::spawn(&config, None, Vec::new(), Some(tap), forward).unwrap();
        let root = CgroupDir::mount(Path::new(ROOT)).unwrap();
        let guard = Arc::new(Guard::new(Path::new("/proc"), &[]));
        let open = |pod| Arc::new(Candidate::open(&root, &guard, pod).unwrap());
        reflex.set_candidates(pods.iter().map(open).collect());
        Self { reflex, reports, recorder, _folder: folder }
    }

    fn next(&self) -> Report {
        self.reports.recv_timeout(TIMEOUT).unwrap()
    }

    /// Run again over what it was given, the engine does what it did: so many decisions.
    fn end(self, decisions: usize) {
        let asker = self.recorder.asker();
        self.reflex.stop();
        let file = asker.snapshot();
        let account = replay(&Recording::read(&file).unwrap());
        assert_eq!((account.difference.as_ref(), account.unverified, asker.lost()), (None, 0, 0));
        assert_eq!(account.decisions().count(), decisions, "{account:?}");
    }
}

fn ms(from_ns: u64, to_ns: Option<u64>) -> f64 {
    Duration::from_nanos(to_ns.unwrap().saturating_sub(from_ns)).as_secs_f64() * 1e3
}

#[guest_test(daemon)]
fn a_hog_is_killed_and_the_modest_pod_lives() {
    let modest = Cgroup::create("evict/modest").unwrap();
    let hog = Cgroup::create("evict/hog").unwrap();
    // It must die at full speed in spite of this.
    hog.write("cpu.max", "50000 100000").unwrap();
    let mut steady = Load::start(&modest, &["hold", "--size", "200Mi"]).unwrap();
    steady.wait_for("ready").unwrap();

    let threshold_bytes = available_bytes() - 500 * MIB;
    let pods = [plan("modest", "evict/modest", 300 * MIB), plan("hog", "evict/hog", 0)];
    let watch = Watch::begin(Mode::Enforce, threshold_bytes, &pods);
    watch.reflex.memory_locked().unwrap();
    let mut load = Load::start(&hog, &["spike", "--size", "900Mi"]).unwrap();

    let mut reported = Vec::new();
    let completion = loop {
        let report = watch.next();
        if let Report::Completed { completion, candidate, .. } = &report {
            assert_eq!(candidate.identity().pod.name, "hog");
            break *completion;
        }
        reported.push(report);
    };
    let Some(Report::Crossed { shortage, .. }) = reported.first() else { panic!("{reported:?}") };
    let overshoot_bytes = threshold_bytes - shortage.observed;
    let moments = completion.moments;
    println!(
        "seen {} KiB below the threshold; crossed to decided {:.3} ms, signalled {:.3} ms, dead {:.3} ms, back {:.3} ms; \
         freed {} of {} predicted",
        overshoot_bytes / 1024,
        ms(moments.crossed_ns, Some(moments.decided_ns)),
        ms(moments.crossed_ns, moments.signalled_ns),
        ms(moments.crossed_ns, moments.dead_ns),
        ms(moments.crossed_ns, moments.memory_back_ns),
        completion.freed_bytes.unwrap(),
        completion.predicted_freed_bytes,
    );
    // It grew on between the reading and the signal.
    assert!(completion.freed_bytes.unwrap() + 16 * MIB >= completion.predicted_freed_bytes);
    assert_eq!(load.wait().unwrap().to_string(), "signal: 9 (SIGKILL)");
    assert_eq!(hog.number("memory.events", "oom_kill").unwrap(), 0);

    // One was enough: the other lives, and no second decision is made, which the recording says.
    assert!(matches!(watch.reports.recv_timeout(TIMEOUT), Ok(Report::Cleared { .. })));
    steady.end().unwrap();
    assert_eq!(watch.reflex.stats().reports_dropped, 0);
    watch.end(1);
}

#[guest_test(kernel)]
fn a_victim_with_next_to_no_cpu_dies_without_its_quota() {
    const QUOTA_USEC: u64 = 2_000;
    // Now and then the daemon has reclaimed the victim's memory (`process_mrelease`) before the victim runs again, which
    // then ends in no time: with any quota.
    const TRIES: usize = 5;
    let dies_slowly = |_| {
        let hog = Cgroup::create("evict/throttled").unwrap();
        // It is idle until its end, and so held back by nothing before that.
        let mut load = Load::start(&hog, &["hold", "--size", "600Mi", "--touch-every", "10m"]).unwrap();
        load.wait_for("ready").unwrap();
        hog.write("cpu.max", &format!("{QUOTA_USEC} 100000")).unwrap();
        let spent = |what: &str| hog.number("cpu.stat", what).unwrap();
        let (used_usec, throttled) = (spent("usage_usec"), spent("nr_throttled"));
        // Short from the start.
        let pods = [plan("throttled", "evict/throttled", 0)];
        let watch = Watch::begin(Mode::Enforce, available_bytes() + 100 * MIB, &pods);
        let completion = loop {
            if let Report::Completed { completion, .. } = watch.next() {
                break completion;
            }
        };
        load.wait().unwrap();
        let took_ns = completion.moments.dead_ns.unwrap() - completion.moments.signalled_ns.unwrap();
        let (used_usec, throttled) = (spent("usage_usec") - used_usec, spent("nr_throttled") - throttled);
        println!("dead after {took_ns} ns, {used_usec} us of them on a CPU; held back {throttled} times");
        // At its quota it is held back once for every 2 ms on a CPU.
        let at_quota = used_usec / QUOTA_USEC;
        assert!(throttled < (at_quota / 4).max(2), "held back {throttled} times in {used_usec} us on a CPU");
        assert!(hog.read("cpu.max").unwrap().starts_with("max "));
        watch.end(1);
        at_quota >= 8
    };
    assert!((0..TRIES).any(dies_slowly), "too little on a CPU each time to be held back");
}

#[guest_test(daemon)]
fn a_dry_run_names_the_victim_and_spares_it() {
    let hog = Cgroup::create("evict/spared").unwrap();
    hog.write("cpu.max", "50000 100000").unwrap();
    let threshold_bytes = available_bytes() - 200 * MIB;
    let watch = Watch::begin(Mode::DryRun, threshold_bytes, &[plan("spared", "evict/spared", 0)]);
    let mut load = Load::start(&hog, &["spike", "--size", "300Mi"]).unwrap();
    load.wait_for("ready").unwrap();
    let decided = loop {
        if let Report::Decided { decision, .. } = watch.next() {
            break decision;
        }
    };
    assert!(decided.dry_run);
    load.wait_for("running").unwrap();
    load.end().unwrap();
    assert_eq!(hog.read("cpu.max").unwrap(), "50000 100000");
    watch.end(1);
}

#[guest_test(daemon)]
fn a_pod_that_is_gone_is_passed_over() {
    let victim = Cgroup::create("evict/next").unwrap();
    let gone = Cgroup::create("evict/gone").unwrap();
    let threshold_bytes = available_bytes() - 200 * MIB;
    let pods = [plan("gone", "evict/gone", 0), plan("next", "evict/next", 0)];
    let watch = Watch::begin(Mode::Enforce, threshold_bytes, &pods);
    drop(gone);
    let mut load = Load::start(&victim, &["spike", "--size", "400Mi"]).unwrap();
    loop {
        match watch.next() {
            Report::Completed { candidate, .. } => {
                assert_eq!(candidate.identity().pod.name, "next");
                break;
            }
            Report::Failed { failure, .. } => panic!("{failure:?}"),
            _ => {}
        }
    }
    load.wait().unwrap();
    watch.end(1);
}
