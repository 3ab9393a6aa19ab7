use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use self::adoption::adopting;
use super::*;
use crate::{
    cgroup::{DriftAction, LimitWriter, OnDrift, Reason, Step, watch},
    journal::Intents,
    model::{CgroupValue, ContainerKind, QosClass},
    policy::{CgroupPlan, ContainerPlan, PodPlan},
    sample::values,
};

mod adoption;
mod arriving;
mod former;
mod going;
mod lacking;
mod undoing;

const CONTROLLERS: &str = "cpuset cpu io memory hugetlb pids\n";

pub(super) struct Fixture {
    pub(super) temp: tempfile::TempDir,
    /// How far the reconciler's clock is ahead, in milliseconds.
    ahead_ms: Arc<AtomicU64>,
    pub(super) reconciler: Reconciler,
    pub(super) permit: Permit,
}

impl Fixture {
    /// A tree that holds what the kernel makes in each cgroup; directories that are made later stay empty.
    pub(super) fn new(cgroups: &[&str]) -> Self {
        let temp = tempfile::tempdir().unwrap();
        for cgroup in std::iter::once(&"").chain(cgroups) {
            let dir = temp.path().join(cgroup);
            fs::create_dir_all(&dir).unwrap();
            for (file, content) in [
                ("cgroup.controllers", CONTROLLERS),
                ("cgroup.subtree_control", CONTROLLERS),
                ("cgroup.events", "populated 0\nfrozen 0\n"),
                ("cgroup.procs", ""),
                ("cgroup.stat", "nr_descendants 0\n"),
                ("memory.max", "max\n"),
                ("memory.current", "0\n"),
                ("cpu.weight", "100\n"),
            ] {
                fs::write(dir.join(file), content).unwrap();
            }
        }
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        let (page, index) = (PageSize::new(4096), Index::new());
        let mut reconciler =
            Reconciler::on(root, Path::new("/proc"), Box::new(CgroupsRs), page, index).unwrap();
        let (ahead_ms, start) = (Arc::new(AtomicU64::new(0)), Instant::now());
        let ahead = Arc::clone(&ahead_ms);
        reconciler.clock = Box::new(move || start + Duration::from_millis(ahead.load(Ordering::Relaxed)));
        Self { temp, ahead_ms, reconciler, permit: Permit::for_enforce_mode() }
    }

    pub(super) fn wait(&self, time: Duration) {
        self.ahead_ms.fetch_add(u64::try_from(time.as_millis()).unwrap(), Ordering::Relaxed);
    }

    fn write(&self, file: &str, content: &str) {
        fs::write(self.temp.path().join(file), content).unwrap();
    }

    pub(super) fn reconcile(&mut self, plan: &Plan) -> Report {
        self.reconciler.reconcile(plan, &[], Some(&self.permit))
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.temp.path().join(file)).unwrap()
    }

    pub(super) fn id(&self, path: &str) -> CgroupId {
        self.reconciler.open(&CgroupPath::parse(path).unwrap()).unwrap().id()
    }

    /// Removes the files of a directory, as the kernel does with a cgroup that is removed.
    fn empty(&self, cgroup: &str) {
        for entry in fs::read_dir(self.temp.path().join(cgroup)).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() && entry.file_name() != "cgroup.events" {
                fs::remove_file(entry.path()).unwrap();
            }
        }
    }
}

fn cgroup(path: &str, files: &[(&str, &str)]) -> CgroupPlan {
    CgroupPlan { path: CgroupPath::parse(path).unwrap(), values: values(files).into() }
}

fn name() -> PodName {
    PodName { namespace: "default".into(), name: "web".into() }
}

fn uid() -> PodUid {
    PodUid::new("1").unwrap()
}

