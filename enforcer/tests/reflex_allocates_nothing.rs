//! The promise of the eviction thread: once it runs it allocates and frees nothing, from waking to the victim's end.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test's helpers may panic like the test itself"
)]

mod counting;

use std::{
    fs,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::fs::FileExt as _,
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

use counting::{COUNT, WATCHED};
use enforcer::{
    cgroup::{CgroupDir, Guard, Throttled},
    evict::{
        BrakeBook, Candidate, EvictionIntents, FillWaker, HookProgram, Reflex, ReflexConfig, Report,
        Scheduling,
    },
    journal::Intents,
    model::{CgroupPath, PodName, PodUid},
    policy::{
        PodPlan,
        engine::{EngineSettings, FailureReason, HookPlan, Mode, Refusal, followed},
        flight::{Recording, replay},
        threshold::{Signal, Threshold, ThresholdValue},
    },
    recorder::{Provenance, Recorder},
    sense::{Edge, EdgeKind, EdgeSource, MemoryAvailableSource, PodsMemory, Readiness, SourceState},
};
use rustix::event::{EventfdFlags, eventfd};

const MIB: u64 = 1 << 20;

/// Waits until it holds, but not forever.
fn eventually(holds: impl Fn() -> bool) {
    for _ in 0..1_200 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A pod of ordinary files that uses that much.
fn pod(root: &Path, name: &str, used_bytes: u64) -> PodPlan {
    let dir = root.join(name);
    fs::create_dir(&dir).unwrap();
    for (file, text) in [
        ("cgroup.kill", String::new()),
        ("cgroup.events", String::from("populated 1\nfrozen 0\n")),
        ("cpu.max", String::from("20000 100000")),
        ("cpu.weight", String::from("1")),
        ("cgroup.procs", String::new()),
        ("memory.current", format!("{used_bytes:012}\n")),
        ("memory.high", String::from("max\n")),
        ("pids.current", String::from("3\n")),
        ("memory.stat", format!("anon {used_bytes}\nfile 0\nshmem 0\ninactive_file 0\n")),
    ] {
        fs::write(dir.join(file), text).unwrap();
    }
    let full_name = PodName { namespace: "default".into(), name: name.into() };
    PodPlan::new(full_name, PodUid::new(name).unwrap(), CgroupPath::parse(name).unwrap())
}

/// Exchanged as a whole, under the same inode: the reflex has it open.
fn exchange(path: &Path, text: &str) {
    let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path).unwrap();
    file.write_all_at(text.as_bytes(), 0).unwrap();
}

fn set_available(meminfo: &Path, bytes: u64) {
    let text = format!("MemTotal: 8388608 kB\nMemFree: 1 kB\nMemAvailable: {:>12} kB\n", bytes / 1024);
    exchange(meminfo, &text);
}

fn set_tasks(proc: &Path, count: u64) {
    exchange(&proc.join("loadavg"), &format!("0.20 0.18 0.12 1/{count:05} 11206\n"));
}

/// A process file system with few processes in it.
fn process_ids(folder: &Path) -> PathBuf {
    let proc = folder.join("proc");
    fs::create_dir_all(proc.join("sys/kernel")).unwrap();
    fs::write(proc.join("sys/kernel/pid_max"), "32768\n").unwrap();
    fs::write(proc.join("sys/kernel/threads-max"), "15000\n").unwrap();
    set_tasks(&proc, 80);
    proc
}

/// A cgroup with a limit that is far away.
fn kubepods(cgroups: &Path) -> PathBuf {
    let path = cgroups.join("kubepods");
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("memory.max"), "8589934592\n").unwrap();
    fs::write(path.join("memory.current"), "1073741824\n").unwrap();
    fs::write(path.join("memory.stat"), "anon 1073741824\nfile 0\nshmem 0\ninactive_file 0\n").unwrap();
    path
}

fn reflex_thread() -> i32 {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let reflex = |task: &PathBuf| {
        fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == "enforcer-reflex")
    };
    let task = tasks.into_iter().find(reflex).expect("the reflex thread");
    task.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// So many rings at once end it.
const GONE: u64 = 100;

