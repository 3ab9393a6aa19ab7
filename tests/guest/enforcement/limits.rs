//! Limits hold, and cost only who is over them.

use std::{fs, path::Path, process::Stdio};

use enforcer_tests::{
    host::{HugePages, Swap},
    kernel,
    plan::Planned,
    process::Process,
    wait::{TIMEOUT, wait_until},
};

use super::{Scene, join, read, start_time};

const MIB: u64 = 1 << 20;

fn pod(name: &str, containers: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, uid: {name}}}\nspec:\n  containers:\n{containers}"
    )
}

/// Places manifests and waits until everything is as they say.
fn place(scene: &Scene, manifests: &[(&str, &str)]) -> Planned {
    for (name, containers) in manifests {
        scene.daemon.manifest(&format!("{name}.yaml"), &pod(name, containers)).unwrap();
    }
    let planned = Planned::of(&scene.daemon).unwrap();
    planned.wait_until_held().unwrap();
    planned
}

fn events(scene: &Scene, cgroup: &str, file: &str, key: &str) -> u64 {
    kernel::cgroup_counter(&format!("/{}/kubepods/{cgroup}", scene.name), file, key).unwrap()
}

/// All processes of the container die as one, and no other process does, in its pod or beside.
#[guest_test(daemon)]
fn a_container_over_its_limit_dies_alone() {
    let scene = Scene::open("alone", "");
    let two = "  - name: app\n    resources: {limits: {memory: 48Mi}}\n  - name: log\n    resources: {limits: {memory: 48Mi}}\n";
    place(&scene, &[("victim", two), ("same-class", two), ("besteffort", "  - name: app\n")]);
    let hold = ["workload", "hold", "--size", "8Mi"];
    let mut others: Vec<_> =
        ["default/victim/log", "default/same-class/app", "default/same-class/log", "default/besteffort"]
            .into_iter()
            .map(|target| Process::new(scene.daemon.exec(target, &hold).unwrap()))
            .collect();
    // One that does nothing belongs to the container as well.
    let app = scene.cgroup("burstable/podvictim/app");
    let mut bystander = join(&app, "exec sleep 1000");
    wait_until("the bystander", || !read(&app.join("cgroup.procs")).is_empty());
    let spike = ["workload", "spike", "--size", "256Mi"];
    let mut hog = Process::new(scene.daemon.exec("default/victim/app", &spike).unwrap());
    hog.wait_for_end(TIMEOUT).unwrap();
    bystander.wait_for_end(TIMEOUT).unwrap();
    assert_eq!(events(&scene, "burstable/podvictim/app", "memory.events", "oom_group_kill"), 1);
    assert_eq!(events(&scene, "burstable/podvictim/log", "memory.events", "oom_kill"), 0);
    for process in &mut others {
        assert!(process.lives().unwrap(), "process {} died with its neighbour", process.id());
    }
    // The container takes the next process nevertheless.
    let again = scene.daemon.verb(&["exec", "default/victim/app", "--", "true"]).status().unwrap();
    assert!(again.success(), "{again}");
    drop(others);
    scene.daemon.stop().unwrap();
}

