//! The containers that run into their limits.
use anyhow::{Context as _, ensure};
use enforcer_tests::{
    daemon::Daemon,
    kernel,
    plan::{Planned, folder},
};

const PODS: usize = 80;
const CONTAINERS: usize = 5;
/// All of them together fit into a guest, so that only the containers are short.
const LIMIT: &str = "2Mi";

/// A container.
#[derive(Clone, Debug)]
pub(super) struct Container {
    pub(super) pod: String,
    pub(super) name: String,
    pub(super) cgroup: String,
}

impl Container {
    /// How many processes in it the kernel's OOM killer has killed.
    pub(super) fn kills(&self) -> anyhow::Result<u64> {
        kernel::cgroup_counter(&self.cgroup, "memory.events.local", "oom_kill")
    }
}

/// All containers.
#[derive(Debug)]
pub(super) struct Pool(Vec<Container>);

impl Pool {
    /// Has the daemon make their cgroups.
    pub(super) fn fill(daemon: &Daemon) -> anyhow::Result<Self> {
        let manifests: Vec<String> = (0..PODS).map(manifest).collect();
        daemon.manifest("pods.yaml", &manifests.join("---\n"))?;
        let planned = Planned::of(daemon)?;
        ensure!(planned.rejected.is_empty(), "not admitted: {:?}", planned.rejected);
        planned.wait_until_held()?;
        let containers =
            planned.scores.keys().map(|cgroup| container(cgroup)).collect::<anyhow::Result<Vec<_>>>()?;
        ensure!(containers.len() == PODS * CONTAINERS, "{} containers", containers.len());
        ensure!(containers.iter().all(|container| folder(&container.cgroup).is_dir()), "a cgroup is missing");
        Ok(Self(containers))
    }

    pub(super) fn containers(&self) -> &[Container] {
        &self.0
    }

    #[expect(clippy::unused_self, reason = "it is this pool's number")]
    pub(super) const fn pods(&self) -> usize {
        PODS
    }

    /// The number of kills in all of them.
    pub(super) fn kills(&self) -> anyhow::Result<u64> {
        self.0.iter().map(Container::kills).sum()
    }
}

fn manifest(number: usize) -> String {
    let mut manifest = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p{number}, uid: p{number}}}\nspec:\n  containers:\n"
    );
    for container in 0..CONTAINERS {
        manifest
            .push_str(&format!("  - name: c{container}\n    resources: {{limits: {{memory: {LIMIT}}}}}\n"));
    }
    manifest
}

fn container(cgroup: &str) -> anyhow::Result<Container> {
    let mut parts = cgroup.rsplit('/');
    let (name, pod) = (parts.next(), parts.next().and_then(|pod| pod.strip_prefix("pod")));
    let (name, pod) = name.zip(pod).with_context(|| format!("{cgroup} is no container's cgroup"))?;
    Ok(Container { pod: pod.to_owned(), name: name.to_owned(), cgroup: cgroup.to_owned() })
}
