//! What a report says, as JSON and YAML. Every other form is made of this.

use std::collections::BTreeMap;

use enforcer_events::eviction::{Excluded, Ranked};
use serde::Serialize;

/// A report. Times are RFC 3339 in UTC.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// The node, as the newest event names it; null without an event.
    pub(super) node: Option<String>,
    /// The asked range.
    pub(super) from: String,
    pub(super) to: String,
    /// What the journal covers of it.
    pub(super) journal: Journal,
    /// What is not known, and why. Every number is without what is lost.
    pub(super) losses: Vec<Loss>,
    pub(super) evictions: Evictions,
    pub(super) suppressed: Few<Suppressed>,
    pub(super) oom: Oom,
    pub(super) exceeded: Exceeded,
    pub(super) pressure: Pressure,
    pub(super) stalls: Few<Stall>,
    pub(super) forecasts: Forecasts,
}

/// A list that was cut: the first, and how many more there are.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Few<T> {
    pub(super) items: Vec<T>,
    /// How many are left out.
    pub(super) more: u64,
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self { items: Vec::new(), more: 0 }
    }
}

/// What the journal holds of the range.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Journal {
    /// The oldest kept event, which may be before the range.
    pub(super) begins: Option<String>,
    /// The newest event up to the end of the range.
    pub(super) ends: Option<String>,
    /// Events in the range.
    pub(super) events: u64,
    /// How often a daemon started in it.
    pub(super) starts: u64,
    /// The modes that the daemon ran in.
    pub(super) modes: Vec<String>,
}

/// Something that the report cannot know.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Loss {
    /// `empty`, `begins`, `ends`, `gap`, `unreadable`, `journal`, `restart`, `degraded` or `uncounted`.
    pub(super) what: &'static str,
    pub(super) time: Option<String>,
    /// How many events are missing, where that is known.
    pub(super) events: Option<u64>,
    pub(super) message: String,
}

/// All evictions that were decided in the range.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Evictions {
    /// How many of each outcome.
    pub(super) outcomes: BTreeMap<&'static str, u64>,
    /// What completed ones freed, where that was measured.
    pub(super) freed_bytes: u64,
    /// Completed ones whose freed memory was not measured.
    pub(super) freed_unknown: u64,
    /// Pods that the kubelet evicted by its own decision.
    pub(super) by_the_kubelet: u64,
    pub(super) workloads: Few<EvictedOwner>,
    pub(super) namespaces: Few<EvictedOwner>,
    /// Each, the newest first.
    pub(super) items: Vec<Eviction>,
    pub(super) more: u64,
}

/// A namespace or a workload whose pods were evicted, or would have been.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EvictedOwner {
    pub(super) name: String,
    pub(super) evicted: u64,
    /// Only decided: dry-run, paused, or a threshold that was not armed.
    pub(super) would_have: u64,
    pub(super) failed: u64,
    /// Those whose end is not in the journal.
    pub(super) open: u64,
    pub(super) freed_bytes: u64,
}

/// An eviction.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Eviction {
    #[serde(rename = "evictionId")]
    pub(super) id: String,
    /// When it was decided; of one whose decision is not kept, when it ended.
    pub(super) time: String,
    /// `completed`, `failed`, `dryRun`, `paused`, `unarmed`, or `open`: its end is not in the journal.
    pub(super) outcome: &'static str,
    /// Whether the decision is kept; what is only in it is null otherwise.
    pub(super) decision_kept: bool,
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    pub(super) uid: Option<String>,
    pub(super) qos_class: Option<String>,
    pub(super) priority: Option<i32>,
    /// The victim's controller, as `Kind/name`; null if it has none, or if that is not known.
    pub(super) workload: Option<String>,
    /// The signal of the threshold; null if an operator ordered it.
    pub(super) signal: Option<String>,
    pub(super) hard: Option<bool>,
    pub(super) threshold_bytes: Option<u64>,
    pub(super) observed_bytes: Option<u64>,
    pub(super) threshold_count: Option<u64>,
    pub(super) observed_count: Option<u64>,
    /// The operator's reason, if it was ordered.
    pub(super) order: Option<String>,
    /// The key that put the victim before the next one.
    pub(super) decided_by: Option<String>,
    pub(super) usage_bytes: Option<u64>,
    pub(super) request_bytes: Option<u64>,
    pub(super) crossed_to_decided_ms: Option<f64>,
    pub(super) crossed_to_signalled_ms: Option<f64>,
    pub(super) crossed_to_dead_ms: Option<f64>,
    pub(super) crossed_to_memory_back_ms: Option<f64>,
    /// From an order.
    pub(super) decided_to_dead_ms: Option<f64>,
    pub(super) predicted_freed_bytes: Option<u64>,
    pub(super) freed_bytes: Option<u64>,
    /// Why it failed.
    pub(super) reason: Option<String>,
    /// The first of the ranking, as in the decision.
    pub(super) ranking: Vec<Ranked>,
    pub(super) ranked_count: usize,
    pub(super) excluded: Vec<Excluded>,
    pub(super) excluded_count: usize,
    /// What others would have done in the same shortage; null if its recording was not looked for.
    pub(super) alternatives: Option<Alternatives>,
}