pub(super) fn plan(memory: &str) -> Plan {
    let container = ContainerPlan {
        adopted: false,
        name: "app".into(),
        kind: ContainerKind::App,
        oom_score_adj: 988,
        cgroup: cgroup("/kubepods/pod1/app", &[("memory.max", memory)]),
    };
    let pod = PodPlan {
        qos_class: QosClass::Guaranteed,
        containers: vec![container],
        cgroup: cgroup("/kubepods/pod1", &[("memory.max", memory), ("cpu.weight", "79")]),
        ..PodPlan::new(name(), uid(), CgroupPath::root())
    };
    Plan {
        node: cgroup("/kubepods", &[("cpu.weight", "157")]),
        qos: Vec::new(),
        pods: vec![pod.into()],
        reserved: Vec::new(),
        cpus: None,
    }
}

fn without_pods() -> Plan {
    Plan { pods: Vec::new(), ..plan("max") }
}

#[test]
fn reserved_cgroups_are_written_and_never_made_nor_removed() {
    let with = |reserved: Vec<CgroupPlan>| Plan { reserved, ..plan("max") };
    let system = || cgroup("/system.slice", &[("memory.max", "8192"), ("cpu.weight", "39")]);
    let mut fixture = Fixture::new(&[TREE, &["system.slice"]].concat());
    let report = fixture.reconcile(&with(vec![system(), cgroup("/lost", &[("cpu.weight", "4")])]));
    assert_eq!(fixture.read("system.slice/memory.max"), "8192");
    assert_eq!(fixture.read("system.slice/cpu.weight"), "39");
    assert!(!fixture.temp.path().join("lost").exists());
    let errors: Vec<_> = report.errors.iter().map(ToString::to_string).collect();
    assert!(matches!(&errors[..], [lost] if lost.starts_with("cgroup /lost, which ")), "{errors:?}");

    fs::write(fixture.temp.path().join("system.slice/cpu.weight"), "100").unwrap();
    let report = fixture.reconcile(&with(vec![system()]));
    assert_eq!(report.written.len(), 1, "a foreign write is put right");
    assert!(report.errors.is_empty());
    let report = fixture.reconcile(&with(Vec::new()));
    let released: Vec<_> =
        report.written.iter().map(|write| (write.reason, write.change.file.to_string())).collect();
    assert_eq!(
        released,
        [(Reason::Released, String::from("memory.max")), (Reason::Released, String::from("cpu.weight"))]
    );
    assert_eq!(fixture.read("system.slice/cpu.weight"), "100", "it has back what it held");
    assert!(fixture.reconcile(&with(Vec::new())).is_converged());
}

pub(super) const TREE: &[&str] = &["kubepods", "kubepods/pod1", "kubepods/pod1/app"];

#[test]
fn the_second_reconciliation_finds_nothing_to_do() {
    let mut fixture = Fixture::new(TREE);
    let report = fixture.reconcile(&plan("8192"));
    assert_eq!(report.written.len(), 4, "{report:?}");
    assert_eq!(report.limits_applied().len(), 3);
    assert_eq!(fixture.read("kubepods/pod1/app/memory.max"), "8192");
    assert_eq!(fixture.read("kubepods/pod1/cpu.weight"), "79");
    let report = fixture.reconcile(&plan("8192"));
    assert!(report.is_converged(), "{report:?}");
    assert!(report.missing.is_empty() && report.strangers.is_empty());
}

/// Removes a container's cgroup as its pod's values are written: it is as planned by then, and not watched yet.
struct Removing(PathBuf);

impl LimitWriter for Removing {
    fn set(&self, dir: &CgroupDir, value: &CgroupValue) -> Result<(), Error> {
        if value.file() == CgroupFile::CpuWeight && dir.path().as_str() == "/kubepods/pod1" {
            fs::remove_dir_all(&self.0).unwrap();
        }
        CgroupsRs.set(dir, value)
    }
}

impl Driver for Removing {}

