//! The node's and the pods' resources, in the whole numbers that admission counts in.

use std::{collections::BTreeMap, fmt};

use crate::model::{Node, Pod, ResourceList, ResourceName};

use super::super::{
    Settings,
    allocatable::{self, PODS},
    effective, lists,
};

/// The sum of what pods take, each rounded up on its own (upstream `framework.Resource`): cpu in thousandths, others in
/// base units.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Amounts {
    pods: u128,
    cpu_milli: u128,
    memory_bytes: u128,
    ephemeral_storage_bytes: u128,
    /// Huge pages and extended resources.
    scalars: BTreeMap<ResourceName, u128>,
}

/// The resources that the node offers to pods.
#[derive(Clone, Debug)]
pub(super) struct Allocatable {
    amounts: Amounts,
}

/// A resource that the node has too little of for a pod. Displays as the kubelet's message (upstream
/// `InsufficientResourceError`).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Shortage {
    /// The resource: `pods`, `cpu`, `memory` …
    pub resource: ResourceName,
    /// The pod's request; cpu in thousandths, others in base units, like the amounts below.
    pub requested: u128,
    /// The requests of the pods admitted before.
    pub used: u128,
    /// The amount that the node offers to pods.
    pub capacity: u128,
}

impl Shortage {
    /// The amount missing, above 0 (upstream `GetInsufficientAmount`).
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
    /// The amounts of one pod.
    pub(super) fn of(pod: &Pod) -> Self {
        Self::one(&effective::requests(pod))
    }

    fn one(requests: &ResourceList) -> Self {
        Self { pods: 1, ..Self::from_list(requests) }
    }

    /// The amounts of a list of resources, which takes the place of no pod.
    #[must_use]
    pub fn from_list(list: &ResourceList) -> Self {
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

    /// The amount of a resource: cpu in thousandths, others in base units, `pods` as their number.
    #[must_use]
    pub fn get(&self, name: &str) -> u128 {
        match name {
            PODS => self.pods,
            ResourceName::CPU => self.cpu_milli,
            ResourceName::MEMORY => self.memory_bytes,
            ResourceName::EPHEMERAL_STORAGE => self.ephemeral_storage_bytes,
            name => self.scalars.get(name).copied().unwrap_or(0),
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

    /// Subtracts what [`Self::add`] added.
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

/// The resources that a node has too little of for `asked`, beside what pods request and what is `reserved` already.
#[must_use]
pub fn beyond_free(
    node: &Node,
    settings: &Settings,
    (pods, reserved): (&Amounts, &ResourceList),
    asked: &ResourceList,
) -> Vec<Shortage> {
    let mut used = pods.clone();
    used.add(&Amounts::from_list(reserved));
    Allocatable::new(node, settings).shortages(&used, &Amounts::from_list(asked))
}

impl Allocatable {
    pub(super) fn new(node: &Node, settings: &Settings) -> Self {
        let requestable = allocatable::requestable(node, settings);
        let pods = lists::get(&requestable, PODS).units().into();
        Self { amounts: Amounts { pods, ..Amounts::from_list(&requestable) } }
    }

    /// The pod's amounts without extended resources that the node does not know: they are not counted here (upstream
    /// `removeMissingExtendedResources`); what the overhead takes of them stays.
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

    /// The part of `requested` that does not fit beside `used` (upstream `fitsRequest`).
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

/// A request of 0 always fits, even if too much is used already.
fn is_short(requested: u128, used: u128, capacity: u128) -> bool {
    requested > 0 && requested + used > capacity
}

/// Whether admission counts the resource under its own name (upstream `IsScalarResourceName`).
fn is_scalar(name: &ResourceName) -> bool {
    name.as_str().starts_with("hugepages-") || name.as_str().contains('/')
}

/// Whether the resource is added to a node by a device plugin or an operator (upstream `IsExtendedResourceName`).
fn is_extended(name: &ResourceName) -> bool {
    let name = name.as_str();
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}
