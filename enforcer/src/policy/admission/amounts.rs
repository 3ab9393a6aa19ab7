//! What the node gives and pods take, in the whole numbers that admission counts in.

use std::{collections::BTreeMap, fmt};

use crate::model::{Node, Pod, ResourceList, ResourceName};

use super::super::{
    Settings,
    allocatable::{self, PODS},
    effective, lists,
};

/// What pods take together, each rounded up on its own (upstream `framework.Resource`): cpu in thousandths, others in
/// base units.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Amounts {
    pods: u128,
    cpu_milli: u128,
    memory_bytes: u128,
    ephemeral_storage_bytes: u128,
    /// Huge pages and extended resources.
    scalars: BTreeMap<ResourceName, u128>,
}

/// What the node gives to pods.
#[derive(Clone, Debug)]
pub(super) struct Allocatable {
    amounts: Amounts,
}

/// A resource that the node has too little of for a pod. Shown, it is the kubelet's message (upstream
/// `InsufficientResourceError`).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Shortage {
    /// The resource: `pods`, `cpu`, `memory` …
    pub resource: ResourceName,
    /// What the pod requests; cpu in thousandths, others in base units, like the amounts below.
    pub requested: u128,
    /// What the pods that were admitted before request.
    pub used: u128,
    /// What the node gives to pods.
    pub capacity: u128,
}

impl Shortage {
    /// How much is lacking, above 0 (upstream `GetInsufficientAmount`).
    #[must_use]
    pub fn lacking(&self) -> u128 {
        (self.requested + self.used).saturating_sub(self.capacity)
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, requested, used, capacity } = self;
        write!(
            formatter,
            "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
        )
    }
}

impl Amounts {
    /// What one pod takes.
    pub(super) fn of(pod: &Pod) -> Self {
        Self::one(&effective::requests(pod))
    }

    fn one(requests: &ResourceList) -> Self {
        Self { pods: 1, ..Self::from_list(requests) }
    }

    fn from_list(list: &ResourceList) -> Self {
        let units = |name| lists::get(list, name).units().into();
        Self {
            pods: 0,
            cpu_milli: lists::get(list, ResourceName::CPU).milli().into(),
            memory_bytes: units(ResourceName::MEMORY),
            ephemeral_storage_bytes: units(ResourceName::EPHEMERAL_STORAGE),
            scalars: list
                .iter()
                .filter(|(name, _)| is_scalar(name))
                .map(|(name, quantity)| (name.clone(), quantity.units().into()))
                .collect(),
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.pods += other.pods;
        self.cpu_milli += other.cpu_milli;
        self.memory_bytes += other.memory_bytes;
        self.ephemeral_storage_bytes += other.ephemeral_storage_bytes;
        for (name, amount) in &other.scalars {
            *self.scalars.entry(name.clone()).or_default() += amount;
        }
    }

    /// Takes off what [`Self::add`] added.
    pub(super) fn remove(&mut self, other: &Self) {
        self.pods = self.pods.saturating_sub(other.pods);
        self.cpu_milli = self.cpu_milli.saturating_sub(other.cpu_milli);
        self.memory_bytes = self.memory_bytes.saturating_sub(other.memory_bytes);
        self.ephemeral_storage_bytes =
            self.ephemeral_storage_bytes.saturating_sub(other.ephemeral_storage_bytes);
        for (name, amount) in &other.scalars {
            if let Some(sum) = self.scalars.get_mut(name) {
                *sum = sum.saturating_sub(*amount);
            }
        }
    }

    fn scalar(&self, name: &ResourceName) -> u128 {
        self.scalars.get(name).copied().unwrap_or(0)
    }
}

impl Allocatable {
    pub(super) fn new(node: &Node, settings: &Settings) -> Self {
        let requestable = allocatable::requestable(node, settings);
        let pods = lists::get(&requestable, PODS).units().into();
        Self { amounts: Amounts { pods, ..Amounts::from_list(&requestable) } }
    }

    /// What the pod takes of what the node knows: an extended resource that nobody offers here is left to whoever
    /// offers it (upstream `removeMissingExtendedResources`); what the overhead takes of it stays.
    pub(super) fn known(&self, pod: &Pod) -> Amounts {
        let mut requests = effective::requests(pod);
        let unknown: Vec<ResourceName> = requests
            .keys()
            .filter(|name| is_extended(name) && !self.amounts.scalars.contains_key(*name))
            .cloned()
            .collect();
        for name in unknown {
            let overhead = lists::get(&pod.overhead, name.as_str());
            requests.insert(name, overhead);
        }
        Amounts::one(&requests)
    }

    /// What of `requested` does not fit beside `used` (upstream `fitsRequest`).
    pub(super) fn shortages(&self, used: &Amounts, requested: &Amounts) -> Vec<Shortage> {
        let plain = [
            (PODS, requested.pods, used.pods, self.amounts.pods),
            (ResourceName::CPU, requested.cpu_milli, used.cpu_milli, self.amounts.cpu_milli),
            (ResourceName::MEMORY, requested.memory_bytes, used.memory_bytes, self.amounts.memory_bytes),
            (
                ResourceName::EPHEMERAL_STORAGE,
                requested.ephemeral_storage_bytes,
                used.ephemeral_storage_bytes,
                self.amounts.ephemeral_storage_bytes,
            ),
        ];
        let mut shortages: Vec<_> = plain
            .into_iter()
            .filter(|(_, requested, used, capacity)| is_short(*requested, *used, *capacity))
            .map(|(name, requested, used, capacity)| Shortage {
                resource: ResourceName::new(name),
                requested,
                used,
                capacity,
            })
            .collect();
        for (name, &requested) in &requested.scalars {
            let (used, capacity) = (used.scalar(name), self.amounts.scalar(name));
            if is_short(requested, used, capacity) {
                shortages.push(Shortage { resource: name.clone(), requested, used, capacity });
            }
        }
        shortages
    }
}

/// Who requests nothing lacks nothing, even where too much is used already.
fn is_short(requested: u128, used: u128, capacity: u128) -> bool {
    requested > 0 && requested + used > capacity
}

/// Whether admission counts the resource under its own name (upstream `IsScalarResourceName`).
fn is_scalar(name: &ResourceName) -> bool {
    name.as_str().starts_with("hugepages-") || name.as_str().contains('/')
}

/// Whether the resource is one that a device plugin or an operator adds to a node (upstream `IsExtendedResourceName`).
fn is_extended(name: &ResourceName) -> bool {
    let name = name.as_str();
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}
