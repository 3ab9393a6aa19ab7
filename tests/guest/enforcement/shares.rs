//! Shares of the processor, as busy pods get them from the kernel.
//!
//! Shares are judged by the time that cgroups had, and not by a clock: then it does not matter how much of a processor the
//! guest has. Quotas are by the kernel's clock, so what is about them has the machine to itself (`exclusive`).

use std::{fs, path::PathBuf};

use enforcer_tests::{
    cgroup::{Cgroup, ROOT},
    kernel,
    plan::Planned,
    process::Process,
    wait::wait_until,
};

use super::{Scene, join};

/// One processor's time that is shared out in a measurement: hundreds of turns for a share of a half.
const WINDOW_US: u64 = 6_000_000;

/// Places pods of these names, each with its containers' names and resources, and waits until the kernel holds what is
/// planned.
fn place(scene: &Scene, pods: &[(&str, &[(&str, &str)])]) {
    for (name, containers) in pods {
        let mut manifest = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, uid: {name}}}\nspec:\n  containers:\n"
        );
        for (container, resources) in *containers {
            manifest.push_str(&format!("  - name: {container}\n    resources: {{{resources}}}\n"));
        }
        scene.daemon.manifest(&format!("{name}.yaml"), &manifest).unwrap();
    }
    Planned::of(&scene.daemon).unwrap().wait_until_held().unwrap();
}

/// Leaves one processor to all pods of the scene, and to what else is in its cgroup.
///
/// By the cgroup: older kernels forget what processes themselves may run on when they join another.
fn pin(scene: &Scene) {
    let file = PathBuf::from(ROOT).join(scene.name).join("cpuset.cpus");
    fs::write(&file, "0").unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}

/// Keeps a processor busy in a container, and begins before this returns.
fn spin(scene: &Scene, target: &str, threads: &str) -> Process {
    let spin = ["workload", "spin", "--threads", threads];
    scene.daemon.exec_until_ready(target, &spin).unwrap()
}

/// The time that a cgroup has had of the processors, by its path below the scene's own.
fn usage_us(scene: &Scene, cgroup: &str) -> u64 {
    counter(scene, cgroup, "usage_usec")
}

fn counter(scene: &Scene, cgroup: &str, key: &str) -> u64 {
    kernel::cgroup_counter(&format!("/{}/{cgroup}", scene.name), "cpu.stat", key).unwrap()
}

/// What these cgroups get of the processors until they have had `window_us` together.
fn shared_out<const N: usize>(scene: &Scene, cgroups: [&str; N], window_us: u64) -> [u64; N] {
    let all_us = || cgroups.map(|cgroup| usage_us(scene, cgroup));
    let before_us = all_us();
    let since_us = || {
        let mut had_us = all_us();
        had_us.iter_mut().zip(before_us).for_each(|(us, before_us)| *us -= before_us);
        had_us
    };
    wait_until("the time on the processor", || since_us().iter().sum::<u64>() >= window_us);
    since_us()
}

/// Asserts that the times are as the weights, each within a part of what it should be.
fn assert_as_weighted(what: &str, had_us: &[u64], weights: &[f64], tolerance: f64) {
    #[expect(clippy::cast_precision_loss, reason = "microseconds of seconds")]
    let had_us: Vec<f64> = had_us.iter().map(|us| *us as f64).collect();
    let (all_us, whole): (f64, f64) = (had_us.iter().sum(), weights.iter().sum());
    for (us, weight) in had_us.iter().zip(weights) {
        let (share, expected) = (us / all_us, weight / whole);
        println!("{what}: {:.2} % of the time, by weight {:.2} %", share * 100.0, expected * 100.0);
    }
    for (us, weight) in had_us.iter().zip(weights) {
        let (share, expected) = (us / all_us, weight / whole);
        let difference = (share - expected).abs() / expected;
        assert!(
            difference <= tolerance,
            "{what}: {share:.4} of the time and not {expected:.4} within {tolerance}: {had_us:?} for {weights:?}"
        );
    }
}

fn weight(scene: &Scene, cgroup: &str) -> u32 {
    let file = PathBuf::from(ROOT).join(scene.name).join(cgroup).join("cpu.weight");
    super::read(&file).parse().unwrap()
}

/// Weights are the requests' ratio, and one processor is all that the two have.
#[guest_test(kernel)]
fn two_busy_pods_share_a_processor_as_they_request_it() {
    let scene = Scene::open("shares", "");
    let [more, less] = ["requests: {cpu: 600m}", "requests: {cpu: 300m}"].map(|app| [("app", app)]);
    place(&scene, &[("more", &more), ("less", &less)]);
    pin(&scene);
    let busy = ["more", "less"].map(|name| spin(&scene, &format!("default/{name}"), "1"));
    let pods = ["kubepods/burstable/podmore", "kubepods/burstable/podless"];
    let [more_us, less_us] = shared_out(&scene, pods, WINDOW_US);
    println!("600m and 300m on one processor: {more_us} us and {less_us} us");
    assert!(
        (less_us * 18..=less_us * 22).contains(&(more_us * 10)),
        "{more_us} us and {less_us} us are not 2 : 1 within 10 %"
    );
    drop(busy);
    scene.daemon.stop().unwrap();
}