#[tokio::test]
async fn a_cgroup_that_goes_before_it_is_watched_is_made_again() {
    let mut fixture = Fixture::new(TREE);
    let app = fixture.temp.path().join("kubepods/pod1/app");
    let (watch, _events) = watch().unwrap();
    fixture.reconciler.set_watch(watch);
    fixture.reconciler.set_driver(Box::new(Removing(app.clone())));
    let report = fixture.reconcile(&plan("8192"));
    let created: Vec<&str> = report.created.iter().map(|owner| owner.path.as_str()).collect();
    assert_eq!(created, ["/kubepods/pod1/app"]);
    assert!(app.exists());
}

#[test]
fn the_index_names_every_cgroup() {
    let mut fixture = Fixture::new(TREE);
    drop(fixture.reconcile(&plan("8192")));
    let resolved = fixture.reconciler.index().resolve(fixture.id("/kubepods/pod1/app")).unwrap();
    assert!(resolved.alive);
    assert_eq!(resolved.owner.level.pod(), Some(&name()));
    assert_eq!(resolved.owner.level.container(), Some("app"));
    let path = fixture.reconciler.container_path(&name(), "app").unwrap().clone();
    assert_eq!(path.as_str(), "/kubepods/pod1/app");
    assert_eq!(fixture.reconciler.score(&path), Some(988));
    assert_eq!(fixture.reconciler.pod_path(&name()).unwrap().as_str(), "/kubepods/pod1");
    assert_eq!(fixture.reconciler.container_path(&name(), "none"), None);
}

#[test]
fn without_a_permit_nothing_is_written_and_the_steps_are_reported() {
    let mut fixture = Fixture::new(&["kubepods"]);
    let report = fixture.reconciler.reconcile(&plan("8192"), &[], None);
    assert!(report.written.is_empty() && report.created.is_empty());
    let reported: Vec<&Step> = report.planned.iter().filter(|step| matches!(step, Step::Create(_))).collect();
    assert_eq!(reported.len(), 2, "{:?}", report.planned);
    assert_eq!(fixture.read("kubepods/cpu.weight"), "100\n");
    assert!(!fixture.temp.path().join("kubepods/pod1").exists());
    assert!(fixture.reconciler.index().resolve(fixture.id("/kubepods")).is_some());
}

#[test]
fn a_foreign_write_is_repaired_and_reported_as_drift() {
    let mut fixture = Fixture::new(TREE);
    drop(fixture.reconcile(&plan("8192")));
    fs::write(fixture.temp.path().join("kubepods/pod1/cpu.weight"), "1\n").unwrap();
    let report = fixture.reconcile(&plan("8192"));
    let [write] = report.written.as_slice() else { panic!("{report:?}") };
    assert_eq!(
        (write.reason, write.change.old.as_deref(), write.change.new.as_str()),
        (Reason::Drifted, Some("1"), "79")
    );
}

#[test]
fn a_new_plan_is_reported_as_such_and_a_dropped_value_given_back() {
    let mut fixture = Fixture::new(TREE);
    drop(fixture.reconcile(&plan("8192")));
    let mut next = plan("4096");
    Arc::make_mut(&mut next.pods[0]).cgroup.values.cpu_weight = None;
    let report = fixture.reconcile(&next);
    let reasons: BTreeSet<Reason> = report.written.iter().map(|write| write.reason).collect();
    assert_eq!(reasons, BTreeSet::from([Reason::PlanChanged, Reason::Released]));
    assert_eq!(fixture.read("kubepods/pod1/cpu.weight"), "100");
    assert!(fixture.reconcile(&next).is_converged());
}

#[test]
fn a_limit_below_usage_waits() {
    let mut fixture = Fixture::new(TREE);
    drop(fixture.reconcile(&plan("81920")));
    fs::write(fixture.temp.path().join("kubepods/pod1/app/memory.current"), "40960\n").unwrap();
    let report = fixture.reconcile(&plan("16384"));
    assert_eq!(report.withheld.len(), 1);
    assert_eq!(fixture.read("kubepods/pod1/app/memory.max"), "81920");
    assert_eq!(fixture.read("kubepods/pod1/memory.max"), "16384");
    fs::write(fixture.temp.path().join("kubepods/pod1/app/memory.current"), "4096\n").unwrap();
    let report = fixture.reconcile(&plan("16384"));
    assert_eq!((report.withheld.len(), report.written.len()), (0, 1), "{report:?}");
    assert_eq!(report.written[0].reason, Reason::PlanChanged, "what was withheld was never written");
}

