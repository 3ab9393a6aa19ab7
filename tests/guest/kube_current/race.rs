//! The same ramp with the kubelet's own eviction: enforcer beside the kubelet, the kubelet alone, and the kernel alone.
//!
//! Who ends it is checked. How long it takes is printed: from 400 MiB of available memory, enforcer's threshold beside the
//! kubelet's of 300 MiB, or from where the kernel's own estimate counts instead, to the death of the pod that takes it.

use std::{
    collections::BTreeSet,
    fs,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use enforcer_tests::{
    figures::{float, mib, rank},
    kernel,
    kube::{self, NAMESPACE, PATIENCE, documented_roles, wait_for},
    process::said,
    rounds::{Rounds, is_soak},
    stream::Stream,
};
use serde_json::{Value, json};

use super::{Kubelet, MIB, wait_for_spec};
use crate::kube::{Scene, subject, two};

/// A threshold that the kubelet can be first at. By its own default of 100 MiB it never acts on this node: its formula counts
/// the kernel's own memory as available, about 150 MiB here, and the kernel kills before.
const OF_KUBELET: &str = "evictionHard: {memory.available: 300Mi}\nevictionPressureTransitionPeriod: 1s\n";

/// Where the clock starts: at enforcer's threshold by the kubelet's formula, or where the kernel itself has so little left that
/// its own estimate counts.
const CROSSING_BYTES: u64 = 400 * MIB;
const LEFT_BY_ESTIMATE_BYTES: u64 = 100 * MIB;

/// What the ballast leaves available: so the ramp is short, and takes nothing from the node before it.
const LEFT_BYTES: u64 = 600 * MIB;

/// What must be available before a ramp. Each pod that has been leaves some of the kernel's memory and of a file system in memory
/// taken: after some rounds the start of a pod alone would cross a threshold.
const ROOM_BYTES: u64 = 500 * MIB;

/// How long it may take after a round until that much is available.
const REST: Duration = Duration::from_secs(20);

/// So slow that the kubelet, which looks every 10 s, can be first.
const RAMP: [&str; 6] = ["ramp", "--no-catch-up", "--rate", "25Mi", "--to", "3Gi"];

/// How long the kubelet has to evict something once a ramp is over: it has looked twice by then.
const AFTERWARDS: Duration = Duration::from_secs(25);

/// Where the scene's daemon answers.
const OBSERVE: &str = "/tmp/kube/race/run/observe.sock";

const PACE: Duration = Duration::from_millis(5);

/// One ramp and its end.
struct Round {
    pod: Value,
    crossed_to_dead: Duration,
    lowest_bytes: u64,
    /// The lowest of the kernel's own estimate, which is 0 when it kills.
    lowest_estimate_bytes: u64,
    oom_kills: u64,
}

/// How enforcer has to be for it: the breaker is not what is tried here.
const SETTINGS: &str =
    "mode: enforce\nevictionPressureTransitionPeriod: 1ms\nbreaker: {maxKills: 1000, maxShare: 1}";

#[guest_test(kube_current, repeats)]
fn enforcer_ends_each_ramp_and_the_kubelet_finds_nothing_to_evict() {
    let mut scene = Scene::open("race", &documented_roles());
    let kubelet = Kubelet::with(|own| format!("{own}{OF_KUBELET}"));
    fill(&mut scene);
    beside_the_kubelet(&mut scene, SETTINGS, Rounds::new(3, 50));

    let rounds: Vec<Round> =
        Rounds::new(2, 10).map(|number| round(&mut scene, &format!("kubelet-{number}"), |_| ())).collect();
    let by_kubelet = report("the kubelet alone", &scene, &rounds);
    // It looks every 10 s, and the kernel kills some 6 s after its threshold: two rounds say nothing.
    assert!(!is_soak() || by_kubelet > 0, "this kubelet is never first, whatever else is there");

    drop(kubelet);
    let _kubelet = Kubelet::with(|own| format!("{own}evictionHard: {{memory.available: \"0%\"}}\n"));
    let rounds: Vec<Round> =
        Rounds::new(2, 5).map(|number| round(&mut scene, &format!("kernel-{number}"), |_| ())).collect();
    let by_kubelet = report("the kernel alone", &scene, &rounds);
    assert_eq!(by_kubelet, 0, "evicted by the kubelet");
}

/// Fills the node nearly.
fn fill(scene: &mut Scene) {
    scene.begin("ballast", &ballast(room().saturating_sub(LEFT_BYTES)));
    scene.running("ballast");
    wait_for("the ballast", || Ok((room() < LEFT_BYTES + LEFT_BYTES / 4).then_some(()))).unwrap();
}

/// Makes the ballast anew, and smaller, if there is no room for a ramp beside it.
fn make_room(scene: &mut Scene) {
    let start = Instant::now();
    while room() < ROOM_BYTES {
        if start.elapsed() > REST {
            println!("{:.0} MiB are available: the ballast is made anew", mib(room()));
            once_it_answers(|| scene.cluster.delete(&format!("/api/v1/namespaces/{NAMESPACE}/pods/ballast")));
            wait_for("the end of the ballast", || Ok(scene.cluster.pod("ballast")?.is_none().then_some(())))
                .unwrap();
            return fill(scene);
        }
        thread::sleep(Duration::from_millis(500));
    }
}

/// Asserts that a daemon with these settings ends each ramp, and nobody else.
fn beside_the_kubelet(scene: &mut Scene, settings: &str, rounds: Rounds) {
    let daemon = scene.start(settings);
    let mut stream = daemon.follow().unwrap();
    let rounds: Vec<Round> = rounds
        .map(|number| {
            let round = round(scene, &format!("beside-{number}"), |pod| {
                wait_for_spec(&daemon, pod, "its spec", |_| true);
            });
            let signalled =
                stream.wait_for_pod("eviction.signalled", &subject(&round.pod), PATIENCE).unwrap();
            println!("beside-{number}: crossing to signal {} ms", signalled["data"]["crossedToSignalledMs"]);
            round
        })
        .collect();
    let by_kubelet = report("enforcer beside the kubelet", scene, &rounds);
    stream.drain(Duration::from_secs(1));
    let pods: BTreeSet<String> = rounds.iter().map(|round| subject(&round.pod)).collect();
    let pods: BTreeSet<&str> = pods.iter().map(String::as_str).collect();
    assert_eq!(subjects(&stream, "eviction.signalled"), pods, "another pod, or not each");
    let foreign = subjects(&stream, "eviction.foreign");
    println!("eviction.foreign: {foreign:?}");
    assert!(foreign.is_disjoint(&pods), "evicted by others too: {foreign:?}");
    assert_eq!(by_kubelet, 0, "evicted by the kubelet");
    assert_eq!(rounds.iter().map(|round| round.oom_kills).sum::<u64>(), 0, "killed by the kernel");
    drop(stream);
    daemon.stop().unwrap();
}

/// A pod that no evictor chooses before another one: it takes what it requests.
fn ballast(bytes: u64) -> Value {
    let size = bytes.to_string();
    let resources = json!({"limits": {"cpu": "1", "memory": bytes + 64 * MIB}});
    let load = ["hold", "--huge", "--size", &size, "--touch-every", "1s"];
    kube::pod("ballast", &[kube::container("app", &load, &resources)])
}

/// What the events of that type are about.
fn subjects<'a>(stream: &'a Stream, kind: &'a str) -> BTreeSet<&'a str> {
    stream.of(kind).filter_map(|event| event["subject"].as_str()).collect()
}

/// One ramp, in a pod that is made for it, and deleted then.
fn round(scene: &mut Scene, app: &str, ready: impl Fn(&Value)) -> Round {
    make_room(scene);
    scene.begin(app, &kube::deployment(app, &two()));
    let pod = scene.running(app);
    ready(&pod);
    let oom_kills = kernel::vmstat("oom_kill").unwrap();
    let mut load = kube::exec(&pod, "app", &RAMP).unwrap();
    let process = wait_for("the ramp", || {
        let ramp = ramp();
        assert!(ramp.is_some() || load.lives()?, "the ramp was not started; {}", history(scene, &pod));
        Ok(ramp)
    });
    let process = process.unwrap();
    let start = Instant::now();
    let (mut crossed, mut looked) = (None, start);
    let (mut lowest_bytes, mut lowest_estimate_bytes) = (u64::MAX, u64::MAX);
    let mut shown_below_bytes = LEFT_BY_ESTIMATE_BYTES * 3 / 4;
    while lives(process) {
        looked = Instant::now();
        let available_bytes = available();
        lowest_bytes = lowest_bytes.min(available_bytes);
        let estimate_bytes = kernel::meminfo_bytes("MemAvailable").unwrap();
        lowest_estimate_bytes = lowest_estimate_bytes.min(estimate_bytes);
        if estimate_bytes < shown_below_bytes {
            println!("{app}: {:.0} MiB by the kernel's estimate; {}", mib(estimate_bytes), use_of_memory());
            shown_below_bytes = estimate_bytes / 2;
        }
        if available_bytes < CROSSING_BYTES || estimate_bytes < LEFT_BY_ESTIMATE_BYTES {
            crossed.get_or_insert(looked);
        }
        assert!(start.elapsed() < PATIENCE, "{app} lives, {available_bytes} bytes are available");
        thread::sleep(PACE);
    }
    // Who dies between two looks has crossed after the first of them.
    let crossed_to_dead = crossed.unwrap_or(looked).elapsed();
    let oom_kills = kernel::vmstat("oom_kill").unwrap() - oom_kills;
    load.wait_for_end(PATIENCE).unwrap();
    let deployment = format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{app}");
    once_it_answers(|| scene.cluster.delete(&deployment));
    println!(
        "{app}: {} ms, lowest {:.0} MiB, by the kernel's estimate {:.0} MiB, {oom_kills} OOM kills",
        crossed_to_dead.as_millis(),
        mib(lowest_bytes),
        mib(lowest_estimate_bytes)
    );
    Round { pod, crossed_to_dead, lowest_bytes, lowest_estimate_bytes, oom_kills }
}

/// What has happened to a pod, as the API server, the kubelet and the daemon say.
fn history(scene: &Scene, pod: &Value) -> String {
    let present = scene.cluster.pod(kube::name(pod)).map(|pod| pod.map(|pod| pod["status"].clone()));
    let reported = scene.cluster.events_of(kube::uid(pod));
    let events = said(Command::new("enforcer").args(["--socket", OBSERVE, "events", "-o", "jsonl"]));
    let events = events.unwrap_or_else(|error| format!("{error:#}"));
    let last = events.lines().rev().take(40).collect::<Vec<_>>().join("\n");
    format!("{present:?}\n{reported:?}\n{last}")
}

/// What has the node's memory, in MiB.
fn use_of_memory() -> String {
    const FIELDS: [&str; 12] = [
        "MemFree",
        "Active(file)",
        "Inactive(file)",
        "AnonPages",
        "Shmem",
        "KReclaimable",
        "SUnreclaim",
        "KernelStack",
        "PageTables",
        "Percpu",
        "VmallocUsed",
        "Dirty",
    ];
    let fields = FIELDS.map(|field| format!("{field} {:.0}", mib(kernel::meminfo_bytes(field).unwrap())));
    fields.join(", ")
}

/// The process that ramps.
fn ramp() -> Option<u32> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.find(|id| command_line(*id).starts_with(b"/bin/workload\0ramp\0"))
}

