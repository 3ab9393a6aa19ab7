//! A node as a kubelet and a container runtime keep it: cgroups, and a runtime that has their names.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
};

use enforcer::{
    model::{CgroupPath, PodUid, QosClass},
    policy::{CgroupDriver, name},
};
use enforcer_tests::{
    cgroup::{Cgroup, ROOT},
    daemon::Daemon,
};
use serde_json::Value;

use super::runtime;

/// The kubelet's `--cgroup-root`: nothing else is there.
const CGROUP_ROOT: &str = "/beside";

/// The state of a container that runs, in the runtime's numbers.
const RUNNING: i32 = 1;

/// The state of one that has ended.
const EXITED: i32 = 2;

pub(super) struct Node {
    folder: PathBuf,
    driver: CgroupDriver,
    kubepods: CgroupPath,
    has: Arc<Mutex<runtime::Node>>,
    pods: u32,
    /// Dropped last, with all below it.
    _root: Cgroup,
}

/// A pod's cgroups, which are killed and removed when this is dropped; the sandbox's comes first.
pub(super) struct Placed {
    pub(super) uid: String,
    sandbox: String,
    containers: Vec<Cgroup>,
    own: Cgroup,
}

impl Node {
    pub(super) fn new(test: &str, driver: CgroupDriver) -> Self {
        let root = CgroupPath::parse(CGROUP_ROOT).unwrap();
        let kubepods = name::kubepods(&root, driver);
        let above = Cgroup::create(below(&name::given(&root, driver))).unwrap();
        for class in [QosClass::Burstable, QosClass::BestEffort] {
            // It stays as long as what is above it.
            std::mem::forget(Cgroup::create(below(&name::qos(&kubepods, class, driver))).unwrap());
        }
        let folder = PathBuf::from(format!("/tmp/kubelet-{test}-{}", below(&kubepods).replace('/', "-")));
        fs::create_dir_all(&folder).unwrap();
        Self { folder, driver, kubepods, has: Arc::default(), pods: 0, _root: above }
    }

    /// Starts the daemon beside it.
    pub(super) fn start(&self, settings: &str) -> Daemon {
        self.start_and_find_root(&format!("kubeletRootDir: {}\n{settings}", self.kubelet_root().display()))
    }

    /// Starts the daemon beside it, which has to find the kubelet's root directory.
    pub(super) fn start_and_find_root(&self, settings: &str) -> Daemon {
        let settings = format!(
            "ownership: kubelet\nmemoryAvailableSource: memAvailable\ncgroupRoot: {CGROUP_ROOT}\ncriSocket: {}\n{settings}",
            self.socket().display()
        );
        Daemon::start(&self.folder, &settings).unwrap()
    }

