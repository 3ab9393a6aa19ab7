use std::{fs, os::unix::fs::symlink, path::PathBuf};

use super::*;

/// The process of the sandbox; no kernel gives so high an id.
pub(in crate::cgroup) const SANDBOX: u32 = 4_194_310;

/// The process of the container.
pub(in crate::cgroup) const CONTAINER: u32 = 4_194_320;

/// When the sandbox was started, in clock ticks.
pub(in crate::cgroup) const STARTED: u64 = 100;

/// A host with one pod: a sandbox, and a container that was started later and calls its program by the same name.
pub(in crate::cgroup) struct Scene(tempfile::TempDir);

impl Scene {
    pub(in crate::cgroup) fn new() -> Self {
        let scene = Self(tempfile::tempdir().unwrap());
        scene.link("proc/1/ns/ipc", "ipc:[1]");
        scene.link("proc/1/ns/user", "user:[1]");
        // Whoever looks at components looks at itself first.
        scene.link(&format!("proc/{}/ns/pid", std::process::id()), "pid:[1]");
        scene.run(SANDBOX, STARTED);
        scene.run(CONTAINER, STARTED + 100);
        scene
    }

    fn run(&self, pid: u32, started: u64) {
        let path = Self::path(pid);
        self.list(pid, &format!("{pid}\n"));
        self.write(&format!("proc/{pid}/cgroup"), &format!("0::{path}\n"));
        self.start(pid, started);
        self.set_score(pid, 0);
        self.link(&format!("proc/{pid}/exe"), "/pause");
        self.link(&format!("proc/{pid}/ns/ipc"), "ipc:[2]");
        self.link(&format!("proc/{pid}/ns/user"), "user:[1]");
    }

    /// The cgroup of a process.
    pub(in crate::cgroup) fn path(pid: u32) -> CgroupPath {
        let id = if pid == SANDBOX { "0a" } else { "1b" }.repeat(32);
        CgroupPath::parse(&format!("/kubepods/podx/{id}")).unwrap()
    }

    pub(in crate::cgroup) fn root(&self) -> CgroupDir {
        CgroupDir::unchecked(&self.0.path().join("cgroup")).unwrap()
    }

    pub(in crate::cgroup) fn proc(&self) -> PathBuf {
        self.0.path().join("proc")
    }

    pub(in crate::cgroup) fn set_score(&self, pid: u32, score: i16) {
        self.write(&format!("proc/{pid}/oom_score_adj"), &format!("{score}\n"));
    }

    /// Ends the container.
    pub(in crate::cgroup) fn end_container(&self) {
        self.list(CONTAINER, "");
        fs::remove_dir_all(self.proc().join(CONTAINER.to_string())).unwrap();
    }

    /// Sets what the kernel lists in the cgroup of a process.
    fn list(&self, pid: u32, procs: &str) {
        self.write(&format!("cgroup{}/cgroup.procs", Self::path(pid)), procs);
    }

    fn start(&self, pid: u32, ticks: u64) {
        let before = vec!["0"; 18].join(" ");
        self.write(&format!("proc/{pid}/stat"), &format!("{pid} (pause) S {before} {ticks} 0\n"));
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn link(&self, path: &str, target: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        if path.is_symlink() {
            fs::remove_file(&path).unwrap();
        }
        symlink(target, path).unwrap();
    }

    fn is_sandbox(&self, pid: u32) -> bool {
        self.is_sandbox_at(&Self::path(pid), pid)
    }

    fn is_sandbox_at(&self, path: &CgroupPath, pid: u32) -> bool {
        let processes = Processes::open(&self.proc()).unwrap();
        let process = processes.get(pid).unwrap();
        processes.is_sandbox(&self.root(), path, (pid, &process))
    }
}

#[test]
fn a_sandbox_comes_first_and_shares_its_namespaces() {
    let scene = Scene::new();
    assert!(scene.is_sandbox(SANDBOX));
    assert!(!scene.is_sandbox(CONTAINER), "a container's program has any name");
}

/// What makes a process no sandbox, and how it is made so.
type Change = (&'static str, fn(&Scene));

#[test]
fn what_is_not_certainly_a_sandbox_is_none() {
    let changes: [Change; 9] = [
        ("another program", |scene| scene.link(&format!("proc/{SANDBOX}/exe"), "/bin/sleep")),
        ("not alone", |scene| scene.list(SANDBOX, &format!("{SANDBOX}\n{}\n", SANDBOX + 1))),
        ("elsewhere by now", |scene| scene.write(&format!("proc/{SANDBOX}/cgroup"), "0::/kubepods/pody/a\n")),
        ("a user namespace of its own", |scene| scene.link(&format!("proc/{SANDBOX}/ns/user"), "user:[2]")),
        ("the host's namespaces", |scene| {
            for pid in [SANDBOX, CONTAINER] {
                scene.link(&format!("proc/{pid}/ns/ipc"), "ipc:[1]");
            }
        }),
        ("shared by none", |scene| scene.link(&format!("proc/{CONTAINER}/ns/ipc"), "ipc:[3]")),
        ("no container", Scene::end_container),
        ("not the first", |scene| scene.start(CONTAINER, STARTED)),
        ("others are unseen", |scene| scene.list(CONTAINER, &format!("0\n{CONTAINER}\n"))),
    ];
    for (why, change) in changes {
        let scene = Scene::new();
        change(&scene);
        assert!(!scene.is_sandbox(SANDBOX), "{why}");
    }
}

#[test]
fn a_sandboxs_cgroup_has_a_runtimes_name() {
    let scene = Scene::new();
    let app = CgroupPath::parse("/kubepods/podx/app").unwrap();
    let below = |path: &CgroupPath| scene.0.path().join("cgroup").join(path.as_str().trim_start_matches('/'));
    fs::rename(below(&Scene::path(SANDBOX)), below(&app)).unwrap();
    scene.write(&format!("proc/{SANDBOX}/cgroup"), &format!("0::{app}\n"));
    assert!(!scene.is_sandbox_at(&app, SANDBOX));
}