/// Whether it still has its memory.
fn lives(process: u32) -> bool {
    !command_line(process).is_empty()
}

fn command_line(process: u32) -> Vec<u8> {
    fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default()
}

/// Asks the API server, which the end of the node's memory may have ended, until it is back.
fn once_it_answers<T, E>(mut ask: impl FnMut() -> Result<T, E>) -> T {
    wait_for("the API server", || Ok(ask().ok())).unwrap()
}

/// The lesser of what is available as the kubelet computes it, and as the kernel does.
fn room() -> u64 {
    available().min(kernel::meminfo_bytes("MemAvailable").unwrap())
}

/// Available memory as the kubelet computes it: of the kernel's own memory it knows nothing.
fn available() -> u64 {
    let of = |field| kernel::meminfo_bytes(field).unwrap();
    of("MemTotal") + of("Inactive(file)") - of("AnonPages") - of("Cached") - of("Buffers")
}

/// Waits for what the kubelet does next, and prints a row. Returns how many of the pods the kubelet has evicted.
fn report(what: &str, scene: &Scene, rounds: &[Round]) -> usize {
    thread::sleep(AFTERWARDS);
    let evictions = format!("/api/v1/namespaces/{NAMESPACE}/events?fieldSelector=reason%3DEvicted");
    let all = once_it_answers(|| scene.cluster.list(&evictions));
    let kubelets = all.into_iter().filter(|event| event["source"]["component"] == "kubelet");
    let evicted: BTreeSet<(String, String)> = kubelets
        .filter_map(|event| {
            let object = &event["involvedObject"];
            Some((object["uid"].as_str()?.to_owned(), object["name"].as_str()?.to_owned()))
        })
        .collect();
    let known: BTreeSet<String> = evicted.iter().map(|(uid, _)| uid.clone()).collect();
    let of_rounds: BTreeSet<&str> = rounds.iter().map(|round| kube::uid(&round.pod)).collect();
    let by_kubelet = of_rounds.iter().filter(|uid| known.contains(**uid)).count();
    let by_kernel = rounds.iter().filter(|round| round.oom_kills > 0).count();
    let further: Vec<&String> =
        evicted.iter().filter(|(uid, _)| !of_rounds.contains(uid.as_str())).map(|(_, name)| name).collect();
    let mut times: Vec<f64> =
        rounds.iter().map(|round| round.crossed_to_dead.as_secs_f64() * 1_000.0).collect();
    times.sort_by(f64::total_cmp);
    let lowest = rounds.iter().map(|round| round.lowest_bytes).min().unwrap_or_default();
    let estimate = rounds.iter().map(|round| round.lowest_estimate_bytes).min().unwrap_or_default();
    println!(
        "{what}: {} ramps; evicted by the kubelet {by_kubelet}, ended by the kernel {by_kernel}, other evictions by the \
         kubelet so far {further:?}; crossing to dead {:.0} ms at the median, {:.0} at most; lowest {:.0} MiB, by the \
         kernel's estimate {:.0} MiB",
        float(rounds.len() as u64),
        rank(&times, 50),
        rank(&times, 100),
        mib(lowest),
        mib(estimate)
    );
    by_kubelet
}
