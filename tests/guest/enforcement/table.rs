//! Pods of every shape under several configurations, one daemon after the other on the same cgroups.

use std::fs;

use enforcer_tests::{
    cgroup::Cgroup,
    daemon::Daemon,
    host::{HugePages, Swap},
    plan::{self, Planned},
    process::Process,
    wait::wait_until,
};

use super::{folder, join, read, settings_of};

const PODS: &str = include_str!("pods.yaml");
const NAME: &str = "table";

const CONFIGURATIONS: [(&str, &str); 5] = [
    ("defaults", ""),
    (
        "brake and protection",
        "memoryThrottlingFactor: 0.9\nmemoryReservationPolicy: TieredReservation\npodPidsLimit: 64",
    ),
    (
        "swap, linear weights, one process at a time, no quota",
        "memorySwap: {swapBehavior: LimitedSwap}\ncpuWeightFormula: linear\nsingleProcessOOMKill: true\n\
         cpuCFSQuota: false\ncpuCFSQuotaPeriod: 50ms\nmemoryThrottlingFactor: 0.5",
    ),
    (
        "short periods and reservations",
        "cpuCFSQuotaPeriod: 10ms\nmemoryReservationPolicy: TieredReservation\n\
         systemReserved: {cpu: 100m, memory: 64Mi, pid: \"500\"}\nkubeReserved: {cpu: 50m, memory: 32Mi}\n\
         enforceNodeAllocatable: [pods, system-reserved, kube-reserved-compressible]\n\
         systemReservedCgroup: /table-system\nkubeReservedCgroup: /table-kube\nevictionHard: {memory.available: 50Mi}",
    ),
    ("defaults again", ""),
];

#[guest_test(daemon)]
fn every_file_and_score_is_what_the_plan_says() {
    let _roots = [NAME, "table-system", "table-kube"].map(|name| Cgroup::create(name).unwrap());
    let _swap = Swap::on(256 << 20).unwrap();
    let _pages = HugePages::reserve(4).unwrap();
    // They live through all of it.
    let (mut processes, mut last) = (Vec::new(), None);
    for (name, settings) in CONFIGURATIONS {
        let daemon = Daemon::start(&folder(NAME), &settings_of(NAME, settings)).unwrap();
        daemon.manifest("pods.yaml", PODS).unwrap();
        let planned = Planned::of(&daemon).unwrap();
        assert_eq!(planned.rejected.len(), 1, "{name}: {:?}", planned.rejected);
        planned.wait_until_held().unwrap_or_else(|error| panic!("{name}: {error:#}"));
        if processes.is_empty() {
            processes = populate(&planned);
            planned.wait_until_held().unwrap_or_else(|error| panic!("{name}, with processes: {error:#}"));
        }
        daemon.stop().unwrap();
        for process in &mut processes {
            assert!(process.lives().unwrap(), "{name}: process {} has ended", process.id());
        }
        last = Some(planned);
    }
    // Now that no daemon restores them.
    assert_differences_are_seen(&last.unwrap());
}

/// Starts three processes in each container, by the hand of another.
fn populate(planned: &Planned) -> Vec<Process> {
    let script = "sleep 1000 & sleep 1000 & wait";
    let processes = planned.scores.keys().map(|path| join(&plan::folder(path), script)).collect();
    let count =
        || planned.scores.keys().map(|path| plan::pids_below(&plan::folder(path)).len()).sum::<usize>();
    wait_until("the processes", || count() == 3 * planned.scores.len());
    processes
}

/// What is relied on above: nothing that is not as planned goes unseen.
fn assert_differences_are_seen(planned: &Planned) {
    let of = |what: &str| -> Vec<String> {
        let differences = planned.differences(&[]).unwrap();
        differences.into_iter().filter(|reported| reported.contains(what)).collect()
    };
    let pod = format!("/{NAME}/kubepods/podg1");
    let folder = plan::folder(&pod);
    for (file, value) in [
        ("cpu.weight", "21"),
        ("memory.max", "max"),
        ("memory.high", "16777216"),
        ("pids.max", "99"),
        ("app/hugetlb.2MB.max", "2097152"),
    ] {
        let held = read(&folder.join(file));
        fs::write(folder.join(file), value).unwrap();
        let reported = of(&format!("{pod}/{file} holds \"{value}\""));
        assert_eq!(reported.len(), 1, "{file}: {reported:?}");
        fs::write(folder.join(file), held).unwrap();
    }
    let stray = plan::folder(&format!("/{NAME}/kubepods/burstable/podx"));
    fs::create_dir(&stray).unwrap();
    assert_eq!(of("podx is in no plan").len(), 1);
    fs::remove_dir(&stray).unwrap();
    let (container, score) = planned.scores.first_key_value().unwrap();
    let pid = plan::pids_below(&plan::folder(container))[0];
    fs::write(format!("/proc/{pid}/oom_score_adj"), (score - 1).to_string()).unwrap();
    assert_eq!(of(&format!("process {pid} ")).len(), 1);
}
