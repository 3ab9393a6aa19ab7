//! What many pods cost a daemon while nothing happens, by the source that it has them from.
//!
//! The sources and the container runtime are fakes in this program, outside of the daemon's cgroup. A pod is 20 KiB of
//! JSON, most of which nothing reads, with two containers, a controller and the usual labels: as those of a cluster are.

mod beside;
mod list;

use std::{collections::BTreeMap, fs, path::Path, thread, time::Duration};

use anyhow::{Context as _, ensure};
use clap::ValueEnum;
use enforcer::specs::kubelet_rest;
use enforcer_tests::{
    cgroup::Cgroup,
    daemon::Daemon,
    figures::{float, mib},
    wait::TIMEOUT,
};
use serde_json::{Value, json};

use self::beside::Beside;
pub(crate) use self::list::reading_ns;
use crate::{
    idle::{self, BAR_PERCENT, Used},
    resident::{BAR_MIB, HELPER_BAR_MIB, Resident, helpers},
};

/// The cgroup of the daemon itself.
const OWN: &str = "bench-sources";
/// How long a pod is, as a source writes it.
const POD_BYTES: usize = 20 << 10;
/// The containers of each pod.
const CONTAINERS: [&str; 2] = ["app", "proxy"];
/// The verbs of the processes beside the one that reads a source.
const OTHERS: [&str; 3] = ["runtime-process", "kube-process", "network-process"];
/// The kind of each pod's controller.
const CONTROLLER: &str = "ReplicaSet";
/// After the last pod has come: what only the reading needed is given back ten seconds later, and a kubelet's list is read
/// often for a minute.
const REST: Duration = Duration::from_secs(90);

/// With which sources to measure.
#[derive(Debug, clap::Args)]
#[group(id = "of_sources")]
pub(crate) struct Args {
    /// How many pods each source has; 0 leaves the sources out
    #[arg(long, default_value_t = 500)]
    pub(crate) source_pods: u32,
    /// The sources to measure; all by default
    #[arg(long = "source", value_enum)]
    sources: Vec<Source>,
    /// Measure nothing but the sources
    #[arg(long)]
    pub(crate) only_sources: bool,
}

/// Where a daemon has its pods from.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
#[value(rename_all = "camelCase")]
enum Source {
    /// Manifests, without a kubelet.
    Static,
    #[value(name = "podsAPI")]
    PodsApi,
    /// The kubelet's HTTPS server.
    Kubelet,
    ApiServer,
}

impl Source {
    fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::PodsApi => "podsAPI",
            Self::Kubelet => "kubelet",
            Self::ApiServer => "apiServer",
        }
    }
}

/// What was measured with one source.
struct Figures {
    daemon_bytes: u64,
    /// Of the process that reads the source; `None` if there is none.
    process_bytes: Option<u64>,
    /// The verbs of the daemon's other processes, and what each holds.
    others: Vec<(&'static str, u64)>,
    /// Of the daemon and all its processes together.
    cpu_us: u64,
    /// How often a kubelet's list was read.
    lists: u64,
    /// What the threads of the daemon had used at the beginning and at the end.
    threads: [BTreeMap<String, Used>; 2],
    /// The same of the process.
    process_threads: [BTreeMap<String, Used>; 2],
}

/// What is known of a machine that is not emulated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Native {
    /// How many times the processor time here is that there.
    pub(crate) factor: f64,
    /// What a list of the kubelet costs, in nanoseconds of a processor.
    pub(crate) list_ns: u64,
}

