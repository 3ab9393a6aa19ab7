use std::fs;

use super::*;
use crate::{
    cgroup::Reason,
    model::{ContainerKind, QosClass, ResourceList},
    policy::{CgroupPlan, ContainerPlan, PodPlan, admission::Admission},
};

const CONTROLLERS: &str = "cpuset cpu io memory hugetlb pids\n";

struct Fixture {
    temp: tempfile::TempDir,
    reconciler: Reconciler,
    permit: Permit,
}

impl Fixture {
    /// A tree that holds what the kernel makes in each cgroup; directories that are made later stay empty.
    fn new(cgroups: &[&str]) -> Self {
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
        let reconciler = Reconciler::on(root, Path::new("/proc"), Box::new(CgroupsRs), page, index).unwrap();
        Self { temp, reconciler, permit: Permit::for_enforce_mode() }
    }

    fn reconcile(&mut self, plan: &Plan) -> Report {
        self.reconciler.reconcile(plan, &[], Some(&self.permit))
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.temp.path().join(file)).unwrap()
    }

    fn id(&self, path: &str) -> CgroupId {
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

fn cgroup(path: &str, files: &[(&'static str, &str)]) -> CgroupPlan {
    CgroupPlan {
        path: CgroupPath::parse(path).unwrap(),
        files: files.iter().map(|(file, value)| ((*file).into(), (*value).to_owned())).collect(),
    }
}

fn name() -> PodName {
    PodName { namespace: "default".into(), name: "web".into() }
}

fn uid() -> PodUid {
    PodUid::new("1").unwrap()
}

fn plan(memory: &str) -> Plan {
    let container = ContainerPlan {
        name: "app".into(),
        kind: ContainerKind::App,
        oom_score_adj: 988,
        cgroup: cgroup("/kubepods/pod1/app", &[("memory.max", memory)]),
    };
    let pod = PodPlan {
        name: name(),
        uid: uid(),
        qos_class: QosClass::Guaranteed,
        priority: 0,
        critical: false,
        requests: ResourceList::new(),
        limits: ResourceList::new(),
        ranking_request_bytes: 0,
        cgroup: cgroup("/kubepods/pod1", &[("memory.max", memory), ("cpu.weight", "79")]),
        containers: vec![container],
        admission: Admission::plain(),
    };
    Plan {
        node: cgroup("/kubepods", &[("cpu.weight", "157")]),
        qos: Vec::new(),
        pods: vec![pod],
        reserved: Vec::new(),
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
    assert!(report.is_converged());
    assert_eq!(fixture.read("system.slice/cpu.weight"), "39");
}

const TREE: &[&str] = &["kubepods", "kubepods/pod1", "kubepods/pod1/app"];

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
fn without_a_permit_nothing_is_written_and_the_steps_are_told() {
    let mut fixture = Fixture::new(&["kubepods"]);
    let report = fixture.reconciler.reconcile(&plan("8192"), &[], None);
    assert!(report.written.is_empty() && report.created.is_empty());
    let told: Vec<&Step> = report.planned.iter().filter(|step| matches!(step, Step::Create(_))).collect();
    assert_eq!(told.len(), 2, "{:?}", report.planned);
    assert_eq!(fixture.read("kubepods/cpu.weight"), "100\n");
    assert!(!fixture.temp.path().join("kubepods/pod1").exists());
    assert!(fixture.reconciler.index().resolve(fixture.id("/kubepods")).is_some());
}

#[test]
fn a_foreign_write_is_repaired_and_told_as_drift() {
    let mut fixture = Fixture::new(TREE);
    drop(fixture.reconcile(&plan("8192")));
    fs::write(fixture.temp.path().join("kubepods/pod1/cpu.weight"), "1\n").unwrap();
    let report = fixture.reconcile(&plan("8192"));
    let [write] = report.written.as_slice() else { panic!("{report:?}") };
    assert_eq!(
        (write.reason, write.old.as_deref(), write.value.as_str()),
        (Reason::Drifted, Some("1"), "79")
    );
}

#[test]
fn a_new_plan_is_told_as_such_and_a_dropped_value_given_back() {
    let mut fixture = Fixture::new(TREE);
    drop(fixture.reconcile(&plan("8192")));
    let mut next = plan("4096");
    next.pods[0].cgroup.files.remove("cpu.weight");
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
    assert_eq!((report.withheld.len(), report.written.len()), (0, 1));
    assert_eq!(report.written[0].reason, Reason::PlanChanged, "what was withheld was never written");
}

#[test]
fn a_failure_is_told_once_and_then_marked_as_repeated() {
    let mut fixture = Fixture::new(&["kubepods"]);
    let first = fixture.reconcile(&plan("8192"));
    assert!(!first.failed.is_empty(), "cgroups without files refuse writes");
    assert!(first.failed.iter().all(|failure| !failure.repeated));
    let told = first.failed.len();
    fs::create_dir_all(fixture.temp.path().join("kubepods/pod1/app")).unwrap();
    let second = fixture.reconcile(&plan("8192"));
    assert!(second.failed.iter().all(|failure| failure.repeated), "{second:?}");
    assert!(second.failed.len() <= told);
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
fn strangers_are_told_and_never_touched() {
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
