//! The promise of the eviction thread: once it runs it allocates and frees nothing, from waking to the victim's end.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test's helpers may panic like the test itself"
)]

mod counting;

use std::{
    collections::BTreeMap,
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
    cgroup::CgroupDir,
    config::PreKillHook,
    evict::{Alarm, Candidate, HookProgram, Pledges, Reflex, ReflexConfig, Report, Scheduling},
    journal::Intents,
    model::{CgroupPath, PodName, PodUid, QosClass},
    policy::{
        CgroupPlan, PodPlan,
        admission::Admission,
        engine::{EngineSettings, HookPlan, Mode, followed},
        flight::{Recording, replay},
        message::Requests,
        threshold::{Signal, Threshold, ThresholdValue},
    },
    recorder::{Provenance, Recorder},
    sense::{Edge, EdgeKind, EdgeSource, PodsMemory, Readiness, SourceState},
};
use rustix::event::{EventfdFlags, eventfd};

const MIB: u64 = 1 << 20;

/// A pod of ordinary files that uses that much.
fn pod(root: &Path, name: &str, used_bytes: u64) -> PodPlan {
    let dir = root.join(name);
    fs::create_dir(&dir).unwrap();
    for (file, text) in [
        ("cgroup.kill", String::new()),
        ("cgroup.events", String::from("populated 1\nfrozen 0\n")),
        ("cpu.max", String::from("20000 100000")),
        ("cpu.weight", String::from("1")),
        ("memory.current", format!("{used_bytes}\n")),
        ("memory.stat", format!("anon {used_bytes}\nfile 0\nshmem 0\ninactive_file 0\n")),
    ] {
        fs::write(dir.join(file), text).unwrap();
    }
    PodPlan {
        name: PodName { namespace: "default".into(), name: name.into() },
        uid: PodUid::new(name).unwrap(),
        qos_class: QosClass::BestEffort,
        priority: 0,
        eviction_priority: 0,
        critical: false,
        requests: BTreeMap::new(),
        limits: BTreeMap::new(),
        requested: Requests::default(),
        ranking_request_bytes: 0,
        termination_grace_period_seconds: 30,
        cgroup: CgroupPlan { path: CgroupPath::parse(name).unwrap(), files: BTreeMap::new() },
        adopted: false,
        containers: Vec::new(),
        admission: Admission::plain(),
    }
}

fn set_available(meminfo: &Path, bytes: u64) {
    let text = format!("MemTotal: 8388608 kB\nMemFree: 1 kB\nMemAvailable: {:>12} kB\n", bytes / 1024);
    // Exchanged as a whole, under the same inode: the reflex has it open.
    let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(meminfo).unwrap();
    file.write_all_at(text.as_bytes(), 0).unwrap();
}