#[test]
fn a_failure_is_reported_once_and_then_marked_as_repeated() {
    let mut fixture = Fixture::new(&["kubepods"]);
    let first = fixture.reconcile(&plan("8192"));
    assert!(!first.failed.is_empty(), "cgroups without files refuse writes");
    assert!(first.failed.iter().all(|failure| !failure.repeated));
    let reported = first.failed.len();
    assert!(!fixture.reconciler.problems().is_empty());
    fs::create_dir_all(fixture.temp.path().join("kubepods/pod1/app")).unwrap();
    let soon = fixture.reconcile(&plan("8192"));
    assert!(soon.failed.is_empty(), "it is not tried again at once: {soon:?}");
    fixture.wait(Duration::from_secs(1));
    let second = fixture.reconcile(&plan("8192"));
    assert!(second.failed.iter().all(|failure| failure.repeated), "{second:?}");
    assert!(second.failed.len() <= reported);
}

#[test]
fn a_retired_pod_stays_until_it_is_empty() {
    let mut fixture = Fixture::new(TREE);
    drop(fixture.reconcile(&plan("8192")));
    let id = fixture.id("/kubepods/pod1/app");
    for cgroup in ["kubepods/pod1", "kubepods/pod1/app"] {
        fs::write(fixture.temp.path().join(cgroup).join("cgroup.events"), "populated 1\n").unwrap();
    }
    let report = fixture.reconcile(&without_pods());
    assert_eq!((report.draining.len(), report.removed.len()), (2, 0));
    assert_eq!(report.strangers, [], "a retired pod is no stranger");
    assert_eq!(fixture.reconciler.container_path(&name(), "app"), None);
    assert!(fixture.reconciler.index().resolve(id).unwrap().alive);
    // As the kernel has it: directories go with their files.
    fs::remove_dir_all(fixture.temp.path().join("kubepods/pod1")).unwrap();
    let report = fixture.reconciler.sweep(&fixture.permit);
    assert_eq!((report.draining.len(), report.removed.len()), (0, 2));
    let resolved = fixture.reconciler.index().resolve(id).unwrap();
    assert!(!resolved.alive, "late events still find it");
}

#[test]
fn a_pod_that_comes_back_while_draining_is_planned_again() {
    let mut fixture = Fixture::new(TREE);
    drop(fixture.reconcile(&plan("8192")));
    fs::write(fixture.temp.path().join("kubepods/pod1/cgroup.events"), "populated 1\n").unwrap();
    fs::write(fixture.temp.path().join("kubepods/pod1/app/cgroup.events"), "populated 1\n").unwrap();
    drop(fixture.reconcile(&without_pods()));
    let report = fixture.reconcile(&plan("8192"));
    assert!(report.is_converged() && report.draining.is_empty(), "{report:?}");
    assert!(fixture.reconciler.container_path(&name(), "app").is_some());
}

#[test]
fn a_retired_uid_is_neither_made_nor_written() {
    let mut fixture = Fixture::new(&["kubepods"]);
    let permit = Permit::for_enforce_mode();
    let report = fixture.reconciler.reconcile(&plan("8192"), &[uid()], Some(&permit));
    assert!(report.created.is_empty() && report.failed.is_empty());
    assert!(!fixture.temp.path().join("kubepods/pod1").exists());
}

