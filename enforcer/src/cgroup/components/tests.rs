use std::{
    fs,
    process::{Child, Command},
    time::Duration,
};

use super::*;
use crate::{
    cgroup::{recent::AT_THE_LATEST, sandbox::tests as sandbox},
    policy::{self, Settings},
    sample,
};

/// A process of a program of that name; it ends with this.
pub(in crate::cgroup) struct Running {
    child: Child,
    _folder: tempfile::TempDir,
}

impl Running {
    pub(in crate::cgroup) fn start(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join(name);
        fs::copy("/bin/sleep", &program).unwrap();
        // Another test that forks meanwhile has the copy open for writing, until it executes something else.
        loop {
            match Command::new(&program).arg("600").spawn() {
                Ok(child) => return Self { child, _folder: folder },
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(in crate::cgroup) fn id(&self) -> u32 {
        self.child.id()
    }

    fn score(&self) -> i16 {
        fs::read_to_string(format!("/proc/{}/oom_score_adj", self.id())).unwrap().trim().parse().unwrap()
    }

    fn set(&self, score: i16) {
        fs::write(format!("/proc/{}/oom_score_adj", self.id()), score.to_string()).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

struct Scene {
    _temp: tempfile::TempDir,
    root: CgroupDir,
    plan: Plan,
    components: Components,
    now: Instant,
}

impl Scene {
    fn new(names: &[&str]) -> Self {
        let node = sample::node();
        let temp = tempfile::tempdir().unwrap();
        let names: Vec<_> = names.iter().map(|name| NodeComponent::parse(name).unwrap()).collect();
        let mut components = Components::new(Path::new("/proc"), &names).unwrap();
        // The tests' own process keeps its score.
        components.own = 0;
        Self {
            root: CgroupDir::unchecked(temp.path()).unwrap(),
            _temp: temp,
            plan: policy::plan(&node, &Settings::default(), &[]),
            components,
            now: Instant::now(),
        }
    }

    /// The next look, somewhat later.
    fn look(&mut self, permit: Option<&Permit>) -> Vec<(u32, i16, i16, ScoreFate)> {
        self.now += LATER;
        let report = self.components.look(&self.root, &self.plan, &BTreeSet::new(), permit, self.now);
        assert!(report.errors.is_empty(), "{:?}", report.errors);
        report.scores.into_iter().map(|score| (score.pid, score.found, score.wanted, score.fate)).collect()
    }
}

/// Long enough for three looks within a minute.
const LATER: Duration = Duration::from_secs(10);

/// Only root has components.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn may_lower() -> bool {
    let needed = rustix::thread::CapabilitySet::SYS_RESOURCE;
    rustix::thread::capabilities(None).unwrap().effective.contains(needed)
}

#[test]
fn a_program_of_roots_is_kept_until_somebody_insists() {
    let running = Running::start("enforcer-component");
    let mut scene = Scene::new(&["enforcer-component"]);
    let permit = Permit::for_enforce_mode();
    running.set(7);
    if !is_root() {
        assert_eq!(scene.look(Some(&permit)), [], "anybody can call a program so");
        return;
    }
    let pid = running.id();
    assert_eq!(scene.look(None), [(pid, 7, -999, ScoreFate::Audited)]);
    assert_eq!(scene.look(None), [], "reported once");
    assert_eq!(running.score(), 7);
    if !may_lower() {
        assert_eq!(scene.look(Some(&permit)), [(pid, 7, -999, ScoreFate::Refused)]);
        assert_eq!(scene.look(Some(&permit)), []);
        return;
    }
    assert_eq!(scene.look(Some(&permit)), [(pid, 7, -999, ScoreFate::Set)]);
    assert_eq!(running.score(), -999);
    assert_eq!(scene.look(Some(&permit)), []);
    for _ in 0..ROUNDS {
        running.set(5);
        assert_eq!(scene.look(Some(&permit)), [(pid, 5, -999, ScoreFate::Restored)]);
    }
    running.set(6);
    assert_eq!(scene.look(Some(&permit)), [(pid, 6, -999, ScoreFate::Delayed)]);
    assert!(scene.components.wants_look(scene.now + LATER));
    assert_eq!(scene.look(Some(&permit)), [(pid, 6, -999, ScoreFate::Restored)], "at the next look");
    assert_eq!(running.score(), -999);
}

#[test]
fn what_is_called_otherwise_is_left_alone() {
    let running = Running::start("enforcer-other");
    let before = running.score();
    let mut scene = Scene::new(&["enforcer-compon", "enforcer-other2"]);
    assert_eq!(scene.look(Some(&Permit::for_enforce_mode())), []);
    assert_eq!(running.score(), before);
}

#[test]
fn a_containers_program_named_pause_is_no_sandbox() {
    let scene = sandbox::Scene::new();
    let mut components = Components::new(&scene.proc(), &[]).unwrap();
    components.own = 0;
    let plan = policy::plan(&sample::node(), &Settings::default(), &[]);
    let made = BTreeSet::from([sandbox::SANDBOX, sandbox::CONTAINER].map(sandbox::Scene::path));
    let report = components.look(&scene.root(), &plan, &made, None, Instant::now());
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    let found: Vec<_> = report.scores.iter().map(|score| (score.pid, score.wanted)).collect();
    assert_eq!(found, [(sandbox::SANDBOX, -998)]);
    scene.end_container();
    drop(components.look(&scene.root(), &plan, &made, None, Instant::now()));
    let known: Vec<_> = components.known.keys().copied().collect();
    assert_eq!(known, [(sandbox::SANDBOX, sandbox::STARTED)], "it waits for the next container");
}

#[test]
fn it_looks_only_where_something_may_have_changed() {
    let mut scene = Scene::new(&["no-such-program"]);
    let Scene { root, plan, components, now, .. } = &mut scene;
    assert!(components.wants_look(*now), "at first");
    drop(components.look(root, plan, &BTreeSet::new(), None, *now));
    // As if nothing had been started since, which other tests do.
    let mut nothing_new = || {
        (0..100).any(|_| {
            drop(components.look(root, plan, &BTreeSet::new(), None, *now));
            !components.wants_look(*now)
        })
    };
    assert!(nothing_new());
    assert!(components.wants_look(*now + AT_THE_LATEST));
    assert!(Command::new("true").status().unwrap().success());
    assert!(components.wants_look(*now));
}
