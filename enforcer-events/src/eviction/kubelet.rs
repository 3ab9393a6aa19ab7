//! Evictions beside a kubelet: what the API server says to them, and what the kubelet does meanwhile.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Word;

/// The payload of `eviction.requested`: what came of telling the API server that a kubelet's pod was evicted.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictionRequested {
    /// The eviction's id.
    pub eviction_id: String,
    /// The victim's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// `accepted`; or why nothing had to be requested: `gone`, `anotherPod` (the name belongs to another uid), `terminating` or
    /// `ended`; `withheld`: nothing is requested for such a pod; `refused`: it is requested again; `expired`: an hour passed
    /// without success.
    pub outcome: Word,
    /// The request that the API server accepted: `evict`, `delete` or `status`; absent for all other outcomes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<Word>,
    /// Why it was withheld or refused: `barePod`, `daemonSetPod`, `staticPod` or `disruptionBudget`; absent for other reasons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Word>,
    /// How many requests that change something were sent for this eviction, by this process of the daemon.
    pub requests: u32,
    /// From the signal to the sending of the request that was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signalled_to_requested_ms: Option<u64>,
    /// When the API server had accepted it, since the machine was started; of a soft eviction, which is requested before any
    /// signal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_ms: Option<u64>,
    /// The same in words.
    pub message: String,
}

/// The payload of `eviction.confirmed`: the API server no longer has the evicted pod.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictionConfirmed {
    /// The eviction's id.
    pub eviction_id: String,
    /// The victim's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// From the signal until that was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signalled_to_confirmed_ms: Option<u64>,
}

/// The payload of `eviction.repeated`: the kubelet started containers of an evicted pod again before the API server had
/// deleted it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictionRepeated {
    /// The eviction's id.
    pub eviction_id: String,
    /// The victim's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// `killed`: they are killed again, right after this event; `spared` or `refused`: they are not, and `reason` says why;
    /// `exhausted`: that was done often enough for one eviction.
    pub outcome: Word,
    /// Why they are not killed: `protected`, `critical` or `paused` if spared, `forbidden` or `refused` (by the kernel) if
    /// refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Word>,
    /// The containers that run again.
    pub containers: Vec<String>,
    /// The ids of their cgroups, in the same order.
    pub cgroup_ids: Vec<u64>,
    /// How often containers were killed again for this eviction, with this time.
    pub count: u32,
    /// When it was decided, since the machine was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_ms: Option<u64>,
    /// The same in words.
    pub message: String,
}

/// The payload of `eviction.foreign`: a pod has the status Evicted, which enforcer did not write.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictionForeign {
    /// The pod's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Who evicted it: `kubelet`.
    pub by: Word,
    /// The reason in the pod's status: `Evicted`.
    pub reason: Word,
    /// The message in the pod's status, cut to 400 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The resource of the node that ran short, by that message: `memory`, `ephemeral-storage`, `inodes` or `pids`;
    /// absent if it says something else, such as that the pod was above a limit of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<Word>,
    /// The first of enforcer's own ranking for `memory.available` when this was seen; null if no pod may be evicted,
    /// or if `resource` is not `memory`.
    pub would_have_evicted: Option<OtherVictim>,
    /// The evicted pod's place in that ranking, from 1, by the memory that it still used; null if it is not in the
    /// ranking any more, or never was, or if `resource` is not `memory`.
    pub rank: Option<u32>,
    /// How many pods were ranked; 0 if `resource` is not `memory`.
    pub ranked_count: u32,
}

/// A pod in the place of the one that was evicted.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OtherVictim {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}
