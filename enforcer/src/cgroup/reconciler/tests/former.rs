//! Pods that stand elsewhere by a new plan.

use std::{
    process::{Child, Command},
    sync::Arc,
};

use super::*;

const BEST_EFFORT: &str = "/kubepods/besteffort/pod1";
const BURSTABLE: &str = "/kubepods/burstable/pod1";

/// The pod with its cgroup at that path, and containers of these names and scores.
fn pod_at(path: &str, memory: &str, containers: &[(&str, i16)]) -> Plan {
    let mut plan = plan(memory);
    plan.qos = [(QosClass::Burstable, "burstable"), (QosClass::BestEffort, "besteffort")]
        .map(|(class, name)| (class, cgroup(&format!("/kubepods/{name}"), &[])))
        .into();
    let pod = Arc::make_mut(&mut plan.pods[0]);
    pod.cgroup = cgroup(path, &[("memory.max", memory)]);
    let container = pod.containers.remove(0);
    pod.containers = containers
        .iter()
        .map(|(name, score)| ContainerPlan {
            name: (*name).to_owned(),
            oom_score_adj: *score,
            cgroup: cgroup(&format!("{path}/{name}"), &[("memory.max", memory)]),
            ..container.clone()
        })
        .collect();
    plan
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A pod in the class BestEffort, whose container `app` runs; the cgroups of the other classes stand, empty.
fn running() -> (Fixture, Running) {
    let tree =
        ["", "/app", "/other"].map(|below| [BEST_EFFORT, BURSTABLE].map(|pod| format!("{pod}{below}")));
    let paths: Vec<&str> = tree.iter().flatten().map(|path| path.trim_start_matches('/')).collect();
    let above = ["kubepods", "kubepods/besteffort", "kubepods/burstable"];
    let mut fixture = Fixture::new(&[&above[..], &paths].concat());
    drop(fixture.reconcile(&pod_at(BEST_EFFORT, "max", &[("app", 1000)])));
    let process = Running(Command::new("sleep").arg("1000").spawn().unwrap());
    fill(&fixture, BEST_EFFORT, "app", &process);
    (fixture, process)
}

fn fill(fixture: &Fixture, pod: &str, container: &str, process: &Running) {
    for path in [pod.to_owned(), format!("{pod}/{container}")] {
        fixture.write(&format!("{}/cgroup.events", path.trim_start_matches('/')), "populated 1\n");
    }
    let procs = format!("{pod}/{container}/cgroup.procs");
    fixture.write(procs.trim_start_matches('/'), &format!("{}\n", process.0.id()));
}

fn file(fixture: &Fixture, cgroup: &str, name: &str) -> String {
    fixture.read(format!("{cgroup}/{name}").trim_start_matches('/')).trim_end().to_owned()
}

fn path(text: &str) -> CgroupPath {
    CgroupPath::parse(text).unwrap()
}

fn steps(report: &Report) -> Vec<&Step> {
    report.planned.iter().filter(|step| matches!(step, Step::Move { .. })).collect()
}

#[test]
fn what_runs_is_limited_where_it_is_and_moved_when_the_evictor_knows_both_places() {
    let (mut fixture, process) = running();
    let burstable = pod_at(BURSTABLE, "8192", &[("app", 900)]);
    let (from, to) = (path(&format!("{BEST_EFFORT}/app")), path(&format!("{BURSTABLE}/app")));
    let said = fixture.reconciler.reconcile(&burstable, &[], None);
    assert_eq!(steps(&said), [&Step::Move { from: from.clone(), to: to.clone() }]);
    assert_eq!(file(&fixture, BURSTABLE, "app/cgroup.procs"), "");

    let report = fixture.reconcile(&burstable);
    assert!(report.moved.is_empty() && report.failed.is_empty(), "{report:?}");
    assert_eq!(file(&fixture, BEST_EFFORT, "memory.max"), "8192", "{report:?}");
    assert_eq!(file(&fixture, BEST_EFFORT, "app/memory.max"), "8192");
    assert_eq!(fixture.reconciler.score(&from), Some(900));
    let going: Vec<_> = fixture.reconciler.going().map(|(_, owner)| owner.path.clone()).collect();
    assert_eq!(going, [path(BEST_EFFORT), from.clone()]);
    assert!(fixture.reconciler.due().is_some());

    fixture.reconciler.set_movable([path(BEST_EFFORT)].into());
    let report = fixture.reconcile(&burstable);
    // No kernel takes it off the list here: it is reported as a process that stays.
    let [moved] = &report.moved[..] else { panic!("{report:?}") };
    assert_eq!((&moved.from, &moved.to), (&from, &to));
    assert!(file(&fixture, BURSTABLE, "app/cgroup.procs").starts_with(&process.0.id().to_string()));
    assert_eq!(fixture.reconciler.problems().len(), 1);
    // The next plan has it back where it came from.
    let back = pod_at(BEST_EFFORT, "max", &[("app", 1000)]);
    let said = fixture.reconciler.reconcile(&back, &[], None);
    assert!(steps(&said).is_empty(), "nothing runs in the other place: {said:?}");
}

#[test]
fn a_former_cgroup_counts_as_long_as_its_pod_runs_and_is_charged_there() {
    let (mut fixture, process) = running();
    drop(fixture.reconcile(&pod_at(BURSTABLE, "67108864", &[("app", 900)])));
    let is_charged = |fixture: &Fixture, at: &str| {
        let known = fixture.reconciler.standing.get(&path(at)).unwrap();
        fixture.reconciler.is_charged(&path(at), known).unwrap()
    };
    let memory = format!("{BEST_EFFORT}/memory.current");
    fixture.write(memory.trim_start_matches('/'), "33554432\n");
    assert!(!is_charged(&fixture, BEST_EFFORT), "nothing of the pod runs elsewhere");
    fill(&fixture, BURSTABLE, "app", &process);
    assert!(is_charged(&fixture, BEST_EFFORT));
    assert!(!is_charged(&fixture, BURSTABLE), "it is not a former one");
    fixture.write(memory.trim_start_matches('/'), "1048576\n");
    assert!(!is_charged(&fixture, BEST_EFFORT), "the kernel's own residue keeps none");
}

#[test]
fn a_renamed_container_stays_with_the_values_of_its_pods_only_one() {
    let (mut fixture, _process) = running();
    // It is no pod's by these plans.
    fs::remove_dir_all(fixture.temp.path().join("kubepods/burstable/pod1")).unwrap();
    drop(fixture.reconcile(&pod_at(BEST_EFFORT, "8192", &[("other", 950)])));
    fixture.reconciler.set_movable([path(BEST_EFFORT)].into());
    let report = fixture.reconcile(&pod_at(BEST_EFFORT, "8192", &[("other", 950)]));
    assert!(report.moved.is_empty(), "{report:?}");
    assert_eq!(file(&fixture, BEST_EFFORT, "app/memory.max"), "8192");
    let app = path(&format!("{BEST_EFFORT}/app"));
    assert_eq!(fixture.reconciler.score(&app), Some(950));
    assert!(fixture.reconciler.problems().is_empty(), "{:?}", fixture.reconciler.problems());

    // Of several it is none: it keeps what it has, and the highest score.
    let two = pod_at(BEST_EFFORT, "16384", &[("other", 900), ("third", 960)]);
    fs::create_dir_all(fixture.temp.path().join("kubepods/besteffort/pod1/third")).unwrap();
    drop(fixture.reconcile(&two));
    assert_eq!(file(&fixture, BEST_EFFORT, "app/memory.max"), "8192");
    assert_eq!(fixture.reconciler.score(&app), Some(960));
    let aligned = [(path(&format!("{BEST_EFFORT}/third")), 970)].into();
    drop(fixture.reconciler.align(aligned, &fixture.permit));
    assert_eq!(fixture.reconciler.score(&app), Some(970), "scores that follow the ranking");
}

#[test]
fn what_is_the_kubelets_is_neither_kept_nor_moved() {
    let (mut fixture, _process) = running();
    fixture.reconciler.set_audit();
    let said = fixture.reconciler.reconcile(&pod_at(BURSTABLE, "8192", &[("app", 900)]), &[], None);
    assert!(steps(&said).is_empty(), "{said:?}");
    assert_eq!(file(&fixture, BEST_EFFORT, "memory.max"), "max");
}

#[test]
fn what_is_given_back_at_the_end_is_not_moved_first() {
    let (mut fixture, _process) = running();
    drop(fixture.reconcile(&pod_at(BURSTABLE, "8192", &[("app", 900)])));
    fixture.reconciler.set_movable([path(BEST_EFFORT)].into());
    let report = fixture.reconciler.release(&fixture.permit);
    assert!(report.moved.is_empty(), "{report:?}");
    assert!(file(&fixture, BEST_EFFORT, "app/memory.max").starts_with("max"));
}

/// As many planned containers stand in the new place as cgroups in the former one.
#[test]
fn what_a_runtime_made_in_a_former_cgroup_keeps_its_values_as_long_as_it_runs() {
    let paths = [BEST_EFFORT, &format!("{BEST_EFFORT}/crio-5f3a"), BURSTABLE, &format!("{BURSTABLE}/app")]
        .map(|path| path.trim_start_matches('/').to_owned());
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let above = ["kubepods", "kubepods/besteffort", "kubepods/burstable"];
    let mut fixture = Fixture::new(&[&above[..], &paths].concat());
    drop(fixture.reconcile(&pod_at(BEST_EFFORT, "8192", &[("app", 1000)])));
    let process = Running(Command::new("sleep").arg("1000").spawn().unwrap());
    fill(&fixture, BEST_EFFORT, "crio-5f3a", &process);
    let burstable = pod_at(BURSTABLE, "8192", &[("app", 900)]);
    drop(fixture.reconcile(&burstable));
    drop(fs::remove_dir_all(fixture.temp.path().join("kubepods/besteffort/pod1/app")));
    for _ in 0..2 {
        let report = fixture.reconcile(&burstable);
        assert_eq!(file(&fixture, BEST_EFFORT, "crio-5f3a/memory.max"), "8192", "{report:?}");
        assert!(fixture.reconciler.score(&path(&format!("{BEST_EFFORT}/crio-5f3a"))).is_some());
    }
}
