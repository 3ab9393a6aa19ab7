//! What is reserved for the system: held by the kernel where it is to be, and watched where it is not.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use enforcer_tests::{
    cgroup::Cgroup,
    daemon::Daemon,
    process::Process,
    wait::{TIMEOUT, wait_until},
};
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn daemon(name: &str, settings: &str) -> Daemon {
    let folder = Path::new("/tmp/reserved").join(name);
    Daemon::start(&folder, &format!("mode: enforce\n{settings}")).unwrap()
}

/// Holds that much memory in a cgroup that is not a pod's.
fn hold(cgroup: &Cgroup, size: &str) -> Process {
    let script =
        format!("echo 0 > {}/cgroup.procs && exec workload hold --size {size}", cgroup.path().display());
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null());
    Process::new(command.spawn().unwrap())
}

fn metric(daemon: &Daemon, row: &str) -> Option<f64> {
    let page = daemon.get("/metrics").unwrap();
    page.lines().find_map(|line| line.strip_prefix(row)?.strip_prefix(' ')?.parse().ok())
}

/// Both cgroups are held to what is reserved for them, memory too; what grows beyond it in one of them is killed by the
/// kernel, and nothing else is.
#[guest_test(daemon)]
fn the_kernel_holds_the_systems_cgroups_to_what_is_reserved_for_them() {
    let [system, kube] = ["held-system", "held-kube"].map(|name| Cgroup::create(name).unwrap());
    let daemon = daemon(
        "held",
        "systemReserved: {cpu: 200m, memory: 96Mi, pid: \"500\"}\nkubeReserved: {cpu: 100m, memory: 48Mi, pid: \"300\"}\n\
         enforceNodeAllocatable: [pods, system-reserved, kube-reserved]\n\
         systemReservedCgroup: /held-system\nkubeReservedCgroup: /held-kube",
    );
    let mut stream = daemon.follow().unwrap();
    let read = |cgroup: &Cgroup, file: &str| cgroup.read(file).unwrap();
    let mib = |count: u64| (count * MIB).to_string();
    wait_until("the limits", || {
        read(&system, "memory.max") == mib(96) && read(&kube, "memory.max") == mib(48)
    });
    wait_until("the limits of tasks", || {
        read(&system, "pids.max") == "500" && read(&kube, "pids.max") == "300"
    });
    // Weights are in proportion to what is reserved of the cpu.
    let weight = |cgroup: &Cgroup| read(cgroup, "cpu.weight").parse::<u64>().unwrap();
    wait_until("the weights", || weight(&system) > weight(&kube));
    // Pods have what is left.
    let view: Value =
        serde_json::from_slice(&daemon.verb(&["-o", "json", "allocatable"]).output().unwrap().stdout)
            .unwrap();
    let capacity = view["capacity"]["memoryBytes"].as_u64().unwrap();
    assert_eq!(view["reserved"]["memoryBytes"], 144 * MIB, "{view}");
    let left = ((capacity - 144 * MIB) / 4_096 * 4_096).to_string();
    let pods = || fs::read_to_string("/sys/fs/cgroup/kubepods/memory.max").unwrap_or_default();
    wait_until("the pods' limit", || pods().trim() == left);

    let mut calm = hold(&system, "16Mi");
    let mut greedy = hold(&kube, "64Mi");
    greedy.wait_for_end(TIMEOUT).unwrap();
    let is_it = |event: &Value| {
        event["type"] == "dev.enforcer.oom.incident" && event["data"]["limitOwner"] == "/held-kube"
    };
    let incident = stream.wait_for("the kill", TIMEOUT, is_it).unwrap();
    assert_eq!(incident["data"]["scope"], "system", "{incident}");
    assert!(calm.lives().unwrap());
    assert_eq!(system.number("memory.events", "oom_kill").unwrap(), 0);
    drop(calm);
    daemon.stop().unwrap();
}

/// Without a limit, use beyond what is reserved is reported, once, and shown as long as it lasts.
#[guest_test(daemon)]
fn use_beyond_what_is_reserved_is_reported_and_shown() {
    let system = Cgroup::create("watched-system").unwrap();
    let daemon = daemon(
        "watched",
        "systemReserved: {memory: 32Mi}\nsystemReservedCgroup: /watched-system\nnodeComponents: [workload]",
    );
    let mut stream = daemon.follow().unwrap();
    let exceeded = r#"enforcer_reservation_exceeded{scope="system",resource="memory"}"#;
    wait_until("the reservation to be kept", || metric(&daemon, exceeded) == Some(0.0));
    let process = hold(&system, "64Mi");
    let is_it = |event: &Value| event["type"] == "dev.enforcer.reservation.exceeded";
    let event = stream.wait_for("the excess", TIMEOUT, is_it).unwrap();
    let data = &event["data"];
    assert_eq!((&data["scope"], &data["resource"]), (&"system".into(), &"memory".into()), "{event}");
    assert_eq!((&data["reservedBytes"], &data["cgroup"]), (&(32 * MIB).into(), &"/watched-system".into()));
    assert!(data["usedBytes"].as_u64().unwrap() > 32 * MIB, "{event}");
    wait_until("the excess to be shown", || metric(&daemon, exceeded) == Some(1.0));
    let bytes: f64 = (64 * MIB).to_string().parse().unwrap();
    wait_until("what it uses", || {
        metric(&daemon, r#"enforcer_system_memory_bytes{part="system"}"#).is_some_and(|used| used >= bytes)
    });
    assert!(metric(&daemon, r#"enforcer_system_tasks{part="system"}"#).is_some_and(|tasks| tasks >= 1.0));
    assert!(
        metric(&daemon, r#"enforcer_system_cpu_seconds_total{part="system"}"#).is_some_and(|cpu| cpu > 0.0)
    );
    // The component and the daemon itself, by their processes.
    wait_until("the component", || {
        metric(&daemon, r#"enforcer_system_memory_bytes{part="workload"}"#).is_some_and(|used| used >= bytes)
    });
    assert!(
        metric(&daemon, r#"enforcer_system_memory_bytes{part="enforcer"}"#).is_some_and(|used| used > 0.0)
    );
    for kind in ["slab", "stacks", "pageTables"] {
        let row = format!("enforcer_kernel_memory_bytes{{kind=\"{kind}\"}}");
        assert!(metric(&daemon, &row).is_some_and(|used| used > 0.0), "{row}");
    }
    drop(process);
    system.kill().unwrap();
    wait_until("the reservation to be kept again", || metric(&daemon, exceeded) == Some(0.0));
    assert_eq!(stream.of("reservation.exceeded").count(), 1);
    daemon.stop().unwrap();
}