/// Measures with each source, and prints it beside the bars. Without `native` there is nothing to compare processor time
/// with. Returns whether the memory is within its bars: an emulated machine takes as much of it as any.
pub(crate) fn measure(args: &Args, seconds: u32, native: Option<Native>) -> anyhow::Result<bool> {
    if args.source_pods == 0 {
        return Ok(true);
    }
    let mut is_within = true;
    let all = if args.sources.is_empty() { Source::value_variants() } else { &args.sources };
    println!(
        "{} pods of {} KiB of JSON with {} containers each in each source; {seconds} s in which nothing happens; memory that no \
         file backs",
        args.source_pods,
        POD_BYTES >> 10,
        CONTAINERS.len()
    );
    println!(
        "{:<12} {:>22} {:>22} {:>12} {:>12} {:>26}",
        "source", "daemon, MiB", "its process, MiB", "% of a CPU", "the process", "without emulation, %"
    );
    for source in all {
        let figures = measure_one(*source, args.source_pods, seconds).with_context(|| source.name())?;
        let Figures { daemon_bytes, process_bytes, others, cpu_us, lists, threads, process_threads } =
            &figures;
        let percent = float(*cpu_us) / 1e4 / f64::from(seconds);
        let process_cpu_ns = cpu_ns(&process_threads[1]).saturating_sub(cpu_ns(&process_threads[0]));
        let process_percent = float(process_cpu_ns) / 1e7 / f64::from(seconds);
        let largest_bytes = others.iter().map(|(_, bytes)| *bytes).chain(*process_bytes).max().unwrap_or(0);
        is_within &= mib(*daemon_bytes) <= BAR_MIB && mib(largest_bytes) <= HELPER_BAR_MIB;
        let process = process_bytes
            .map_or_else(|| String::from("none"), |bytes| beside_bar(mib(bytes), HELPER_BAR_MIB));
        // Neither loop deciphers. A list that was read here does not count; what one costs elsewhere does, as often as one is
        // read.
        let lists_percent = native
            .filter(|_| *source == Source::Kubelet)
            .map_or(0.0, |native| float(native.list_ns) / 1e7 / list_rest(args.source_pods).as_secs_f64());
        let others_percent = if *lists > 0 { percent - process_percent } else { percent };
        let native = native.map_or_else(
            || String::from("not known"),
            |native| beside_bar(others_percent / native.factor + lists_percent, BAR_PERCENT),
        );
        println!(
            "{:<12} {:>22} {process:>22} {percent:>12.3} {process_percent:>12.3} {native:>26}",
            source.name(),
            beside_bar(mib(*daemon_bytes), BAR_MIB),
        );
        for (verb, bytes) in others {
            println!("{verb:>35} {:>22}", beside_bar(mib(*bytes), HELPER_BAR_MIB));
        }
        for [before, after] in [threads, process_threads] {
            idle::print_threads(before, after);
        }
    }
    Ok(is_within)
}

/// The processor time of a process's threads.
fn uses(pid: u32) -> anyhow::Result<u64> {
    Ok(cpu_ns(&idle::threads(pid)?))
}

fn cpu_ns(threads: &BTreeMap<String, Used>) -> u64 {
    threads.values().map(|used| used.cpu_ns).sum()
}

/// How long a list of so many pods is not read again.
fn list_rest(pods: u32) -> Duration {
    kubelet_rest(u64::from(pods) * POD_BYTES as u64)
}

/// A figure and its bar.
fn beside_bar(figure: f64, bar: f64) -> String {
    let verdict = if figure <= bar { "ok" } else { "TOO MUCH" };
    format!("{figure:.3} (bar {bar}: {verdict})")
}

fn measure_one(source: Source, pods: u32, seconds: u32) -> anyhow::Result<Figures> {
    let own = Cgroup::create(OWN)?;
    let place = format!("/tmp/bench-source-{}", source.name());
    let place = Path::new(&place);
    if place.exists() {
        fs::remove_dir_all(place)?;
    }
    let (daemon, beside) = if source == Source::Static {
        let daemon = idle::start(&own, place, "mode: enforce\nmaxPods: 1000")?;
        for number in 0..pods {
            daemon.manifest(&format!("p{number}.json"), &manifest(number).to_string())?;
        }
        (daemon, None)
    } else {
        let beside = Beside::new(place, source, pods)?;
        (idle::start(&own, place, beside.settings())?, Some(beside))
    };
    wait_for_pods(&daemon, pods, beside.is_some())?;
    thread::sleep(REST);
    idle::settle(&own)?;

    let process = helpers(daemon.pid(), "specs-process");
    ensure!(process.len() == usize::from(beside.is_some()), "there are {} specs processes", process.len());
    let process_threads = || process.first().map_or_else(|| Ok(BTreeMap::new()), |pid| idle::threads(*pid));
    let used = || {
        anyhow::Ok((own.number("cpu.stat", "usage_usec")?, idle::threads(daemon.pid())?, process_threads()?))
    };
    let lists = || beside.as_ref().and_then(Beside::lists).unwrap_or(0);
    let (before, lists_before) = (used()?, lists());
    thread::sleep(Duration::from_secs(seconds.into()));
    let after = used()?;
    let (read, most) = (lists() - lists_before, 1 + u64::from(seconds) / list_rest(pods).as_secs());
    ensure!(read <= most, "the kubelet's list was read {read} times, at rest that is at most {most}");
    let mut others = Vec::new();
    for verb in OTHERS {
        for pid in helpers(daemon.pid(), verb) {
            others.push((verb, Resident::of(pid)?.held_bytes()));
        }
    }
    let figures = Figures {
        others,
        cpu_us: after.0 - before.0,
        lists: read,
        threads: [before.1, after.1],
        process_threads: [before.2, after.2],
        daemon_bytes: Resident::of(daemon.pid())?.held_bytes(),
        process_bytes: match process.first() {
            Some(pid) => Some(Resident::of(*pid)?.held_bytes()),
            None => None,
        },
    };
    daemon.stop()?;
    Ok(figures)
}