/// What would have been without the daemon, by the recording of an eviction.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Alternatives {
    pub(super) kubelet: Answer,
    pub(super) kernel: Answer,
}

/// What one of them would have done. Times are from the crossing.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Answer {
    /// `evicts`, `tooLate`, `kills`, `spares` or `unknown`.
    pub(super) outcome: &'static str,
    /// The same in words.
    pub(super) sentence: String,
    /// Why it is unknown.
    pub(super) reason: Option<String>,
    pub(super) steps: Vec<AnswerStep>,
    /// The node's least available memory, as a range.
    pub(super) lowest_from_bytes: Option<u64>,
    pub(super) lowest_to_bytes: Option<u64>,
    /// When memory may be used up before, at the earliest.
    pub(super) exhausted_from_ms: Option<u64>,
    /// In how many of a thousand of the ways that were tried.
    pub(super) exhausted_permille: Option<u16>,
    /// When the processes were read that the kernel chooses from: before the crossing if negative.
    pub(super) processes_read_ms: Option<i64>,
    /// What this assumes.
    pub(super) assumptions: Vec<&'static str>,
}

/// An eviction or a kill.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AnswerStep {
    /// Whom: more than one if that depends on what the recording does not say.
    pub(super) victims: Vec<String>,
    pub(super) from_ms: u64,
    pub(super) to_ms: u64,
    /// Whether it happens in any case.
    pub(super) certain: bool,
}

impl Eviction {
    /// The victim as `namespace/name`.
    pub(super) fn victim(&self) -> String {
        match (&self.namespace, &self.name) {
            (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
            _ => String::from("unknown"),
        }
    }

    /// Whether nothing was done.
    pub(super) fn is_only_decided(&self) -> bool {
        matches!(self.outcome, "dryRun" | "paused" | "unarmed")
    }
}

/// Shortages in which no pod was evicted.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Suppressed {
    pub(super) signal: String,
    pub(super) reason: String,
    pub(super) count: u64,
    /// The newest.
    pub(super) time: String,
    pub(super) message: String,
}

/// The kernel's OOM kills.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Oom {
    pub(super) incidents: u64,
    /// Processes that the OOM killer killed.
    pub(super) kills: u64,
    /// Incidents whose kills the kernel's counters do not confirm.
    pub(super) unreconciled: u64,
    /// Incidents that only counters show.
    pub(super) reconstructed: u64,
    /// Kills that were detected, and whose incident is not in the journal.
    pub(super) open: u64,
    /// Marked tasks that were dying already, by cause: no kills.
    pub(super) averted: BTreeMap<&'static str, u64>,
    /// By the kind of limit.
    pub(super) scopes: BTreeMap<&'static str, OomCount>,
    /// By the cgroup whose limit was hit; `/` is the machine.
    pub(super) limits: Few<OomLimit>,
    /// By the containers of the victims.
    pub(super) victims: Few<OomVictim>,
    pub(super) namespaces: Few<OomVictim>,
}

/// How many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct OomCount {
    pub(super) incidents: u64,
    pub(super) kills: u64,
}

