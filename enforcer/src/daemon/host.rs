use std::{fs, io, path::Path};

use anyhow::Context as _;
use rustix::thread::CapabilitySet;

use crate::{
    cgroup::{self, Absent, CgroupDir},
    config::Config,
    model::{CgroupPath, Node},
    policy::{CgroupDriver, name},
    sense,
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
}

impl Host {
    /// Reads it from /proc, /sys and /run.
    pub(super) fn read(config: &Config) -> anyhow::Result<Self> {
        let node = sense::node(config.max_pods)?;
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let node = Node { pods: config.pods(node.cpu_milli), ..node };
        let boot_id = read("/proc/sys/kernel/random/boot_id")?;
        Ok(Self { name, boot_id, node, systemd: cgroup::is_there() })
    }
}

fn read(path: &str) -> anyhow::Result<String> {
    Ok(fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?.trim().to_owned())
}

/// Something that this host lacks, and what is lost by it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Lack {
    /// What it is, in one word; also the metric's label.
    pub(super) what: &'static str,
    /// What was found, what is lost, and how to get it: one line.
    pub(super) message: String,
}

/// Looks for what the daemon can do without, but not as well.
pub(super) fn lacks() -> Vec<Lack> {
    let lack = |what, message: &str| Lack { what, message: message.to_owned() };
    let mut lacks = Vec::new();
    if !rustix::process::geteuid().is_root() {
        lacks.push(lack("root", "not running as root: scores and cgroups cannot be written, nor eBPF programs loaded; run as root"));
    }
    if let Err(error) = CgroupDir::mount(Path::new(cgroup::MOUNT)) {
        lacks.push(Lack {
            what: "cgroup2",
            message: format!("no cgroup v2, so nothing can be enforced and nobody evicted: {error}"),
        });
    }
    match fs::read_to_string("/proc/pressure/memory") {
        Ok(_) => {}
        Err(error) => lacks.push(Lack {
            what: "psi",
            message: format!("no pressure stall information ({}): pressure is sensed by sampling and eBPF alone; boot with psi=1", describe(&error)),
        }),
    }
    if !has_sys_resource() {
        lacks.push(lack(
            "cap_sys_resource",
            "no CAP_SYS_RESOURCE: an oom_score_adj cannot be lowered; grant the capability",
        ));
    }
    lacks
}

fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => String::from("not compiled in"),
        _ => error.to_string(),
    }
}

fn has_sys_resource() -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_RESOURCE))
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
