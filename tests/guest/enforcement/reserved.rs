//! What is reserved by the node's capacity, and what follows from it.

use enforcer_tests::{
    cgroup::Cgroup,
    kernel,
    plan::{Planned, as_read},
};
use serde_json::{Value, json};

use super::Scene;

const MIB: u64 = 1 << 20;

/// By the table of docs/planning.md, for a guest of 1 to 4 GiB: a quarter of its memory, and of its processors 6 % of the
/// first and 1 % of the second.
fn expected() -> (u64, u64) {
    let memory_bytes = kernel::meminfo_bytes("MemTotal").unwrap();
    assert!((1_024 * MIB..4_096 * MIB).contains(&memory_bytes), "{memory_bytes}");
    let cpus = std::thread::available_parallelism().unwrap().get();
    assert_eq!(cpus, 2, "processors of a guest");
    (memory_bytes.div_ceil(4), 70)
}

fn plan(scene: &Scene, form: &[&str]) -> String {
    let output = scene.daemon.verb(form).args(["plan", "-f"]).arg(scene.daemon.pods()).output().unwrap();
    let reported = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {reported}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// `plan` shows what was computed, and the kernel holds what follows: the limit of all pods, and of the daemons' own cgroup.
#[guest_test(daemon)]
fn what_auto_reserves_is_shown_and_limits_kubepods_and_the_reserved_cgroup() {
    let daemons = Cgroup::create("auto-kube").unwrap();
    let scene = Scene::open(
        "auto",
        "kubeReservedPolicy: auto\nenforceNodeAllocatable: [pods, kube-reserved]\nkubeReservedCgroup: /auto-kube\n\
         memoryReservationPolicy: TieredReservation\nevictionHard: {memory.available: 100Mi}",
    );
    let (reserved_bytes, reserved_milli) = expected();
    let node_bytes = kernel::meminfo_bytes("MemTotal").unwrap();

    let shown: Value = serde_json::from_str(&plan(&scene, &["-o", "json"])).unwrap();
    let node = &shown["node"];
    assert_eq!(node["kubeReserved"], json!({"cpuMilli": reserved_milli, "memoryBytes": reserved_bytes}));
    assert_eq!(node["allocatable"]["cpuMilli"], 2_000 - reserved_milli);
    assert_eq!(node["allocatable"]["memoryBytes"], node_bytes - reserved_bytes - 100 * MIB);
    let table = plan(&scene, &[]);
    assert!(table.contains("reserved for Kubernetes' daemons: 70m cpu, "), "{table}");

    Planned::of(&scene.daemon).unwrap().wait_until_held().unwrap();
    let bytes = |bytes: u64| as_read("memory.max", &bytes.to_string()).unwrap();
    assert_eq!(scene.read("memory.max"), bytes(node_bytes - reserved_bytes));
    // 1930m and 70m.
    assert_eq!(scene.read("cpu.weight"), "76");
    assert_eq!(daemons.read("cpu.weight").unwrap(), "3");
    for file in ["memory.max", "memory.min"] {
        assert_eq!(daemons.read(file).unwrap(), bytes(reserved_bytes), "{file}");
    }
    scene.daemon.stop().unwrap();
}

/// What the configuration names replaces what is computed, resource by resource.
#[guest_test(daemon)]
fn what_is_reserved_by_name_replaces_what_auto_computes() {
    let scene = Scene::open("named", "kubeReservedPolicy: auto\nkubeReserved: {memory: 64Mi}");
    let (_, reserved_milli) = expected();
    let shown: Value = serde_json::from_str(&plan(&scene, &["-o", "json"])).unwrap();
    let reserved = json!({"cpuMilli": reserved_milli, "memoryBytes": 64 * MIB});
    assert_eq!(shown["node"]["kubeReserved"], reserved);
    Planned::of(&scene.daemon).unwrap().wait_until_held().unwrap();
    let left = kernel::meminfo_bytes("MemTotal").unwrap() - 64 * MIB;
    assert_eq!(scene.read("memory.max"), as_read("memory.max", &left.to_string()).unwrap());
    scene.daemon.stop().unwrap();
}