#[test]
fn a_cgroup_that_was_made_anew_gets_its_values_and_a_new_name_in_the_index() {
    let mut fixture = Fixture::new(TREE);
    drop(fixture.reconcile(&plan("8192")));
    let old = fixture.id("/kubepods/pod1/app");
    let app = fixture.temp.path().join("kubepods/pod1/app");
    let aside = fixture.temp.path().join("aside");
    fs::rename(&app, &aside).unwrap();
    fs::create_dir(&app).unwrap();
    for entry in fs::read_dir(&aside).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), app.join(entry.file_name())).unwrap();
    }
    fs::write(app.join("memory.max"), "max\n").unwrap();
    let report = fixture.reconcile(&plan("8192"));
    assert_eq!(report.written.len(), 1);
    assert_eq!(report.written[0].reason, Reason::Initial);
    let index = fixture.reconciler.index();
    assert!(!index.resolve(old).unwrap().alive);
    assert!(index.resolve(fixture.id("/kubepods/pod1/app")).unwrap().alive);
}

#[test]
fn strangers_are_reported_and_never_touched() {
    let mut fixture = Fixture::new(&["kubepods", "kubepods/pod1", "kubepods/pod1/app", "kubepods/other"]);
    fixture.empty("kubepods/other");
    for _ in 0..2 {
        let report = fixture.reconcile(&plan("8192"));
        let strangers: Vec<&str> = report.strangers.iter().map(CgroupPath::as_str).collect();
        assert_eq!(strangers, ["/kubepods/other"]);
    }
    drop(fixture.reconcile(&without_pods()));
    assert!(fixture.temp.path().join("kubepods/other").exists());
}

#[test]
fn a_file_that_another_insists_on_is_written_back_later_after_three_rounds() {
    let mut fixture = Fixture::new(TREE);
    drop(fixture.reconcile(&plan("8192")));
    let round = |fixture: &mut Fixture| {
        fixture.write("kubepods/pod1/cpu.weight", "1\n");
        let changes = Changes {
            written: [(CgroupPath::parse("/kubepods/pod1").unwrap(), String::from("cpu.weight"))].into(),
            ..Changes::default()
        };
        let report = fixture.reconciler.look_at(&changes, Some(&fixture.permit));
        let reported: Vec<DriftAction> = report.drifted.iter().map(|drift| drift.action).collect();
        (reported, report.written.len(), fixture.read("kubepods/pod1/cpu.weight"))
    };
    for _ in 0..3 {
        assert_eq!(round(&mut fixture), (vec![DriftAction::Restored], 1, String::from("79")));
    }
    assert_eq!(round(&mut fixture), (vec![DriftAction::Delayed], 0, String::from("1\n")));
    assert_eq!(round(&mut fixture), (vec![], 0, String::from("1\n")));
    assert!(fixture.reconcile(&plan("8192")).written.is_empty());
    let insists = |fixture: &Fixture| {
        let problems = fixture.reconciler.problems();
        problems
            .iter()
            .any(|problem| (problem.what, problem.place.as_str()) == ("drift", "/kubepods/pod1/cpu.weight"))
    };
    assert!(insists(&fixture));
    // A second later, though it writes all the time.
    fixture.wait(Duration::from_millis(600));
    assert_eq!(round(&mut fixture), (vec![], 0, String::from("1\n")));
    assert!(fixture.reconciler.write_back(Some(&fixture.permit)).is_converged());
    fixture.wait(Duration::from_millis(400));
    let report = fixture.reconciler.write_back(Some(&fixture.permit));
    assert_eq!((report.written.len(), fixture.read("kubepods/pod1/cpu.weight").as_str()), (1, "79"));
    assert_eq!(report.drifted.first().map(|drift| drift.action), Some(DriftAction::Restored));
    // Then after two seconds; but at once when it has stopped.
    assert_eq!(round(&mut fixture), (vec![], 0, String::from("1\n")), "reported once");
    assert!(insists(&fixture));
    fixture.wait(Duration::from_millis(1_200));
    let report = fixture.reconciler.write_back(Some(&fixture.permit));
    assert_eq!((report.written.len(), fixture.read("kubepods/pod1/cpu.weight").as_str()), (1, "79"));
    assert!(!insists(&fixture));
    assert_eq!(fixture.reconciler.contest_due(), None);
}

