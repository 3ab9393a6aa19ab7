//! The CPUs that containers would have of their own, on this machine or on one of a given topology, and why.

use std::{io, path::Path, str::FromStr};

use anyhow::anyhow;
use serde::Serialize;

use super::document::{Document, PodDocument};
use crate::{
    cgroup::{self, CgroupDir},
    cli::{Context, Failure},
    daemon,
    model::{Container, ContainerKind, Node, Pod, QosClass, ResourceName},
    policy::{
        CpuManagerPolicy, Settings,
        admission::{CpuAdmitter, CpuMachine, Cpus},
        cpus::{Assignments, LogicalCpu, Topology},
        qos,
    },
    sense,
};

/// The most CPUs of a topology: the largest `CONFIG_NR_CPUS`.
const MOST: u32 = 8_192;

/// `--topology sockets=2,cores=2,threads=2`: each socket is a NUMA node.
///
/// CPUs are numbered as most x86 machines do: first threads of all cores first, socket by socket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Shape {
    sockets: u32,
    cores: u32,
    threads: u32,
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "{text:?} is not sockets=N,cores=N,threads=N, with cores of a socket and threads of a core, at most {MOST} CPUs"
            )
        };
        let (mut sockets, mut cores, mut threads) = (None, None, None);
        for pair in text.split(',') {
            let (name, number) = pair.split_once('=').ok_or_else(expected)?;
            let place = match name {
                "sockets" => &mut sockets,
                "cores" => &mut cores,
                "threads" => &mut threads,
                _ => return Err(expected()),
            };
            let number = number.parse().ok().filter(|number| (1..=MOST).contains(number));
            if place.replace(number.ok_or_else(expected)?).is_some() {
                return Err(expected());
            }
        }
        let one = |number: Option<u32>| number.unwrap_or(1);
        let shape = Self { sockets: one(sockets), cores: one(cores), threads: one(threads) };
        let count = shape.sockets.checked_mul(shape.cores).and_then(|cores| cores.checked_mul(shape.threads));
        count.filter(|count| *count <= MOST).map(|_| shape).ok_or_else(expected)
    }
}

impl Shape {
    /// How many CPUs it has.
    pub(super) fn cpus(self) -> u32 {
        self.sockets * self.cores * self.threads
    }

    fn topology(self) -> Result<Topology, String> {
        let per_thread = self.sockets * self.cores;
        let cpu = |number: u32| {
            let core = number % per_thread;
            let socket = core / self.cores;
            let cpu = u16::try_from(number).map_err(|error| error.to_string())?;
            Ok(LogicalCpu { cpu, core, socket, numa_node: socket })
        };
        let cpus = (0..self.cpus()).map(cpu).collect::<Result<Vec<_>, String>>()?;
        Topology::new(cpus).map_err(|error| error.to_string())
    }
}

/// The machine's CPUs; `None` where no container gets any of its own.
pub(super) fn of(
    context: &Context,
    node: &Node,
    shape: Option<Shape>,
    is_other_machine: bool,
) -> Result<Option<Cpus>, Failure> {
    let settings = &context.config.settings;
    if settings.cpu_manager_policy == CpuManagerPolicy::None {
        return Ok(None);
    }
    match shape {
        Some(shape) => {
            let topology = shape.topology().map_err(|error| Failure::usage(anyhow!("{error}")))?;
            Ok(Some(daemon::cpu_machine_of(topology, node, settings)))
        }
        None if is_other_machine => Err(Failure::usage(anyhow!(
            "cpuManagerPolicy: static needs to know what the CPUs of that machine share: add --topology sockets=N,cores=N,threads=N"
        ))),
        None => Ok(Some(here(node, settings))),
    }
}

/// This machine's CPUs.
fn here(node: &Node, settings: &Settings) -> Cpus {
    let root = CgroupDir::mount(Path::new(cgroup::MOUNT));
    let controllers = root.and_then(|root| root.read("cgroup.controllers")).unwrap_or_default();
    daemon::cpu_machine(Path::new(sense::CPUS), node, settings, &controllers)
}

