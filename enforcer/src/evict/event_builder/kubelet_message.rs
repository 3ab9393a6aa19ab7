//! The message and annotations that the kubelet's own eviction would have.

use std::collections::BTreeMap;

use crate::{
    evict::candidate::Candidate,
    policy::{
        engine::{Decision, Reading, Resource, Shortage},
        message::{self, Message, Usages},
    },
};

/// The kubelet's message. A single container is reported with the usage of the pod's reading, several with their own.
pub(super) fn kubelet_message(
    decision: &Decision,
    victim: Option<&Candidate>,
    containers: &[(String, u64)],
) -> Message {
    let Shortage { signal, hard: _, threshold, observed } = decision.shortage;
    let Some(victim) = victim else {
        let text = message::shortage(signal, threshold, observed);
        return Message { text, annotations: BTreeMap::new() };
    };
    let usages = match (Resource::of(signal), &decision.reading) {
        (Some(Resource::Memory), reading) => reading.usage().map(|usage| Usages {
            pod: Some(usage.working_set_bytes),
            containers: match victim.containers.as_slice() {
                [(only, _)] => vec![(only.as_str(), usage.working_set_bytes)],
                _ => containers.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect(),
            },
        }),
        (Some(Resource::Pids) | None, Reading::Missing | Reading::Gone) => None,
        // The kubelet names no container for process ids.
        (Some(Resource::Pids) | None, Reading::Usage(_) | Reading::Uncounted { .. }) => {
            Some(Usages::default())
        }
    };
    let pod = &victim.identity.pod.name;
    message::evicted(signal, threshold, observed, pod, &victim.requested, usages.as_ref())
}
