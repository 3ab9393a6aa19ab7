//! `--capacity cpu=4,memory=8Gi,…`: the capacity of another machine.

use std::str::FromStr;

use anyhow::Context as _;

use super::Failure;
use crate::{
    config::Config,
    model::{Node, ParseQuantityError, Quantity, ResourceList, ResourceName},
    policy::allocatable,
    sense,
};

/// The named resources. The machine has no others, except cpu and memory.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Capacity {
    cpu: Option<Quantity>,
    memory: Option<Quantity>,
    swap: Option<Quantity>,
    pods: Option<Quantity>,
    pid: Option<Quantity>,
    other: ResourceList,
}

/// Why a text is not a capacity.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum CapacityError {
    #[error("{0:?} is not NAME=QUANTITY, such as memory=8Gi")]
    Pair(String),
    #[error(
        "{0:?} is not a resource: it must be cpu, memory, swap, pods, pid, ephemeral-storage, hugepages-SIZE, or a name with a domain such as example.com/gpu"
    )]
    Name(String),
    #[error("{name}: {source}")]
    Quantity { name: String, source: ParseQuantityError },
    #[error("{0} must not be negative")]
    Negative(String),
    #[error("{0} is named twice")]
    Twice(String),
}

impl FromStr for Capacity {
    type Err = CapacityError;

    fn from_str(text: &str) -> Result<Self, CapacityError> {
        let mut capacity = Self::default();
        for pair in text.split(',') {
            let (name, amount) = pair.split_once('=').ok_or_else(|| CapacityError::Pair(pair.to_owned()))?;
            let name = name.trim();
            let amount: Quantity = amount
                .trim()
                .parse()
                .map_err(|source| CapacityError::Quantity { name: name.to_owned(), source })?;
            if amount.is_negative() {
                return Err(CapacityError::Negative(name.to_owned()));
            }
            let before = match name {
                ResourceName::CPU => capacity.cpu.replace(amount),
                ResourceName::MEMORY => capacity.memory.replace(amount),
                "swap" => capacity.swap.replace(amount),
                allocatable::PODS => capacity.pods.replace(amount),
                allocatable::PID => capacity.pid.replace(amount),
                _ if is_other(name) => capacity.other.insert(ResourceName::new(name), amount),
                _ => return Err(CapacityError::Name(name.to_owned())),
            };
            if before.is_some() {
                return Err(CapacityError::Twice(name.to_owned()));
            }
        }
        Ok(capacity)
    }
}

impl Capacity {
    /// The same with that many CPUs; `None` if it names another cpu.
    pub(super) fn with_cpus(self, cpus: u32) -> Option<Self> {
        let cpu = Quantity::from_units(u64::from(cpus));
        self.cpu.is_none_or(|named| named == cpu).then_some(Self { cpu: Some(cpu), ..self })
    }
}

fn is_other(name: &str) -> bool {
    let is_size = |size: &str| size.parse::<Quantity>().is_ok_and(Quantity::is_positive);
    name == ResourceName::EPHEMERAL_STORAGE
        || name.strip_prefix("hugepages-").is_some_and(is_size)
        || name.split_once('/').is_some_and(|(domain, rest)| !domain.is_empty() && !rest.is_empty())
}

/// The machine to plan for: this one, or one of the given capacity.
pub(super) fn node(capacity: Option<&Capacity>, config: &Config) -> Result<Node, Failure> {
    let here = || sense::node(config.max_pods).context("cannot read this machine's capacity: use --capacity");
    let with_pods = |node: Node| Node { pods: config.pods(node.cpu_milli), ..node };
    let Some(Capacity { cpu, memory, swap, pods, pid, other }) = capacity else {
        return Ok(with_pods(here()?));
    };
    let (cpu_milli, memory_bytes) = match (cpu, memory) {
        (Some(cpu), Some(memory)) => (cpu.milli(), memory.units()),
        (cpu, memory) => {
            let here = here()?;
            (cpu.map_or(here.cpu_milli, Quantity::milli), memory.map_or(here.memory_bytes, Quantity::units))
        }
    };
    let swap_bytes = swap.map_or(0, Quantity::units);
    let node = with_pods(Node {
        cpu_milli,
        memory_bytes,
        swap_bytes,
        pods: 0,
        max_pids: pid.map(Quantity::units),
        page_bytes: sense::page_bytes(),
        swap_controller: swap_bytes > 0,
        other: other.clone(),
    });
    Ok(Node { pods: pods.map_or(node.pods, Quantity::units), ..node })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node_of(text: &str) -> Node {
        node(Some(&text.parse().unwrap()), &Config::default()).unwrap()
    }

    #[test]
    fn a_machine_has_what_is_named() {
        let node = node_of("cpu=4,memory=8Gi,swap=0,hugepages-2Mi=0,example.com/gpu=2");
        assert_eq!((node.cpu_milli, node.memory_bytes, node.swap_bytes, node.pods), (4_000, 8 << 30, 0, 110));
        assert!(!node.swap_controller);
        assert_eq!(node.max_pids, None);
        let other: Vec<_> = node.other.iter().map(|(name, amount)| (name.as_str(), amount.units())).collect();
        assert_eq!(other, [("example.com/gpu", 2), ("hugepages-2Mi", 0)]);
        let node = node_of("cpu=500m,memory=1Gi,swap=1Gi,pods=7,pid=1000");
        assert_eq!(
            (node.cpu_milli, node.swap_bytes, node.pods, node.max_pids),
            (500, 1 << 30, 7, Some(1_000))
        );
        assert!(node.swap_controller);
    }

    #[test]
    fn cpu_and_memory_are_this_machines_unless_named() {
        let here = node(None, &Config::default()).unwrap();
        assert_eq!(node_of("memory=1Gi").cpu_milli, here.cpu_milli);
        assert_eq!(node_of("cpu=1").memory_bytes, here.memory_bytes);
        let per_core = Config { pods_per_core: 4, ..Config::default() };
        let per_core = node(Some(&"cpu=2500m,memory=1Gi".parse().unwrap()), &per_core).unwrap();
        assert_eq!(per_core.pods, 8);
    }

    #[test]
    fn what_is_wrong_names_its_key() {
        for (text, reported) in [
            ("", "\"\" is not NAME=QUANTITY"),
            ("cpu", "\"cpu\" is not NAME=QUANTITY"),
            ("cpu=1,", "\"\" is not NAME=QUANTITY"),
            ("memory=8Q", "memory: \"8Q\" is not a quantity"),
            ("cpu=-1", "cpu must not be negative"),
            ("gpu=1", "\"gpu\" is not a resource"),
            ("hugepages-=1", "\"hugepages-\" is not a resource"),
            ("cpu=1,cpu=2", "cpu is named twice"),
        ] {
            let error = text.parse::<Capacity>().unwrap_err().to_string();
            assert!(error.starts_with(reported), "{text}: {error}");
        }
    }
}
