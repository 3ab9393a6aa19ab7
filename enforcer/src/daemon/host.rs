use std::{fs, path::Path};

use anyhow::Context as _;

use crate::{
    cgroup::{self, Absent, CgroupDir},
    config::Config,
    model::{CgroupPath, Node},
    policy::{CgroupDriver, name},
    sense::{self, PidNamespace},
};

/// What this host is, read once at the start.
#[derive(Clone, Debug)]
pub(super) struct Host {
    /// Its name.
    pub(super) name: String,
    /// This boot's id.
    pub(super) boot_id: String,
    /// What it has.
    pub(super) node: Node,
    /// Whether systemd can be asked for slices.
    pub(super) systemd: Result<(), Absent>,
    /// The PID namespace of this process; none if /proc does not show it.
    pub(super) pid_namespace: Option<PidNamespace>,
}

impl Host {
    /// Reads it from /proc, /sys and /run.
    pub(super) fn read(config: &Config) -> anyhow::Result<Self> {
        let node = sense::node(config.max_pods)?;
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let node = Node { pods: config.pods(node.cpu_milli), ..node };
        let boot_id = read("/proc/sys/kernel/random/boot_id")?;
        let pid_namespace = PidNamespace::of_this_process(Path::new("/proc")).ok();
        Ok(Self { name, boot_id, node, systemd: cgroup::is_there(), pid_namespace })
    }
}

fn read(path: &str) -> anyhow::Result<String> {
    Ok(fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?.trim().to_owned())
}

/// Whether the kubelet owns the pods' cgroups here: its process runs, or a kubepods stands that is not ours.
pub(super) fn kubelet_owns(cgroup_root: &CgroupPath) -> bool {
    let runs = procfs::process::all_processes().is_ok_and(|processes| {
        processes
            .filter_map(Result::ok)
            .any(|process| process.stat().is_ok_and(|stat| stat.comm == "kubelet"))
    });
    let foreign = || -> Option<bool> {
        let mount = CgroupDir::mount(Path::new(cgroup::MOUNT)).ok()?;
        // Of either driver, for that of a kubelet here is not known.
        let stands = [CgroupDriver::Cgroupfs, CgroupDriver::Systemd]
            .into_iter()
            .filter_map(|driver| mount.open(&name::kubepods(cgroup_root, driver)).ok())
            // Those that are ours carry our mark.
            .any(|kubepods| !matches!(kubepods.mark(), Ok(Some(_))));
        Some(stands)
    };
    runs || foreign().unwrap_or(false)
}
