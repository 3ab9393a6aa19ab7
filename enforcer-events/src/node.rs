//! The node, the configuration, and what does not work.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Word,
    eviction::{Operator, SharedMemory},
};

/// The payload of `config.loaded`.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ConfigLoaded {
    /// The daemon started with it.
    Started(Started),
    /// It changed, or an operator had something followed.
    Changed(ConfigChanged),
}

/// The configuration at a start.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Started {
    /// `observe`, `dry-run` or `enforce`.
    pub mode: Word,
    /// The hash of the configuration.
    pub config_hash: String,
    /// The folder of manifests.
    pub static_pod_path: String,
    /// The hard threshold of memory; null if there is none.
    pub memory_available_threshold_bytes: Option<u64>,
    /// The node's memory.
    pub memory_bytes: u64,
    /// Settings without effect, each as a sentence. Earlier versions did not report them.
    #[serde(default)]
    pub unwatched: Vec<String>,
    /// The same in words.
    pub message: String,
}

/// A configuration that changed, or was refused: the payload of `config.rejected`.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigChanged {
    /// The mode in force.
    pub mode: Word,
    /// The hash of the configuration in force.
    pub config_hash: String,
    /// What changed, or why it was refused.
    pub message: String,
    /// An operator had every threshold armed.
    #[serde(default, skip_serializing_if = "crate::is_false")]
    pub armed: bool,
    /// An operator had the folder of manifests followed as it is.
    #[serde(default, skip_serializing_if = "crate::is_false")]
    pub accept_empty: bool,
    /// The operator's user id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The operator's process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

/// The payload of `source.up` and `source.down`.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceReported {
    /// The source: `static`, `cgroups`, `runtime` or `specs`.
    pub source: Word,
    /// What it is, or why it cannot be read.
    pub message: String,
}

/// The payload of `degraded.entered` and `degraded.left`: something is missing on this host or does not work.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Degraded {
    /// What.
    pub what: Word,
    /// Which one of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// What follows from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The pod's namespace, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The pod's name, in `limitStuck`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The pod's name, in `protect`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// An order of an operator.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub order: Option<OrderReported>,
    /// With `limitStuck`: the value that cannot be restored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// With `unarmed`: the thresholds that are not armed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thresholds: Option<Vec<String>>,
    /// With `sharedMemory`: where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_memory: Option<SharedMemoryReported>,
    /// With `sink`: the sink.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sink: Option<String>,
    /// With `journal`: how many events were lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_events: Option<u64>,
}

impl Degraded {
    /// Only what it is that does not work, by a word that is written in the code.
    #[must_use]
    pub fn of(what: &'static str) -> Self {
        Self { what: what.into(), ..Self::default() }
    }
}

/// Where shared memory is that no process maps.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(untagged)]
pub enum SharedMemoryReported {
    /// How much, and where.
    Held(SharedMemory),
    /// How much is left.
    Freed(UnmappedMemory),
}

/// How much shared memory no process maps.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnmappedMemory {
    /// The amount, a lower bound.
    pub unmapped_bytes: u64,
}

/// An order of an operator that began or ended.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OrderReported {
    /// The operator's reason.
    pub reason: String,
    /// The operator's user id.
    pub uid: u32,
    /// When it was given (RFC 3339).
    pub given: String,
    /// Until when it holds (RFC 3339).
    pub until: String,
    /// The operator's process, at the begin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// It was given to an earlier process of the daemon.
    #[serde(default, skip_serializing_if = "crate::is_false")]
    pub resumed: bool,
    /// How long it holds, at the begin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_ms: Option<u64>,
    /// Why it ended: `expired` or `ended`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Word>,
    /// Who ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<Operator>,
}

/// The payload of `stream.gap`: events that this reader missed. It is in one stream alone and not in the log.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StreamGap {
    /// The sequence of the first one, with leading zeros.
    pub from_sequence: String,
    /// The sequence of the last one.
    pub to_sequence: String,
    /// How many.
    pub count: u64,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{EventType, Payload};

    #[test]
    fn a_start_is_not_taken_for_a_change() {
        let parse = |data| Payload::parse(EventType::ConfigLoaded, &data).unwrap();
        let mut data = json!({"mode": "enforce", "configHash": "c", "message": "m"});
        assert!(matches!(parse(data.clone()), Payload::ConfigLoaded(ConfigLoaded::Changed(_))));
        // As an earlier version wrote it.
        data["staticPodPath"] = json!("/p");
        data["memoryBytes"] = json!(1);
        assert!(matches!(parse(data), Payload::ConfigLoaded(ConfigLoaded::Started(_))));
    }
}
