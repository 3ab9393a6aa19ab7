//! Evictions: the decision, the signals, the end.

mod kubelet;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::kubelet::{
    EvictionConfirmed, EvictionForeign, EvictionRepeated, EvictionRequested, OtherVictim,
};
use crate::{Word, pressure::Shortage};

/// The payload of `eviction.decided`.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(untagged)]
pub enum EvictionDecided {
    /// The whole decision.
    Decision(Box<Decision>),
    /// What is known of a decision of an earlier process of the daemon, which did not report it.
    Reconstructed(ReconstructedDecision),
}

/// A decision.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_excessive_bools, reason = "each is a key of the event")]
pub struct Decision {
    /// The eviction's id, the same in all its events.
    pub eviction_id: String,
    /// Whether nothing is done.
    pub dry_run: bool,
    /// The signal; absent if an operator ordered it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<Word>,
    /// Whether the threshold is hard; false if an operator ordered it.
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
    /// The victim's grace period.
    pub grace_ms: u64,
    /// The victim; null if it is not known any more.
    pub victim: Option<EvictionVictim>,
    /// The key that put the victim before the next one: `statsMissing`, `exceedsRequest`, `priority`, `aboveRequest`,
    /// `processCount`, `order`, `onlyCandidate` or `operator`.
    pub decided_by: Word,
    /// The operator who ordered it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<Operator>,
    /// The first of the ranking.
    pub ranking: Vec<Ranked>,
    /// How many were ranked.
    pub ranked_count: usize,
    /// Pods that were left out.
    pub excluded: Vec<Excluded>,
    /// How many were left out.
    pub excluded_count: usize,
    /// The memory that the victim's death frees: its anonymous memory and the shared memory that its processes map.
    pub predicted_freed_bytes: u64,
    /// From the crossing to the decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crossed_to_decided_ms: Option<f64>,
    /// The kubelet's message.
    pub message: String,
    /// The kubelet's annotations of its event.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<Word, String>,
    /// The hash of the configuration that it was decided by.
    pub config_hash: String,
    /// An operator has paused eviction, so that nothing is done.
    #[serde(default, skip_serializing_if = "crate::is_false")]
    pub paused: bool,
    /// The threshold was crossed when it was loaded, so that nothing is done.
    #[serde(default, skip_serializing_if = "crate::is_false")]
    pub unarmed: bool,
    /// The node's memory stalls at that moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure: Option<Pressure>,
    /// Free pages on per-CPU lists that were on their way back after the previous victim's death.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_lists_bytes: Option<u64>,
    /// Shared memory that no eviction frees, if it exceeds the threshold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_memory: Option<SharedMemory>,
    /// The program that runs before the signal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hook: Option<Hook>,
    /// How often this pod was evicted before and came back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evicted_before: Option<u32>,
    /// How long the back-off lasts in which its evictions do not count for the circuit breaker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back_off_left_ms: Option<u64>,
}

/// A decision of an earlier process of the daemon.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReconstructedDecision {
    /// The eviction's id.
    pub eviction_id: String,
    /// The pod's uid.
    pub uid: String,
    /// The pod's cgroup.
    pub cgroup: String,
    /// Always true.
    pub reconstructed: bool,
    /// The shortage; absent if its signal is one of another version.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub shortage: Option<Shortage>,
}

/// Who ordered something.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Operator {
    /// The user id, from the kernel.
    pub uid: u32,
    /// The process, which may have ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The operator's reason.
    pub reason: String,
}

/// A victim as it was when it was chosen.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictionVictim {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its QoS class.
    pub qos_class: Word,
    /// Its priority.
    pub priority: i32,
    /// Its cgroup.
    pub cgroup: String,
    /// Its cgroup's id.
    pub cgroup_id: u64,
    /// The ids of the cgroups that are killed, if an operator ordered it and that is not its own cgroup alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub killed_cgroup_ids: Vec<u64>,
    /// Its memory request.
    pub request_bytes: u64,
    /// Its memory limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// Whether its usage could not be read.
    pub stats_missing: bool,
    /// How fast it grew; negative if it shrank.
    pub growth_bytes_per_second: i64,
    /// Its working set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_bytes: Option<u64>,
    /// All memory that it is charged for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_bytes: Option<u64>,
    /// Its anonymous memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anon_bytes: Option<u64>,
    /// Its page cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_bytes: Option<u64>,
    /// Its shared memory and tmpfs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shmem_bytes: Option<u64>,
    /// How many tasks it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_count: Option<u64>,
    /// Its controller; absent if it has none, or if that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<Controller>,
    /// Where the spec of a kubelet's pod was from; absent without a spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec: Option<VictimSpec>,
}

