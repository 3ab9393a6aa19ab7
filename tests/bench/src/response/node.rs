//! A daemon in mode enforce, its pods, and what it reports.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use enforcer_tests::{
    daemon::Daemon,
    kernel,
    pods::{Container, pod},
    process::Process,
    stream::{Stream, is},
    wait::TIMEOUT,
};
use serde_json::Value;

pub(super) const MIB: u64 = 1 << 20;

/// A node whose daemon never stops evicting, however often it has.
pub(super) struct Node {
    daemon: Daemon,
    stream: Stream,
}

impl Node {
    pub(super) fn start(name: &str, settings: &str) -> anyhow::Result<Self> {
        let folder = Path::new("/tmp/bench-response").join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        let settings = format!(
            "mode: enforce\nevictionPressureTransitionPeriod: 1ms\nbreaker: {{maxKills: 1000, maxShare: 1}}\n{settings}"
        );
        let daemon = Daemon::start(&folder, &settings)?;
        let stream = daemon.follow()?;
        Ok(Self { daemon, stream })
    }

    pub(super) fn stop(self) -> anyhow::Result<()> {
        self.daemon.stop()
    }

    /// What is available once it has come to rest: who frees memory may have to wait for a processor.
    pub(super) fn available_mib() -> anyhow::Result<u64> {
        const LOOKS: u32 = 4;
        let start = Instant::now();
        let mut first_bytes = kernel::meminfo_bytes("MemAvailable")?;
        let mut looks = 0;
        while looks < LOOKS {
            thread::sleep(Duration::from_millis(300));
            let now_bytes = kernel::meminfo_bytes("MemAvailable")?;
            looks += 1;
            if now_bytes.abs_diff(first_bytes) >= 4 * MIB {
                (first_bytes, looks) = (now_bytes, 0);
            }
            ensure!(start.elapsed() < TIMEOUT, "what is available does not come to rest");
        }
        Ok(first_bytes / MIB)
    }

    fn manifest(&self, name: &str, requests: &str) -> anyhow::Result<()> {
        let container = Container { name: "app", requests, limits: "" };
        self.daemon.manifest(&format!("{name}.yaml"), &pod(name, 0, &[container]))
    }

