//! Memory QoS, swap, and a container's resources as a whole.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use enforcer::{
    model::{CgroupValues, Node, Pod, QosClass, ResourceList},
    policy::{MemoryReservationPolicy, Settings, SwapBehavior, oom_score, values},
};
use serde::Deserialize;

use super::{
    case::{Named, PodCase, PodFiles, Texts},
    check, fixture, node,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct MemoryQos {
    name: String,
    pod: PodCase,
    memory_bytes: u64,
    factor: f64,
    files: Texts,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Resources {
    name: String,
    pod: PodCase,
    single_process_oom_kill: bool,
    memory_bytes: u64,
    oom_score_adj: i16,
    files: Texts,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Swapping {
    name: String,
    pod: PodCase,
    /// The stored one.
    qos_class: String,
    swap_behavior: String,
    swap_controller: bool,
    /// `memory.swap.max` by container; absent if it is not written.
    expected: Texts,
}

impl Named for MemoryQos {
    fn name(&self) -> &str {
        &self.name
    }
}

impl Named for Resources {
    fn name(&self) -> &str {
        &self.name
    }
}

impl Named for Swapping {
    fn name(&self) -> &str {
        &self.name
    }
}

/// Upstream compares these only: `Unified`.
fn protection(values: &CgroupValues) -> Texts {
    let mut files = values.to_text();
    files.retain(|file, _| ["memory.min", "memory.low", "memory.high"].contains(&file.as_str()));
    files
}

#[test]
fn pods_memory_is_protected_as_by_the_kubelet() -> Result<()> {
    check(&fixture::<PodFiles>("pod_memory_qos.json")?, |case| {
        let settings = Settings {
            cpu_cfs_quota: case.cpu_cfs_quota,
            cpu_cfs_quota_period_us: case.period_us,
            memory_reservation_policy: MemoryReservationPolicy::TieredReservation,
            ..Settings::default()
        };
        let files = values::pod(&case.pod.build()?, &node(1 << 33, ResourceList::new()), &settings);
        Ok((protection(&files), case.files.clone()))
    })
}

#[test]
fn containers_memory_is_protected_as_by_the_kubelet() -> Result<()> {
    check(&fixture::<MemoryQos>("container_memory_qos.json")?, |case| {
        let settings = Settings {
            memory_reservation_policy: MemoryReservationPolicy::TieredReservation,
            memory_throttling_factor: Some(case.factor),
            ..Settings::default()
        };
        let pod = case.pod.build()?;
        let container = pod.containers.last().context("no container")?;
        let node = node(case.memory_bytes, ResourceList::new());
        Ok((protection(&values::container(&pod, container, &node, &settings)), case.files.clone()))
    })
}

#[test]
fn containers_get_what_the_kubelet_gives_them() -> Result<()> {
    check(&fixture::<Resources>("container_resources.json")?, |case| {
        // Upstream's runtime manager there has no quota.
        let settings = Settings {
            cpu_cfs_quota: false,
            single_process_oom_kill: case.single_process_oom_kill,
            ..Settings::default()
        };
        let pod = case.pod.build()?;
        let container = pod.containers.last().context("no container")?;
        let node = node(case.memory_bytes, ResourceList::new());
        let files = values::container(&pod, container, &node, &settings).to_text();
        let score = oom_score::score(&pod, container, node.memory_bytes);
        Ok(((files, score), (case.files.clone(), case.oom_score_adj)))
    })
}

#[test]
fn containers_swap_what_the_kubelet_lets_them() -> Result<()> {
    check(&fixture::<Swapping>("swap.json")?, |case| {
        let classes = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];
        let class = classes.into_iter().find(|class| class.as_str() == case.qos_class);
        let pod = Pod { stored_qos_class: Some(class.context("no class")?), ..case.pod.build()? };
        let swap_behavior = match case.swap_behavior.as_str() {
            "LimitedSwap" => SwapBehavior::LimitedSwap,
            "NoSwap" => SwapBehavior::NoSwap,
            other => bail!("unknown behavior {other:?}"),
        };
        let settings = Settings { swap_behavior, ..Settings::default() };
        let node = Node {
            swap_bytes: 5 << 30,
            swap_controller: case.swap_controller,
            ..node(40 << 30, ResourceList::new())
        };
        let is: BTreeMap<_, _> = pod
            .containers
            .iter()
            .filter_map(|container| {
                let values = values::container(&pod, container, &node, &settings);
                Some((container.name.clone(), values.memory_swap_max?.to_string()))
            })
            .collect();
        Ok((is, case.expected.clone()))
    })
}