/// Waits until the daemon knows that many pods, each with its request if they have one from a spec.
fn wait_for_pods(daemon: &Daemon, pods: u32, is_of_spec: bool) -> anyhow::Result<()> {
    let start = std::time::Instant::now();
    loop {
        let answer = daemon.get("/v1/pods")?;
        let (_, body) = answer.split_once("\r\n\r\n").context("an answer without a body")?;
        let view: Value = serde_json::from_str(body).with_context(|| format!("{answer:?}"))?;
        let known = view["pods"].as_array().into_iter().flatten();
        let is_there = |pod: &&Value| {
            if is_of_spec { pod["spec"]["provenance"] == "live" } else { pod["state"] == "active" }
        };
        let count = known.filter(is_there).count();
        if count == usize::try_from(pods)? {
            return Ok(());
        }
        ensure!(start.elapsed() < 3 * TIMEOUT, "it knows {count} of {pods} pods:\n{}", daemon.log());
        thread::sleep(Duration::from_secs(1));
    }
}

/// A pod in so many bytes.
fn manifest(number: u32) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("p{number}"), "namespace": "bench", "uid": uid(number), "labels": labels(number),
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": CONTROLLER, "name": "web-7d4b9c6f5d", "uid": uid(number / 3),
                "controller": true,
            }],
        },
        "spec": {
            "nodeName": "node-1",
            "containers": CONTAINERS.map(|name| json!({
                "name": name, "image": "registry.example/i", "resources": {"requests": {"memory": "1Mi"}}, "env": [],
            })),
        },
        "status": {"phase": "Running", "qosClass": "Burstable"},
    });
    let mut left = POD_BYTES.saturating_sub(pod.to_string().len());
    let mut variables = Vec::new();
    while left > 0 {
        let value = "v".repeat(left.min(80));
        let variable = json!({"name": format!("VARIABLE_{}", variables.len()), "value": value});
        left = left.saturating_sub(variable.to_string().len() + 1);
        variables.push(variable);
    }
    pod["spec"]["containers"][0]["env"] = json!(variables);
    pod
}

/// Those that a chart sets, and the controller.
fn labels(number: u32) -> BTreeMap<String, String> {
    let version = format!("2026.11.{}", number % 30);
    let labels = [
        ("app.kubernetes.io/name", "web"),
        ("app.kubernetes.io/instance", "web-production-eu-central-1"),
        ("app.kubernetes.io/version", version.as_str()),
        ("app.kubernetes.io/component", "frontend"),
        ("app.kubernetes.io/part-of", "shop"),
        ("app.kubernetes.io/managed-by", "Helm"),
        ("helm.sh/chart", "web-12.3.4"),
        ("pod-template-hash", "7d4b9c6f5d"),
        ("topology.kubernetes.io/zone", "eu-central-1a"),
    ];
    labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// In no order, as a cluster's are.
fn uid(number: u32) -> String {
    let mixed = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("{:08x}-6bb6-41e6-bc26-{:012x}", mixed >> 32, mixed & 0xffff_ffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_as_long_as_it_is_to_be() {
        let bytes = manifest(7).to_string().len();
        assert!((POD_BYTES - 200..POD_BYTES + 200).contains(&bytes), "{bytes}");
    }
}
