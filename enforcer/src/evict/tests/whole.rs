//! The reflex as it runs, from the memory summary to the signal and back.

use std::{
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use super::node::{MIB, Node, Pod, guard};
use crate::{
    clock,
    evict::{Candidate, EventBuilder, EvictionIntents, Reflex, ReflexConfig, Report, Scheduling},
    journal::{Intent, Intents},
    policy::{
        PodPlan,
        engine::{EngineSettings, Exclusion, Mode, Past, PodKey, followed},
        threshold::{Signal, Threshold, ThresholdValue},
    },
    sense::{Edge, EdgeKind, EdgeSource, MemoryAvailableSource, Readiness, SourceState},
};

pub(super) fn config(node: &Node, mode: Mode) -> ReflexConfig {
    let config = ReflexConfig {
        settings: EngineSettings {
            mode,
            thresholds: followed(&[Threshold::hard(
                Signal::MemoryAvailable,
                ThresholdValue::Amount(200 * MIB),
            )]),
            pressure_transition_period_ms: 0,
            ..EngineSettings::default()
        },
        meminfo: node.meminfo(),
        memory_available_source: MemoryAvailableSource::MemAvailable,
        proc: node.proc(),
        lock_memory: false,
        scheduling: Scheduling::Normal,
        past: Vec::new(),
        armed: Vec::new(),
        cpus: 2,
        hook: None,
        fill_waker: None,
        requester: None,
        inherited: None,
    };
    let armed = config.settings.thresholds.iter().copied().collect();
    ReflexConfig { armed, ..config }
}

fn start(node: &Node, mode: Mode, pods: &[&Pod]) -> (Reflex, mpsc::Receiver<Report>) {
    start_with(&config(node, mode), node, pods)
}

pub(super) fn start_with(
    config: &ReflexConfig,
    node: &Node,
    pods: &[&Pod],
) -> (Reflex, mpsc::Receiver<Report>) {
    let (sender, reports) = mpsc::channel();
    let forward = move |report| {
        // Which conditions follow, and what is armed, is the engine's to test.
        if !matches!(report, Report::Conditions(_) | Report::Arming { .. }) {
            sender.send(report).unwrap();
        }
        true
    };
    let reflex = Reflex::spawn(config, None, Vec::new(), None, forward).unwrap();
    reflex.set_candidates(pods.iter().map(|pod| node.candidate(pod)).collect());
    // Until the set is taken there is no pod to evict.
    std::thread::sleep(Duration::from_millis(200));
    (reflex, reports)
}

pub(super) fn next(reports: &mpsc::Receiver<Report>) -> Report {
    reports.recv_timeout(Duration::from_mins(1)).expect("another report")
}

pub(super) fn nothing_more(reports: &mpsc::Receiver<Report>) {
    let more = reports.recv_timeout(Duration::from_millis(300));
    assert!(more.is_err(), "{more:?}");
}

/// The next report, but for those that say why nothing is done just now: on a busy machine the candidates may come a
/// moment later than the shortage.
fn next_but_suppressed(reports: &mpsc::Receiver<Report>) -> Report {
    loop {
        match next(reports) {
            Report::Suppressed { .. } => {}
            other => return other,
        }
    }
}

#[test]
fn a_crossing_leads_to_one_kill_and_to_its_completion() {
    let node = Node::new(1024 * MIB);
    let (hog, modest) = (Pod::new("hog"), Pod { request_bytes: 500 * MIB, ..Pod::new("modest") });
    node.add(&hog, 600 * MIB);
    node.add(&modest, 400 * MIB);
    let (reflex, reports) = start(&node, Mode::Enforce, &[&modest, &hog]);
    nothing_more(&reports);
    assert!(!node.killed("hog"));

    node.set_available(199 * MIB);
    assert!(matches!(next(&reports), Report::Crossed { shortage, .. } if shortage.observed == 199 * MIB));
    let Report::Decided { id, decision, members, .. } = next(&reports) else { panic!("not decided") };
    assert_eq!(members[decision.index.0].identity().pod.name, "hog");
    let Report::Signalled { id: signalled, .. } = next(&reports) else { panic!("not signalled") };
    assert_eq!(signalled, id);
    assert!(node.killed("hog"));
    assert!(!node.killed("modest"));

    // It does not die at once, and no other pod is chosen.
    nothing_more(&reports);
    node.set_available(800 * MIB);
    node.write("hog", "memory.current", "1048576\n");
    node.write("hog", "cgroup.events", "populated 0\nfrozen 0\n");
    let Report::Completed { id: completed, completion, .. } = next(&reports) else { panic!("not completed") };
    assert_eq!(completed, id);
    assert_eq!(completion.freed_bytes, Some(599 * MIB));
    assert!(completion.moments.memory_back_ns.is_some());
    assert!(matches!(next(&reports), Report::Cleared { .. }));
    assert!(!node.killed("modest"));
    let stats = reflex.stats();
    assert_eq!((stats.reports, stats.reports_dropped, stats.samples_failed), (8, 0, 0));
    reflex.stop();
}

#[test]
fn a_dry_run_decides_and_touches_nothing() {
    let node = Node::new(MIB);
    let hog = Pod::new("hog");
    node.add(&hog, 600 * MIB);
    let (reflex, reports) = start(&node, Mode::DryRun, &[&hog]);
    let reported: Vec<_> =
        std::iter::from_fn(|| reports.recv_timeout(Duration::from_millis(300)).ok()).collect();
    assert!(matches!(reported.first(), Some(Report::Crossed { .. })));
    let decided: Vec<_> = reported
        .iter()
        .filter_map(|report| match report {
            Report::Decided { decision, .. } => Some(decision),
            _ => None,
        })
        .collect();
    assert!(matches!(decided[..], [decision] if decision.dry_run), "{reported:?}");
    assert!(!reported.iter().any(|report| matches!(report, Report::Signalled { .. })));
    assert!(!node.killed("hog"));
    assert_eq!(node.read("hog", "cpu.max"), "20000 100000");
    // A mode that is configured later holds at once.
    reflex.configure(config(&node, Mode::Enforce).settings);
    assert!(matches!(next(&reports), Report::Decided { decision, .. } if !decision.dry_run));
    assert!(matches!(next(&reports), Report::Signalled { .. }));
    assert!(node.killed("hog"));
}

#[test]
fn what_earlier_processes_evicted_counts_for_the_breaker() {
    let node = Node::new(MIB);
    let hog = Pod::new("hog");
    node.add(&hog, 600 * MIB);
    let at_ns = clock::boottime_ns();
    let past = (0..20).map(|pod| Past { pod: PodKey { hash: pod }, at_ns }).collect();
    let config = ReflexConfig { past, ..config(&node, Mode::Enforce) };
    let (sender, reports) = mpsc::channel();
    let reflex =
        Reflex::spawn(&config, None, Vec::new(), None, move |report| sender.send(report).is_ok()).unwrap();
    reflex.set_candidates(vec![node.candidate(&hog)]);
    let decision = loop {
        if let Report::Decided { decision, .. } = next(&reports) {
            break decision;
        }
    };
    assert!(decision.dry_run);
    reflex.stop();
    assert!(!node.killed("hog"));
}

/// Its charge outlives its processes: nothing comes back from it, and a dry run says so too.
#[test]
fn a_candidate_that_is_empty_is_left_out_and_the_next_one_taken_in_either_mode() {
    for mode in [Mode::DryRun, Mode::Enforce] {
        let node = Node::new(1024 * MIB);
        let (first, second) = (Pod::new("first"), Pod::new("second"));
        node.add(&first, 600 * MIB);
        node.add(&second, 400 * MIB);
        node.write("first", "cgroup.events", "populated 0\n");
        let (_reflex, reports) = start(&node, mode, &[&first, &second]);
        node.set_available(MIB);
        assert!(matches!(next(&reports), Report::Crossed { .. }));
        let reported = next_but_suppressed(&reports);
        let Report::Decided { decision, members, .. } = reported else { panic!("not decided: {reported:?}") };
        assert_eq!(members[decision.index.0].identity().pod.name, "second", "{mode}");
        let excluded: Vec<_> = decision.excluded.iter().map(|one| one.reason).collect();
        assert_eq!(excluded, [Exclusion::Empty]);
        if mode == Mode::Enforce {
            assert!(matches!(next(&reports), Report::Signalled { .. }));
        }
        assert_eq!((node.killed("second"), node.killed("first")), (mode == Mode::Enforce, false));
    }
}

#[test]
fn a_set_that_is_exchanged_keeps_the_victim() {
    let node = Node::new(1024 * MIB);
    let (hog, other) = (Pod::new("hog"), Pod::new("other"));
    node.add(&hog, 600 * MIB);
    node.add(&other, 400 * MIB);
    let (reflex, reports) = start(&node, Mode::Enforce, &[&hog]);
    node.set_available(MIB);
    for _ in 0..3 {
        next_but_suppressed(&reports);
    }
    for _ in 0..50 {
        reflex.set_candidates(vec![node.candidate(&other)]);
    }
    nothing_more(&reports);
    assert!(!node.killed("other"));
    node.write("hog", "memory.current", "0\n");
    node.write("hog", "cgroup.events", "populated 0\n");
    let Report::Completed { candidate, .. } = next(&reports) else { panic!("not completed") };
    assert_eq!(candidate.identity().pod.name, "hog");
    assert!(matches!(next(&reports), Report::Decided { .. }));
    assert!(matches!(next(&reports), Report::Signalled { .. }));
    assert!(node.killed("other"));
}

#[test]
fn a_node_that_cannot_be_read_is_reported_once_and_decides_nothing() {
    let node = Node::new(1024 * MIB);
    let hog = Pod::new("hog");
    node.add(&hog, 600 * MIB);
    let (reflex, reports) = start(&node, Mode::Enforce, &[&hog]);
    std::fs::write(node.meminfo(), "").unwrap();
    assert!(matches!(next(&reports), Report::Blind(..)));
    nothing_more(&reports);
    assert!(reflex.stats().samples_failed > 1);
    node.set_available(1024 * MIB);
    assert!(matches!(next(&reports), Report::Sighted(_)));
    assert!(!node.killed("hog"));
}

/// An edge every time it is asked for.
struct Storm(OwnedFd);

impl EdgeSource for Storm {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn drain(&mut self, _ready: Readiness, emit: &mut dyn FnMut(Edge)) -> SourceState {
        std::thread::sleep(Duration::from_micros(200));
        emit(Edge { kind: EdgeKind::KswapdWoken, onset_ns: None });
        SourceState::Live
    }
}

#[test]
fn edges_far_from_the_threshold_are_taken_together() {
    let node = Node::new(1024 * MIB);
    let always = rustix::event::eventfd(1, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let begin = Instant::now();
    let config = config(&node, Mode::Enforce);
    let reflex = Reflex::spawn(&config, None, vec![Box::new(Storm(always))], None, |_| true).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let stats = reflex.stats();
    // 824 MiB last 200 ms at the fastest assumed: one look in 10 ms, and no more than that.
    let most = begin.elapsed().as_millis() / 10 + 2;
    assert!(stats.edges > stats.samples && u128::from(stats.samples) <= most, "{stats:?}, at most {most}");
    reflex.stop();
}

/// Emits one edge for each time that it is rung, and is gone when it is rung a hundred times at once.
struct Rung {
    waker: Arc<OwnedFd>,
    _alive: Arc<()>,
}

impl EdgeSource for Rung {
    fn fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }

    fn drain(&mut self, _ready: Readiness, emit: &mut dyn FnMut(Edge)) -> SourceState {
        let mut count = [0_u8; 8];
        rustix::io::read(&self.waker, &mut count).unwrap();
        if u64::from_ne_bytes(count) >= 100 {
            return SourceState::Gone;
        }
        emit(Edge { kind: EdgeKind::MemoryHigh, onset_ns: None });
        SourceState::Live
    }
}

#[test]
fn sources_come_and_go_while_it_runs() {
    let node = Node::new(1024 * MIB);
    let (reflex, _reports) = start(&node, Mode::Enforce, &[]);
    let until = |what: &str, holds: &dyn Fn() -> bool| {
        let begin = Instant::now();
        while !holds() {
            assert!(begin.elapsed() < Duration::from_secs(10), "{what}: {:?}", reflex.stats());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    // More of them, one after the other, than there are places.
    for round in 1..=20 {
        let waker = Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap());
        let alive = Arc::new(());
        let rung = Rung { waker: Arc::clone(&waker), _alive: Arc::clone(&alive) };
        reflex.add_edges(Box::new(rung));
        until("taken", &|| reflex.stats().sources == 1);
        rustix::io::write(&*waker, &1_u64.to_ne_bytes()).unwrap();
        let of = || reflex.stats().wakes.of(EdgeKind::MemoryHigh);
        until("rung", &|| of().edges == round && of().awake_to_looked.count() == round);
        rustix::io::write(&*waker, &100_u64.to_ne_bytes()).unwrap();
        until("closed", &|| Arc::strong_count(&alive) == 1 && reflex.stats().sources == 0);
    }
    assert_eq!((reflex.stats().edges, reflex.stats().sources_refused), (20, 0));
    reflex.stop();
}

#[test]
fn a_source_that_finds_no_place_waits_for_one() {
    let node = Node::new(1024 * MIB);
    let (reflex, _reports) = start(&node, Mode::Enforce, &[]);
    let bells: Vec<_> = (0..9)
        .map(|_| Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap()))
        .collect();
    for waker in &bells {
        reflex.add_edges(Box::new(Rung { waker: Arc::clone(waker), _alive: Arc::new(()) }));
    }
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(reflex.stats().sources, 8);
    for waker in &bells {
        rustix::io::write(&**waker, &100_u64.to_ne_bytes()).unwrap();
    }
    let begin = Instant::now();
    while reflex.stats().sources != 0 || bells.iter().any(|waker| Arc::strong_count(waker) > 1) {
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", reflex.stats());
        std::thread::sleep(Duration::from_millis(5));
    }
    reflex.stop();
}

#[test]
fn a_summary_that_is_not_there_is_an_error_at_the_start() {
    let node = Node::new(0);
    let config = ReflexConfig { meminfo: "/nowhere/meminfo".into(), ..config(&node, Mode::Observe) };
    let error = Reflex::spawn(&config, None, Vec::new(), None, |_| true).unwrap_err();
    assert_eq!(error.to_string(), "/nowhere/meminfo");
}

#[test]
fn its_reports_make_the_events_of_an_eviction() {
    let node = Node::new(1024 * MIB);
    let hog = Pod::new("hog");
    node.add(&hog, 600 * MIB);
    let (_reflex, reports) = start(&node, Mode::Enforce, &[&hog]);
    node.set_available(MIB);
    let mut events = EventBuilder::new("hash".into());
    let mut reported = || events.event(&next_but_suppressed(&reports)).unwrap().kind().short();
    assert_eq!(
        [reported(), reported(), reported()],
        ["threshold.crossed", "eviction.decided", "eviction.signalled"]
    );
    node.set_available(1024 * MIB);
    node.write("hog", "memory.current", "0\n");
    node.write("hog", "cgroup.events", "populated 0\n");
    assert_eq!([reported(), reported()], ["eviction.completed", "pressure.cleared"]);
}

/// An adopted cgroup is another's, and goes on after the pod in it.
#[test]
fn an_adopted_cgroups_limit_is_restored_once_its_processes_are_dead_or_given_up() {
    for dies in [true, false] {
        evict_adopted(dies);
    }
}

fn evict_adopted(dies: bool) {
    let node = Node::new(1024 * MIB);
    let pod = Pod::new("lent");
    node.add(&pod, 600 * MIB);
    // Whose line is as long whatever is written over its beginning.
    node.write("lent", "memory.high", "1073741824");
    let run_dir = tempfile::tempdir().unwrap();
    let opened = || Intents::open_lasting(run_dir.path(), "b").unwrap();
    let intents = EvictionIntents::new(opened().reflex, Arc::new(AtomicU64::new(0)));
    let (sender, reports) = mpsc::channel();
    let forward = move |report| sender.send(report).is_ok();
    let reflex =
        Reflex::spawn(&config(&node, Mode::Enforce), Some(intents), Vec::new(), None, forward).unwrap();
    let adopted = PodPlan { adopted: true, ..pod.plan() };
    reflex.set_candidates(vec![Arc::new(Candidate::open(&node.root(), &guard(), &adopted).unwrap())]);
    node.set_available(199 * MIB);
    signalled(&reports);
    let begin = Instant::now();
    while !["cpu.max", "app/cpu.max"].iter().all(|file| node.read("lent", file).starts_with("max")) {
        assert!(begin.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(node.read("lent", "cpu.weight"), "1", "nothing would restore it");
    assert_eq!(node.read("lent", "memory.high"), "1073741824", "whom it puts to sleep the signal wakes");
    // Were we killed now, the next start would.
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(run_dir.path().join("intent"), copy.path().join("intent")).unwrap();
    let left = Intents::open_lasting(copy.path(), "b").unwrap().left;
    let recorded: Vec<_> = left
        .iter()
        .filter_map(|intent| match intent {
            Intent::Value { path, value, .. } => {
                let texts =
                    [value.file().to_string(), value.original().to_string(), value.temporary().to_string()];
                Some((path.as_ref(), texts))
            }
            _ => None,
        })
        .collect();
    let expected = ["cpu.max", "20000 100000", "max 100000"].map(String::from);
    assert!(recorded.contains(&("/kubepods/besteffort/podlent", expected)), "{recorded:?}");
    if dies {
        node.write("lent", "memory.current", "0\n");
        node.write("lent", "cgroup.events", "populated 0\nfrozen 0\n");
        let begin = Instant::now();
        while node.read("lent", "cpu.max") != "20000 100000" {
            assert!(begin.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    reflex.stop();
    assert_eq!(node.read("lent", "cpu.max"), "20000 100000");
    assert!(!opened().left.iter().any(|intent| matches!(intent, Intent::Value { .. })));
}

/// What another process would find on the intent page, without taking it away.
pub(super) fn left(run_dir: &Path) -> Vec<String> {
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(run_dir.join("intent"), copy.path().join("intent")).unwrap();
    let left = Intents::open_lasting(copy.path(), "b").unwrap().left;
    left.into_iter()
        .map(|intent| match intent {
            Intent::Eviction { pod, .. } => pod.into_owned(),
            other @ (Intent::Value { .. } | Intent::Cgroup { .. }) => panic!("{other:?}"),
        })
        .collect()
}

/// A reflex that writes evictions down in that folder.
fn start_pledged(node: &Node, run_dir: &Path, recorded: &Arc<AtomicU64>) -> (Reflex, mpsc::Receiver<Report>) {
    let intents =
        EvictionIntents::new(Intents::open_lasting(run_dir, "b").unwrap().reflex, Arc::clone(recorded));
    let (sender, reports) = mpsc::channel();
    let forward = move |report| {
        if !matches!(report, Report::Conditions(_)) {
            drop(sender.send(report));
        }
        true
    };
    let config = config(node, Mode::Enforce);
    (Reflex::spawn(&config, Some(intents), Vec::new(), None, forward).unwrap(), reports)
}

fn signalled(reports: &mpsc::Receiver<Report>) -> (u64, String) {
    loop {
        if let Report::Signalled { number, candidate, .. } = next(reports) {
            return (number, candidate.identity().pod.name.clone());
        }
    }
}

/// The next start reports how it ended.
#[test]
fn an_eviction_under_way_outlives_an_end_in_order_on_the_intent_page() {
    let node = Node::new(1024 * MIB);
    let pod = Pod::new("first");
    node.add(&pod, 600 * MIB);
    let run_dir = tempfile::tempdir().unwrap();
    let recorded = Arc::new(AtomicU64::new(0));
    let (reflex, reports) = start_pledged(&node, run_dir.path(), &recorded);
    reflex.set_candidates(vec![node.candidate(&pod)]);
    node.set_available(199 * MIB);
    let (number, _) = signalled(&reports);
    recorded.store(number, Ordering::Release);
    reflex.stop();
    assert_eq!(left(run_dir.path()), ["default/first"]);
}

/// Between the signal and its being recorded the eviction is on the intent page, for a start that finds us killed.
#[test]
fn an_eviction_is_written_down_until_it_is_recorded() {
    let node = Node::new(1024 * MIB);
    let (first, second) = (Pod::new("first"), Pod { priority: 1, ..Pod::new("second") });
    node.add(&first, 600 * MIB);
    node.add(&second, 500 * MIB);
    let run_dir = tempfile::tempdir().unwrap();
    let recorded = Arc::new(AtomicU64::new(0));
    let left = || left(run_dir.path());
    let (reflex, reports) = start_pledged(&node, run_dir.path(), &recorded);
    reflex.set_candidates(vec![node.candidate(&first), node.candidate(&second)]);
    assert_eq!(left(), Vec::<String>::new());
    node.set_available(199 * MIB);
    let (number, name) = signalled(&reports);
    assert_eq!((number, name.as_str()), (1, "first"));
    assert_eq!(left(), ["default/first"]);

    // On the disk it is by now, and its end is still to come.
    recorded.store(number, Ordering::Release);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(left(), ["default/first"]);

    // It dies and gives nothing back: the next one goes.
    let until_left = |pods: &[&str]| {
        let begin = Instant::now();
        while left() != pods {
            assert!(begin.elapsed() < Duration::from_secs(10), "{:?}, and not {pods:?}", left());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    node.write("first", "memory.current", "629145600\n");
    node.write("first", "cgroup.events", "populated 0\nfrozen 0\n");
    let (number, name) = signalled(&reports);
    assert_eq!(name, "second");
    until_left(&["default/second"]);
    // What is reported and recorded is not left there until the next eviction.
    recorded.store(number, Ordering::Release);
    node.write("second", "memory.current", "0\n");
    node.write("second", "cgroup.events", "populated 0\nfrozen 0\n");
    until_left(&[]);
    drop(reflex);
    assert_eq!(left(), Vec::<String>::new(), "an end in order leaves nothing");
}