#[test]
fn what_is_contested_and_no_longer_there_is_waited_for_no_longer() {
    let mut fixture = Fixture::new(TREE);
    drop(fixture.reconcile(&plan("8192")));
    for _ in 0..4 {
        fixture.write("kubepods/pod1/cpu.weight", "1\n");
        drop(fixture.reconcile(&plan("8192")));
    }
    assert!(fixture.reconciler.contest_due().is_some());
    fixture.write("kubepods/pod1/cpu.weight", "79\n");
    fixture.wait(Duration::from_secs(1));
    assert!(fixture.reconciler.write_back(Some(&fixture.permit)).is_converged());
    assert_eq!(fixture.reconciler.contest_due(), None);
}

#[test]
fn what_is_only_reported_stays_and_what_is_the_kubelets_is_audited() {
    let mut fixture = Fixture::new(TREE);
    fixture.reconciler.set_drift(DriftPolicy::new(OnDrift::Report));
    drop(fixture.reconcile(&plan("8192")));
    fixture.write("kubepods/pod1/cpu.weight", "1\n");
    let report = fixture.reconcile(&plan("8192"));
    let [drift] = &report.drifted[..] else { panic!("{report:?}") };
    assert_eq!(
        (drift.action, drift.planned.as_str(), drift.found.as_str()),
        (DriftAction::Reported, "79", "1")
    );
    assert_eq!((report.written.len(), fixture.read("kubepods/pod1/cpu.weight").as_str()), (0, "1\n"));

    let mut fixture = Fixture::new(TREE);
    fixture.reconciler.set_audit();
    let early = fixture.reconciler.reconcile(&plan("8192"), &[], None);
    assert!(early.drifted.is_empty(), "its owner may be at work: {early:?}");
    assert!(fixture.reconciler.contest_due().is_some());
    fixture.ahead_ms.fetch_add(5_000, Ordering::Relaxed);
    let report = fixture.reconciler.write_back(None);
    let audited: Vec<_> = report.drifted.iter().map(|drift| (drift.action, drift.file.to_string())).collect();
    assert_eq!(audited.len(), 4, "{report:?}");
    assert!(audited.iter().all(|(action, _)| *action == DriftAction::Audited));
    let again = fixture.reconciler.reconcile(&plan("8192"), &[], None);
    assert!(again.drifted.is_empty(), "each difference is reported once");
    assert_eq!(fixture.read("kubepods/cpu.weight"), "100\n");
}

#[test]
fn a_limit_below_usage_is_reached_by_reclaim() {
    let mut fixture = Fixture::new(TREE);
    let run_dir = tempfile::tempdir().unwrap();
    let intents = Intents::open_lasting(run_dir.path(), "b").unwrap();
    let (wake, woken) = std::sync::mpsc::channel();
    let lowering = Lowering::new(intents.limits, move || wake.send(()).unwrap_or_default());
    fixture.reconciler.set_lowering(lowering.patience(Duration::from_mins(1)));
    drop(fixture.reconcile(&plan("8192000")));
    for (file, content) in [("memory.current", "4096000\n"), ("memory.high", "max\n"), ("memory.reclaim", "")]
    {
        fixture.write(&format!("kubepods/pod1/app/{file}"), content);
    }
    let report = fixture.reconcile(&plan("1638400"));
    assert_eq!((report.withheld.len(), report.abandoned.len()), (1, 0), "{report:?}");
    // As the kernel does when it is asked to.
    while fixture.read("kubepods/pod1/app/memory.reclaim").is_empty() {
        std::thread::yield_now();
    }
    assert_eq!(fixture.read("kubepods/pod1/app/memory.high"), "1587200", "a little below the limit");
    let again = fixture.reconcile(&plan("1638400"));
    assert!(again.written.is_empty() && again.drifted.is_empty(), "memory.high is left alone: {again:?}");
    fixture.write("kubepods/pod1/app/memory.current", "1500000\n");
    woken.recv_timeout(Duration::from_mins(1)).unwrap();
    let report = fixture.reconcile(&plan("1638400"));
    assert_eq!(report.written.len(), 1, "{report:?}");
    assert_eq!(fixture.read("kubepods/pod1/app/memory.max"), "1638400");
    assert!(fixture.read("kubepods/pod1/app/memory.high").starts_with("max"), "it has its value back");
    drop(fixture);
    assert_eq!(Intents::open_lasting(run_dir.path(), "b").unwrap().left, []);
}

