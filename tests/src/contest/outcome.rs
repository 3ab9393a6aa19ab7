//! The figures of one run: a line of JSON.

use serde::{Deserialize, Serialize};

/// One run of one contender at one workload.
///
/// Times are milliseconds since the crossing, negative before it; `None` if the event never came.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Outcome {
    /// The contender.
    pub contender: String,
    /// The workload.
    pub workload: String,
    /// The number of the run of this contender and workload, from 1.
    pub run: usize,
    /// The crossing is the moment when less than this is available.
    pub threshold_bytes: u64,
    /// Exactly the pods that should die, in this order.
    pub expected: Vec<String>,
    /// The pods that were signalled or ended, in this order.
    pub died: Vec<String>,
    /// Whether those are the same, and nothing is left of them.
    pub right: bool,
    /// Whether less than the threshold was available at any time.
    pub crossed: bool,
    /// Time between the two samples around the crossing, or around the first signal: the longer one. It is the
    /// precision of all times.
    pub uncertain_ms: f64,
    /// Signals for which the samples around them do not show whether they came before or after the crossing.
    #[serde(default)]
    pub uncertain_signals: usize,
    /// Whether that is precise enough for times and over-kills, and no signal is uncertain: a stalled machine samples
    /// nothing.
    pub seen: bool,
    /// To the first signal to a pod.
    pub signal_ms: Option<f64>,
    /// For each pod that was signalled after the first, to that signal: from the crossing since which too little was
    /// available, or from the death of the previous victim if that was later.
    #[serde(default)]
    pub following_ms: Vec<f64>,
    /// To the moment when nothing was left of the pod that was signalled first.
    pub dead_ms: Option<f64>,
    /// To the moment from which the threshold was available again after that signal.
    pub back_ms: Option<f64>,
    /// Pods that were killed although enough was available, or would have been with what the earlier victims still
    /// held.
    pub over_kills: usize,
    /// How many signals went to pods' processes.
    pub signals: usize,
    /// Kills of pods' processes by the kernel's OOM killer.
    pub kernel_kills: usize,
    /// Those of them in pods that should have lived.
    pub kernel_kills_spared: usize,
    /// All of the kernel's OOM kills, by its own count (`oom_kill` of /proc/vmstat).
    pub kernel_kills_counted: u64,
    /// The minimum of available memory.
    pub lowest_bytes: u64,
    /// How fast the growing pods grew until the crossing, in bytes a second.
    pub rate_bytes: Option<u64>,
    /// From a signal to its event in the contender's own log: the longest of the run; `None` if it has no log.
    #[serde(default)]
    pub journal_ms: Option<f64>,
    /// The longest delay of a write of the Guaranteed pod.
    pub stall_ms: f64,
    /// Processor time of the contender's process while the work ran; `None` for the bare kernel.
    pub cpu_ms: Option<f64>,
    /// Its resident memory afterwards.
    pub resident_bytes: Option<u64>,
    /// How long the work was observed.
    pub watched_ms: f64,
    /// Number of samples.
    pub looks: usize,
    /// How often two samples were more than 2 ms apart.
    pub late_looks: usize,
    /// The longest time between two samples.
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
    /// The pod.
    pub pod: String,
    /// When; since the beginning of the work if there was no crossing.
    pub ms: f64,
    /// The name of the task that ran then: the contender's, or for a kernel kill the allocating task's.
    pub sender: String,
    /// Whether the kernel's OOM killer sent it.
    pub kernel: bool,
    /// The minimum available in the samples around it, in bytes.
    #[serde(default)]
    pub available_bytes: u64,
    /// What the pods that were signalled before still held and freed later, in bytes.
    #[serde(default)]
    pub coming_bytes: u64,
}
