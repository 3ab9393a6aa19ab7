//! Where the pods of a run live: in cgroups that the daemon makes, or in the same ones without it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use enforcer_tests::{cgroup::ROOT, contest::reckon::Pod, daemon::Daemon, kernel, sampler::now_us};
use jiff::Timestamp;

use super::{
    scene::{MIB, SLICE, THRESHOLD_BYTES, TIMEOUT},
    tree::{CONTROLLERS, Tree},
    workload::Spec,
};

/// Everything of a run lies here.
const FOLDER: &str = "/tmp/bench-evict";

/// The pods of a run and their cgroups, which go when this is dropped.
#[derive(Debug)]
pub(crate) struct House {
    /// None where another contender runs: then nothing of ours does.
    daemon: Option<Daemon>,
    tree: Tree,
}

impl House {
    /// An empty one.
    pub(crate) fn open(with_daemon: bool) -> anyhow::Result<Self> {
        let folder = Path::new(FOLDER);
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("cannot remove {FOLDER}"))?;
        }
        slice()?;
        Tree::clear()?;
        let settings = format!(
            "cgroupRoot: /{SLICE}\nmode: enforce\nevictionScheduling: rr\nevictionHard:\n  memory.available: {}Mi",
            THRESHOLD_BYTES / MIB
        );
        let daemon = if with_daemon {
            Some(Daemon::start(folder, &settings)?)
        } else {
            fs::create_dir_all(folder.join("pods"))?;
            fs::write(
                folder.join("config.yaml"),
                format!(
                    "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\nownership: enforcer\n\
                     stateDir: {FOLDER}/state\nrunDir: {FOLDER}/run\nstaticPodPath: {FOLDER}/pods\n{settings}\n"
                ),
            )?;
            None
        };
        Ok(Self { daemon, tree: Tree::default() })
    }

    /// The daemon's process.
    pub(crate) fn daemon(&self) -> Option<u32> {
        self.daemon.as_ref().map(Daemon::pid)
    }

    /// When the daemon's log had the signal to which of the pods, in microseconds of `CLOCK_MONOTONIC`.
    pub(crate) fn journalled_us(&self, pods: &[Pod]) -> anyhow::Result<Vec<(String, u64)>> {
        let Some(daemon) = &self.daemon else { return Ok(Vec::new()) };
        let reported = daemon.verb(&["-o", "jsonl", "events", "--type", "eviction.signalled"]).output()?;
        ensure!(reported.status.success(), "{}", String::from_utf8_lossy(&reported.stderr));
        // The log goes by the other clock.
        let (real_us, now_us) = (Timestamp::now().as_microsecond(), now_us()?);
        let ahead_us = u64::try_from(real_us)?.checked_sub(now_us).context("the clock is not set")?;
        let mut journalled_us = Vec::new();
        for line in String::from_utf8(reported.stdout)?.lines() {
            let event: serde_json::Value = serde_json::from_str(line)?;
            let time: Timestamp = event["time"].as_str().context("an event without its time")?.parse()?;
            let time_us = u64::try_from(time.as_microsecond())?.saturating_sub(ahead_us);
            let subject = event["subject"].as_str().unwrap_or_default();
            let pod = pods.iter().find(|pod| subject.rsplit('/').next() == Some(&pod.name));
            journalled_us.extend(pod.map(|pod| (pod.name.clone(), time_us)));
        }
        Ok(journalled_us)
    }

    /// Lets the pods in: their cgroups are there afterwards.
    pub(crate) fn admit(&mut self, pods: &[Spec]) -> anyhow::Result<()> {
        for Spec { name, manifest, .. } in pods {
            let file = format!("{name}.yaml");
            match &self.daemon {
                Some(daemon) => daemon.manifest(&file, manifest)?,
                None => fs::write(Path::new(FOLDER).join("pods").join(file), manifest)?,
            }
        }
        self.tree = Tree::plan(Path::new(FOLDER))?;
        if self.daemon.is_none() {
            return self.tree.make();
        }
        let start = Instant::now();
        for Spec { name, .. } in pods {
            let path = self.folder(name)?;
            while !path.is_dir() {
                ensure!(start.elapsed() < TIMEOUT, "the daemon makes no {}", path.display());
                thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// A pod's cgroup, from the mount point on.
    pub(crate) fn cgroup(&self, pod: &str) -> anyhow::Result<&str> {
        self.tree.pod(pod)
    }

    /// The folder of a pod's cgroup.
    pub(crate) fn folder(&self, pod: &str) -> anyhow::Result<PathBuf> {
        Ok(PathBuf::from(format!("{ROOT}{}", self.cgroup(pod)?)))
    }

    /// The anonymous memory of all pods.
    pub(crate) fn anon_bytes() -> anyhow::Result<u64> {
        kernel::cgroup_counter(&format!("/{SLICE}/kubepods"), "memory.stat", "anon")
    }

    /// Starts what runs in a pod.
    pub(crate) fn start(&self, pod: &Spec, out: Stdio) -> anyhow::Result<Child> {
        let mut command = match &self.daemon {
            Some(daemon) => {
                let mut command = daemon.verb(&["exec", &format!("default/{}", pod.name), "--"]);
                command.args(&pod.command);
                command
            }
            None => self.tree.command(pod.name, &pod.command)?,
        };
        let child = command.stdin(Stdio::null()).stdout(out).stderr(Stdio::null()).spawn();
        child.with_context(|| format!("cannot start the pod {}", pod.name))
    }

    /// Ends all pods, and the daemon with all that it leaves in the kernel.
    pub(crate) fn close(mut self) -> anyhow::Result<()> {
        let stopped = match self.daemon.take() {
            Some(daemon) => {
                daemon.stop()?;
                let unpinned = Command::new("enforcer").args(["run", "--unpin"]).output()?;
                ensure!(unpinned.status.success(), "enforcer run --unpin: {}", unpinned.status);
                Ok(())
            }
            None => Ok(()),
        };
        Tree::clear()?;
        stopped
    }
}

impl Drop for House {
    fn drop(&mut self) {
        // After a run that went wrong; the next one says what is left of it.
        drop(self.daemon.take());
        drop(Tree::clear());
    }
}

/// Has systemd make the slice, unless it is there, with all controllers.
fn slice() -> anyhow::Result<()> {
    let folder = Path::new(ROOT).join(SLICE);
    if !folder.is_dir() {
        let started = Command::new("systemctl").args(["start", SLICE]).output();
        let started = started.context("cannot run systemctl: the guest's init must be systemd")?;
        ensure!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
    }
    for folder in [Path::new(ROOT), folder.as_path()] {
        let file = folder.join("cgroup.subtree_control");
        fs::write(&file, CONTROLLERS).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}