    /// A pod in a cgroup that others have made.
    pub(super) fn adopt(&mut self, name: &str, cgroup: &str) -> anyhow::Result<()> {
        let manifest = format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  annotations: {{enforcer.dev/cgroup: {cgroup}}}\nspec:\n  \
             priority: -10\n  containers:\n  - name: app\n"
        );
        self.daemon.manifest(&format!("{name}.yaml"), &manifest)?;
        self.pod_event("pod.added", name).map(drop)
    }

    /// A pod that holds so much.
    pub(super) fn hold(&self, name: &str, requests: &str, mib: u64) -> anyhow::Result<Process> {
        self.manifest(name, requests)?;
        self.daemon.hold(&format!("default/{name}"), &format!("{mib}Mi"))
    }

    /// A pod that holds so much within its request, so that it is the last to go.
    pub(super) fn filler(&self, mib: u64) -> anyhow::Result<Process> {
        self.hold("filler", &format!("memory: {}Mi", mib + 64), mib)
    }

    /// The same, which takes the node to so much, and is not waited for.
    pub(super) fn filler_to(&self, left_mib: u64) -> anyhow::Result<Process> {
        let mib = Self::available_mib()?.saturating_sub(left_mib);
        self.manifest("filler", &format!("memory: {}Mi", mib + 64))?;
        self.start_ramp("filler", 300, mib)
    }

    /// A pod that requests nothing, and takes memory at that rate until so much is left.
    pub(super) fn ramp(&self, name: &str, rate_mib: u64, left_mib: u64) -> anyhow::Result<Process> {
        let to_mib = Self::available_mib()?.saturating_sub(left_mib);
        self.manifest(name, "")?;
        self.start_ramp(name, rate_mib, to_mib)
    }

    fn start_ramp(&self, name: &str, rate_mib: u64, to_mib: u64) -> anyhow::Result<Process> {
        let (rate, to) = (format!("{rate_mib}Mi"), format!("{to_mib}Mi"));
        let work = ["workload", "ramp", "--no-catch-up", "--rate", &rate, "--to", &to];
        Ok(Process::new(self.daemon.exec(&format!("default/{name}"), &work)?))
    }

    /// The folder of a pod's cgroup, which requests nothing.
    pub(super) fn folder(&mut self, name: &str) -> anyhow::Result<String> {
        let added = self.stream.added(&format!("default/{name}"), TIMEOUT)?;
        let class = match added["data"]["qosClass"].as_str() {
            Some("BestEffort") => "besteffort/",
            Some("Burstable") => "burstable/",
            _ => "",
        };
        let uid = added["data"]["uid"].as_str().with_context(|| format!("no uid: {added}"))?;
        Ok(format!("/sys/fs/cgroup/kubepods/{class}pod{uid}"))
    }

    /// The next event of that type about a pod, or one that was seen already.
    pub(super) fn pod_event(&mut self, kind: &str, name: &str) -> anyhow::Result<Value> {
        self.stream.wait_for_pod(kind, &format!("default/{name}"), TIMEOUT)
    }

    /// The same about anything.
    pub(super) fn event(&mut self, kind: &str, fits: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
        self.stream.wait_for(kind, TIMEOUT, |event| is(event, kind) && fits(event))
    }

    /// One of those seen already.
    pub(super) fn seen(&self, kind: &str, fits: impl Fn(&Value) -> bool) -> Option<Value> {
        self.stream.of(kind).find(|event| fits(event)).cloned()
    }

    pub(super) fn count(&self, kind: &str) -> usize {
        self.stream.of(kind).count()
    }

    /// Forgets what was seen.
    pub(super) fn forget(&mut self) {
        self.stream.seen.clear();
    }

    /// Removes the pods, waits until their cgroups are gone and the shortage is over, and forgets what was seen.
    pub(super) fn clear(&mut self, names: &[&str]) -> anyhow::Result<()> {
        for name in names {
            let folder = self.folder(name)?;
            let folder = Path::new(&folder);
            // A killed process may leave children. The cgroup of an evicted pod may go at any moment.
            if let Err(error) = fs::write(folder.join("cgroup.kill"), "1")
                && folder.exists()
            {
                bail!("{}: {error}", folder.display());
            }
            self.daemon.remove_manifest(&format!("{name}.yaml"))?;
            self.pod_event("pod.removed", name)?;
            let start = Instant::now();
            while folder.exists() {
                ensure!(start.elapsed() < TIMEOUT, "{} does not go", folder.display());
                thread::sleep(Duration::from_millis(50));
            }
        }
        if self.count("threshold.crossed") > 0 {
            self.event("pressure.cleared", |event| event["data"]["crossedToClearedMs"].is_number())?;
        }
        self.wait_for_calm()?;
        self.forget();
        Ok(())
    }

    /// Waits until each warning of a crossing to come is over: until then there is no other.
    pub(super) fn wait_for_calm(&mut self) -> anyhow::Result<()> {
        let is_headroom = |event: &&Value| event["data"]["kind"] == "headroom";
        let risen: Vec<Value> = self.stream.of("pressure.rising").filter(is_headroom).cloned().collect();
        for rising in risen {
            let data = &rising["data"];
            self.event("pressure.cleared", |event| {
                event["data"]["kind"] == "headroom"
                    && event["data"]["signal"] == data["signal"]
                    && event["data"]["hard"] == data["hard"]
                    && event["sequence"].as_str() > rising["sequence"].as_str()
            })?;
        }
        Ok(())
    }
}

/// When an event happened, in milliseconds.
pub(super) fn time_ms(event: &Value) -> anyhow::Result<f64> {
    let text = event["time"].as_str().with_context(|| format!("no time: {event}"))?;
    let time: jiff::Timestamp = text.parse()?;
    Ok(time.as_duration().as_secs_f64() * 1e3)
}

/// A number of milliseconds.
pub(super) fn millis(value: &Value) -> anyhow::Result<f64> {
    value.as_f64().with_context(|| format!("{value} is no number"))
}

/// Writes a program that only root may write to. Returns its path.
pub(super) fn executable(path: &str, script: &str) -> anyhow::Result<String> {
    let file = Path::new(path);
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(file, script)?;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755))?;
    Ok(path.to_owned())
}
