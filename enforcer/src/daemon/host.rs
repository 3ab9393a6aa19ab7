use std::{fs, path::Path};

use anyhow::Context as _;

use crate::{
    cgroup::{self, Absent, CgroupDir},
    config::Config,
    model::{CgroupPath, Node},
    policy::{CgroupDriver, name},
    sense::{self, PidNamespace},
};

/// The host's facts, read once at the start.
#[derive(Clone, Debug)]
pub(super) struct Host {
    /// The node's name.
    pub(super) name: String,
    /// The id of this boot.
    pub(super) boot_id: String,
    /// The node's capacities.
    pub(super) node: Node,
    /// Whether systemd can make slices; the error says why not.
    pub(super) systemd: Result<(), Absent>,
    /// The PID namespace of this process; `None` if /proc does not show it.
    pub(super) pid_namespace: Option<PidNamespace>,
}

impl Host {
    /// Reads the facts from /proc, /sys and /run.
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

/// The cgroup driver of the kubelet here, by the kubepods that exists; `None` if none does. After a change of the driver
/// both may: then it is the one that holds processes.
pub(super) fn kubelets_driver(cgroup_root: &CgroupPath) -> Option<CgroupDriver> {
    let mount = CgroupDir::mount(Path::new(cgroup::MOUNT)).ok()?;
    let foreign = foreign_kubepods(&mount, cgroup_root);
    let populated = foreign.iter().find(|(_, kubepods)| matches!(kubepods.is_populated(), Ok(true)));
    populated.or(foreign.first()).map(|(driver, _)| *driver)
}

/// The kubepods of each driver that exist and carry no mark of ours.
fn foreign_kubepods(mount: &CgroupDir, cgroup_root: &CgroupPath) -> Vec<(CgroupDriver, CgroupDir)> {
    [CgroupDriver::Cgroupfs, CgroupDriver::Systemd]
        .into_iter()
        .filter_map(|driver| Some((driver, mount.open(&name::kubepods(cgroup_root, driver)).ok()?)))
        .filter(|(_, kubepods)| !matches!(kubepods.is_marked(), Ok(true)))
        .collect()
}

/// Whether the kubelet owns the pods' cgroups here: its process runs, or a kubepods exists that enforcer did not make.
pub(super) fn kubelet_owns(cgroup_root: &CgroupPath) -> bool {
    let runs = procfs::process::all_processes().is_ok_and(|processes| {
        processes
            .filter_map(Result::ok)
            .any(|process| process.stat().is_ok_and(|stat| stat.comm == "kubelet"))
    });
    runs || kubelets_driver(cgroup_root).is_some()
}
