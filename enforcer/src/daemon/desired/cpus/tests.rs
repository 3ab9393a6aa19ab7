use std::{fs, sync::Arc};

use super::{super::PodSet, *};
use crate::{
    journal::Journal,
    model::{Pod, Quantity, Requirements},
    policy::{cpus::CpuOptions, threshold::NodeCondition},
    sample,
    source::{Health, Snapshot, SourceName},
};

/// A machine of two sockets with two cores of two threads each, below a temporary folder.
fn tree() -> tempfile::TempDir {
    let temp = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = temp.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("cpu/online", "0-7");
    for cpu in 0..8 {
        write(
            &format!("cpu/cpu{cpu}/topology/thread_siblings_list"),
            &format!("{},{}", cpu % 4, cpu % 4 + 4),
        );
        write(&format!("cpu/cpu{cpu}/topology/physical_package_id"), &(cpu % 4 / 2).to_string());
    }
    write("node/node0/cpulist", "0-1,4-5");
    write("node/node1/cpulist", "2-3,6-7");
    temp
}

fn settings() -> Settings {
    Settings {
        cpu_manager_policy: CpuManagerPolicy::Static,
        reserved_system_cpus: "0".parse().unwrap(),
        ..Settings::default()
    }
}

fn node() -> Node {
    Node { cpu_milli: 8_000, ..sample::node() }
}

fn cpus(root: &Path) -> Cpus {
    machine(root, &node(), &settings(), "cpuset cpu memory")
}

fn pod_set(own: OwnCpus) -> PodSet {
    let mut pods = PodSet::new(node(), settings());
    pods.set_cpus(PinnedCpus::Own(Box::new(own)));
    pods
}

fn whole(name: &str, cpus: u64) -> Pod {
    let mut pod = sample::pod(name, &["app"]);
    let amounts = [
        (ResourceName::new("cpu"), Quantity::from_units(cpus)),
        (ResourceName::new("memory"), Quantity::from_units(1 << 20)),
    ];
    let (requests, limits) = (amounts.clone().into(), amounts.into());
    pod.containers[0].resources = Requirements { requests, limits };
    pod
}

fn take(pods: &mut PodSet, of: &[&Pod]) -> Vec<String> {
    let named = of.iter().map(|pod| Arc::new(Pod::clone(pod))).collect();
    pods.take(SourceName::STATIC, Snapshot { pods: named, health: Health::Up, read_ms: Some(1) });
    let (decisions, _) = pods.replan();
    decisions.rejected.iter().map(|(_, rejection)| rejection.reason().into_owned()).collect()
}

/// What is planned for the only container of each pod.
fn planned(pods: &PodSet) -> Vec<(String, String)> {
    let cpus = |plan: &Arc<crate::policy::PodPlan>| {
        plan.containers[0].cgroup.values.cpuset_cpus.as_ref().unwrap().to_string()
    };
    pods.plan().pods.iter().map(|plan| (plan.name.name.clone(), cpus(plan))).collect()
}

fn expected(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter().map(|(name, cpus)| ((*name).to_owned(), (*cpus).to_owned())).collect()
}

fn stand(pods: &mut PodSet, of: &[&Pod]) {
    pods.stand(of.iter().map(|pod| pod.uid.clone()).collect());
}

#[test]
fn cpus_go_to_whole_pods_and_come_back_when_their_cgroup_is_gone() {
    let temp = tree();
    let mut pods = pod_set(OwnCpus::new(cpus(temp.path()), Assignments::default(), None));
    let (two, shared) = (whole("two", 2), sample::pod("shared", &["app"]));
    assert!(take(&mut pods, &[&shared, &two]).is_empty());
    assert_eq!(planned(&pods), expected(&[("shared", "0,2-4,6-7"), ("two", "1,5")]));
    stand(&mut pods, &[&shared, &two]);
    take(&mut pods, &[&shared]);
    assert_eq!(planned(&pods), expected(&[("shared", "0,2-4,6-7")]), "its processes may still run");
    stand(&mut pods, &[&shared]);
    assert!(pods.take_new_room());
    pods.replan();
    assert_eq!(planned(&pods), expected(&[("shared", "0-7")]));
}

