//! Killed at any moment, the daemon leaves nothing that its next start does not put right.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    thread,
    time::{Duration, Instant},
};

use enforcer_tests::{
    cgroup::Cgroup,
    daemon::Daemon,
    plan::{Planned, folder as cgroup_folder},
    process::Process,
    random::Random,
    rounds::Rounds,
    wait::wait_until,
};

use super::{folder, join, settings_of, start_time};

const NAME: &str = "crash";
const PODS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// Never removed: its processes live through everything.
const KEPT: &str = "kept";

/// With and without what leaves `memory.high`, `memory.low`, `memory.min` and `pids.max` behind.
const SETTINGS: [&str; 3] = [
    "",
    "memoryThrottlingFactor: 0.7\nmemoryReservationPolicy: TieredReservation",
    "podPidsLimit: 300\ncpuCFSQuotaPeriod: 20ms",
];

const RESOURCES: [&str; 5] = [
    "{}",
    "{requests: {cpu: 20m, memory: 16Mi}}",
    "{requests: {cpu: 30m, memory: 16Mi}, limits: {cpu: 60m, memory: 48Mi}}",
    "{limits: {cpu: 40m, memory: 32Mi}}",
    "{limits: {memory: 64Mi}}",
];

fn manifest(name: &str, resources: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, uid: {name}}}\nspec:\n  containers:\n  - name: app\n    \
         resources: {resources}\n  - name: side\n    resources: {resources}\n"
    )
}

/// Adds, changes or removes some pods.
fn change(random: &mut Random, daemon: &Daemon) {
    for _ in 0..=random.below(2) {
        let name = random.one_of(&PODS);
        let file = format!("{name}.yaml");
        if random.below(3) == 0 {
            // It need not be there.
            drop(daemon.remove_manifest(&file));
        } else {
            daemon.manifest(&file, &manifest(name, random.one_of(&RESOURCES))).unwrap();
        }
    }
}

/// Waits until a cgroup is made, but no longer than that. It looks without a pause: a moment later it would be too late.
fn wait_until_one_is_made(longest: Duration) {
    // The kernel counts a folder's folders among its links.
    let links = || {
        let links = ["", "/burstable", "/besteffort"]
            .map(|below| fs::metadata(cgroup_folder(&format!("/{NAME}/kubepods{below}"))));
        links.into_iter().flatten().map(|metadata| metadata.nlink()).sum::<u64>()
    };
    let (begin, mut before) = (Instant::now(), links());
    while begin.elapsed() < longest {
        let now = links();
        if now > before {
            return;
        }
        before = now;
    }
}

/// When the daemon is killed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// While it starts, after a time that is a part of what a start takes.
    Starting,
    /// Right after it has made a cgroup, which does not say yet whose it is.
    Making,
    /// While it is ready and works off a change.
    Working,
}

#[guest_test(daemon, repeats)]
fn kills_at_any_moment_leave_what_the_plan_says() {
    let _root = Cgroup::create(NAME).unwrap();
    let mut random = Random::of_this_run();
    // Shown if it fails.
    println!("{}", random.seed());
    let begin = Instant::now();
    let daemon = Daemon::start(&folder(NAME), &settings_of(NAME, "")).unwrap();
    let start_ms = u64::try_from(begin.elapsed().as_millis()).unwrap();
    daemon.manifest("kept.yaml", &manifest(KEPT, RESOURCES[2])).unwrap();
    Planned::of(&daemon).unwrap().wait_until_held().unwrap();
    let kept = format!("/{NAME}/kubepods/burstable/pod{KEPT}");
    let processes: Vec<Process> =
        ["app", "side"].map(|name| join(&cgroup_folder(&kept).join(name), "exec sleep 1000")).into();
    let identities = || processes.iter().map(|process| start_time(process.id())).collect::<Vec<_>>();
    let before = identities();
    let mut daemon = daemon;
    // Each round has another daemon and other pods: what it holds cannot be compared.
    for round in Rounds::new(3, 200) {
        let moments = [Moment::Starting, Moment::Making, Moment::Working];
        let moment = moments[usize::try_from(round).unwrap() % moments.len()];
        if matches!(moment, Moment::Working) {
            daemon.wait_until_ready().unwrap();
        }
        change(&mut random, &daemon);
        // Nothing announces any of these moments: by chance each of them comes.
        let life = Duration::from_millis(random.below(start_ms));
        match moment {
            Moment::Starting | Moment::Working => thread::sleep(life),
            Moment::Making => wait_until_one_is_made(life),
        }
        // Dropping it is SIGKILL.
        drop(daemon);
        let settings = settings_of(NAME, random.one_of(&SETTINGS));
        daemon = Daemon::launch(&folder(NAME), &settings, &[])
            .unwrap_or_else(|error| panic!("round {round}, {moment:?}: {error:#}"));
    }
    drop(daemon);

    let daemon = Daemon::start(&folder(NAME), &settings_of(NAME, "")).unwrap();
    let planned = Planned::of(&daemon).unwrap();
    planned.wait_until_held().unwrap();
    assert_eq!(identities(), before);
    daemon.events().unwrap();
    drop(processes);
    daemon.remove_manifest("kept.yaml").unwrap();
    for name in PODS {
        drop(daemon.remove_manifest(&format!("{name}.yaml")));
    }
    wait_until("the end of every pod", || {
        let left = |path: &str| {
            fs::read_dir(cgroup_folder(path)).unwrap().flatten().filter(|entry| entry.path().is_dir()).count()
        };
        left(&format!("/{NAME}/kubepods/burstable")) + left(&format!("/{NAME}/kubepods/besteffort")) == 0
    });
    daemon.stop().unwrap();
}
