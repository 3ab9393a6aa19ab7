//! Kernels without a file that is planned: it is named, and the rest is written.
use std::{fs, sync::Arc};

use super::{Fixture, plan};
use crate::{
    policy::{Plan, PodPlan},
    sample::values,
};

const TREE: [&str; 3] = ["kubepods", "kubepods/pod1", "kubepods/pod1/app"];

/// The plan with these values of the container.
fn with(files: &[(&str, &str)]) -> Plan {
    let mut plan = plan("4096");
    let mut pod = PodPlan::clone(&plan.pods[0]);
    pod.containers[0].cgroup.values = values(files).into();
    plan.pods = vec![Arc::new(pod)];
    plan
}

#[test]
fn without_the_files_of_swap_memory_is_limited_all_the_same() {
    let mut fixture = Fixture::new(&TREE);
    let plan = with(&[("memory.max", "4096"), ("memory.swap.max", "8192"), ("cpu.weight", "17")]);
    let report = fixture.reconcile(&plan);
    assert!(report.failed.is_empty(), "{report:?}");
    assert_eq!(fixture.read("kubepods/pod1/app/memory.max").trim(), "4096");
    assert_eq!(fixture.read("kubepods/pod1/app/cpu.weight").trim(), "17");
    let problems = fixture.reconciler.problems();
    let problems: Vec<_> = problems.iter().map(|problem| (problem.what, problem.message.as_str())).collect();
    let missing = "/kubepods/pod1/app/memory.swap.max does not exist: this kernel does not offer it";
    assert_eq!(problems, [("limits", missing)]);
    // It is there after all, as on another kernel after the next boot.
    fs::write(fixture.temp.path().join("kubepods/pod1/app/memory.swap.max"), "4096\n").unwrap();
    let report = fixture.reconcile(&plan);
    assert!(report.failed.is_empty(), "{report:?}");
    assert_eq!(fixture.read("kubepods/pod1/app/memory.swap.max").trim(), "8192");
    assert_eq!(fixture.reconciler.problems(), vec![]);
}
