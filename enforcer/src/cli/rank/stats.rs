//! The pods' usage, read from a file.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    path::Path,
};

use anyhow::{Context as _, bail};
use serde::Deserialize;

use crate::{cli::Failure, model::Pod};

/// The largest accepted file: 100,000 pods need half of it.
const MAX_BYTES: u64 = 16 << 20;

/// By `namespace/name`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stats {
    pods: BTreeMap<String, PodStats>,
}

/// The usage of a pod; `None` if unknown.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct PodStats {
    pub(super) working_set_bytes: Option<u64>,
    pub(super) process_count: Option<u64>,
}

impl Stats {
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let is_missing = |error: &anyhow::Error| {
            let cause = error.downcast_ref::<io::Error>();
            cause.is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        Self::read_any(path).map_err(|error| {
            if is_missing(&error) { Failure::not_there(error) } else { Failure::usage(error) }
        })
    }

    fn read_any(path: &Path) -> anyhow::Result<Self> {
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
        Self::parse(&content).with_context(|| format!("{shown} does not contain pod statistics"))
    }

    fn parse(content: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(content)
    }

    pub(super) fn of(&self, pod: &Pod) -> PodStats {
        self.pods.get(&pod.name.to_string()).copied().unwrap_or_default()
    }

    /// The names of pods that are not among these.
    pub(super) fn unknown(&self, pods: &[Pod]) -> impl Iterator<Item = &str> {
        let known: std::collections::BTreeSet<String> = pods.iter().map(|pod| pod.name.to_string()).collect();
        self.pods.keys().map(String::as_str).filter(move |name| !known.contains(*name))
    }
}

fn bounded(from: impl Read) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    from.take(MAX_BYTES + 1).read_to_end(&mut content)?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::Stats;

    #[test]
    fn what_is_wrong_is_reported_with_its_place() {
        for (text, reported) in [
            ("", "EOF while parsing"),
            ("[]", "line 1 column"),
            ("{}", "missing field `pods`"),
            (r#"{"pods": {"a/b": {"workingSetBytes": -1}}}"#, "invalid value: integer `-1`"),
            (r#"{"pods": {"a/b": {"workingSetBytes": 1.5}}}"#, "invalid type: floating point"),
            (r#"{"pods": {"a/b": {"workingset": 1}}}"#, "unknown field `workingset`"),
            (r#"{"pods": {"a/b": {"workingSetBytes": 99999999999999999999}}}"#, "invalid type"),
            (r#"{"pods": {}} x"#, "trailing characters at line 1 column 14"),
        ] {
            let error = Stats::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(reported), "{text}: {error}");
        }
    }
}