#[test]
fn who_does_not_get_its_cpus_is_rejected_until_there_are_some() {
    let temp = tree();
    let mut pods = pod_set(OwnCpus::new(cpus(temp.path()), Assignments::default(), None));
    let (six, two) = (whole("six", 6), whole("two", 2));
    assert_eq!(take(&mut pods, &[&six, &two]), ["UnexpectedAdmissionError"]);
    assert_eq!(pods.retired(), std::slice::from_ref(&two.uid));
    stand(&mut pods, &[&six]);
    take(&mut pods, &[&two]);
    assert!(pods.retired().contains(&two.uid), "the other is not gone");
    stand(&mut pods, &[]);
    pods.replan();
    assert!(pods.retired().is_empty());
    // Its number does not change while it runs.
    stand(&mut pods, &[&two]);
    let more = Pod { uid: two.uid.clone(), ..whole("two", 3) };
    assert_eq!(take(&mut pods, &[&more]), ["UnexpectedAdmissionError"]);
    assert_eq!(planned(&pods)[0].1.split(',').count(), 2);
}

#[test]
fn after_a_restart_each_has_what_it_had_in_whatever_order_they_come() {
    let temp = tree();
    let mut kept = Assignments { default_cpu_set: "0,3-4,7".parse().unwrap(), ..Assignments::default() };
    let (late, early) = (whole("late", 4), whole("early", 2));
    let containers = kept.entries.entry(late.uid.clone()).or_default();
    containers.insert(String::from("app"), "1-2,5-6".parse().unwrap());
    let mut pods = pod_set(OwnCpus::new(cpus(temp.path()), kept, None));
    take(&mut pods, &[&early]);
    assert_eq!(planned(&pods), expected(&[("early", "3,7")]), "the other may come yet");
    stand(&mut pods, &[&early, &late]);
    take(&mut pods, &[&early, &late]);
    assert_eq!(planned(&pods), expected(&[("early", "3,7"), ("late", "1-2,5-6")]));
}

#[test]
fn a_pod_whose_manifest_went_while_no_daemon_ran_keeps_its_cpus_until_its_cgroup_is_gone() {
    let temp = tree();
    let (old, shared, six) = (whole("old", 2), sample::pod("shared", &["app"]), whole("six", 6));
    let mut kept = Assignments { default_cpu_set: "0-1,4-7".parse().unwrap(), ..Assignments::default() };
    let containers = kept.entries.entry(old.uid.clone()).or_default();
    containers.insert(String::from("app"), "2-3".parse().unwrap());
    let mut pods = pod_set(OwnCpus::new(cpus(temp.path()), kept, None));
    take(&mut pods, &[&shared]);
    // Its cgroup is recognised by its mark.
    stand(&mut pods, &[&shared, &old]);
    pods.replan();
    assert_eq!(planned(&pods), expected(&[("shared", "0-1,4-7")]));
    assert_eq!(take(&mut pods, &[&shared, &six]), ["UnexpectedAdmissionError"], "5 are free");
    let assignments = pods.cpus().unwrap().assignments().unwrap();
    assert_eq!(assignments.get(&old.uid, "app").unwrap().to_string(), "2-3");
    take(&mut pods, &[&shared]);
    assert_eq!(planned(&pods), expected(&[("shared", "0-1,4-7")]));
    stand(&mut pods, &[&shared]);
    assert!(pods.take_new_room());
    pods.replan();
    assert_eq!(planned(&pods), expected(&[("shared", "0-7")]));
}

#[test]
fn a_pod_waits_until_its_cpus_are_on_the_disk() {
    let (temp, state) = (tree(), tempfile::tempdir().unwrap());
    let woken = Arc::new(tokio::sync::Notify::new());
    let store = CpuStore::start(state.path(), Arc::clone(&woken), Journal::new("n", "b")).unwrap();
    let mut pods = pod_set(OwnCpus::new(cpus(temp.path()), Assignments::default(), Some(store)));
    let (two, shared) = (whole("two", 2), sample::pod("shared", &["app"]));
    take(&mut pods, &[&two, &shared]);
    // Either it waits, or the disk was quick.
    assert!(pods.retired().is_empty() || pods.retired() == std::slice::from_ref(&two.uid));
    while !pods.retired().is_empty() {
        std::thread::yield_now();
        if pods.is_due() {
            pods.replan();
        }
    }
    let kept = cpu_state::read(state.path()).unwrap().unwrap();
    assert_eq!(kept.get(&two.uid, "app").unwrap().to_string(), "1,5");
}

