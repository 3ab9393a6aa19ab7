//! What is left of pods that are to be gone, beside containers with CPUs of their own.

use super::*;
use crate::policy::{Settings, cpus::Assignments};

const TREE: [&str; 7] = [
    "kubepods",
    "kubepods/podbatch",
    "kubepods/podbatch/app",
    "kubepods/podold",
    "kubepods/podold/app",
    "kubepods/podalone",
    "kubepods/podalone/app",
];

fn scene() -> Fixture {
    let fixture = Fixture::new(&TREE);
    // Who is to be alone on others has one by now, and comes first by its path.
    for (pod, cpus) in [("batch", "\n"), ("old", "\n"), ("alone", "0\n")] {
        fixture.write(&format!("kubepods/pod{pod}/app/cpuset.cpus"), cpus);
    }
    fixture
}

fn uid_of(pod: &str) -> PodUid {
    PodUid::new(pod).unwrap()
}

fn pod(name: &str, containers: &[&str]) -> Arc<PodPlan> {
    let path = format!("/kubepods/pod{name}");
    let container = |name: &&str| ContainerPlan {
        adopted: false,
        name: (*name).to_owned(),
        kind: ContainerKind::App,
        oom_score_adj: 1000,
        cgroup: cgroup(&format!("{path}/{name}"), &[("memory.max", "8192")]),
    };
    let containers = containers.iter().map(container).collect();
    let full = PodName { namespace: "default".into(), name: name.to_owned() };
    PodPlan { containers, ..PodPlan::new(full, uid_of(name), CgroupPath::parse(&path).unwrap()) }.into()
}

/// These pods with a container each, some with CPUs of their own.
fn pinned(pods: &[&str], shared: &str, own: &[(&str, &str)]) -> Plan {
    plan_of(pods.iter().map(|name| pod(name, &["app"])).collect(), shared, own)
}

fn plan_of(pods: Vec<Arc<PodPlan>>, shared: &str, own: &[(&str, &str)]) -> Plan {
    let mut plan = Plan { pods, ..without_pods() };
    let mut assignments = Assignments { default_cpu_set: shared.parse().unwrap(), ..Assignments::default() };
    for (name, cpus) in own {
        let containers = assignments.entries.entry(uid_of(name)).or_default();
        containers.insert(String::from("app"), cpus.parse().unwrap());
    }
    plan.pin(&assignments, &Settings::default());
    plan
}

fn populate(fixture: &Fixture, pod: &str) {
    for cgroup in [format!("kubepods/pod{pod}"), format!("kubepods/pod{pod}/app")] {
        fixture.write(&format!("{cgroup}/cgroup.events"), "populated 1\nfrozen 0\n");
    }
}

fn cpus(fixture: &Fixture, cgroup: &str) -> String {
    fixture.read(&format!("kubepods/pod{cgroup}/cpuset.cpus")).trim_end().to_owned()
}

/// Where CPUs were written, in that order.
fn written(report: &Report) -> Vec<&str> {
    let file = KeptFile::from(CgroupFile::CpusetCpus);
    let of_cpus = report.written.iter().filter(|write| write.change.file == file);
    of_cpus.map(|write| write.path.as_str()).collect()
}

fn path(text: &str) -> CgroupPath {
    CgroupPath::parse(text).unwrap()
}

#[test]
fn what_runs_on_of_a_removed_pod_leaves_cpus_before_another_gets_them_for_itself() {
    let mut fixture = scene();
    drop(fixture.reconcile(&pinned(&["batch"], "0-7", &[])));
    assert_eq!(cpus(&fixture, "batch/app"), "0-7");
    populate(&fixture, "batch");
    let with_alone = pinned(&["alone"], "0-1,4-7", &[("alone", "2-3")]);
    let report = fixture.reconcile(&with_alone);
    assert_eq!(written(&report), ["/kubepods/podbatch/app", "/kubepods/podalone/app"], "{report:?}");
    assert_eq!(cpus(&fixture, "batch/app"), "0-1,4-7");
    assert_eq!(cpus(&fixture, "alone/app"), "2-3");
    assert_eq!(fixture.read("kubepods/podbatch/app/memory.max"), "8192", "its other files stay unchanged");
    let going: Vec<_> = fixture.reconciler.going().map(|(_, owner)| owner.path.as_str()).collect();
    assert_eq!(going, ["/kubepods/podbatch", "/kubepods/podbatch/app"]);
    assert!(written(&fixture.reconcile(&with_alone)).is_empty());
    // Another program gives it all CPUs.
    fixture.write("kubepods/podbatch/app/cpuset.cpus", "0-7\n");
    let changes = Changes {
        written: [(path("/kubepods/podbatch/app"), String::from("cpuset.cpus"))].into(),
        ..Changes::default()
    };
    let report = fixture.reconciler.look_at(&changes, Some(&fixture.permit));
    assert_eq!(written(&report), ["/kubepods/podbatch/app"], "{report:?}");
    assert_eq!(cpus(&fixture, "batch/app"), "0-1,4-7");
    // It ends.
    fs::remove_dir_all(fixture.temp.path().join("kubepods/podbatch")).unwrap();
    let changes =
        Changes { children: [path("/kubepods"), path("/kubepods/podbatch")].into(), ..Changes::default() };
    let report = fixture.reconciler.look_at(&changes, Some(&fixture.permit));
    assert_eq!(report.removed.len(), 2, "{report:?}");
    assert_eq!(fixture.reconciler.going().count(), 0);
}

