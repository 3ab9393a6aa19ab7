//! Compares the victim of the kernel's OOM killer with the ranking's first: pods hold memory, the daemon is stopped,
//! and the node runs out.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use enforcer::policy::rank::{self, MemoryRankKey};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    cgroup::ROOT,
    daemon::Daemon,
    kernel,
    kernel_log::KernelLog,
    pods::{Container, pod},
    process::Process,
    stream::Stream,
    wait::TIMEOUT,
};

const MIB: u64 = 1 << 20;

/// How long scores must stay unchanged to count as settled: a daemon checks them every second while pods grow.
const SETTLED: Duration = Duration::from_millis(2_500);

/// A pod of a scene.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Its priority.
    pub priority: i32,
    /// Its memory request; 0 makes it BestEffort.
    pub request_mib: u64,
    /// Memory of each of its processes.
    pub processes_mib: Vec<u64>,
}

impl Member {
    /// A pod of one process.
    #[must_use]
    pub fn new(name: &str, priority: i32, request_mib: u64, holds_mib: u64) -> Self {
        Self { name: name.to_owned(), priority, request_mib, processes_mib: vec![holds_mib] }
    }

    /// Memory of all its processes.
    #[must_use]
    pub fn holds_mib(&self) -> u64 {
        self.processes_mib.iter().sum()
    }
}

/// The outcome of running the node out of memory.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Outcome {
    /// The ranking's first, by what the kernel charged each pod for.
    pub first: String,
    /// The pod whose process the kernel killed first.
    pub killed: String,
    /// Each pod's score when it happened, by name.
    pub scores: Vec<(String, i32)>,
}

/// A daemon with pods.
#[derive(Debug)]
pub struct Scene {
    daemon: Daemon,
    stream: Stream,
    members: Vec<Member>,
    processes: Vec<Process>,
}

impl Scene {
    /// Starts a daemon that leaves eviction to the kernel.
    pub fn open(folder: &Path, policy: &str) -> anyhow::Result<Self> {
        let settings =
            format!("mode: enforce\noomScorePolicy: {policy}\nevictionHard: {{memory.available: \"0%\"}}");
        let daemon = Daemon::start(folder, &settings)?;
        let stream = daemon.follow()?;
        Ok(Self { daemon, stream, members: Vec::new(), processes: Vec::new() })
    }

    /// The daemon.
    #[must_use]
    pub fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    /// Its event stream.
    pub fn stream(&mut self) -> &mut Stream {
        &mut self.stream
    }

    /// Starts pods and waits until they hold their memory.
    pub fn start(&mut self, members: &[Member]) -> anyhow::Result<()> {
        for member in members {
            let requests = if member.request_mib == 0 {
                String::new()
            } else {
                format!("memory: {}Mi", member.request_mib)
            };
            let container = Container { name: "app", requests: &requests, limits: "" };
            let file = format!("{}.yaml", member.name);
            self.daemon.manifest(&file, &pod(&member.name, member.priority, &[container]))?;
            self.stream.wait_for_pod("pod.added", &format!("default/{}", member.name), TIMEOUT)?;
            for mib in &member.processes_mib {
                let work = ["workload", "hold", "--huge", "--size", &format!("{mib}Mi")];
                self.processes
                    .push(self.daemon.exec_until_ready(&format!("default/{}", member.name), &work)?);
            }
            self.members.push(member.clone());
        }
        Ok(())
    }

    /// The score of every process of a pod; fails if they differ.
    pub fn score(&self, name: &str) -> anyhow::Result<i32> {
        let pids = fs::read_to_string(self.cgroup(name)?.join("app/cgroup.procs"))?;
        let mut scores = Vec::new();
        for pid in pids.lines() {
            let score = fs::read_to_string(format!("/proc/{pid}/oom_score_adj"))?;
            scores.push(score.trim().parse::<i32>()?);
        }
        let first = *scores.first().with_context(|| format!("{name} has no process"))?;
        ensure!(scores.iter().all(|score| *score == first), "{name}: {scores:?}");
        Ok(first)
    }

    /// All scores, once they have settled.
    pub fn settled_scores(&self) -> anyhow::Result<Vec<(String, i32)>> {
        let start = Instant::now();
        let mut since = Instant::now();
        let mut before = Vec::new();
        while since.elapsed() < SETTLED {
            // While a score is being written, processes of a pod differ.
            let score = |member: &Member| Ok((member.name.clone(), self.score(&member.name)?));
            let now: anyhow::Result<Vec<_>> = self.members.iter().map(score).collect();
            match now {
                Ok(now) if now == before => {}
                now => {
                    before = now.unwrap_or_default();
                    since = Instant::now();
                }
            }
            ensure!(start.elapsed() < TIMEOUT, "scores do not come to rest: {before:?}");
            thread::sleep(Duration::from_millis(100));
        }
        Ok(before)
    }