/// Where a spec was from when its pod was chosen.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VictimSpec {
    /// The source that gave it.
    pub source: Word,
    /// `live`, `stale` or `disk`, as in `eviction.signalled`.
    pub provenance: Word,
    /// When it was read last, in milliseconds since 1970; absent with `live`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_ms: Option<u64>,
}

/// The object that made a pod, and makes another when it is gone.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct Controller {
    /// Its kind, such as `ReplicaSet`.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// A pod in the ranking, with every key.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ranked {
    /// Its place, from 1.
    pub rank: u32,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether it may be evicted.
    pub evictable: bool,
    /// Whether its usage could not be read.
    pub stats_missing: bool,
    /// Whether it uses more than it requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exceeds_request: Option<bool>,
    /// Its priority.
    pub priority: i32,
    /// Its memory request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_bytes: Option<u64>,
    /// Its working set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_bytes: Option<u64>,
    /// How far that is above its request; negative if below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub above_request_bytes: Option<i64>,
    /// How many tasks it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_count: Option<u64>,
    /// The age of the reading, if it could not be read just now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_ago_ms: Option<f64>,
}

/// A pod that was left out of the ranking.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Excluded {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Why: `critical`, `protected`, `gone`, `empty`, `withinRequest`, `passedOver`, `terminating`, `usageUnknown`,
    /// `outsideKubepods` or `chosen`.
    pub reason: Word,
}

/// The memory stalls of the last ten seconds, in percent of the time.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pressure {
    /// Some tasks waited.
    pub some_avg10_percent: f64,
    /// All tasks waited.
    pub full_avg10_percent: f64,
}

/// Shared memory that no process maps, so that no eviction frees it.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SharedMemory {
    /// The amount, a lower bound.
    pub unmapped_bytes: u64,
    /// The pods' cgroups that are charged for most of it.
    pub cgroups: Vec<Charged>,
    /// What is charged to cgroups that are gone.
    pub removed_cgroups_bytes: u64,
    /// The tmpfs mounts that hold most.
    pub mounts: Vec<Mount>,
}

/// A cgroup that is charged for shared memory.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Charged {
    /// Its pod as `namespace/name`.
    pub pod: String,
    /// The cgroup.
    pub cgroup: String,
    /// The amount.
    pub bytes: u64,
    /// Whether a process is in it.
    pub populated: bool,
}

/// A mounted tmpfs.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// Where it is mounted.
    pub path: String,
    /// What it holds.
    pub bytes: u64,
}

/// A program that runs before the signal.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    /// Why it is not run: `noTime`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<Word>,
    /// How long it may run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_ms: Option<u64>,
    /// How it ended; `running` if it has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Word>,
    /// Its exit status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_status: Option<i32>,
    /// The signal that it died of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub died_of_signal: Option<i32>,
    /// What else there is to say of its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// How long it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ran_ms: Option<f64>,
    /// The end of its output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The length of all its output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
}

/// When the steps of an eviction were reached, from the crossing.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeline {
    /// The decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crossed_to_decided_ms: Option<f64>,
    /// SIGTERM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crossed_to_terminated_ms: Option<f64>,
    /// The API server had accepted to evict it; in a soft eviction that signalled nothing before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crossed_to_requested_ms: Option<f64>,
    /// SIGKILL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crossed_to_signalled_ms: Option<f64>,
    /// The death of the last process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crossed_to_dead_ms: Option<f64>,
    /// The memory was available again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crossed_to_memory_back_ms: Option<f64>,
}