/// What containers have of this machine's CPUs by the daemon's record, and would have if the others came now; with what
/// is wrong with the record.
pub(super) fn live(context: &Context, node: &Node, pods: &[&Pod]) -> Option<(Assignments, Option<String>)> {
    let (config, settings) = (&context.config, &context.config.settings);
    if settings.cpu_manager_policy == CpuManagerPolicy::None {
        return None;
    }
    let (known, problem) = match daemon::cpu_assignments(&config.state_dir) {
        Ok(known) => (known, None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => (Assignments::default(), None),
        Err(error) => {
            let message = format!("the record of CPUs in {}: {error}", config.state_dir.display());
            (Assignments::default(), Some(message))
        }
    };
    let cpus = here(node, settings);
    let holders = CpuAdmitter::holders(&known, |_| true);
    let mut admitter = CpuAdmitter::new(&cpus, &known, holders);
    for pod in pods {
        // The daemon says which pods are refused.
        let _refused = admitter.admit(pod);
    }
    Some((admitter.into_assignments(), problem.or(cpus.err())))
}

/// The CPUs of the node in a plan.
#[derive(Debug, Serialize)]
pub(super) struct NodeCpus {
    /// Those that no container gets as its own.
    pub(super) reserved: String,
    /// Those that all others share.
    pub(super) shared: String,
    /// Why no container gets any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) problem: Option<String>,
}

/// The CPUs of a container in a plan.
#[derive(Debug, Serialize)]
pub(super) struct ContainerCpus {
    /// Which.
    pub(super) cpus: String,
    /// Whether they are its own.
    pub(super) exclusive: bool,
    /// Why.
    pub(super) reason: String,
}

/// Adds to a plan which CPUs containers have, and why.
pub(super) fn add(document: &mut Document, cpus: &Cpus, assignments: &Assignments, pods: &[Pod]) {
    let reserved = |machine: &CpuMachine| machine.reserved.to_string();
    document.node.cpus = Some(NodeCpus {
        reserved: cpus.as_ref().map(reserved).unwrap_or_default(),
        shared: assignments.default_cpu_set.to_string(),
        problem: cpus.as_ref().err().cloned(),
    });
    for (document, pod) in document.pods.iter_mut().zip(pods) {
        add_to_pod(document, assignments, pod);
    }
}

fn add_to_pod(document: &mut PodDocument, assignments: &Assignments, pod: &Pod) {
    let class = qos::class(pod);
    for (document, container) in document.containers.iter_mut().zip(&pod.containers) {
        let own = assignments.get(&pod.uid, &container.name);
        document.cpus = Some(ContainerCpus {
            cpus: own.unwrap_or(&assignments.default_cpu_set).to_string(),
            exclusive: own.is_some(),
            reason: reason(pod, container, class, own.map(crate::policy::cpus::CpuSet::len)),
        });
    }
}

fn reason(pod: &Pod, container: &Container, class: QosClass, own: Option<usize>) -> String {
    let cpu = container.resources.requests.get(ResourceName::CPU);
    match (own, cpu) {
        (Some(count), _) => format!("its pod is Guaranteed, and it requests {count} whole CPUs"),
        (None, _) if class != QosClass::Guaranteed => format!("its pod is {}", class.as_str()),
        (None, _) if pod.resources.is_some() => String::from("its pod has resources of its own level"),
        (None, _) if !matches!(container.kind, ContainerKind::App | ContainerKind::Sidecar) => {
            format!("it is of kind {}", container.kind.as_str())
        }
        (None, Some(cpu)) if cpu.milli() % 1_000 != 0 || cpu.milli() == 0 => {
            format!("it requests {cpu} CPUs, which is no whole number")
        }
        (None, _) => String::from("its pod is not admitted"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_has_its_first_threads_first() {
        let shape: Shape = "sockets=2,cores=2,threads=2".parse().unwrap();
        assert_eq!(shape.cpus(), 8);
        let topology = shape.topology().unwrap();
        let cores: Vec<_> = topology.cores().values().map(ToString::to_string).collect();
        assert_eq!(cores, ["0,4", "1,5", "2,6", "3,7"]);
        let nodes: Vec<_> = topology.numa_nodes().values().map(ToString::to_string).collect();
        assert_eq!(nodes, ["0-1,4-5", "2-3,6-7"]);
        for wrong in
            ["", "sockets", "cores=0", "dies=1", "cores=1,cores=1", "sockets=4096,cores=4096,threads=2"]
        {
            assert!(wrong.parse::<Shape>().is_err(), "{wrong}");
        }
    }
}
