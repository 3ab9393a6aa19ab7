//! The log and its server, as the daemon has them.

use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use enforcer::{
    journal::{EventType, Journal, RawEvent, Subject},
    model::{Node, PodName},
    policy::{Settings, admission::Amounts},
    serve::{
        Doctor, Foresight, Headrooms, Observe, Ranker, RankingView, Requested, Scrape, Sockets, Sources,
        Usages, View, Vital,
    },
};
use serde_json::json;
use tokio::sync::watch;

use super::readers::{Readers, monotonic_ns};

/// A daemon's log and its observe socket.
pub(crate) struct Scene {
    journal: Journal,
    runtime: tokio::runtime::Runtime,
    server: tokio::task::JoinHandle<Result<(), enforcer::serve::Error>>,
    stop: watch::Sender<bool>,
    run_dir: tempfile::TempDir,
    _state_dir: tempfile::TempDir,
}

impl Scene {
    pub(crate) fn new(state_dir: &Path) -> Self {
        fs::create_dir_all(state_dir).unwrap();
        let state_dir = tempfile::tempdir_in(state_dir).unwrap();
        // As /run is: in memory.
        let memory = Path::new("/dev/shm");
        let run_dir = if memory.is_dir() {
            tempfile::tempdir_in(memory).unwrap()
        } else {
            tempfile::tempdir().unwrap()
        };
        let (journal, _) = Journal::open("bench", "boot", state_dir.path(), run_dir.path()).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (stop, stopping) = watch::channel(false);
        let observe = runtime.block_on(Observe::bind(run_dir.path(), &Sockets::default())).unwrap();
        let requested = Requested {
            node: Node::new(4_000, 8 << 30),
            settings: Settings::default(),
            pods: Amounts::default(),
            reservations: Vec::new(),
        };
        let sources = Sources {
            journal: journal.clone(),
            doctor: Doctor::default(),
            recorder: None,
            usages: Usages::by(Vec::new),
            foresight: Foresight {
                ranker: Ranker::by(|_| RankingView::default()),
                headrooms: Headrooms::by(|| None),
            },
            config: watch::channel(Arc::default()).1,
            view: watch::channel(View::default()).1,
            orders: watch::channel(Vec::new()).1,
            requested: watch::channel(requested).1,
            metrics: Scrape::by(|_format| Ok(String::new())),
            evictor: Vital::by(|| true),
        };
        let server = runtime.spawn(observe.serve(sources, watch::channel(true).1, stopping));
        Self { journal, runtime, server, stop, run_dir, _state_dir: state_dir }
    }

    /// Readers in another process, all of them connected; they read nothing at first for so many seconds.
    pub(crate) fn readers(&self, count: usize, form: &str, stall_seconds: u64) -> Readers {
        Readers::start(&Observe::path(self.run_dir.path()), count, form, stall_seconds)
    }

    /// An event of the usual size; the last one ends its readers.
    pub(crate) fn append(&self, kind: EventType, is_last: bool) -> u64 {
        let data = json!({
            "appendedNs": monotonic_ns(),
            "cgroup": "/kubepods/burstable/pod6a2a3c0a-9c2a-4c6e-8f0e-2a6f5e0d6b11/app",
            "files": [{"file": "memory.max", "new": "268435456", "old": "max"}],
            "namespace": "default",
            "pod": "web-7c5ddbdf54-x2l9p",
            "last": is_last,
        });
        let pod = PodName { namespace: "default".into(), name: "web-7c5ddbdf54-x2l9p".into() };
        self.journal.append_raw(RawEvent { kind, subject: Subject::Pod(pod), data })
    }

    /// So many a second, and one more that ends the readers.
    pub(crate) fn append_for(&self, seconds: u64, rate: u64) {
        self.append_steadily(seconds, rate);
        self.append(EventType::LimitsApplied, true);
    }

    pub(crate) fn append_steadily(&self, seconds: u64, rate: u64) {
        let begun = Instant::now();
        for n in 0..seconds * rate {
            let due = begun + Duration::from_nanos(n * 1_000_000_000 / rate);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            self.append(EventType::LimitsApplied, false);
        }
    }

    pub(crate) fn wait_durable(&self, sequence: u64) {
        let mut durable = self.journal.durable();
        self.runtime
            .block_on(async { durable.wait_for(|newest| *newest >= sequence).await.map(drop) })
            .unwrap();
    }

    pub(crate) fn end(self) {
        self.stop.send_replace(true);
        self.runtime.block_on(self.server).unwrap().unwrap();
        self.journal.close();
    }
}

/// What of this process is in memory and in no file.
pub(crate) fn rss_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// What this process has had of the processors.
pub(crate) fn cpu_seconds() -> f64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    super::float(u64::try_from(used.tv_sec).unwrap())
        + super::float(u64::try_from(used.tv_nsec).unwrap()) / 1e9
}
