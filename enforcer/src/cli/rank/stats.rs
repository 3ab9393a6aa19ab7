//! The pods' usage, read from a file: in our own form, or as Kubernetes prints it.

mod metrics;
mod summary;
#[cfg(test)]
mod tests;
mod top;

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fs::File,
    io::{self, Read},
    path::Path,
};

use anyhow::{Context as _, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    cli::Failure,
    model::{Pod, Quantity},
    policy::threshold::Signal,
};

/// The largest accepted file: 100,000 pods in our own form need half of it.
const MAX_BYTES: u64 = 16 << 20;

/// By `namespace/name`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stats {
    pods: BTreeMap<String, PodStats>,
}

/// The usage of a pod; `None` if unknown.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct PodStats {
    pub(super) working_set_bytes: Option<u64>,
    pub(super) process_count: Option<u64>,
}

/// The usages that Kubernetes prints, by namespace and name; without `-A` a table of text names no namespaces.
#[derive(Debug, Default)]
struct Usages {
    pods: BTreeMap<(Option<String>, String), PodStats>,
}

impl Usages {
    /// Adds to the usage of a pod, or of a container of it; whether it is the first of that pod.
    fn add(
        &mut self,
        namespace: Option<&str>,
        name: &str,
        working_set_bytes: Option<u64>,
        process_count: Option<u64>,
    ) -> bool {
        match self.pods.entry((namespace.map(ToOwned::to_owned), name.to_owned())) {
            Entry::Vacant(entry) => {
                entry.insert(PodStats { working_set_bytes, process_count });
                true
            }
            Entry::Occupied(mut entry) => {
                let known = entry.get_mut();
                let sum = |one: Option<u64>, other: Option<u64>| match (one, other) {
                    (Some(one), Some(other)) => Some(one.saturating_add(other)),
                    (one, other) => one.or(other),
                };
                known.working_set_bytes = sum(known.working_set_bytes, working_set_bytes);
                known.process_count = sum(known.process_count, process_count);
                false
            }
        }
    }

    /// Finds the namespaces of pods that come without one: that of the one pod of this name.
    fn of(self, pods: &[Pod]) -> anyhow::Result<Stats> {
        let mut namespaces: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for pod in pods {
            namespaces.entry(&pod.name.name).or_default().push(&pod.name.namespace);
        }
        let mut stats = Stats::default();
        for ((namespace, name), usage) in self.pods {
            let namespace = match namespace {
                Some(namespace) => namespace,
                None => match namespaces.get(name.as_str()).map_or(&[][..], Vec::as_slice) {
                    [] => String::from("?"),
                    [one] => (*one).to_owned(),
                    [one, other, ..] => bail!(
                        "pod {name} is in the namespaces {one} and {other}, and the table names none: print it with \
                         kubectl top pods -A"
                    ),
                },
            };
            stats.pods.insert(format!("{namespace}/{name}"), usage);
        }
        Ok(stats)
    }
}

impl Stats {
    /// Reads the statistics of these pods, and what else the file has.
    pub(super) fn read(path: &Path, pods: &[Pod]) -> Result<Self, Failure> {
        let is_missing = |error: &anyhow::Error| {
            let cause = error.downcast_ref::<io::Error>();
            cause.is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        Self::read_any(path, pods).map_err(|error| {
            if is_missing(&error) { Failure::not_there(error) } else { Failure::usage(error) }
        })
    }

    fn read_any(path: &Path, pods: &[Pod]) -> anyhow::Result<Self> {
        let shown = path.display();
        let content = if path == Path::new("-") {
            bounded(io::stdin().lock())
        } else {
            File::open(path).and_then(bounded)
        };
        let content = content.with_context(|| format!("cannot read {shown}"))?;
        if content.len() as u64 > MAX_BYTES {
            bail!("{shown} is larger than 16 MiB");
        }
        Self::parse(&content, pods).with_context(|| format!("{shown} does not contain pod statistics"))
    }

    /// What it is shows in its content.
    fn parse(content: &[u8], pods: &[Pod]) -> anyhow::Result<Self> {
        let is_json = matches!(content.trim_ascii_start().first(), None | Some(b'{' | b'['));
        if !is_json {
            let text = str::from_utf8(content).context("it is neither JSON nor text")?;
            return top::read(text)?.of(pods);
        }
        // A form that is not known is taken as ours: the error then has line and column.
        let Ok(value) = serde_json::from_slice::<Value>(content) else {
            return Ok(serde_json::from_slice(content)?);
        };
        let kind = value.get("kind").and_then(Value::as_str).map(ToOwned::to_owned);
        let is_summary = value.get("pods").is_some_and(Value::is_array);
        match kind.as_deref() {
            Some("PodMetricsList" | "List") => metrics::read(serde_json::from_value(value)?)?.of(pods),
            Some("PodMetrics") => {
                let one: metrics::PodMetrics = serde_json::from_value(value)?;
                metrics::read(one.into())?.of(pods)
            }
            _ if is_summary => summary::read(serde_json::from_value(value)?)?.of(pods),
            _ => Ok(serde_json::from_slice(content)?),
        }
    }

    pub(super) fn of(&self, pod: &Pod) -> PodStats {
        self.pods.get(&pod.name.to_string()).copied().unwrap_or_default()
    }

    /// Whether what that signal ranks by is known of the pod.
    pub(super) fn knows(&self, pod: &Pod, signal: Signal) -> bool {
        let PodStats { working_set_bytes, process_count } = self.of(pod);
        let known = if signal == Signal::PidAvailable { process_count } else { working_set_bytes };
        known.is_some()
    }

    /// Whether the number of processes is known of any pod.
    pub(super) fn has_processes(&self) -> bool {
        self.pods.is_empty() || self.pods.values().any(|stats| stats.process_count.is_some())
    }

    /// The names of pods that are not among these.
    pub(super) fn unknown(&self, pods: &[Pod]) -> Vec<&str> {
        let known: BTreeSet<String> = pods.iter().map(|pod| pod.name.to_string()).collect();
        self.pods.keys().map(String::as_str).filter(|name| !known.contains(*name)).collect()
    }
}

/// An amount of bytes as Kubernetes writes it: `12Mi`, `12345Ki`, `500m`.
fn of_quantity(text: &str) -> anyhow::Result<u64> {
    let quantity: Quantity = text.parse()?;
    if quantity.is_negative() {
        bail!("{text} is negative");
    }
    Ok(quantity.units())
}

fn bounded(from: impl Read) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    from.take(MAX_BYTES + 1).read_to_end(&mut content)?;
    Ok(content)
}