#[test]
fn survivors_of_evicted_pods_leave_them_too_and_keep_those_of_their_own() {
    let mut fixture = scene();
    drop(fixture.reconcile(&pinned(&["batch", "old"], "0-1,4-7", &[("old", "2-3")])));
    populate(&fixture, "batch");
    populate(&fixture, "old");
    let plan = pinned(&["batch", "old", "alone"], "0-1,6-7", &[("old", "2-3"), ("alone", "4-5")]);
    let evicted = [uid_of("batch"), uid_of("old")];
    let report = fixture.reconciler.reconcile(&plan, &evicted, Some(&fixture.permit));
    assert_eq!(written(&report), ["/kubepods/podbatch/app", "/kubepods/podalone/app"], "{report:?}");
    let all = ["batch/app", "old/app", "alone/app"].map(|of| cpus(&fixture, of));
    assert_eq!(all, ["0-1,6-7", "2-3", "4-5"]);
    assert_eq!(fixture.read("kubepods/podbatch/app/memory.max"), "8192");
}

#[test]
fn a_renamed_container_keeps_its_values_but_no_cpus_that_another_has_for_itself() {
    let mut fixture = Fixture::new(&[&TREE[..], &["kubepods/podbatch/x", "kubepods/podbatch/y"]].concat());
    for cgroup in ["podbatch/app", "podbatch/x", "podbatch/y", "podalone/app"] {
        fixture.write(&format!("kubepods/{cgroup}/cpuset.cpus"), "\n");
    }
    drop(fixture.reconcile(&plan_of(vec![pod("batch", &["app", "x", "y"])], "0-7", &[])));
    populate(&fixture, "batch");
    let pods = vec![pod("batch", &["x", "y"]), pod("alone", &["app"])];
    drop(fixture.reconcile(&plan_of(pods, "0-1,4-7", &[("alone", "2-3")])));
    assert_eq!(cpus(&fixture, "batch/app"), "0-1,4-7");
    assert_eq!(fixture.read("kubepods/podbatch/app/memory.max"), "8192");
}

#[test]
fn what_runs_on_of_a_removed_pod_gets_all_cpus_back_once_none_has_any_for_itself() {
    let mut fixture = scene();
    drop(fixture.reconcile(&pinned(&["batch"], "0-1", &[])));
    assert_eq!(cpus(&fixture, "batch/app"), "0-1");
    populate(&fixture, "batch");
    let report = fixture.reconcile(&without_pods());
    assert_eq!(written(&report), ["/kubepods/podbatch/app"], "{report:?}");
    assert_eq!(report.written.len(), 1, "its other files stay unchanged");
    assert_eq!(report.written[0].change.old.as_deref(), Some("0-1"));
    // As the kernel shows it.
    fixture.write("kubepods/podbatch/app/cpuset.cpus", "\n");
    assert!(written(&fixture.reconcile(&without_pods())).is_empty());
    assert_eq!(fixture.read("kubepods/podbatch/app/memory.max"), "8192");
}

#[test]
fn what_cannot_be_kept_off_is_named() {
    let mut fixture = scene();
    drop(fixture.reconcile(&pinned(&["batch"], "0-7", &[])));
    populate(&fixture, "batch");
    fs::remove_file(fixture.temp.path().join("kubepods/podbatch/app/cpuset.cpus")).unwrap();
    drop(fixture.reconcile(&pinned(&["alone"], "0-1,4-7", &[("alone", "2-3")])));
    let problems = fixture.reconciler.problems();
    let is_it = |problem: &crate::cgroup::Problem| {
        problem.what == "limits" && problem.place == "/kubepods/podbatch/app/cpuset.cpus"
    };
    assert!(problems.iter().any(is_it), "{problems:?}");
}

#[test]
fn what_a_runtime_made_in_a_removed_pod_leaves_them_too() {
    let mut fixture = Fixture::new(&[&TREE[..], &["kubepods/podbatch/made"]].concat());
    for cgroup in ["podbatch/app", "podbatch/made", "podalone/app"] {
        fixture.write(&format!("kubepods/{cgroup}/cpuset.cpus"), "\n");
    }
    drop(fixture.reconcile(&pinned(&["batch"], "0-7", &[])));
    assert_eq!(cpus(&fixture, "batch/made"), "0-7");
    populate(&fixture, "batch");
    let with_alone = pinned(&["alone"], "0-1,4-7", &[("alone", "2-3")]);
    for _ in 0..2 {
        drop(fixture.reconcile(&with_alone));
        assert_eq!(cpus(&fixture, "batch/made"), "0-1,4-7");
        assert!(fixture.read("kubepods/podbatch/made/memory.max").starts_with("max"), "it is not ours");
    }
}

#[test]
fn only_cgroups_that_come_or_go_count_as_a_change() {
    let mut fixture = Fixture::new(super::TREE);
    drop(fixture.reconcile(&plan("8192")));
    assert!(fixture.reconciler.take_change(), "they came");
    drop(fixture.reconcile(&plan("16384")));
    assert!(!fixture.reconciler.take_change(), "other values");
    fixture.write("kubepods/pod1/memory.max", "4096\n");
    let written = (CgroupPath::parse("/kubepods/pod1").unwrap(), String::from("memory.max"));
    let changes = Changes { written: [written].into(), ..Changes::default() };
    let report = fixture.reconciler.look_at(&changes, Some(&fixture.permit));
    assert_eq!((report.written.len(), fixture.reconciler.take_change()), (1, false), "a value");
    drop(fixture.reconcile(&without_pods()));
    assert!(fixture.reconciler.take_change(), "they are to go");
}
