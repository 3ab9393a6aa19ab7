//! What `/proc`, `/sys` and `/run` say about this machine at the start.

use std::{fs, path::Path};

use anyhow::Context as _;

use super::{container_node, specifying};
use crate::{
    cgroup::{self, Absent},
    config::Config,
    model::Node,
    policy::cpus::CpuSet,
    sense::{self, PidNamespace},
};

/// The host's facts, read once at the start.
#[derive(Clone, Debug)]
pub(super) struct Host {
    /// The node's name: the configured one, that of the variable `NODE_NAME`, or the machine's. In a pod without the host's
    /// network the machine's is the pod's, and another after each upgrade.
    pub(super) name: String,
    /// The machine's own name.
    pub(super) machine_name: String,
    /// The id of this boot.
    pub(super) boot_id: String,
    /// The node's capacities.
    pub(super) node: Node,
    /// Whether systemd can make slices; the error says why not.
    pub(super) systemd: Result<(), Absent>,
    /// The PID namespace of this process; `None` if /proc does not show it.
    pub(super) pid_namespace: Option<PidNamespace>,
    /// The CPUs that exist, online or not; `None` if they are not known.
    pub(super) cpus: Option<CpuSet>,
    /// Why this machine counts as a container; `None` if it does not.
    pub(super) container: Option<String>,
}

impl Host {
    /// Reads the facts from /proc, /sys and /run.
    pub(super) fn read(config: &Config) -> anyhow::Result<Self> {
        let node = sense::node(config.max_pods)?;
        let machine_name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let name = specifying::given_name(config).unwrap_or_else(|| machine_name.clone());
        let node = Node { pods: config.pods(node.cpu_milli), ..node };
        let boot_id = read("/proc/sys/kernel/random/boot_id")?;
        let proc = Path::new("/proc");
        let pid_namespace = PidNamespace::of_this_process(proc).ok();
        let container = container_node::of(proc, pid_namespace);
        let cpus = sense::present_cpus(Path::new(sense::CPUS)).ok();
        let systemd = cgroup::is_there();
        Ok(Self { name, machine_name, boot_id, node, systemd, pid_namespace, cpus, container })
    }

    /// A node that is a container, with a PID namespace and an init of its own.
    #[cfg(test)]
    pub(super) fn of_kind() -> Self {
        Self {
            name: String::from("kind"),
            machine_name: String::from("kind"),
            boot_id: String::from("boot"),
            node: crate::sample::node(),
            systemd: Err(Absent::Init),
            pid_namespace: Some(PidNamespace::new(4, 7)),
            cpus: "0-3".parse().ok(),
            container: Some(String::from("it is a node of kind (/kind/product_uuid)")),
        }
    }
}

fn read(path: &str) -> anyhow::Result<String> {
    Ok(fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?.trim().to_owned())
}
