//! The pods' cgroups without the daemon: what it plans for them, made by hand.
//!
//! Every contender meets the same cgroups with the same limits, weights and scores, which are those that a kubelet
//! would have made.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use enforcer_tests::cgroup::ROOT;
use serde::Deserialize;

use super::scene::{SLICE, TIMEOUT};

/// The shell joins the cgroup and takes the score before it becomes the program.
const ENTER: &str =
    r#"echo 0 > "$0/cgroup.procs" && echo "$1" > /proc/self/oom_score_adj && shift && exec "$@""#;

/// Those that a plan writes files of.
pub(crate) const CONTROLLERS: &str = "+cpu +io +memory +pids +hugetlb";

/// What `enforcer plan` says.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Tree {
    node: Node,
    #[serde(rename = "qosCgroups")]
    qos: Vec<Level>,
    pods: Vec<Pod>,
}

#[derive(Debug, Default, Deserialize)]
struct Node {
    cgroup: Level,
}

#[derive(Debug, Default, Deserialize)]
struct Level {
    path: String,
    files: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct Pod {
    name: String,
    cgroup: Level,
    containers: Vec<Container>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    oom_score_adj: i32,
    cgroup: Level,
}

impl Tree {
    /// Asks for the plan of the manifests in a folder, with the configuration in it.
    pub(crate) fn plan(folder: &Path) -> anyhow::Result<Self> {
        let output = Command::new("enforcer")
            .arg("--config")
            .arg(folder.join("config.yaml"))
            .args(["-o", "json", "plan", "-f"])
            .arg(folder.join("pods"))
            .output()
            .context("cannot run enforcer plan")?;
        ensure!(output.status.success(), "enforcer plan: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).context("cannot understand what enforcer plan says")
    }

    /// A pod's cgroup, from the mount point on.
    pub(crate) fn pod(&self, name: &str) -> anyhow::Result<&str> {
        Ok(&self.find(name)?.cgroup.path)
    }

    fn find(&self, name: &str) -> anyhow::Result<&Pod> {
        let found = self.pods.iter().find(|pod| pod.name == name);
        found.with_context(|| format!("the plan has no pod {name}"))
    }

    /// Makes all of them, from the top.
    pub(crate) fn make(&self) -> anyhow::Result<()> {
        make(&self.node.cgroup, true)?;
        // A Guaranteed pod stands right below kubepods.
        for level in self.qos.iter().filter(|level| level.path != self.node.cgroup.path) {
            make(level, true)?;
        }
        for pod in &self.pods {
            make(&pod.cgroup, true)?;
            for container in &pod.containers {
                make(&container.cgroup, false)?;
            }
        }
        Ok(())
    }

    /// A command in a pod's only container.
    pub(crate) fn command(&self, pod: &str, words: &[String]) -> anyhow::Result<Command> {
        let pod = self.find(pod)?;
        let container = pod.containers.first().with_context(|| format!("{} has no container", pod.name))?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", ENTER]).arg(folder(&container.cgroup.path));
        command.arg(container.oom_score_adj.to_string()).args(words);
        Ok(command)
    }

    /// Kills what is in any of them, and removes them.
    pub(crate) fn clear() -> anyhow::Result<()> {
        let top = Path::new(ROOT).join(SLICE).join("kubepods");
        if !top.is_dir() {
            return Ok(());
        }
        let kill = top.join("cgroup.kill");
        fs::write(&kill, "1").with_context(|| format!("cannot write {}", kill.display()))?;
        let start = Instant::now();
        loop {
            match remove(&top) {
                Ok(()) => return Ok(()),
                // Until the last one has gone.
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    ensure!(start.elapsed() < TIMEOUT, "{} stays: {error}", top.display());
                    thread::sleep(Duration::from_millis(20));
                }
                Err(error) => return Err(error).with_context(|| format!("cannot remove {}", top.display())),
            }
        }
    }
}

fn folder(path: &str) -> PathBuf {
    PathBuf::from(format!("{ROOT}{path}"))
}

fn make(level: &Level, has_children: bool) -> anyhow::Result<()> {
    let folder = folder(&level.path);
    fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let write = |file: &str, value: &str| {
        let path = folder.join(file);
        fs::write(&path, value).with_context(|| format!("cannot write {value:?} to {}", path.display()))
    };
    if has_children {
        write("cgroup.subtree_control", CONTROLLERS)?;
    }
    for (file, value) in &level.files {
        write(file, value)?;
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    fs::remove_dir(path)
}