/// The payload of `eviction.contained`: the next in rank is throttled while memory is awaited, or released.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictionContained {
    /// The eviction's id.
    pub eviction_id: String,
    /// The throttled pod's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its cgroup.
    pub cgroup: String,
    /// `contained`, `refused`, `released`, or `stuck`: it could not be released at once.
    pub state: Word,
    /// `grace`: the victim has a grace period; `release`: its memory is coming back.
    pub cause: Word,
    /// Its working set.
    pub usage_bytes: u64,
    /// The value of `memory.high`.
    pub memory_high_bytes: u64,
    /// How fast the other pods grow.
    pub fill_bytes_per_second: u64,
    /// By how much they may.
    pub headroom_bytes: u64,
    /// For how long that must last.
    pub awaited_ms: u64,
    /// From the decision, in `contained`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_to_contained_ms: Option<f64>,
    /// From the decision, in `refused`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_to_refused_ms: Option<f64>,
    /// For how long it was throttled, in `released` and `stuck`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_ms: Option<f64>,
    /// Why it could not be throttled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Word>,
    /// The same in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The kernel's error number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
}

/// The payload of `eviction.signalled`.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictionSignalled {
    /// The eviction's id.
    pub eviction_id: String,
    /// The victim's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The signal of the threshold; absent if an operator ordered it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<Word>,
    /// Its controller; absent if it has none, or if that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<Controller>,
    /// Whether the spec of a kubelet's pod holds now: `live` (the source that gave it answers and has the pod), `stale` (it no
    /// longer does), or `disk` (an earlier daemon kept it); absent without a spec. With `live`, an absent controller means
    /// that the pod has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec: Option<Word>,
    /// Whether the pod was being deleted already, or had ended but for its last processes.
    #[serde(default, skip_serializing_if = "crate::is_false")]
    pub terminating: bool,
    /// `SIGTERM` or `SIGKILL`.
    pub sent: Word,
    /// The grace period, with `SIGTERM`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// Why a victim was killed that had a grace period, or that another was asked to end: `gracePassed`, `hardThreshold`,
    /// `exhausting`, `hookOver` or `unanswered`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub killed_because: Option<Word>,
    /// How many limits that slow its death could not be raised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub brakes_failed: Option<usize>,
    /// When it was sent, since the machine was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_ms: Option<u64>,
    /// What was reached when.
    #[serde(flatten)]
    pub timeline: Timeline,
    /// From an order to SIGTERM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_to_terminated_ms: Option<f64>,
    /// From an order to SIGKILL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_to_signalled_ms: Option<f64>,
    /// The program that ran before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hook: Option<Hook>,
    /// The operator who ordered it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<Operator>,
}

/// The payload of `eviction.completed` and `eviction.failed`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictionEnded {
    /// The eviction's id.
    pub eviction_id: String,
    /// The victim's namespace; absent if reconstructed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its uid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Its cgroup, if reconstructed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// The signal of the threshold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<Word>,
    /// What was reached when.
    #[serde(flatten)]
    pub timeline: Timeline,
    /// From the crossing, in `eviction.failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crossed_to_given_up_ms: Option<f64>,
    /// From an order to the death of the last process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_to_dead_ms: Option<f64>,
    /// The memory that its death was to free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_freed_bytes: Option<u64>,
    /// The memory that it freed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub freed_bytes: Option<u64>,
    /// The signal that ended it, if ordered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<Word>,
    /// Why it failed, or `interrupted` if reconstructed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Word>,
    /// The same in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The kernel's error number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
    /// When it was decided, since the machine was started; if reconstructed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_ms: Option<u64>,
    /// The program that ran before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hook: Option<Hook>,
    /// The operator who ordered it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<Operator>,
    /// Determined by a later process of the daemon.
    #[serde(default, skip_serializing_if = "crate::is_false")]
    pub reconstructed: bool,
}

/// The payload of `eviction.suppressed`: no pod is evicted although a resource is short.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictionSuppressed {
    /// The signal.
    pub signal: Word,
    /// `noCandidate`, `breakerOpen`, `outOfReach` or `disruptionBudget`.
    pub reason: Word,
    /// The same in words.
    pub message: String,
}
