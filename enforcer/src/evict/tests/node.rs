//! A node of ordinary files: a cgroup tree and a memory summary.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    cgroup::{CgroupDir, Guard},
    evict::{Candidate, OpenError},
    model::{CgroupPath, Common, ContainerKind, PodName, PodUid, ResourceList},
    policy::{CgroupPlan, ContainerPlan, PodPlan, message::Requests},
};

pub(in crate::evict) const MIB: u64 = 1 << 20;

pub(in crate::evict) struct Node {
    temp: tempfile::TempDir,
}

/// A pod of one container on such a node.
#[derive(Clone)]
pub(in crate::evict) struct Pod {
    pub(in crate::evict) name: &'static str,
    pub(in crate::evict) priority: i32,
    pub(in crate::evict) request_bytes: u64,
    pub(in crate::evict) critical: bool,
}

impl Pod {
    pub(in crate::evict) fn new(name: &'static str) -> Self {
        Self { name, priority: 0, request_bytes: 0, critical: false }
    }

    pub(in crate::evict) fn plan(&self) -> PodPlan {
        let path = cgroup(self.name);
        let name = PodName { namespace: "default".into(), name: self.name.into() };
        let uid = PodUid::new(&format!("uid-{}", self.name)).unwrap();
        PodPlan {
            priority: self.priority,
            eviction_priority: self.priority,
            critical: self.critical,
            requested: Requests { pod: None, containers: vec![("app".into(), ResourceList::new())] }.into(),
            ranking_request_bytes: self.request_bytes,
            containers: vec![ContainerPlan {
                adopted: false,
                name: "app".into(),
                kind: ContainerKind::App,
                oom_score_adj: 1000,
                cgroup: CgroupPlan { path: path.child("app").unwrap(), values: Common::default() },
            }],
            ..PodPlan::new(name, uid, path)
        }
    }
}

fn cgroup(name: &str) -> CgroupPath {
    CgroupPath::parse(&format!("kubepods/besteffort/pod{name}")).unwrap()
}

/// Exchanges a file's content for another one of the same length, in one write, as the daemon may be reading.
fn exchange(path: &Path, text: &str) {
    use std::os::unix::fs::FileExt as _;
    let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path).unwrap();
    file.write_all_at(text.as_bytes(), 0).unwrap();
}

/// What spares what is always spared.
pub(in crate::evict) fn guard() -> Arc<Guard> {
    Arc::new(Guard::new(Path::new("/proc"), &[]))
}

impl Node {
    pub(in crate::evict) fn new(available_bytes: u64) -> Self {
        let node = Self { temp: tempfile::tempdir().unwrap() };
        node.set_available(available_bytes);
        node
    }

    pub(in crate::evict) fn meminfo(&self) -> PathBuf {
        self.temp.path().join("meminfo")
    }

    /// Exchanges the summary's content in one write, as the daemon may be reading.
    pub(in crate::evict) fn set_available(&self, bytes: u64) {
        let text = format!(
            "MemTotal: {:>12} kB\nMemFree: {:>12} kB\nMemAvailable: {:>12} kB\n",
            8 << 20,
            1 << 20,
            bytes / 1024
        );
        exchange(&self.meminfo(), &text);
    }

    /// The process file system; nothing is in it until tasks are set.
    pub(in crate::evict) fn proc(&self) -> PathBuf {
        self.temp.path().join("proc")
    }

    /// Says how many tasks there are and can be.
    pub(in crate::evict) fn set_tasks(&self, running: u64, most: u64) {
        fs::create_dir_all(self.proc().join("sys/kernel")).unwrap();
        exchange(&self.proc().join("sys/kernel/pid_max"), &format!("{most:>8}\n"));
        exchange(&self.proc().join("loadavg"), &format!("0.20 0.18 0.12 1/{running:08} 11206\n"));
    }

    /// Says what kubepods is charged for, all of it anonymous memory, and how much it may be.
    pub(in crate::evict) fn set_pods(&self, used_bytes: u64, limit: &str) {
        let dir = self.kubepods();
        fs::create_dir_all(&dir).unwrap();
        for (file, text) in [
            ("memory.current", used_bytes.to_string()),
            ("memory.stat", format!("anon {used_bytes}\nfile 0\nshmem 0\ninactive_file 0\n")),
            ("memory.max", limit.to_owned()),
        ] {
            fs::write(dir.join(file), text).unwrap();
        }
    }

    pub(in crate::evict) fn kubepods(&self) -> PathBuf {
        self.temp.path().join("kubepods")
    }

    /// Makes the pod's cgroup, using that much anonymous memory.
    pub(in crate::evict) fn add(&self, pod: &Pod, used_bytes: u64) {
        let dir = self.dir(pod.name);
        fs::create_dir_all(dir.join("app")).unwrap();
        for file in ["cgroup.kill", "cgroup.procs", "app/cgroup.procs"] {
            fs::write(dir.join(file), "").unwrap();
        }
        for (file, value) in [
            ("cpu.max", "20000 100000"),
            ("cpu.weight", "1"),
            ("memory.high", "1"),
            ("app/cpu.max", "1000 100000"),
            ("app/memory.high", "1"),
        ] {
            fs::write(dir.join(file), value).unwrap();
        }
        self.write(pod.name, "cgroup.events", "populated 1\nfrozen 0\n");
        self.write(pod.name, "pids.current", "1\n");
        self.write(pod.name, "memory.current", &format!("{used_bytes}\n"));
        let stat = format!("anon {used_bytes}\nfile 0\nshmem 0\ninactive_file 0\n");
        self.write(pod.name, "memory.stat", &stat);
    }

    pub(in crate::evict) fn dir(&self, name: &str) -> PathBuf {
        self.temp.path().join(cgroup(name).as_str().trim_start_matches('/'))
    }

    pub(in crate::evict) fn write(&self, pod: &str, file: &str, value: &str) {
        fs::write(self.dir(pod).join(file), value).unwrap();
    }

    pub(in crate::evict) fn read(&self, pod: &str, file: &str) -> String {
        fs::read_to_string(self.dir(pod).join(file)).unwrap()
    }

    pub(in crate::evict) fn killed(&self, pod: &str) -> bool {
        self.read(pod, "cgroup.kill") == "1"
    }

    pub(in crate::evict) fn root(&self) -> CgroupDir {
        CgroupDir::unchecked(Path::new(self.temp.path())).unwrap()
    }

    pub(in crate::evict) fn open(&self, pod: &Pod) -> Result<Candidate, OpenError> {
        Candidate::open(&self.root(), &guard(), &pod.plan())
    }

    pub(in crate::evict) fn candidate(&self, pod: &Pod) -> Arc<Candidate> {
        Arc::new(self.open(pod).unwrap())
    }
}