/// Without leave to swap a container dies at its limit; with leave it swaps as much as its request is of the node's memory.
#[guest_test(kernel)]
fn who_may_swap_swaps_its_part_and_no_more() {
    let swap_bytes = 512 * MIB;
    let _swap = Swap::on(swap_bytes).unwrap();
    let requesting = "  - name: app\n    resources: {requests: {memory: 128Mi}, limits: {memory: 144Mi}}\n";
    let hold = |size: &'static str| ["workload", "hold", "--size", size];
    let current =
        |scene: &Scene| scene.read("burstable/podswaps/app/memory.swap.current").parse::<u64>().unwrap();

    let scene = Scene::open("noswap", "memorySwap: {swapBehavior: NoSwap}");
    place(&scene, &[("swaps", requesting)]);
    assert_eq!(scene.read("burstable/podswaps/app/memory.swap.max"), "0");
    let mut over = Process::new(scene.daemon.exec("default/swaps", &hold("160Mi")).unwrap());
    over.wait_for_end(TIMEOUT).unwrap();
    assert_eq!(current(&scene), 0);
    scene.daemon.stop().unwrap();

    let scene = Scene::open("limitedswap", "memorySwap: {swapBehavior: LimitedSwap}");
    place(
        &scene,
        &[("swaps", requesting), ("spared", "  - name: app\n    resources: {limits: {memory: 64Mi}}\n")],
    );
    let limit_bytes: u64 = scene.read("burstable/podswaps/app/memory.swap.max").parse().unwrap();
    // What the kubelet gives: the node's swap times request by memory.
    let part = 128 * MIB * swap_bytes / kernel::meminfo_bytes("MemTotal").unwrap();
    assert!(limit_bytes.abs_diff(part) < MIB, "{limit_bytes} is not about {part}");
    assert_eq!(scene.read("burstable/podspared/app/memory.swap.max"), "0", "a request that is the limit");
    // It says so when it holds all of it.
    let mut over = scene.daemon.exec_until_ready("default/swaps", &hold("160Mi")).unwrap();
    assert!(current(&scene) > 8 * MIB, "it does not swap");
    assert!(over.lives().unwrap(), "it died though it may swap");
    assert!(current(&scene) <= limit_bytes);
    drop(over);
    let mut far_over = Process::new(scene.daemon.exec("default/swaps", &hold("256Mi")).unwrap());
    far_over.wait_for_end(TIMEOUT).unwrap();
    assert_eq!(events(&scene, "burstable/podswaps/app", "memory.events", "oom_group_kill"), 1);
    scene.daemon.stop().unwrap();
}