/// What containers of one pod share by is the formula: the requests' ratio with `linear`; by default what container runtimes
/// of today write, which is less than it.
#[guest_test(exclusive)]
fn two_busy_containers_of_a_pod_share_a_processor_by_the_formula() {
    for (name, settings, weights) in
        [("linear", "cpuWeightFormula: linear", [24, 12]), ("quadratic", "", [67, 40])]
    {
        let scene = Scene::open(name, settings);
        place(&scene, &[("pair", &[("more", "requests: {cpu: 600m}"), ("less", "requests: {cpu: 300m}")])]);
        pin(&scene);
        let containers = ["kubepods/burstable/podpair/more", "kubepods/burstable/podpair/less"];
        assert_eq!(containers.map(|container| weight(&scene, container)), weights, "{name}");
        let busy = ["more", "less"].map(|container| spin(&scene, &format!("default/pair/{container}"), "1"));
        let had_us = shared_out(&scene, containers, WINDOW_US);
        assert_as_weighted(name, &had_us, &weights.map(f64::from), 0.1);
        drop(busy);
        scene.daemon.stop().unwrap();
    }
}

/// A pod that could use two processors has three tenths of one, by the kernel's own count of periods.
#[guest_test(exclusive)]
fn a_pod_at_its_limit_is_held_to_it() {
    const QUOTA_US: u64 = 30_000;
    const PERIODS: u64 = 100;
    let scene = Scene::open("quota", "");
    place(&scene, &[("limited", &[("app", "requests: {cpu: 100m}, limits: {cpu: 300m}")])]);
    let pod = "kubepods/burstable/podlimited";
    assert_eq!(scene.read("burstable/podlimited/cpu.max"), "30000 100000");
    let busy = spin(&scene, "default/limited", "2");
    let count = || ["usage_usec", "nr_periods", "nr_throttled"].map(|key| counter(&scene, pod, key));
    wait_until("the first period", || count()[1] > 0);
    let before = count();
    wait_until("the periods", || count()[1] >= before[1] + PERIODS);
    let after = count();
    let [used_us, periods, throttled] = [0, 1, 2].map(|index| after[index] - before[index]);
    let app = counter(&scene, &format!("{pod}/app"), "nr_throttled");
    println!(
        "{used_us} us in {periods} periods of {QUOTA_US} us; throttled {throttled} times, its container {app}"
    );
    assert!(throttled + app > 0, "it was never at its limit");
    let allowed_us = periods * QUOTA_US;
    assert!(
        used_us.abs_diff(allowed_us) * 20 <= allowed_us,
        "{used_us} us in {periods} periods are not {allowed_us} us within 5 %"
    );
    drop(busy);
    scene.daemon.stop().unwrap();
}

/// The class's weight is 1: that much it has beside a busy Guaranteed pod, beside what the host itself does, and no more.
#[guest_test(exclusive)]
fn a_busy_besteffort_pod_has_its_weights_share_and_no_more() {
    let scene = Scene::open("besteffort", "");
    // As a host has it beside kubepods. The limit of the Guaranteed pod is beyond its one processor.
    let system = Cgroup::create("besteffort/system.slice").unwrap();
    place(&scene, &[("batch", &[("app", "")]), ("bank", &[("app", "limits: {cpu: 1500m, memory: 64Mi}")])]);
    pin(&scene);
    let [kubepods, bank, batch] =
        ["kubepods", "kubepods/podbank", "kubepods/besteffort"].map(|cgroup| weight(&scene, cgroup));
    let slice = weight(&scene, "system.slice");
    assert_eq!((bank, batch, slice), (59, 1, 100));
    let [kubepods, bank, batch, slice] = [kubepods, bank, batch, slice].map(f64::from);
    let batch_busy = spin(&scene, "default/batch", "1");

    // Beside the host's processes, its class stands for all of kubepods.
    let system_busy = join(system.path(), "exec workload spin --threads 2");
    wait_until("busy processes of the host", || usage_us(&scene, "system.slice") > 200_000);
    let pods = ["kubepods/besteffort/podbatch", "system.slice"];
    let had_us = shared_out(&scene, pods, WINDOW_US);
    assert_as_weighted("BestEffort beside system.slice", &had_us, &[kubepods, slice], 0.1);

    let bank_busy = spin(&scene, "default/bank", "1");
    let all = ["kubepods/besteffort/podbatch", "kubepods/podbank", "system.slice"];
    let had_us = shared_out(&scene, all, 2 * WINDOW_US);
    let of_pods = kubepods / (bank + batch);
    let weights = [of_pods * batch, of_pods * bank, slice];
    // A part of so few turns that each of them shows.
    assert_as_weighted("BestEffort beside both", &had_us, &weights, 0.4);

    drop((system_busy, system));
    let pods = ["kubepods/besteffort/podbatch", "kubepods/podbank"];
    let had_us = shared_out(&scene, pods, 2 * WINDOW_US);
    assert_as_weighted("BestEffort beside Guaranteed", &had_us, &[batch, bank], 0.25);
    drop((batch_busy, bank_busy));
    scene.daemon.stop().unwrap();
}

/// However little it requests: what a pod at its limit leaves of a processor goes to one that has none.
#[guest_test(exclusive)]
fn what_a_limited_pod_leaves_goes_to_pods_without_a_limit() {
    let scene = Scene::open("leftover", "");
    place(&scene, &[("batch", &[("app", "")]), ("limited", &[("app", "limits: {cpu: 200m, memory: 64Mi}")])]);
    pin(&scene);
    assert_eq!(scene.read("podlimited/cpu.max"), "20000 100000");
    assert_eq!(scene.read("besteffort/podbatch/cpu.max"), "max 100000");
    let busy = ["batch", "limited"].map(|name| spin(&scene, &format!("default/{name}"), "1"));
    let pods = ["kubepods/besteffort/podbatch", "kubepods/podlimited"];
    let had_us = shared_out(&scene, pods, 2 * WINDOW_US);
    assert_as_weighted("BestEffort beside a limit of 200m", &had_us, &[800.0, 200.0], 0.1);
    drop(busy);
    scene.daemon.stop().unwrap();
}
