//! The demonstration: a node runs out of memory and the right pod dies; then a container runs into its own limit.
//!
//! It runs in a guest with the real daemon in `enforce`, shows the event stream as an operator sees it, and succeeds
//! only if exactly the right pods died.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "showing is what a demonstration is for")]

use std::{
    path::Path,
    process::{Child, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use enforcer_tests::{
    daemon::Daemon,
    kernel,
    pods::{Container, pod},
    stream::Stream,
};
use serde_json::Value;

const THRESHOLD: &str = "200Mi";
/// Emulated guests are slow.
const TIMEOUT: Duration = Duration::from_mins(2);

/// The role of a pod, and whether it is evicted.
struct Part {
    name: &'static str,
    role: &'static str,
    requests: &'static str,
    limits: &'static str,
    command: &'static [&'static str],
    dies: bool,
}

/// The pods of a node that runs out of memory; the one that overruns it comes last.
static PARTS: [Part; 4] = [
    Part {
        name: "bank",
        role: "Guaranteed, within its request",
        requests: "cpu: 100m, memory: 256Mi",
        limits: "cpu: 100m, memory: 256Mi",
        command: &["workload", "hold", "--size", "200Mi"],
        dies: false,
    },
    Part {
        name: "shop",
        role: "Burstable, within its request",
        requests: "memory: 400Mi",
        limits: "memory: 600Mi",
        command: &["workload", "hold", "--size", "300Mi"],
        dies: false,
    },
    Part {
        name: "cache",
        role: "Burstable, above its request",
        requests: "memory: 100Mi",
        limits: "",
        command: &["workload", "hold", "--size", "250Mi"],
        dies: false,
    },
    Part {
        name: "batch",
        role: "BestEffort, growing by 100Mi/s",
        requests: "",
        limits: "",
        command: &["workload", "ramp", "--rate", "100Mi"],
        dies: true,
    },
];

/// A pod that runs.
struct Actor {
    part: &'static Part,
    process: Child,
}

fn main() -> ExitCode {
    match play() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nFAILED: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn play() -> anyhow::Result<()> {
    let folder = Path::new("/tmp/demonstration");
    let daemon =
        Daemon::start(folder, &format!("mode: enforce\nevictionHard:\n  memory.available: {THRESHOLD}"))?;
    let shown =
        daemon.verb(&["events", "-f"]).stdin(Stdio::null()).spawn().context("cannot show the events")?;
    let mut shown = Shown(shown);
    let mut stream = daemon.follow()?;

    println!("1. The node runs out of memory; evictionHard is memory.available<{THRESHOLD}.\n");
    let killed_before = kernel::vmstat("oom_kill")?;
    let mut actors = cast(&daemon, &mut stream)?;
    let completed = stream.wait_for("eviction.completed", TIMEOUT, |event| {
        enforcer_tests::stream::is(event, "eviction.completed")
    })?;
    stream.drain(Duration::from_secs(3));
    let killed_by_kernel = kernel::vmstat("oom_kill")? - killed_before;

    println!("\n2. A container runs into its own limit of 64Mi.\n");
    daemon.manifest(
        "web.yaml",
        &pod(
            "web",
            0,
            &[
                Container { name: "app", requests: "memory: 32Mi", limits: "memory: 64Mi" },
                Container { name: "log", requests: "memory: 16Mi", limits: "memory: 64Mi" },
            ],
        ),
    )?;
    let mut log = daemon.exec("default/web/log", &["workload", "hold", "--size", "8Mi"])?;
    let mut app = daemon.exec("default/web/app", &["workload", "spike", "--size", "256Mi"])?;
    let incident = stream.wait_for_pod("oom.incident", "default/web", TIMEOUT)?;
    stream.drain(Duration::from_millis(500));

    println!("\nOutcome\n");
    let mut ends = Vec::new();
    for Actor { part, process } in &mut actors {
        ends.push((*part, ended_within(process, Duration::ZERO)?));
    }
    print!("{}", outcome(&ends, &completed, &incident));
    println!("\nThe kernel's own OOM killer in the first part: {killed_by_kernel} kills.");

    let app_ended = ended_within(&mut app, Duration::from_secs(5))?;
    let log_ended = ended_within(&mut log, Duration::ZERO)?;
    shown.end();
    drop(log.kill());
    for actor in &mut actors {
        drop(actor.process.kill());
    }
    judge(&actors, &stream, killed_by_kernel)?;
    let victim = &incident["data"]["victims"][0];
    ensure!(victim["container"] == "app", "the OOM kill was attributed to {}", victim["container"]);
    ensure!(app_ended, "container app of pod web outlived its OOM kill");
    ensure!(!log_ended, "container log of pod web died with its neighbour");
    ensure!(stream.of("oom.incident").count() == 1, "more OOM incidents than the one that was made");
    daemon.stop()?;
    println!("Exactly the right pods died.");
    Ok(())
}

fn cast(daemon: &Daemon, stream: &mut Stream) -> anyhow::Result<Vec<Actor>> {
    let mut actors = Vec::new();
    for part in &PARTS {
        let Part { name, requests, limits, .. } = part;
        daemon.manifest(
            &format!("{name}.yaml"),
            &pod(name, 0, &[Container { name: "app", requests, limits }]),
        )?;
        let process = daemon.exec(&format!("default/{name}"), part.command)?;
        stream.wait_for_pod("limits.applied", &format!("default/{name}"), TIMEOUT)?;
        actors.push(Actor { part, process });
        thread::sleep(Duration::from_millis(1_500));
    }
    Ok(actors)
}

/// What came of the pods, a line each: of those that are dead or not, and of the one at its own limit.
fn outcome(ends: &[(&Part, bool)], completed: &Value, incident: &Value) -> String {
    let line =
        |name: &str, role: &str, state: &str, why: &str| format!("{name:<8} {role:<34} {state:<6} {why}\n");
    let mut text = line("POD", "WHAT IT IS", "STATE", "WHY");
    for (Part { name, role, dies, .. }, dead) in ends {
        let mut why = match (dead, completed["subject"] == format!("default/{name}")) {
            (true, true) => format!(
                "evicted: signalled {}, dead {} after the crossing",
                ms(&completed["data"]["crossedToSignalledMs"]),
                ms(&completed["data"]["crossedToDeadMs"])
            ),
            (true, false) => String::from("died on its own"),
            (false, _) => String::from("spared"),
        };
        if dead != dies {
            why.push_str("  <- WRONG");
        }
        text.push_str(&line(name, role, if *dead { "dead" } else { "lives" }, &why));
    }
    let word = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let (container, limit) =
        (word(&incident["data"]["victims"][0]["container"]), word(&incident["data"]["scope"]));
    let why = format!("kernel OOM kill in container {container}, at the limit of the {limit}");
    text + &line("web", "Burstable, app over its limit", "app", &why)
}

fn judge(actors: &[Actor], stream: &Stream, killed_by_kernel: u64) -> anyhow::Result<()> {
    for Actor { part: Part { name, dies, .. }, .. } in actors {
        let evicted =
            stream.of("eviction.completed").any(|event| event["subject"] == format!("default/{name}"));
        ensure!(evicted == *dies, "pod {name} was {}evicted", if evicted { "" } else { "not " });
    }
    ensure!(stream.of("eviction.decided").count() == 1, "more than one eviction was decided");
    ensure!(killed_by_kernel == 0, "the kernel's OOM killer was faster: {killed_by_kernel} kills");
    Ok(())
}

fn ms(value: &Value) -> String {
    value.as_f64().map_or_else(|| String::from("?"), |ms| format!("{ms:.1} ms"))
}

fn ended_within(process: &mut Child, patience: Duration) -> anyhow::Result<bool> {
    let start = Instant::now();
    loop {
        if process.try_wait()?.is_some() {
            return Ok(true);
        }
        if start.elapsed() >= patience {
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// The process that shows the events; killed when this is dropped.
struct Shown(Child);

impl Shown {
    fn end(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// But for the times, which were measured.
    #[test]
    fn the_readme_shows_the_outcome() {
        let readme = include_str!("../../../README.md");
        let ends = PARTS.each_ref().map(|part| (part, part.dies));
        let completed = json!({"subject": "default/batch",
            "data": {"crossedToSignalledMs": 2.9, "crossedToDeadMs": 323.4}});
        let incident = json!({"data": {"scope": "container", "victims": [{"container": "app"}]}});
        let outcome = outcome(&ends, &completed, &incident);
        assert!(readme.contains(&format!("$ cargo xtask run\n…\n{outcome}…\n```\n")), "{outcome}");
    }
}
