//! The kubelet's `/stats/summary`.

use anyhow::bail;
use serde::Deserialize;

use super::Usages;

#[derive(Debug, Deserialize)]
pub(super) struct Summary {
    pods: Vec<Pod>,
}

#[derive(Debug, Deserialize)]
struct Pod {
    #[serde(rename = "podRef")]
    named: PodRef,
    memory: Option<Memory>,
    #[serde(default)]
    containers: Vec<Container>,
    /// The kubelet's name is no camel case here.
    process_stats: Option<ProcessStats>,
}

#[derive(Debug, Deserialize)]
struct PodRef {
    name: String,
    namespace: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Memory {
    working_set_bytes: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Container {
    memory: Option<Memory>,
}

#[derive(Debug, Deserialize)]
struct ProcessStats {
    process_count: Option<u64>,
}

/// The usage of each pod: that of its cgroup, by which the kubelet ranks; else that of its containers.
pub(super) fn read(summary: Summary) -> anyhow::Result<Usages> {
    let mut usages = Usages::default();
    for Pod { named: PodRef { name, namespace }, memory, containers, process_stats } in summary.pods {
        let each = containers.into_iter().filter_map(|container| container.memory?.working_set_bytes);
        let bytes = memory.and_then(|memory| memory.working_set_bytes).or_else(|| {
            each.fold(None, |sum: Option<u64>, bytes| Some(sum.unwrap_or(0).saturating_add(bytes)))
        });
        let count = process_stats.and_then(|stats| stats.process_count);
        if !usages.add(Some(&namespace), &name, bytes, count) {
            bail!("pod {namespace}/{name} is there twice");
        }
    }
    Ok(usages)
}