#[test]
fn an_offline_cpu_changes_nothing_and_is_named_with_its_owner() {
    let temp = tree();
    let mut pods = pod_set(OwnCpus::new(cpus(temp.path()), Assignments::default(), None));
    let (two, shared) = (whole("two", 2), sample::pod("shared", &["app"]));
    take(&mut pods, &[&two, &shared]);
    let before = planned(&pods);
    let look = |pods: &mut PodSet, online: &str| {
        fs::write(temp.path().join("cpu/online"), online).unwrap();
        let Some(PinnedCpus::Own(own)) = pods.cpus_mut() else { panic!() };
        let differs = own.look(temp.path());
        let problems = own.problems(ToString::to_string);
        pods.replan();
        (differs, problems)
    };
    assert_eq!(look(&mut pods, "0-7"), (false, vec![]));
    let (differs, problems) = look(&mut pods, "0-4,6-7");
    assert!(differs);
    let [Problem { what: "cpus", place, message }] = &problems[..] else { panic!("{problems:?}") };
    assert_eq!(place, "cpu5");
    assert!(message.contains("container app of pod uid-two has CPUs 1,5 of its own"), "{message}");
    assert_eq!(planned(&pods), before);
    assert_eq!(look(&mut pods, "0-7"), (true, vec![]));
    // What is unreadable is not offline.
    assert_eq!(look(&mut pods, "?"), (false, vec![]));
}

#[test]
fn a_reserved_cpu_that_a_container_has_stays_its_own_and_is_reported() {
    let temp = tree();
    let two = whole("two", 2);
    let mut kept = Assignments { default_cpu_set: "1-3,5-7".parse().unwrap(), ..Assignments::default() };
    let containers = kept.entries.entry(two.uid.clone()).or_default();
    containers.insert(String::from("app"), "0,4".parse().unwrap());
    let mut pods = pod_set(OwnCpus::new(cpus(temp.path()), kept, None));
    take(&mut pods, &[&two]);
    assert_eq!(planned(&pods), expected(&[("two", "0,4")]));
    let Some(PinnedCpus::Own(own)) = pods.cpus() else { panic!() };
    let problems = own.problems(ToString::to_string);
    let [Problem { place, message, .. }] = &problems[..] else { panic!("{problems:?}") };
    assert_eq!(place, "container app of pod uid-two");
    assert!(message.starts_with("CPUs 0 of container app of pod uid-two are reserved"), "{message}");
}

#[test]
fn an_unknown_machine_gives_none_and_says_why() {
    let temp = tree();
    fs::remove_file(temp.path().join("cpu/cpu3/topology/physical_package_id")).unwrap();
    for (cpus, says) in [
        (cpus(temp.path()), "physical_package_id"),
        (machine(tree().path(), &node(), &settings(), "cpu memory"), "the controller cpuset"),
    ] {
        let mut pods = pod_set(OwnCpus::new(cpus, Assignments::default(), None));
        let (two, shared) = (whole("two", 2), sample::pod("shared", &["app"]));
        assert_eq!(take(&mut pods, &[&two, &shared]), ["UnexpectedAdmissionError"]);
        assert!(pods.plan().pods.iter().all(|pod| pod.containers[0].cgroup.values.cpuset_cpus.is_none()));
        let Some(PinnedCpus::Own(own)) = pods.cpus() else { panic!() };
        let problems = own.problems(ToString::to_string);
        assert!(problems.len() == 1 && problems[0].message.contains(says), "{problems:?}");
    }
}

#[test]
fn cpus_are_chosen_for_a_reserved_amount() {
    let temp = tree();
    let amount = [(ResourceName::new("cpu"), Quantity::from_milli(1_100))].into();
    let settings = Settings { reserved_system_cpus: CpuSet::new(), kube_reserved: amount, ..settings() };
    let found = machine(temp.path(), &node(), &settings, "cpuset").unwrap();
    assert_eq!(found.reserved.to_string(), "0,4", "rounded up, a whole core");
    assert_eq!(found.options, CpuOptions::default());
    let all = [(ResourceName::new("cpu"), Quantity::from_units(9))].into();
    let beyond = Settings { kube_reserved: all, ..settings };
    assert!(machine(temp.path(), &node(), &beyond, "cpuset").unwrap_err().contains("the reserved cpu"));
}

#[test]
fn under_pressure_a_refused_pod_keeps_no_cpus() {
    let temp = tree();
    let mut pods = pod_set(OwnCpus::new(cpus(temp.path()), Assignments::default(), None));
    pods.set_conditions([NodeCondition::PidPressure].into_iter().collect());
    let shared = sample::pod("shared", &["app"]);
    assert_eq!(take(&mut pods, &[&whole("two", 2), &shared]), ["Evicted", "Evicted"]);
    assert_eq!(pods.cpus().unwrap().assignments().unwrap().default_cpu_set.to_string(), "0-7");
}
