//! Nothing is moved into a unit of systemd's or out of one: what runs there keeps its place, with the values of today's plan.

use enforcer_tests::{
    cgroup::Cgroup,
    daemon::Daemon,
    wait::{TIMEOUT, wait_until},
};

use super::{Scene, cgroup_of, folder, pod, read, settings_of, wait_until_in};

const BURSTABLE: &str = "{requests: {cpu: 20m, memory: 16Mi}, limits: {cpu: 100m, memory: 32Mi}}";
const GUARANTEED: &str = "{limits: {cpu: 50m, memory: 48Mi}}";

fn score_of(pid: u32) -> i64 {
    read(format!("/proc/{pid}/oom_score_adj").as_ref()).parse().unwrap()
}

#[guest_test(systemd)]
fn what_runs_in_a_slice_of_another_class_or_driver_is_limited_there() {
    const NAME: &str = "edited";
    let scene = Scene::open(NAME, "");
    scene.daemon.manifest("web.yaml", &pod("web", "{}")).unwrap();
    let slice = scene.slice("besteffort-podweb");
    let scope = slice.join("enforcer-web-app.scope");
    let mut first = scene.exec("default/web", &["sleep", "1000"]);
    wait_until_in(&first, &scope);
    wait_until("its score", || score_of(first.id()) == 1000);
    scene.daemon.manifest("web.yaml", &pod("web", BURSTABLE)).unwrap();
    for cgroup in [&slice, &scope] {
        wait_until("the limit", || read(&cgroup.join("memory.max")) == "33554432");
    }
    wait_until("its score", || (2..1000).contains(&score_of(first.id())));
    // A unit has one name: who comes to the container comes to the scope that there is.
    let second = scene.exec("default/web", &["sleep", "1000"]);
    wait_until_in(&second, &scope);

    // The other driver: systemd's cgroups stay, and hold the pod's values.
    let slice_guard = scene.slice;
    scene.daemon.stop().unwrap();
    std::fs::write(folder(NAME).join("pods/web.yaml"), pod("web", GUARANTEED)).unwrap();
    let _root = Cgroup::create(NAME).unwrap();
    let settings = settings_of(NAME, "").replace("cgroupDriver: systemd", "cgroupDriver: cgroupfs");
    let daemon = Daemon::start(&folder(NAME), &settings).unwrap();
    for cgroup in [&slice, &scope] {
        wait_until("the limit", || read(&cgroup.join("memory.max")) == "50331648");
    }
    for process in [&first, &second] {
        wait_until("its score", || score_of(process.id()) == -997);
        assert!(cgroup_of(process.id()).ends_with("/enforcer-web-app.scope"));
    }
    let evicted = daemon.verb(&["evict", "default/web", "--reason", "a test"]).output().unwrap();
    assert!(evicted.status.success(), "{}", String::from_utf8_lossy(&evicted.stderr));
    first.wait_for_end(TIMEOUT).unwrap();
    daemon.stop().unwrap();
    drop(slice_guard);
}
