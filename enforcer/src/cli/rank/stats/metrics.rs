//! Objects of `metrics.k8s.io`: `PodMetricsList`, `PodMetrics`, and the `List` that `kubectl get` makes of them.

use anyhow::{Context as _, bail};
use serde::Deserialize;

use super::{Usages, of_quantity};

#[derive(Debug, Deserialize)]
pub(super) struct List {
    items: Vec<PodMetrics>,
}

#[derive(Debug, Deserialize)]
pub(super) struct PodMetrics {
    metadata: Metadata,
    #[serde(default)]
    containers: Vec<Container>,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    name: String,
    namespace: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Container {
    usage: Usage,
}

#[derive(Debug, Deserialize)]
struct Usage {
    memory: Option<String>,
}

/// The usage of each pod: that of its containers together.
pub(super) fn read(list: List) -> anyhow::Result<Usages> {
    let mut usages = Usages::default();
    for PodMetrics { metadata: Metadata { name, namespace }, containers } in list.items {
        let mut sum: Option<u64> = None;
        for Container { usage: Usage { memory } } in containers {
            if let Some(memory) = memory {
                let bytes = of_quantity(&memory).with_context(|| format!("pod {name}"))?;
                sum = Some(sum.unwrap_or(0).saturating_add(bytes));
            }
        }
        if !usages.add(namespace.as_deref(), &name, sum, None) {
            bail!("pod {name} is there twice");
        }
    }
    Ok(usages)
}

impl From<PodMetrics> for List {
    fn from(one: PodMetrics) -> Self {
        Self { items: vec![one] }
    }
}