    /// Starts the runtime.
    pub(super) fn serve(&self) {
        let (socket, has) = (self.socket(), Arc::clone(&self.has));
        let (ready, is_ready) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::UnixListener::bind(socket).unwrap();
                ready.send(()).unwrap();
                let say = move |path: &str, message: &[u8]| has.lock().unwrap().say(path, message);
                runtime::serve(listener, say).await
            })
        });
        is_ready.recv().unwrap();
    }

    /// The kubelet's root directory, which need not exist.
    pub(super) fn kubelet_root(&self) -> PathBuf {
        self.folder.join("kubelet")
    }

    /// Where the kubelet's Pods API is to listen.
    pub(super) fn pods_api(&self) -> PathBuf {
        let folder = self.kubelet_root().join("pods-api");
        fs::create_dir_all(&folder).unwrap();
        folder.join("pods-api.sock")
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("runtime.sock")
    }

    /// From now on no one can reach the container runtime.
    pub(super) fn end_runtime(&self) {
        fs::remove_file(self.socket()).unwrap();
    }

    /// A pod as the API server has it.
    pub(super) fn pod(&mut self, class: QosClass, namespace: &str, pod: &str, containers: &[&str]) -> Placed {
        self.pods += 1;
        let uid = format!("6c1a4e95-6bb6-11e6-bc26-{:012x}", self.pods);
        self.place(uid, class, (namespace, pod), containers)
    }

    /// A pod from a manifest of the kubelet's own.
    pub(super) fn static_pod(
        &mut self,
        class: QosClass,
        namespace: &str,
        pod: &str,
        containers: &[&str],
    ) -> Placed {
        self.pods += 1;
        let uid = format!("{:032x}", self.pods);
        self.place(uid, class, (namespace, pod), containers)
    }

    /// Adds a container to a pod: the runtime lists it, and makes its cgroup.
    pub(super) fn add_container(&self, placed: &mut Placed, name: &str) {
        self.add(placed, name, RUNNING);
    }

    /// Adds one that has exited whenever the runtime is asked, as one that lives for a moment. Its cgroup is made all the
    /// same.
    pub(super) fn add_exited(&self, placed: &mut Placed, name: &str) {
        self.add(placed, name, EXITED);
    }

    fn add(&self, placed: &mut Placed, name: &str, state: i32) {
        let sandbox = placed.sandbox.clone();
        let id = self.has.lock().unwrap().add_container(&sandbox, name, state);
        placed.containers.push(self.leaf(&path(&placed.own), &id));
    }

    /// Ends a container and starts it again, as a kubelet does: the runtime removes its cgroup, and makes another.
    pub(super) fn restart(&self, placed: &mut Placed, container: usize, name: &str) {
        drop(placed.containers.remove(container));
        self.add_container(placed, name);
        let again = placed.containers.pop().unwrap();
        placed.containers.insert(container, again);
    }

    fn leaf(&self, pod: &str, id: &str) -> Cgroup {
        let name = match self.driver {
            CgroupDriver::Cgroupfs => id.to_owned(),
            CgroupDriver::Systemd => format!("cri-containerd-{id}.scope"),
        };
        Cgroup::create(&format!("{}/{name}", pod.trim_start_matches('/'))).unwrap()
    }

    fn place(
        &self,
        uid: String,
        class: QosClass,
        (namespace, pod): (&str, &str),
        containers: &[&str],
    ) -> Placed {
        let path = name::pod(&self.kubepods, class, &PodUid::new(&uid).unwrap(), self.driver);
        // As a runtime does: what has a cgroup is listed already.
        let ids = {
            let mut has = self.has.lock().unwrap();
            let sandbox = has.add_pod(namespace, pod, &uid);
            let of = |name: &&str| has.add_container(&sandbox, name, RUNNING);
            let of: Vec<_> = containers.iter().map(of).collect();
            std::iter::once(sandbox).chain(of).collect::<Vec<_>>()
        };
        let own = Cgroup::create(below(&path)).unwrap();
        let containers = ids.iter().map(|id| self.leaf(path.as_str(), id)).collect();
        Placed { uid, sandbox: ids[0].clone(), containers, own }
    }
}

impl Placed {
    /// Removes the cgroup of a container, as when it has ended.
    pub(super) fn remove(&mut self, container: usize) {
        drop(self.containers.remove(container));
    }

    /// The cgroup of a container, from 1 on; 0 is the sandbox.
    pub(super) fn cgroup(&self, container: usize) -> &Cgroup {
        &self.containers[container]
    }

    pub(super) fn path(&self) -> String {
        path(&self.own)
    }

    pub(super) fn container_path(&self, container: usize) -> String {
        path(&self.containers[container])
    }

    pub(super) fn container_id(&self, container: usize) -> u64 {
        fs::metadata(self.containers[container].path()).unwrap().ino()
    }
}

/// The pods that the daemon knows.
pub(super) fn pods(daemon: &Daemon) -> Vec<Value> {
    let answer = daemon.get("/v1/pods").unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let view: Value = serde_json::from_str(body).unwrap();
    view["pods"].as_array().unwrap().clone()
}

fn path(cgroup: &Cgroup) -> String {
    format!("/{}", cgroup.path().strip_prefix(Path::new(ROOT)).unwrap().display())
}

fn below(path: &CgroupPath) -> &str {
    path.as_str().trim_start_matches('/')
}
