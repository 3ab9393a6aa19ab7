use std::{fs, io, sync::Mutex};

use super::*;
use crate::{
    cgroup::{CgroupsRs, LimitWriter, Reason},
    journal::{Intent, Intents},
    model::{OwnerLevel, PodName, PodUid},
    sample::value,
};

/// Refuses to write the named file, and writes all others.
struct Stubborn(&'static str);

impl Stubborn {
    fn refuse(&self, dir: &CgroupDir, file: &str) -> Result<(), Error> {
        if file != self.0 {
            return Ok(());
        }
        let source = io::Error::from_raw_os_error(22);
        Err(Error::Write { path: dir.path().to_string(), file: file.into(), value: "x".into(), source })
    }
}

impl LimitWriter for Stubborn {
    fn set(&self, dir: &CgroupDir, value: &CgroupValue) -> Result<(), Error> {
        self.refuse(dir, &value.file().name())?;
        CgroupsRs.set(dir, value)
    }
}

impl Driver for Stubborn {}

fn path(text: &str) -> CgroupPath {
    CgroupPath::parse(text).unwrap()
}

fn write(at: &str, file: &str, text: &str) -> Step {
    Step::Write(Write { path: path(at), value: value(file, text), old: None, reason: Reason::Initial })
}

fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, CgroupDir) {
    let temp = tempfile::tempdir().unwrap();
    for (file, content) in files {
        let file = temp.path().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
    }
    let root = CgroupDir::unchecked(temp.path()).unwrap();
    (temp, root)
}

fn run(root: &CgroupDir, driver: &dyn Driver, steps: Vec<Step>) -> Vec<Fate> {
    let (page, permit) = (PageSize::new(4096), Permit::for_enforce_mode());
    apply(root, driver, steps, &BTreeMap::new(), &mut Making::default(), page, &permit)
        .0
        .into_iter()
        .map(|outcome| outcome.fate)
        .collect()
}

#[test]
fn one_refusal_does_not_stop_the_others() {
    let (_temp, root) =
        tree(&[("k/cpu.weight", "100\n"), ("k/pids.max", "max\n"), ("k/memory.oom.group", "0\n")]);
    let steps = vec![
        write("/k", "cpu.weight", "79"),
        write("/k", "pids.max", "1000"),
        write("/k", "memory.oom.group", "1"),
        write("/k", "memory.swap.max", "1"),
    ];
    let fates = run(&root, &Stubborn("cpu.weight"), steps);
    assert!(matches!(fates[0], Fate::Failed(_)));
    assert!(matches!(fates[1], Fate::Done(_)));
    assert!(matches!(fates[2], Fate::Done(_)));
    assert!(matches!(fates[3], Fate::Failed(_)), "it does not exist");
    let dir = root.open(&path("/k")).unwrap();
    assert_eq!(dir.read("cpu.weight").unwrap(), "100\n");
    assert_eq!(dir.read("pids.max").unwrap(), "1000");
    assert_eq!(dir.read("memory.oom.group").unwrap(), "1\n");
}

#[test]
fn what_depends_on_a_cgroup_that_cannot_be_made_is_skipped() {
    let (_temp, root) = tree(&[("k", "a file, not a cgroup"), ("b/pids.max", "max\n")]);
    let steps = vec![
        Step::Create(path("/k/pod")),
        Step::Create(path("/k/pod/app")),
        write("/k/pod", "pids.max", "5"),
        write("/b", "pids.max", "5"),
    ];
    let fates = run(&root, &CgroupsRs, steps);
    assert!(matches!(fates[0], Fate::Failed(_)));
    for fate in &fates[1..3] {
        assert!(matches!(fate, Fate::Skipped { because_of } if *because_of == path("/k/pod")), "{fate:?}");
    }
    assert!(matches!(fates[3], Fate::Done(_)));
}

