//! The figures of one run: a line of JSON.

use serde::{Deserialize, Serialize};

/// One run of one contender at one workload.
///
/// Times are from the crossing on, in milliseconds, and below zero for what came before it; none where it never came.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Outcome {
    /// The contender.
    pub contender: String,
    /// The workload.
    pub workload: String,
    /// Which run of the two, from 1 on.
    pub run: usize,
    /// Less available than this is the crossing.
    pub threshold_bytes: u64,
    /// Who should die, in this order, and nobody else.
    pub expected: Vec<String>,
    /// Who was signalled or ended, in this order.
    pub died: Vec<String>,
    /// Whether those are the same, and nothing is left of them.
    pub right: bool,
    /// Whether less than the threshold was available at any time.
    pub crossed: bool,
    /// How far apart the looks were between which the crossing lay, or the first signal: the longer of both. Nothing is
    /// known better than that.
    pub uncertain_ms: f64,
    /// Signals of which the looks around them do not tell whether they came before the crossing or after it.
    #[serde(default)]
    pub uncertain_signals: usize,
    /// Whether that is little enough to tell times and over-kills, and no signal is uncertain: a machine that stands still sees
    /// nothing.
    pub seen: bool,
    /// To the first signal to a pod.
    pub signal_ms: Option<f64>,
    /// For each pod that was signalled after the first, to that signal: from the crossing since which too little was available,
    /// or from the death of the victim before where that was later.
    #[serde(default)]
    pub following_ms: Vec<f64>,
    /// To the moment when nothing was left of the pod that was signalled first.
    pub dead_ms: Option<f64>,
    /// To the moment from which the threshold was available again after that signal.
    pub back_ms: Option<f64>,
    /// Pods that were killed though enough was available, or would have been with what the earlier victims still held.
    pub over_kills: usize,
    /// How many signals went to pods' processes.
    pub signals: usize,
    /// Kills of pods' processes by the kernel's OOM killer.
    pub kernel_kills: usize,
    /// Those of them that hit pods which should have lived.
    pub kernel_kills_spared: usize,
    /// All of the kernel's OOM kills, by its own count (`oom_kill` of /proc/vmstat).
    pub kernel_kills_counted: u64,
    /// The least that was available.
    pub lowest_bytes: u64,
    /// How fast the growing pods grew until the crossing, in bytes a second.
    pub rate_bytes: Option<u64>,
    /// From a signal to its event in the contender's own log: the longest of the run; none where it has none.
    #[serde(default)]
    pub journal_ms: Option<f64>,
    /// The longest that a write of the Guaranteed pod came late.
    pub stall_ms: f64,
    /// Processor time of the contender's process while the work ran; none for the bare kernel.
    pub cpu_ms: Option<f64>,
    /// Its resident memory afterwards.
    pub resident_bytes: Option<u64>,
    /// How long the work was watched.
    pub watched_ms: f64,
    /// How often the sampler looked.
    pub looks: usize,
    /// How often two looks were more than 2 ms apart.
    pub late_looks: usize,
    /// The longest time between two looks.
    pub longest_look_ms: f64,
    /// The first signal to each pod, in order of time.
    pub first_signals: Vec<FirstSignal>,
}

impl Outcome {
    /// A time of this run, unless the sampler was blind when it mattered.
    #[must_use]
    pub fn if_seen(&self, time_ms: Option<f64>) -> Option<f64> {
        time_ms.filter(|_| self.seen)
    }
}

/// The first signal to a pod.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FirstSignal {
    /// To which.
    pub pod: String,
    /// When; from the beginning of the work where there was no crossing.
    pub ms: f64,
    /// The name of the task that ran then: the contender's, or for a kernel kill whoever asked for memory.
    pub sender: String,
    /// Whether the kernel's OOM killer sent it.
    pub kernel: bool,
    /// The least that was available in the looks around it, in bytes.
    #[serde(default)]
    pub available_bytes: u64,
    /// What the pods that were signalled before still held and gave back later, in bytes.
    #[serde(default)]
    pub coming_bytes: u64,
}
