//! What the node has and leaves to pods.

use anyhow::{Context as _, Result};
use enforcer::{
    model::{Node, ResourceList},
    policy::{
        EvictionSettings, Settings, allocatable,
        threshold::{self, Signal, Threshold},
    },
};
use serde::Deserialize;

use super::{
    case::{self, Named, Texts},
    check, fixture, node,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Allocatable {
    name: String,
    #[serde(default)]
    kube_reserved: Texts,
    #[serde(default)]
    system_reserved: Texts,
    /// By signal.
    #[serde(default)]
    eviction_hard: Texts,
    capacity: Texts,
    /// What kubepods is limited to; this and the next two absent where upstream does not look at them.
    unreserved: Option<Texts>,
    /// What is kept from being requested.
    reservation: Option<Texts>,
    /// Whether that much may be reserved.
    valid: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct MachineInfo {
    name: String,
    cores: u64,
    memory_bytes: u64,
    max_pods: u64,
    #[serde(default)]
    pods_per_core: u64,
    #[serde(default)]
    other: Texts,
    #[serde(default)]
    reservation: Texts,
    capacity: Texts,
    allocatable: Texts,
}

impl Named for Allocatable {
    fn name(&self) -> &str {
        &self.name
    }
}

impl Named for MachineInfo {
    fn name(&self) -> &str {
        &self.name
    }
}

fn hard(texts: &Texts) -> Result<EvictionSettings> {
    let thresholds = texts.iter().map(|(name, text)| {
        let signals = [Signal::MemoryAvailable, Signal::NodefsAvailable];
        let signal = signals.into_iter().find(|signal| signal.as_str() == name).context("another signal")?;
        Ok(Threshold::hard(signal, threshold::parse(text)?.context("switched off")?))
    });
    Ok(EvictionSettings { thresholds: thresholds.collect::<Result<_>>()?, ..EvictionSettings::default() })
}

#[test]
fn node_allocatable_is_the_kubelets() -> Result<()> {
    check(&fixture::<Allocatable>("allocatable.json")?, |case| {
        let settings = Settings {
            kube_reserved: case::list(&case.kube_reserved)?,
            system_reserved: case::list(&case.system_reserved)?,
            eviction: hard(&case.eviction_hard)?,
            ..Settings::default()
        };
        let capacity = case::list(&case.capacity)?;
        let should = (
            case.unreserved.as_ref().map(case::list).transpose()?,
            case.reservation.as_ref().map(case::list).transpose()?,
            case.valid,
        );
        let is = (
            should.0.is_some().then(|| allocatable::unreserved(&capacity, &settings)),
            should.1.is_some().then(|| allocatable::reservation(&capacity, &settings)),
            should.2.is_some().then(|| allocatable::overreserved(&capacity, &settings).is_empty()),
        );
        Ok((is, should))
    })
}

#[test]
fn machines_have_and_leave_what_the_kubelet_says() -> Result<()> {
    check(&fixture::<MachineInfo>("machine_info.json")?, |case| {
        let cpu_milli = case.cores * 1_000;
        let node = Node {
            cpu_milli,
            pods: allocatable::pods(cpu_milli, case.pods_per_core, case.max_pods),
            ..node(case.memory_bytes, case::list(&case.other)?)
        };
        let settings = Settings {
            system_reserved: case::list(&case.reservation)?,
            eviction: hard(&Texts::new())?,
            ..Settings::default()
        };
        let is: (ResourceList, ResourceList) =
            (allocatable::capacity(&node), allocatable::requestable(&node, &settings));
        Ok((is, (case::list(&case.capacity)?, case::list(&case.allocatable)?)))
    })
}
