//! Keeps on disk what was last known of a kubelet's pods, so that a daemon that starts while all sources are away decides
//! as the one before.

use std::{io, path::Path, time::Duration};

use serde::{Deserialize, Serialize};

use super::emit;
use crate::{
    durable::{self, State, StateError},
    journal::Journal,
    keeper::Keeper,
    source::SourceName,
    specs::KeptPod,
};

/// The file in the state directory.
const FILE: &str = "specs.json";

/// The least time between two writes.
const PAUSE: Duration = Duration::from_secs(1);

/// The specs that a source gave last.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct KeptSpecs {
    /// The source's name.
    pub(super) source: String,
    /// When it was read, in milliseconds since 1970.
    pub(super) read_ms: u64,
    /// The pods, cut to what is used.
    pub(super) pods: Vec<KeptPod>,
}

impl State for KeptSpecs {
    /// More than a source's pods have together.
    const MAX_BYTES: u64 = 32 << 20;
}

/// The source of that name; `None` if this version has none.
pub(super) fn source(name: &str) -> Option<SourceName> {
    [SourceName::PODS_API, SourceName::KUBELET, SourceName::API_SERVER]
        .into_iter()
        .find(|source| source.as_str() == name)
}

/// Reads what an earlier daemon kept; nothing if there is no file.
pub(super) fn read(state_dir: &Path) -> Result<Option<KeptSpecs>, StateError> {
    durable::read(&state_dir.join(FILE))
}

/// Starts the thread that writes the file.
pub(super) fn start(state_dir: &Path, journal: Journal) -> io::Result<Keeper<KeptSpecs>> {
    let path = state_dir.join(FILE);
    let mut is_reported = false;
    Keeper::start("specs-keeper", PAUSE, move |specs| match durable::write(&path, &specs) {
        Ok(()) => is_reported = false,
        Err(error) if !std::mem::replace(&mut is_reported, true) => {
            let message = format!(
                "after a restart, pods' specs are unknown until a source answers: cannot write {}: {error}",
                path.display()
            );
            emit::degraded(&journal, "specs", &message);
        }
        Err(_) => {}
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::specs::ApiPod;

    #[test]
    fn what_was_kept_is_read_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path()).unwrap().is_none());
        let keeper = start(dir.path(), Journal::new("n", "b")).unwrap();
        let pod: ApiPod = serde_json::from_value(serde_json::json!({
            "metadata": {
                "namespace": "n", "name": "p", "uid": "u", "labels": {"app": "web"},
                "ownerReferences": [{"kind": "Job", "name": "j", "uid": "u-j", "controller": true}],
            },
            "spec": {"priority": -7, "containers": [{"name": "c", "resources": {"requests": {"memory": "1Gi"}}}]},
        }))
        .unwrap();
        for read_ms in [1, 2] {
            let source = SourceName::PODS_API.as_str().to_owned();
            keeper.keep(KeptSpecs { source, read_ms, pods: vec![KeptPod::of(&pod).unwrap()] });
        }
        drop(keeper);
        let kept = read(dir.path()).unwrap().unwrap();
        assert_eq!(
            (source(&kept.source), kept.read_ms, kept.pods[0].read(), kept.pods.len()),
            (Some(SourceName::PODS_API), 2, Some(pod), 1)
        );
    }

    #[test]
    fn what_a_daemon_without_labels_and_owners_kept_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let before = r#"{"version":1,"source":"kubelet","readMs":7,"pods":[{"metadata":{"name":"p","namespace":"n",
            "uid":"u","annotations":{}},"spec":{"priority":-7,"containers":[{"name":"c","resources":{}}]},"status":{}}]}"#;
        std::fs::write(dir.path().join(FILE), before).unwrap();
        let pod = read(dir.path()).unwrap().unwrap().pods[0].read().unwrap().to_pod().unwrap();
        assert_eq!((pod.priority, pod.controller(), pod.labels.is_empty()), (Some(-7), None, true));
    }
}