/// A process file system with few processes in it.
fn process_ids(folder: &Path) -> PathBuf {
    let proc = folder.join("proc");
    fs::create_dir_all(proc.join("sys/kernel")).unwrap();
    fs::write(proc.join("sys/kernel/pid_max"), "32768\n").unwrap();
    fs::write(proc.join("sys/kernel/threads-max"), "15000\n").unwrap();
    fs::write(proc.join("loadavg"), "0.20 0.18 0.12 1/80 11206\n").unwrap();
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

/// Tells one edge each time that it is rung.
struct Bell(Arc<OwnedFd>);

impl EdgeSource for Bell {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn drain(&mut self, _ready: Readiness, tell: &mut dyn FnMut(Edge)) -> SourceState {
        let mut count = [0_u8; 8];
        rustix::io::read(&*self.0, &mut count).unwrap();
        if u64::from_ne_bytes(count) == GONE {
            return SourceState::Gone;
        }
        tell(Edge { kind: EdgeKind::MemoryMax, onset_ns: None });
        SourceState::Live
    }
}

#[test]
fn from_the_crossing_to_the_end_of_the_victim() {
    let temp = tempfile::tempdir().unwrap();
    let meminfo = temp.path().join("meminfo");
    set_available(&meminfo, 1024 * MIB);
    let cgroups = temp.path().join("cgroups");
    fs::create_dir(&cgroups).unwrap();
    let plans: Vec<_> =
        (0..100).map(|number| pod(&cgroups, &format!("pod{number}"), (100 + number) * MIB)).collect();

    let settings = EngineSettings {
        mode: Mode::Enforce,
        thresholds: followed(&[
            Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(200 * MIB)),
            Threshold::hard(Signal::AllocatableMemoryAvailable, ThresholdValue::Amount(200 * MIB)),
            Threshold::hard(Signal::PidAvailable, ThresholdValue::Amount(100)),
        ]),
        ..EngineSettings::default()
    };
    let (sender, reports) = mpsc::channel();
    let proc = process_ids(temp.path());
    let rung = Arc::new(AtomicBool::new(false));
    let config = ReflexConfig {
        settings,
        meminfo: meminfo.clone(),
        root_stat: None,
        scheduling: Scheduling::Normal,
        proc,
        lock_memory: false,
        cpus: 2,
        past: Vec::new(),
        hook: None,
        alarm: Some(Alarm::new(std::thread::current(), Arc::clone(&rung))),
    };
    let intents = Intents::open(temp.path(), "boot").unwrap();
    let pledges = Pledges::new(intents.reflex, Arc::new(AtomicU64::new(0)));
    let (recorder, tap) =
        Recorder::start(temp.path(), Provenance::default(), |message| panic!("{message}")).unwrap();
    let forward = move |report| {
        if !matches!(report, Report::Conditions(_)) {
            sender.send(report).unwrap();
        }
        true
    };
    let reflex = Reflex::spawn(&config, Some(pledges), Vec::new(), Some(tap), forward).unwrap();
    let root = CgroupDir::unchecked(&cgroups).unwrap();
    let open = || plans.iter().map(|plan| Arc::new(Candidate::open(&root, plan).unwrap())).collect();
    reflex.set_candidates(open());
    std::thread::sleep(Duration::from_millis(500));
    WATCHED.store(reflex_thread(), Ordering::Relaxed);

    // Another set comes in, and the old one goes, while it is watched.
    reflex.set_candidates(open());
    std::thread::sleep(Duration::from_millis(500));
    // So do the files of kubepods.
    for _ in 0..3 {
        reflex.set_kubepods(PodsMemory::open(&CgroupDir::unchecked(&kubepods(&cgroups)).unwrap()).unwrap());
        std::thread::sleep(Duration::from_millis(100));
    }
    // An edge source comes, tells, and goes.
    let bell = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
    reflex.add_edges(Box::new(Bell(Arc::clone(&bell))));
    for rings in [1_u64, 2, GONE] {
        std::thread::sleep(Duration::from_millis(100));
        rustix::io::write(&*bell, &rings.to_ne_bytes()).unwrap();
    }
    std::thread::sleep(Duration::from_millis(200));
    let stats = reflex.stats();
    assert_eq!((stats.edges, stats.sources, Arc::strong_count(&bell)), (2, 0, 1), "{stats:?}");
    // It falls fast, and who looks ahead is woken.
    assert!(!rung.load(Ordering::Acquire));
    set_available(&meminfo, 600 * MIB);
    std::thread::sleep(Duration::from_millis(800));
    assert!(rung.load(Ordering::Acquire));
    set_available(&meminfo, 100 * MIB);
    let next = || reports.recv_timeout(Duration::from_secs(10)).expect("another report");
    assert!(matches!(next(), Report::Crossed { .. }));
    assert!(matches!(next(), Report::Decided { decision, .. } if decision.ranked_count == 100));
    assert!(matches!(next(), Report::Signalled { .. }));
    set_available(&meminfo, 1024 * MIB);
    fs::write(cgroups.join("pod99/memory.current"), "0\n").unwrap();
    fs::write(cgroups.join("pod99/cgroup.events"), "populated 0\n").unwrap();
    assert!(matches!(next(), Report::Completed { .. }));
    assert!(matches!(next(), Report::Cleared { .. }));

    // A program is run before the next one is signalled. Nothing falls, so that there is time for it.
    let program = HookProgram { path: Path::new("/usr/bin/true").canonicalize().unwrap(), args: Vec::new() };
    reflex.set_hook(Some(&PreKillHook { program, timeout_ms: 30_000 }));
    let higher = Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(1100 * MIB));
    let (thresholds, hook_timeout_ns) = (followed(&[higher]), 30_000_000_000);
    reflex.configure(EngineSettings { thresholds, hook_timeout_ns, ..settings });
    assert!(matches!(next(), Report::Crossed { .. }));
    let decided = next();
    let Report::Decided { decision, .. } = &decided else { panic!("{decided:?}") };
    assert!(matches!(decision.hook, HookPlan::Awaited { .. }), "{decided:?}");
    assert!(matches!(next(), Report::Hooked { .. }));
    assert!(matches!(next(), Report::Signalled { .. }));
    set_available(&meminfo, 2048 * MIB);
    fs::write(cgroups.join("pod98/memory.current"), "0\n").unwrap();
    fs::write(cgroups.join("pod98/cgroup.events"), "populated 0\n").unwrap();
    assert!(matches!(next(), Report::Completed { .. }));
    assert!(matches!(next(), Report::Cleared { .. }));

    WATCHED.store(0, Ordering::Relaxed);
    assert_eq!(COUNT.load(Ordering::Relaxed), 0, "allocations and frees on the reflex thread");
    reflex.stop();
    // All of it was kept.
    let file = recorder.asker().snapshot();
    let account = replay(&Recording::read(&file).unwrap());
    assert_eq!((account.difference.as_ref(), account.unverified), (None, 0));
    assert_eq!(account.decisions().count(), 2, "{account:?}");
}