/// Emits one edge each time that it is rung.
struct Waker(Arc<OwnedFd>);

impl EdgeSource for Waker {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn drain(&mut self, _ready: Readiness, emit: &mut dyn FnMut(Edge)) -> SourceState {
        let mut count = [0_u8; 8];
        rustix::io::read(&*self.0, &mut count).unwrap();
        if u64::from_ne_bytes(count) == GONE {
            return SourceState::Gone;
        }
        emit(Edge { kind: EdgeKind::MemoryMax, onset_ns: None });
        SourceState::Live
    }
}

fn amount(signal: Signal, amount: u64) -> Threshold {
    Threshold::hard(signal, ThresholdValue::Amount(amount))
}

/// A node with a hundred pods, of which each uses more than the one before it, and the reflex on it.
struct Scene {
    folder: tempfile::TempDir,
    settings: EngineSettings,
    reflex: Reflex,
    reports: mpsc::Receiver<Report>,
    recorder: Recorder,
    plans: Vec<PodPlan>,
    /// Whether who looks ahead was woken.
    rung: Arc<AtomicBool>,
    /// Whether decisions last.
    lasts: Arc<AtomicBool>,
}

impl Scene {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (meminfo, cgroups) = (folder.path().join("meminfo"), folder.path().join("cgroups"));
        set_available(&meminfo, 1024 * MIB);
        fs::create_dir(&cgroups).unwrap();
        let plans: Vec<_> =
            (0..100).map(|number| pod(&cgroups, &format!("pod{number}"), (100 + number) * MIB)).collect();
        let settings = EngineSettings {
            mode: Mode::Enforce,
            thresholds: followed(&[
                amount(Signal::MemoryAvailable, 200 * MIB),
                amount(Signal::AllocatableMemoryAvailable, 200 * MIB),
                amount(Signal::PidAvailable, 100),
            ]),
            max_pod_grace_period_ns: 30_000_000_000,
            ..EngineSettings::default()
        };
        let rung = Arc::new(AtomicBool::new(false));
        let config = ReflexConfig {
            settings,
            meminfo,
            memory_available_source: MemoryAvailableSource::MemAvailable,
            scheduling: Scheduling::Normal,
            proc: process_ids(folder.path()),
            lock_memory: false,
            cpus: 2,
            past: Vec::new(),
            armed: settings.thresholds.iter().copied().collect(),
            hook: None,
            fill_waker: Some(FillWaker::new(std::thread::current(), Arc::clone(&rung))),
            requester: None,
            inherited: None,
        };
        let intents = Intents::open(folder.path(), "boot").unwrap();
        let book = BrakeBook::new(intents.brakes, Throttled::default());
        let intents = EvictionIntents::new(intents.reflex, Arc::new(AtomicU64::new(0))).braking(book);
        let (recorder, tap) =
            Recorder::start(folder.path(), Provenance::default(), |message| panic!("{message}")).unwrap();
        let lasts = Arc::new(AtomicBool::new(true));
        let does_last = Arc::clone(&lasts);
        let (sender, reports) = mpsc::channel();
        let forward = move |report| {
            if !matches!(report, Report::Conditions(_) | Report::Arming { .. }) {
                sender.send(report).unwrap();
            }
            does_last.load(Ordering::Acquire)
        };
        let reflex = Reflex::spawn(&config, Some(intents), Vec::new(), Some(tap), forward).unwrap();
        Self { folder, settings, reflex, reports, recorder, plans, rung, lasts }
    }

    fn cgroups(&self) -> PathBuf {
        self.folder.path().join("cgroups")
    }

    fn set_candidates(&self) {
        let root = CgroupDir::unchecked(&self.cgroups()).unwrap();
        let guard = Arc::new(Guard::new(Path::new("/proc"), &[]));
        let open = |plan| Arc::new(Candidate::open(&root, &guard, plan).unwrap());
        self.reflex.set_candidates(self.plans.iter().map(open).collect());
        std::thread::sleep(Duration::from_millis(500));
    }

    fn set_available(&self, bytes: u64) {
        set_available(&self.folder.path().join("meminfo"), bytes);
    }

    fn set_tasks(&self, count: u64) {
        set_tasks(&self.folder.path().join("proc"), count);
    }

    fn set_used(&self, pod: &str, bytes: u64) {
        exchange(&self.cgroups().join(pod).join("memory.current"), &format!("{bytes:012}\n"));
    }

    fn end(&self, pod: &str) {
        self.set_used(pod, 0);
        fs::write(self.cgroups().join(pod).join("pids.current"), "0\n").unwrap();
        fs::write(self.cgroups().join(pod).join("cgroup.events"), "populated 0\n").unwrap();
    }

    fn configure(&self, mode: Mode, threshold: Threshold) {
        let thresholds = followed(&[threshold]);
        self.reflex.configure_armed(EngineSettings { mode, thresholds, ..self.settings });
    }

    fn next(&self) -> Report {
        self.reports.recv_timeout(Duration::from_secs(10)).expect("another report")
    }

    /// The next decision, which follows a crossing.
    fn decided(&self) -> Report {
        let crossed = self.next();
        assert!(matches!(crossed, Report::Crossed { .. }), "{crossed:?}");
        let decided = self.next();
        assert!(matches!(decided, Report::Decided { .. }), "{decided:?}");
        decided
    }

    /// Another set of candidates comes in, and the old one goes, while it is watched; so do the files of kubepods.
    fn others_come(&self) {
        self.set_candidates();
        for _ in 0..3 {
            let kubepods = kubepods(&self.cgroups());
            self.reflex.set_kubepods(PodsMemory::open(&CgroupDir::unchecked(&kubepods).unwrap()).unwrap());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// An edge source comes, emits edges, and goes.
    fn edges_come(&self) {
        let waker = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        self.reflex.add_edges(Box::new(Waker(Arc::clone(&waker))));
        for rings in [1_u64, 2, GONE] {
            std::thread::sleep(Duration::from_millis(100));
            rustix::io::write(&*waker, &rings.to_ne_bytes()).unwrap();
        }
        let reported = || {
            let stats = self.reflex.stats();
            (stats.edges, stats.sources, Arc::strong_count(&waker))
        };
        eventually(|| reported() == (2, 0, 1));
        assert_eq!(reported(), (2, 0, 1));
    }

    /// It falls fast, and who looks ahead is woken.
    fn falls_fast(&self) {
        assert!(!self.rung.load(Ordering::Acquire));
        self.set_available(600 * MIB);
        eventually(|| self.rung.load(Ordering::Acquire));
        assert!(self.rung.load(Ordering::Acquire));
    }

    fn one_is_killed(&self) {
        self.set_available(100 * MIB);
        let decided = self.decided();
        assert!(matches!(decided, Report::Decided { decision, .. } if decision.ranked_count == 100));
        assert!(matches!(self.next(), Report::Signalled { .. }));
        self.set_available(1024 * MIB);
        self.end("pod99");
        assert!(matches!(self.next(), Report::Completed { .. }));
        assert!(matches!(self.next(), Report::Cleared { .. }));
    }

    /// A program is run before the next one is signalled. Nothing falls, so that there is time for it.
    fn one_is_killed_after_a_hook(&self) {
        let program =
            HookProgram { path: Path::new("/usr/bin/true").canonicalize().unwrap(), args: Vec::new() };
        self.reflex.set_hook(Some(program));
        let thresholds = followed(&[amount(Signal::MemoryAvailable, 1100 * MIB)]);
        let hook_timeout_ns = 30_000_000_000;
        self.reflex.configure_armed(EngineSettings { thresholds, hook_timeout_ns, ..self.settings });
        let decided = self.decided();
        let Report::Decided { decision, .. } = &decided else { panic!("{decided:?}") };
        assert!(matches!(decision.hook, HookPlan::Awaited { .. }), "{decided:?}");
        assert!(matches!(self.next(), Report::Hooked { .. }));
        assert!(matches!(self.next(), Report::Signalled { .. }));
        self.set_available(4096 * MIB);
        self.end("pod98");
        assert!(matches!(self.next(), Report::Completed { .. }));
        assert!(matches!(self.next(), Report::Cleared { .. }));
    }

    fn one_would_be_killed(&self) {
        self.configure(Mode::DryRun, amount(Signal::MemoryAvailable, 1200 * MIB));
        self.set_available(1100 * MIB);
        let decided = self.decided();
        assert!(matches!(decided, Report::Decided { decision, .. } if decision.dry_run));
        self.set_available(4096 * MIB);
        assert!(matches!(self.next(), Report::Cleared { .. }));
    }

    fn process_ids_run_short(&self) {
        fs::write(self.cgroups().join("pod50/pids.current"), "500\n").unwrap();
        self.configure(Mode::Enforce, amount(Signal::PidAvailable, 100));
        self.set_tasks(14_950);
        let Report::Decided { decision, members, .. } = self.decided() else { unreachable!() };
        assert_eq!(members[decision.index.0].identity().pod.name, "pod50");
        assert!(matches!(self.next(), Report::Signalled { .. }));
        self.set_tasks(80);
        self.end("pod50");
        assert!(matches!(self.next(), Report::Completed { .. }));
        assert!(matches!(self.next(), Report::Cleared { .. }));
    }

    /// Below the soft threshold, but not as if all would be gone in a moment.
    fn falls_slowly(&self) {
        self.set_available(1600 * MIB);
        std::thread::sleep(Duration::from_secs(1));
        self.set_available(1490 * MIB);
    }

    /// It is given time to end, and the next in rank, which grows, is held back meanwhile.
    fn one_is_asked_and_one_held_back(&self) {
        let soft = Threshold { grace_period_ms: 100, ..amount(Signal::MemoryAvailable, 1500 * MIB) };
        self.configure(Mode::Enforce, soft);
        self.falls_slowly();
        let Report::Decided { decision, members, .. } = self.decided() else { unreachable!() };
        assert_eq!(members[decision.index.0].identity().pod.name, "pod97");
        assert!(matches!(self.next(), Report::Terminated { .. }));
        let held = (1..=200).find_map(|step| {
            self.set_available((1490 - 5 * step) * MIB);
            self.set_used("pod96", (196 + 5 * step) * MIB);
            self.reports.recv_timeout(Duration::from_millis(50)).ok()
        });
        assert!(matches!(held, Some(Report::Contained { .. })), "{held:?}");
        self.set_available(4096 * MIB);
        self.end("pod97");
        let ends = [self.next(), self.next(), self.next()];
        let has = |is: fn(&Report) -> bool| ends.iter().any(is);
        assert!(has(|report| matches!(report, Report::Completed { .. })), "{ends:?}");
        assert!(has(|report| matches!(report, Report::Eased { .. })), "{ends:?}");
        assert!(has(|report| matches!(report, Report::Cleared { .. })), "{ends:?}");
    }

    /// A decision that does not last is not carried out.
    fn one_is_refused(&self) {
        self.lasts.store(false, Ordering::Release);
        self.falls_slowly();
        assert!(matches!(self.decided(), Report::Decided { .. }));
        let failed = self.next();
        let Report::Failed { failure, .. } = &failed else { panic!("{failed:?}") };
        assert_eq!(failure.reason, FailureReason::Refused(Refusal::Unrecorded));
        self.set_available(4096 * MIB);
    }
}

#[test]
fn from_the_crossing_to_the_end_of_the_victim() {
    let scene = Scene::start();
    scene.set_candidates();
    WATCHED.store(reflex_thread(), Ordering::Relaxed);
    scene.others_come();
    scene.edges_come();
    scene.falls_fast();
    scene.one_is_killed();
    scene.one_is_killed_after_a_hook();
    scene.one_would_be_killed();
    scene.process_ids_run_short();
    scene.one_is_asked_and_one_held_back();
    scene.one_is_refused();
    WATCHED.store(0, Ordering::Relaxed);
    assert_eq!(COUNT.load(Ordering::Relaxed), 0, "allocations and frees on the reflex thread");
    let Scene { reflex, recorder, .. } = scene;
    reflex.stop();
    // All of it was kept.
    let file = recorder.asker().snapshot();
    let account = replay(&Recording::read(&file).unwrap());
    assert_eq!((account.difference.as_ref(), account.unverified), (None, 0));
    assert!(account.decisions().count() >= 6, "{account:?}");
}