#[test]
fn usage_that_grew_since_the_observation_withholds_the_write() {
    let (_temp, root) = tree(&[("k/memory.max", "max\n"), ("k/memory.current", "8193\n")]);
    let fates = run(&root, &CgroupsRs, vec![write("/k", "memory.max", "8192")]);
    assert!(matches!(fates[0], Fate::Withheld { usage_bytes: 8193 }));
    let dir = root.open(&path("/k")).unwrap();
    assert_eq!(dir.read("memory.max").unwrap(), "max\n");
    dir.write("memory.current", "8192").unwrap();
    let fates = run(&root, &CgroupsRs, vec![write("/k", "memory.max", "8192")]);
    assert!(matches!(fates[0], Fate::Done(_)));
}

#[test]
fn raising_memory_max_is_done_whatever_is_in_use() {
    let (_temp, root) = tree(&[("k/memory.max", "4096\n"), ("k/memory.current", "99999\n")]);
    let fates = run(&root, &CgroupsRs, vec![write("/k", "memory.max", "8192")]);
    assert!(matches!(fates[0], Fate::Done(_)));
}

#[test]
fn controllers_are_enabled_in_one_write() {
    let (_temp, root) = tree(&[("k/cgroup.subtree_control", "")]);
    let controllers = vec![Controller::Cpu, Controller::Memory];
    let fates = run(&root, &CgroupsRs, vec![Step::Enable { path: path("/k"), controllers }]);
    assert!(matches!(fates[0], Fate::Done(_)));
    let dir = root.open(&path("/k")).unwrap();
    assert_eq!(dir.read("cgroup.subtree_control").unwrap(), "+cpu +memory");
}

#[test]
fn a_refused_controller_is_named() {
    let (_temp, root) = tree(&[("k/cgroup.procs", "")]);
    let step = Step::Enable { path: path("/k"), controllers: vec![Controller::Cpu, Controller::Io] };
    let fates = run(&root, &CgroupsRs, vec![step]);
    let Fate::Failed(error) = &fates[0] else { panic!("{fates:?}") };
    assert_eq!(error.to_string(), "cannot enable cpu, io below /k");
}

/// Looks, right after a cgroup was made, at what a start after a kill would find on the intent page.
struct Killed {
    run_dir: tempfile::TempDir,
    left: Mutex<Vec<Intent<'static>>>,
}

impl LimitWriter for Killed {
    fn set(&self, _dir: &CgroupDir, _value: &CgroupValue) -> Result<(), Error> {
        Ok(())
    }
}

impl Driver for Killed {
    fn create(&self, root: &CgroupDir, path: &CgroupPath) -> Result<CgroupId, Error> {
        let id = CgroupsRs.create(root, path)?;
        self.left.lock().unwrap().extend(Intents::open_lasting(self.run_dir.path(), "b1").unwrap().left);
        Ok(id)
    }
}

#[test]
fn that_a_cgroup_is_ours_outlives_a_kill_right_after_it_was_made() {
    let (_temp, root) = tree(&[]);
    let driver = Killed { run_dir: tempfile::tempdir().unwrap(), left: Mutex::default() };
    let pod = PodName { namespace: String::from("default"), name: String::from("a") };
    let mark = Mark::new(true, Some(&OwnerLevel::Pod { pod: pod.into(), uid: PodUid::new("u").unwrap() }));
    let mut making = Making::new(Intents::open_lasting(driver.run_dir.path(), "b1").unwrap().making);
    let steps = ["/poda", "/poda/app", "/podb"].map(|at| Step::Create(path(at)));
    let marks = BTreeMap::from(["/poda", "/podb"].map(|at| (path(at), mark.clone())));
    let (page, permit) = (PageSize::new(4096), Permit::for_enforce_mode());
    drop(apply(&root, &driver, steps.into(), &marks, &mut making, page, &permit));
    let left = driver.left.into_inner().unwrap();
    let found: Vec<(&str, Option<Mark>)> = left
        .iter()
        .map(|intent| match intent {
            Intent::Cgroup { path, mark } => (path.as_ref(), Mark::parse(mark)),
            Intent::Value { .. } | Intent::Eviction { .. } => unreachable!("{intent:?}"),
        })
        .collect();
    assert_eq!(found, [("/poda", Some(mark.clone())), ("/podb", Some(mark))]);
    assert_eq!(Intents::open_lasting(driver.run_dir.path(), "b1").unwrap().left, [], "all of them are made");
}