#[test]
fn a_throttle_that_cannot_be_lifted_is_reported_and_tried_again() {
    let mut fixture = Fixture::new(TREE);
    let run_dir = tempfile::tempdir().unwrap();
    let intents = Intents::open_lasting(run_dir.path(), "b").unwrap();
    let (wake, woken) = std::sync::mpsc::channel();
    let lowering = Lowering::new(intents.limits, move || wake.send(()).unwrap_or_default());
    fixture.reconciler.set_lowering(lowering.patience(Duration::ZERO));
    drop(fixture.reconcile(&plan("8192000")));
    for (file, content) in [("memory.current", "4096000\n"), ("memory.high", "max\n"), ("memory.reclaim", "")]
    {
        fixture.write(&format!("kubepods/pod1/app/{file}"), content);
    }
    drop(fixture.reconcile(&plan("1638400")));
    woken.recv_timeout(Duration::from_mins(1)).unwrap();
    // A directory cannot be read as a file.
    let high = fixture.temp.path().join("kubepods/pod1/app/memory.high");
    fs::remove_file(&high).unwrap();
    fs::create_dir(&high).unwrap();
    let is_stuck = |fixture: &Fixture| {
        fixture.reconciler.problems().iter().any(|problem| problem.place == "/kubepods/pod1/app/memory.high")
    };
    drop(fixture.reconcile(&plan("1638400")));
    assert!(is_stuck(&fixture));
    let recorded = || Intents::open_lasting(run_dir.path(), "b").unwrap().left.len();
    assert_eq!(recorded(), 1, "the next start would restore it");
    fs::remove_dir(&high).unwrap();
    fs::write(&high, "1587200\n").unwrap();
    fixture.wait(Duration::from_secs(1));
    drop(fixture.reconcile(&plan("8192000")));
    assert!(!is_stuck(&fixture));
    assert!(fs::read_to_string(&high).unwrap().starts_with("max"));
    assert_eq!(recorded(), 0);
}

#[test]
fn a_limit_that_cannot_be_reached_is_given_up_and_tried_again_later() {
    let mut fixture = Fixture::new(TREE);
    let run_dir = tempfile::tempdir().unwrap();
    let intents = Intents::open_lasting(run_dir.path(), "b").unwrap();
    let (wake, woken) = std::sync::mpsc::channel();
    let lowering = Lowering::new(intents.limits, move || wake.send(()).unwrap_or_default());
    fixture.reconciler.set_lowering(lowering.patience(Duration::ZERO));
    drop(fixture.reconcile(&plan("8192000")));
    for (file, content) in [("memory.current", "4096000\n"), ("memory.high", "max\n"), ("memory.reclaim", "")]
    {
        fixture.write(&format!("kubepods/pod1/app/{file}"), content);
    }
    drop(fixture.reconcile(&plan("1638400")));
    woken.recv_timeout(Duration::from_mins(1)).unwrap();
    // A look at another cgroup neither ends it nor forgets that it did not fit.
    let other = Changes {
        written: [(CgroupPath::parse("/kubepods").unwrap(), String::from("cpu.weight"))].into(),
        ..Changes::default()
    };
    assert!(fixture.reconciler.look_at(&other, Some(&fixture.permit)).abandoned.is_empty());
    assert!(fixture.read("kubepods/pod1/app/memory.high").starts_with("1587200"));
    let report = fixture.reconcile(&plan("1638400"));
    let [abandoned] = &report.abandoned[..] else { panic!("{report:?}") };
    assert!(abandoned.message.contains("4096000 bytes are in use"), "{abandoned:?}");
    assert_eq!(fixture.read("kubepods/pod1/app/memory.max"), "8192000");
    assert!(fixture.read("kubepods/pod1/app/memory.high").starts_with("max"));
    assert_eq!(fixture.reconciler.problems().len(), 1);
    assert!(fixture.reconciler.due().is_some());
    // Less is used: it is written without more ado, and no problem any longer.
    fixture.write("kubepods/pod1/app/memory.current", "4096\n");
    let report = fixture.reconcile(&plan("1638400"));
    assert_eq!(report.written.len(), 1);
    assert_eq!((fixture.reconciler.problems(), fixture.reconciler.due()), (vec![], None));
}