/// A limit that was hit.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OomLimit {
    /// The cgroup; null if unknown.
    pub(super) limit_owner: Option<String>,
    pub(super) scope: &'static str,
    pub(super) incidents: u64,
    pub(super) kills: u64,
    /// The newest.
    pub(super) time: String,
}

/// Whose processes were killed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OomVictim {
    /// `namespace/pod/container`, or the cgroup of what is no pod's; of a namespace, its name.
    pub(super) name: String,
    /// The pod's controller, if a decision in the journal names it.
    pub(super) workload: Option<String>,
    pub(super) kills: u64,
    /// The most memory of one victim when it was marked.
    pub(super) most_bytes: Option<u64>,
    pub(super) time: String,
}

/// Who exceeded whose memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Exceeded {
    /// Pods that used more than they request when an eviction was decided: of the first of each ranking.
    pub(super) requests: Few<AboveRequest>,
    /// Which allocation led to whose death, in OOM incidents.
    pub(super) triggers: Few<Triggered>,
}

/// A pod above its request.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AboveRequest {
    pub(super) pod: String,
    /// At how many decisions.
    pub(super) decisions: u64,
    /// At how many of them another pod was chosen.
    pub(super) others_chosen: u64,
    pub(super) most_above_bytes: u64,
}

/// A task allocated, and a process died.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Triggered {
    pub(super) trigger: String,
    pub(super) victim: String,
    /// Whether both are of the same pod.
    pub(super) same_pod: bool,
    pub(super) kills: u64,
}

/// The time under pressure.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Pressure {
    pub(super) thresholds: Vec<UnderPressure>,
    /// Each shortage, the newest first.
    pub(super) items: Vec<Shortage>,
    pub(super) more: u64,
}

/// How long one threshold was crossed in the range.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UnderPressure {
    pub(super) signal: String,
    pub(super) hard: bool,
    pub(super) shortages: u64,
    /// Together, within the range.
    pub(super) total_ms: u64,
    pub(super) longest_ms: u64,
    /// Some of it is a lower bound: the end of a shortage is not in the journal.
    pub(super) at_least: bool,
    /// Whether it was crossed at the end of the range.
    pub(super) open: bool,
}

/// A shortage.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Shortage {
    pub(super) signal: String,
    pub(super) hard: bool,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) lasted_ms: u64,
    /// `cleared`; `open`: counted until the end of the range; `restart` or `unknown`: its end is not in the journal, and
    /// it is counted until the last event before another daemon started, or until it was crossed again.
    pub(super) end: &'static str,
}

/// Who waited for memory, and for whose limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Stall {
    /// `namespace/pod/container`, or the cgroup.
    pub(super) stalled: String,
    /// The cgroup whose limit it was; `/` is the node; null if unknown.
    pub(super) limit_owner: Option<String>,
    pub(super) kind: String,
    /// The sum of what was reported.
    pub(super) stalled_ms: u64,
    /// It is a lower bound: the end of the stalls is not in the journal.
    pub(super) at_least: bool,
    pub(super) reports: u64,
    /// The longest reported stall of any kind.
    pub(super) longest_ms: u64,
}

/// Warnings that a threshold will be crossed soon, and what came of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Forecasts {
    pub(super) warnings: u64,
    /// The threshold was crossed then.
    pub(super) came_true: u64,
    /// It was no longer near, without having been crossed.
    pub(super) did_not: u64,
    /// Neither is in the journal: another daemon started, or the range ends.
    pub(super) unknown: u64,
    /// Crossings without a warning before.
    pub(super) unforeseen: u64,
    /// Each, the newest first.
    pub(super) items: Vec<Forecast>,
    pub(super) more: u64,
}

/// A warning.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Forecast {
    pub(super) time: String,
    pub(super) signal: String,
    pub(super) hard: bool,
    /// `cameTrue`, `didNot` or `unknown`.
    pub(super) outcome: &'static str,
    pub(super) crossed_in_ms: Option<u64>,
    /// When it was crossed in truth, from the warning.
    pub(super) was_crossed_in_ms: Option<u64>,
    /// The pod that grew fastest.
    pub(super) caused_by: Option<String>,
}
