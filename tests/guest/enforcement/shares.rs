//! Shares of the processor.

use std::fs;

use enforcer_tests::{kernel, plan::Planned, process::Process, wait::wait_until};

use super::Scene;

const NAME: &str = "shares";

fn manifest(name: &str, cpu: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, uid: {name}}}\nspec:\n  containers:\n  - name: app\n    \
         resources: {{requests: {{cpu: {cpu}}}}}\n"
    )
}

/// Weights are the requests' ratio, and one processor is all that the two have.
#[guest_test(kernel)]
fn two_busy_pods_share_a_processor_as_they_request_it() {
    let scene = Scene::open(NAME, "");
    for (name, cpu) in [("more", "600m"), ("less", "300m")] {
        scene.daemon.manifest(&format!("{name}.yaml"), &manifest(name, cpu)).unwrap();
    }
    Planned::of(&scene.daemon).unwrap().wait_until_held().unwrap();
    // By their class's cgroup: older kernels forget what processes themselves may run on when they join another.
    fs::write(scene.cgroup("burstable/cpuset.cpus"), "0").unwrap();
    let busy = ["more", "less"].map(|name| {
        let spin = ["workload", "spin", "--threads", "1"];
        Process::new(scene.daemon.exec(&format!("default/{name}"), &spin).unwrap())
    });
    let usage_us = |name: &str| {
        let cgroup = format!("/{NAME}/kubepods/burstable/pod{name}");
        kernel::cgroup_counter(&cgroup, "cpu.stat", "usage_usec").unwrap()
    };
    let both_us = || [usage_us("more"), usage_us("less")];
    wait_until("both at work", || both_us().iter().all(|us| *us > 200_000));
    let [more_before, less_before] = both_us();
    // Long enough for hundreds of turns, by the time that they had and not by a clock.
    let spent_us = || both_us().iter().sum::<u64>() - more_before - less_before;
    wait_until("6 s on the processor", || spent_us() > 6_000_000);
    let [more, less] = both_us();
    let (more_us, less_us) = (more - more_before, less - less_before);
    println!("600m and 300m on one processor: {more_us} us and {less_us} us");
    assert!(
        (less_us * 18..=less_us * 22).contains(&(more_us * 10)),
        "{more_us} us and {less_us} us are not 2 : 1 within 10 %"
    );
    drop(busy);
    scene.daemon.stop().unwrap();
}