#[test]
fn what_is_frozen_is_reported_for_as_long_as_it_is() {
    let mut fixture = Fixture::new(TREE);
    drop(fixture.reconcile(&plan("8192")));
    let app = CgroupPath::parse("/kubepods/pod1/app").unwrap();
    for (events, count) in [("populated 1\nfrozen 1\n", 1), ("populated 1\nfrozen 0\n", 0)] {
        fixture.write("kubepods/pod1/app/cgroup.events", events);
        let changes = Changes { populated: [app.clone()].into(), ..Changes::default() };
        drop(fixture.reconciler.look_at(&changes, Some(&fixture.permit)));
        assert_eq!(fixture.reconciler.problems().len(), count);
    }
}

#[test]
fn what_was_written_is_given_back_at_the_end() {
    let mut fixture = Fixture::new(&[TREE, &["system.slice"]].concat());
    fixture.write("system.slice/cpu.weight", "39\n");
    let reserved = vec![cgroup("/system.slice", &[("cpu.weight", "157")])];
    drop(fixture.reconcile(&Plan { reserved, ..plan("8192") }));
    assert_eq!(fixture.read("system.slice/cpu.weight"), "157");
    for cgroup in ["kubepods/pod1", "kubepods/pod1/app"] {
        fixture.write(&format!("{cgroup}/cgroup.events"), "populated 1\n");
    }
    let report = fixture.reconciler.release(&fixture.permit);
    assert!(report.errors.is_empty() && report.failed.is_empty(), "{report:?}");
    assert!(fixture.read("system.slice/cpu.weight").starts_with("39"));
    assert_eq!(fixture.read("kubepods/pod1/cpu.weight"), "100");
    assert!(fixture.read("kubepods/pod1/app/memory.max").starts_with("max"));
    assert!(fixture.temp.path().join("kubepods/pod1").exists(), "it holds processes");
}

#[test]
fn controllers_that_another_takes_away_are_handed_on_again() {
    let mut fixture = Fixture::new(TREE);
    drop(fixture.reconcile(&plan("8192")));
    fixture.write("kubepods/pod1/cgroup.subtree_control", "cpu\n");
    let changes = Changes {
        written: [(CgroupPath::parse("/kubepods/pod1").unwrap(), String::from("cgroup.subtree_control"))]
            .into(),
        ..Changes::default()
    };
    let report = fixture.reconciler.look_at(&changes, Some(&fixture.permit));
    let [(path, controllers)] = &report.enabled[..] else { panic!("{report:?}") };
    assert_eq!((path.as_str(), controllers.len()), ("/kubepods/pod1", 5));
}

#[test]
fn a_pods_cgroup_counts_as_made_by_us_though_a_kill_came_before_its_mark() {
    let mut fixture = Fixture::new(TREE);
    drop(fixture.reconcile(&plan("8192")));
    let made = |path: &str| fixture.reconciler.ledger.made(fixture.id(path));
    assert!(made("/kubepods/pod1") && made("/kubepods/pod1/app"));
    assert!(!made("/kubepods"), "kubepods may be another's");
    let mut fixture = Fixture::new(&["kubepods", "system.slice/web.service"]);
    drop(fixture.reconcile(&adopting("/system.slice/web.service", "8192")));
    assert!(!fixture.reconciler.ledger.made(fixture.id("/system.slice/web.service")));
}
