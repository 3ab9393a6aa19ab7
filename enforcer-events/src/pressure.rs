//! Thresholds, shortages and stalls.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Word, pod::Place};

/// A crossed threshold and the observed value: in bytes for memory, as a count for process ids.
/// The payload of `threshold.crossed`.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Shortage {
    /// The signal: `memory.available` and the like.
    pub signal: Word,
    /// Whether the threshold is hard.
    pub hard: bool,
    /// The threshold of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold_bytes: Option<u64>,
    /// The threshold of process ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold_count: Option<u64>,
    /// The memory that was left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_bytes: Option<u64>,
    /// The process ids that were left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_count: Option<u64>,
}

/// The payload of `pressure.cleared` about a threshold.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShortageOver {
    /// The threshold, and what is left now.
    #[serde(flatten)]
    pub shortage: Shortage,
    /// From the crossing.
    pub crossed_to_cleared_ms: f64,
}

/// A threshold and how fast it comes nearer.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Approach {
    /// Always `headroom`: other kinds are stalls.
    pub kind: Word,
    /// The signal.
    pub signal: Word,
    /// Whether the threshold is hard.
    pub hard: bool,
    /// The threshold of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold_bytes: Option<u64>,
    /// The threshold of process ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold_count: Option<u64>,
    /// The memory that is left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    /// The process ids that are left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_count: Option<u64>,
    /// How fast the memory shrinks; 0 if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fill_bytes_per_second: Option<u64>,
    /// How fast the process ids shrink; 0 if they do not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fill_per_second: Option<u64>,
}

/// The payload of `pressure.rising` of the kind `headroom`: a threshold will be crossed soon.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HeadroomShrinking {
    /// The threshold.
    #[serde(flatten)]
    pub approach: Approach,
    /// When it will be crossed at the current rate; null if it will not be.
    pub crossed_in_ms: Option<u64>,
    /// The pods that grow, the fastest first.
    pub pods: Vec<Growing>,
    /// The same in words.
    pub message: String,
}

/// A pod that grows.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Growing {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// How fast its memory grows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth_bytes_per_second: Option<u64>,
    /// How fast its number of tasks grows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth_per_second: Option<u64>,
    /// The memory that it uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_bytes: Option<u64>,
    /// How many tasks it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_count: Option<u64>,
    /// Its memory request.
    pub request_bytes: u64,
}

/// The payload of `pressure.cleared` of the kind `headroom`: the threshold is no longer near.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HeadroomBack {
    /// The threshold.
    #[serde(flatten)]
    pub approach: Approach,
    /// From the warning.
    pub lasted_ms: u64,
}

/// The payload of `pressure.rising` about stalls: the tasks of a pod wait for memory.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stalling {
    /// The stalled pod or cgroup.
    #[serde(flatten)]
    pub place: Place,
    /// The cgroup's id.
    pub cgroup_id: u64,
    /// `directReclaim`, `memcgReclaim`, `memoryHigh` or `throttled`.
    pub kind: Word,
    /// Duration of the reported stall.
    pub stall_ms: u64,
    /// Sum of such stalls within about a second.
    pub window_stall_ms: u64,
    /// The cgroup whose limit it was; null if it is gone and its name unknown.
    pub limit_owner: Option<String>,
    /// How that is known: `argument`, `taskCgroup` or `machine`.
    pub limit_source: Word,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Name of the thread, as its owner chose it.
    pub comm: String,
    /// Time since the first report; 0 at first.
    pub lasting_ms: u64,
}

/// The payload of `pressure.cleared` about stalls: ten seconds passed without one.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StallsOver {
    /// Where the last stall was.
    #[serde(flatten)]
    pub place: Place,
    /// The cgroup's id.
    pub cgroup_id: u64,
    /// From the first record to the last.
    pub lasted_ms: u64,
    /// Reported stalls by kind.
    pub stalled_ms: BTreeMap<Word, u64>,
    /// The longest reported stall.
    pub longest_stall_ms: u64,
    /// Number of records.
    pub records: u64,
}

/// The payload of `pressure.rising`.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(untagged)]
pub enum PressureRising {
    /// A threshold will be crossed soon.
    Headroom(HeadroomShrinking),
    /// Tasks wait for memory.
    Stalls(Stalling),
}

/// The payload of `pressure.cleared`.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(untagged)]
pub enum PressureCleared {
    /// A shortage is over.
    Shortage(ShortageOver),
    /// A threshold is no longer near.
    Headroom(HeadroomBack),
    /// Tasks wait no longer.
    Stalls(StallsOver),
}