    /// Stops the daemon (SIGSTOP) while the node runs out of memory, then ends all pods.
    pub fn run_out(&mut self) -> anyhow::Result<Outcome> {
        let scores = self.settled_scores()?;
        let pid = i32::try_from(self.daemon.pid()).ok().and_then(Pid::from_raw).context("no pid")?;
        kill_process(pid, Signal::STOP)?;
        let first = self.first()?;
        let mut log = KernelLog::from_now_on()?;
        let kills_before = kernel::vmstat("oom_kill")?;
        let mut filler = Process::new(filler()?);
        let start = Instant::now();
        while kernel::vmstat("oom_kill")? == kills_before {
            ensure!(filler.lives()?, "the process that fills the node has ended");
            ensure!(start.elapsed() < TIMEOUT, "the node does not run out within {TIMEOUT:?}");
            thread::sleep(Duration::from_millis(10));
        }
        drop(filler);
        let victims = log.victims()?;
        let victim = victims.first().context("the kernel's log names no victim")?;
        let killed = self.owner(victim).unwrap_or_else(|| victim.clone());
        self.processes.clear();
        kill_process(pid, Signal::CONT)?;
        Ok(Outcome { first, killed, scores })
    }

    /// Ends all pods and waits until they are gone.
    pub fn clear(&mut self) -> anyhow::Result<()> {
        self.processes.clear();
        for member in std::mem::take(&mut self.members) {
            self.daemon.remove_manifest(&format!("{}.yaml", member.name))?;
            self.stream.wait_for_pod("pod.removed", &format!("default/{}", member.name), TIMEOUT)?;
        }
        self.stream.seen.clear();
        Ok(())
    }

    /// The daemon and everything else that still runs.
    #[must_use]
    pub fn into_parts(self) -> (Daemon, Stream, Vec<Process>) {
        (self.daemon, self.stream, self.processes)
    }

    /// The first in rank, by the memory that the kernel charges to each now.
    fn first(&self) -> anyhow::Result<String> {
        let mut order: Vec<(MemoryRankKey, &str)> = Vec::new();
        for (place, member) in (0_u32..).zip(&self.members) {
            let cgroup = self.cgroup(&member.name)?;
            let current: u64 = fs::read_to_string(cgroup.join("memory.current"))?.trim().parse()?;
            let cache = kernel::field(&cgroup.join("memory.stat").display().to_string(), "inactive_file")?;
            let standing = MemoryRankKey {
                usage_bytes: Some(current.saturating_sub(cache)),
                request_bytes: member.request_mib * MIB,
                priority: member.priority,
                order: place,
            };
            order.push((standing, &member.name));
        }
        rank::by_memory(&mut order, |(standing, _)| *standing);
        Ok(order.first().context("there are no pods")?.1.to_owned())
    }

    fn cgroup(&self, name: &str) -> anyhow::Result<PathBuf> {
        let member = self.members.iter().find(|member| member.name == name).context("no such pod")?;
        let class = if member.request_mib == 0 { "besteffort" } else { "burstable" };
        Ok(Path::new(ROOT).join("kubepods").join(class).join(format!("pod{}", self.uid(name)?)))
    }

    fn uid(&self, name: &str) -> anyhow::Result<String> {
        let reported = self.stream.seen.iter().find(|event| {
            event["type"] == "dev.enforcer.pod.added" && event["subject"] == format!("default/{name}")
        });
        let uid = reported.and_then(|event| event["data"]["uid"].as_str());
        Ok(uid.with_context(|| format!("there is no pod.added event of {name}"))?.to_owned())
    }

    fn owner(&self, cgroup: &str) -> Option<String> {
        let holds = |member: &&Member| {
            self.uid(&member.name).is_ok_and(|uid| cgroup.split('/').any(|part| part == format!("pod{uid}")))
        };
        self.members.iter().find(holds).map(|member| member.name.clone())
    }
}

/// The process that fills the node: in no pod, and never killed for it.
fn filler() -> anyhow::Result<Child> {
    let script = "echo -1000 > /proc/self/oom_score_adj && exec workload ramp --huge --rate 400Mi";
    Command::new("sh")
        .args(["-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot run workload")
}
