//! What the daemon and its network process hold in memory with many pods: at rest, after an eviction, and after many
//! changes of manifests; and what it is.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use enforcer_tests::{
    daemon::Daemon,
    figures::mib,
    kernel,
    process::Process,
    stream::{Stream, is},
    wait::TIMEOUT,
};

use crate::resident::{self, BAR_MIB, HELPER_BAR_MIB, Resident};

/// How often manifests are changed.
const CHANGES: u32 = 120;
/// How long after the last work it is measured. What only the work needed is given back ten seconds after a change, later if
/// memory was short then: the figures are what stays. The peak is printed beside them.
const REST: Duration = Duration::from_secs(30);

/// Measures what the daemon holds in memory.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many pods there are, each with two containers
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    pods: u32,
}

/// Whether the daemon and its network process are within their bars.
pub(crate) fn bench(args: &Args) -> anyhow::Result<bool> {
    let receiver = TcpListener::bind("127.0.0.1:0")?;
    let port = receiver.local_addr()?.port();
    thread::spawn(move || receive(&receiver));
    let place = Path::new("/tmp/bench-memory");
    if place.exists() {
        fs::remove_dir_all(place)?;
    }
    let settings = format!(
        "mode: enforce\nmaxPods: 2000\nevictionHard: {{memory.available: 100Mi}}\nevictionPressureTransitionPeriod: 1ms\n\
         sinks: {{webhook: [{{name: w, url: \"http://127.0.0.1:{port}/\", batch: {{}}}}]}}"
    );
    let daemon = Daemon::start(place, &settings)?;
    let mut stream = daemon.follow()?;
    daemon.manifest("pods.yaml", &(0..args.pods).map(manifest).collect::<Vec<_>>().join("---\n"))?;
    wait(&mut stream, "pod.added", &format!("default/p{}", args.pods - 1))?;
    thread::sleep(REST);

    println!(
        "{} pods of two containers, measured {} s after the last pod was added, the eviction's end and the last change",
        args.pods,
        REST.as_secs()
    );
    println!(
        "{:<26} {:>10} {:>10} {:>10} {:>10} {:>12}",
        "MiB", "anon", "shmem", "program", "peak, all", "descriptors"
    );
    let mut most_mib = print("at rest", daemon.pid())?;
    evict(&daemon, &mut stream)?;
    thread::sleep(REST);
    most_mib = most_mib.max(print("after an eviction", daemon.pid())?);
    for change in 0..CHANGES {
        let name = format!("changing{}", change % 10);
        daemon.manifest(&format!("{name}.yaml"), &manifest_of(&name, change))?;
        wait(&mut stream, "limits.applied", &format!("default/{name}"))?;
        stream.seen.clear();
    }
    thread::sleep(REST);
    most_mib = most_mib.max(print(&format!("after {CHANGES} changes"), daemon.pid())?);
    let network = resident::helpers(daemon.pid(), "network-process");
    let network = *network.first().context("there is no network process")?;
    let network_mib = print("the network process", network)?;
    println!();
    print_parts(daemon.pid())?;
    drop(stream);
    daemon.stop()?;
    let judged = |holds| if holds { "ok" } else { "TOO MUCH" };
    let (holds, network_holds) = (most_mib <= BAR_MIB, network_mib <= HELPER_BAR_MIB);
    println!("bar: anon and shmem of the daemon {most_mib:.1} <= {BAR_MIB} MiB: {}", judged(holds));
    println!(
        "bar: of the network process {network_mib:.1} <= {HELPER_BAR_MIB} MiB: {}",
        judged(network_holds)
    );
    Ok(holds && network_holds)
}

fn manifest(number: u32) -> String {
    manifest_of(&format!("p{number}"), number)
}

fn manifest_of(name: &str, number: u32) -> String {
    // Together they are within what the node may give.
    let mib = 1 + number % 3;
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, uid: {name}}}\nspec:\n  containers:\n  - name: app\n    \
         resources: {{limits: {{memory: {mib}Mi}}}}\n  - name: side\n    resources: {{requests: {{cpu: 1m}}}}\n"
    )
}

fn wait(stream: &mut Stream, kind: &str, pod: &str) -> anyhow::Result<()> {
    stream.wait_for_pod(kind, pod, TIMEOUT).map(drop)
}

/// Has a pod fill the node, and waits until it is evicted and gone.
fn evict(daemon: &Daemon, stream: &mut Stream) -> anyhow::Result<()> {
    daemon.manifest(
        "hog.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: hog, uid: hog}\nspec: {containers: [{name: app}]}\n",
    )?;
    let to = (kernel::meminfo_bytes("MemAvailable")? - (50 << 20)).to_string();
    let work = ["workload", "ramp", "--no-catch-up", "--rate", "200Mi", "--to", &to];
    let mut hog = Process::new(daemon.exec("default/hog", &work)?);
    wait(stream, "eviction.completed", "default/hog")?;
    hog.wait_for_end(TIMEOUT)?;
    let is_over = |event: &serde_json::Value| {
        is(event, "pressure.cleared") && event["data"]["crossedToClearedMs"].is_number()
    };
    stream.wait_for("the end of the shortage", TIMEOUT, is_over)?;
    daemon.remove_manifest("hog.yaml")?;
    wait(stream, "pod.removed", "default/hog")
}

/// Prints a line, and returns anonymous and shared memory together in MiB, without the program itself.
fn print(what: &str, pid: u32) -> anyhow::Result<f64> {
    let Resident { anon_bytes, shmem_bytes, program_bytes, peak_bytes } = Resident::of(pid)?;
    let (anon, shmem, program) = (mib(anon_bytes), mib(shmem_bytes), mib(program_bytes));
    let peak = mib(peak_bytes);
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))?.count();
    println!("{what:<26} {anon:>10.1} {shmem:>10.1} {program:>10.1} {peak:>10.1} {descriptors:>12}");
    Ok(anon + shmem)
}

/// Prints what is resident, by what it is, the largest first.
fn print_parts(pid: u32) -> anyhow::Result<()> {
    let mut parts: Vec<_> =
        resident::parts(pid)?.into_iter().filter(|(_, part)| part.resident_bytes > 0).collect();
    parts.sort_by_key(|(_, part)| std::cmp::Reverse(part.resident_bytes));
    println!("{:<52} {:>10} {:>10}", "resident, MiB", "all", "anon");
    for (name, part) in parts {
        println!("{name:<52} {:>10.2} {:>10.2}", mib(part.resident_bytes), mib(part.anonymous_bytes));
    }
    Ok(())
}

/// Takes every request.
fn receive(listener: &TcpListener) {
    for stream in listener.incoming().map_while(Result::ok) {
        // A connection that breaks is opened again.
        thread::spawn(move || drop(answer(&stream)));
    }
}

fn answer(mut stream: &TcpStream) -> anyhow::Result<()> {
    let begin = Instant::now();
    let mut reader = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            ensure!(reader.read_line(&mut line)? > 0, "closed after {:?}", begin.elapsed());
            let line = line.trim().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse()?;
            } else if line.is_empty() {
                break;
            }
        }
        reader.read_exact(&mut vec![0; length])?;
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n")?;
    }
}
