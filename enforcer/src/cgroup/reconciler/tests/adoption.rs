//! Cgroups that other software made, within a pod or for it.

use std::sync::Arc;

use super::*;

#[test]
fn a_cgroup_that_a_runtime_made_in_a_pod_is_its_container() {
    let mut fixture = Fixture::new(&[TREE, &["kubepods/pod1/crio-5f3a"]].concat());
    let report = fixture.reconcile(&plan("8192"));
    assert_eq!(fixture.read("kubepods/pod1/crio-5f3a/memory.max"), "8192", "{report:?}");
    assert!(report.created.is_empty() && fixture.reconciler.problems().is_empty());
    let resolved = fixture.reconciler.index().resolve(fixture.id("/kubepods/pod1/crio-5f3a")).unwrap();
    assert_eq!(resolved.owner.level.container(), Some("app"));
    assert!(fixture.reconcile(&plan("8192")).is_converged());
    fs::remove_dir_all(fixture.temp.path().join("kubepods/pod1/crio-5f3a")).unwrap();
    let gone =
        Changes { children: [CgroupPath::parse("/kubepods/pod1").unwrap()].into(), ..Changes::default() };
    let report = fixture.reconciler.look_at(&gone, Some(&fixture.permit));
    assert!(report.created.is_empty() && report.failed.is_empty(), "it is not made again: {report:?}");

    // In a pod of two containers nothing says which one it is.
    let mut two = plan("8192");
    let mut other = two.pods[0].containers[0].clone();
    (other.name, other.cgroup) = ("other".into(), cgroup("/kubepods/pod1/other", &[]));
    Arc::make_mut(&mut two.pods[0]).containers.push(other);
    let mut fixture = Fixture::new(&[TREE, &["kubepods/pod1/other", "kubepods/pod1/crio-5f3a"]].concat());
    drop(fixture.reconcile(&two));
    assert_eq!(fixture.read("kubepods/pod1/crio-5f3a/memory.max"), "max\n");
    let problems = fixture.reconciler.problems();
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert_eq!((problem.what, problem.place.as_str()), ("stranger", "/kubepods/pod1/crio-5f3a"));
}

/// The plan of a pod that takes `path`, and of nothing else.
pub(super) fn adopting(path: &str, memory: &str) -> Plan {
    let mut adopting = plan(memory);
    let pod = Arc::make_mut(&mut adopting.pods[0]);
    pod.adopted = true;
    pod.cgroup = cgroup(path, &[("memory.max", memory), ("cpu.weight", "79")]);
    pod.containers[0].cgroup = pod.cgroup.clone();
    pod.containers[0].adopted = true;
    adopting
}

#[test]
fn an_adopted_cgroup_gets_values_and_has_its_own_back_at_the_end() {
    let mut fixture = Fixture::new(&["kubepods", "system.slice/web.service"]);
    fixture.write("system.slice/web.service/memory.max", "65536\n");
    let report = fixture.reconcile(&adopting("/system.slice/web.service", "8192"));
    assert!(report.created.is_empty(), "{report:?}");
    assert!(fixture.read("system.slice/web.service/memory.max").starts_with("8192"));
    assert_eq!(fixture.read("system.slice/web.service/cpu.weight"), "79");
    assert_eq!(
        fixture.reconciler.container_path(&name(), "app").unwrap().as_str(),
        "/system.slice/web.service"
    );
    let report = fixture.reconcile(&without_pods());
    assert!(report.written.iter().all(|write| write.reason == Reason::Released), "{report:?}");
    assert_eq!(fixture.read("system.slice/web.service/memory.max"), "65536");
    assert_eq!(fixture.read("system.slice/web.service/cpu.weight"), "100");
    assert!(fixture.temp.path().join("system.slice/web.service").exists(), "it is not ours to remove");
    let report = fixture.reconcile(&without_pods());
    assert!(report.is_converged(), "{report:?}");
}

#[test]
fn what_may_not_be_adopted_is_reported_and_left_alone() {
    let mut fixture = Fixture::new(&["kubepods", "system.slice/web.service", "system.slice/unseen.service"]);
    fixture.write("system.slice/web.service/cgroup.procs", &format!("{}\n", std::process::id()));
    fixture.write("system.slice/unseen.service/cgroup.procs", "0\n");
    for (path, why) in [
        ("/system.slice/web.service", "it holds this daemon"),
        ("/system.slice/unseen.service", "a process is outside this daemon's PID namespace"),
        ("/lost", "does not exist"),
        ("/kubepods", "is planned already"),
        ("/", "is or holds /kubepods, which is planned already"),
    ] {
        let report = fixture.reconcile(&adopting(path, "8192"));
        let problems = fixture.reconciler.problems().into_iter();
        let reported: Vec<_> = problems.map(|problem| problem.message).collect();
        assert!(reported.len() == 1 && reported[0].contains(why), "{reported:?}");
        assert!(report.written.iter().all(|write| write.path.as_str() == "/kubepods"), "{report:?}");
    }
    assert_eq!(fixture.read("system.slice/web.service/memory.max"), "max\n");
}

/// Whoever ends one of two pods that share processes ends the other too.
#[test]
fn no_pod_adopts_what_another_holds_or_is_held_in() {
    const OTHERS: &str = "/system.slice/web.service";
    for (path, why) in [
        ("/kubepods/pod1", "is planned already"),
        ("/kubepods/pod1/app/inner", "it is within /kubepods/pod1/app, which is another pod's"),
        (OTHERS, "is planned already"),
        ("/system.slice/web.service/inner", "it is within /system.slice/web.service, which is another pod's"),
        ("/system.slice", "it is or holds /system.slice/web.service, which is planned already"),
    ] {
        let tree = ["kubepods/pod1/app/inner", "system.slice/web.service/inner"];
        let mut fixture = Fixture::new(&[TREE, &tree].concat());
        let mut all = plan("8192");
        for (uid, adopted) in [("2", OTHERS), ("3", path)] {
            let mut pod = adopting(adopted, "8192").pods.remove(0);
            let named = Arc::make_mut(&mut pod);
            (named.uid, named.name.name) = (PodUid::new(uid).unwrap(), uid.to_owned());
            all.pods.push(pod);
        }
        drop(fixture.reconcile(&all));
        let reported: Vec<_> =
            fixture.reconciler.problems().into_iter().map(|problem| problem.message).collect();
        assert!(reported.iter().any(|message| message.contains(why)), "{path}: {reported:?}");
        let third = PodUid::new("3");
        let held = fixture.reconciler.cgroups().find(|(_, owner)| owner.level.uid() == third.as_ref());
        assert!(held.is_none(), "{held:?}");
    }
}