/// Two pages are what the one may have, and none what the other may, whatever the pool has left.
#[guest_test(kernel)]
fn huge_pages_end_at_the_limit() {
    let _pages = HugePages::reserve(8).unwrap();
    let mount = Path::new("/tmp/huge");
    fs::create_dir_all(mount).unwrap();
    rustix::mount::mount("none", mount, "hugetlbfs", rustix::mount::MountFlags::empty(), None).unwrap();
    let scene = Scene::open("huge", "");
    let two =
        "  - name: app\n    resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {hugepages-2Mi: 4Mi}}\n";
    place(&scene, &[("two", two), ("none", "  - name: app\n")]);
    let take = |target: &str, file: &str, bytes: &str| {
        let path = mount.join(file);
        let taken =
            scene.daemon.verb(&["exec", target, "--", "fallocate", "-l", bytes]).arg(path).output().unwrap();
        (taken.status.success(), String::from_utf8_lossy(&taken.stderr).into_owned())
    };
    let (taken, reported) = take("default/two", "a", "4194304");
    assert!(taken, "two pages: {reported}");
    assert_eq!(scene.read("burstable/podtwo/app/hugetlb.2MB.current"), "4194304");
    let (taken, _) = take("default/two", "b", "2097152");
    assert!(!taken, "a third page");
    let (taken, _) = take("default/none", "c", "2097152");
    assert!(!taken, "a page of a pod that asked for none");
    assert!(kernel::meminfo_bytes("Hugepagesize").unwrap() == 2 * MIB);
    let free = read(Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"));
    assert_eq!(free, "6", "the pool had some left");
    rustix::mount::unmount(mount, rustix::mount::UnmountFlags::empty()).unwrap();
    scene.daemon.stop().unwrap();
}

/// The limit is the pod's: what one of its containers takes the other has not. Others fork on.
#[guest_test(kernel)]
fn forks_fail_at_the_pods_limit_and_no_other_pods_do() {
    let scene = Scene::open("pids", "podPidsLimit: 20");
    let two = "  - name: app\n  - name: side\n";
    place(&scene, &[("full", two), ("free", two)]);
    let fork = |target: &str, count: &str| {
        let fork = ["exec", target, "--", "workload", "fork", "--count", count];
        let child = scene.daemon.verb(&fork).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        Process::new(child)
    };
    let mut full = fork("default/full/app", "50");
    let current = |pod: &str| scene.read(&format!("besteffort/pod{pod}/pids.current"));
    wait_until("the limit", || current("full") == "20");
    // Kernels differ in where they count it: where the fork was tried, or where the limit is.
    let refused = |cgroup: &str| events(&scene, cgroup, "pids.events", "max") > 0;
    wait_until("a refused fork", || refused("besteffort/podfull/app") || refused("besteffort/podfull"));
    // Joining is no fork, so a process comes in; but it cannot fork.
    let side = |script: &str| {
        let side =
            scene.daemon.verb(&["exec", "default/full/side", "--", "sh", "-c", script]).output().unwrap();
        (side.status.code(), String::from_utf8_lossy(&side.stderr).into_owned())
    };
    assert_eq!(side("exit 3").0, Some(3));
    let (status, reported) = side("(exit 0); exit 0");
    assert!(status != Some(0) && reported.contains("fork"), "{status:?}: {reported}");
    let mut free = fork("default/free/app", "10");
    wait_until("the other's processes", || current("free") == "11");
    assert!(full.lives().unwrap() && free.lives().unwrap());
    drop((full, free));
    scene.daemon.stop().unwrap();
}

/// Limits change in place, every process stays the one that it was; and a removed pod's cgroup goes with the last of them.
#[guest_test(daemon)]
fn an_edited_manifest_touches_no_process_and_a_removed_pod_goes_when_it_is_empty() {
    let scene = Scene::open(
        "edited",
        "memoryThrottlingFactor: 0.8\nmemoryReservationPolicy: TieredReservation\npodPidsLimit: 100",
    );
    let app = |resources: &str| format!("  - name: app\n    resources: {resources}\n");
    place(
        &scene,
        &[("web", &app("{requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 200m, memory: 64Mi}}"))],
    );
    let pod = scene.cgroup("burstable/podweb");
    let first = Process::new(scene.daemon.exec("default/web", &["sleep", "1000"]).unwrap());
    let second = join(&pod.join("app"), "exec sleep 1000");
    wait_until("its processes", || read(&pod.join("app/cgroup.procs")).lines().count() == 2);
    let pids: Vec<u32> =
        read(&pod.join("app/cgroup.procs")).lines().map(|pid| pid.parse().unwrap()).collect();
    let identities = || pids.iter().map(|pid| (*pid, start_time(*pid))).collect::<Vec<_>>();
    let before = identities();
    for resources in [
        "{requests: {cpu: 300m, memory: 48Mi}, limits: {cpu: 400m, memory: 96Mi}}",
        "{requests: {cpu: 50m, memory: 16Mi}}",
        "{requests: {cpu: 50m}, limits: {memory: 40Mi}}",
        "{requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 200m, memory: 64Mi}}",
    ] {
        place(&scene, &[("web", &app(resources))]);
        assert_eq!(identities(), before, "{resources}");
    }
    scene.daemon.remove_manifest("web.yaml").unwrap();
    let mut stream = scene.daemon.follow().unwrap();
    stream.wait_for_pod("pod.removed", "default/web", TIMEOUT).unwrap();
    // The daemon goes over everything again when another comes.
    let add = |name: &str| {
        scene.daemon.manifest(&format!("{name}.yaml"), &self::pod(name, &app("{}"))).unwrap();
        scene.daemon.wait_until_decided(&format!("default/{name}")).unwrap();
    };
    add("another");
    assert_eq!(identities(), before, "a removed pod's processes are their own business");
    assert_eq!(read(&pod.join("app/memory.max")), "67108864", "its limits hold to the end");
    // The first of them goes, and the cgroup stays for the other's sake.
    drop(first);
    add("one-more");
    assert_eq!(read(&pod.join("app/cgroup.procs")), second.id().to_string());
    drop(second);
    wait_until("the end of the cgroup", || !pod.exists());
    Planned::of(&scene.daemon).unwrap().wait_until_held().unwrap();
    scene.daemon.stop().unwrap();
}
