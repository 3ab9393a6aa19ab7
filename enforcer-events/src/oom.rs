//! The kernel's OOM kills.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use ulid::Ulid;

use crate::pod::Place;

/// What kind of limit was hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Scope {
    /// The limit of a container.
    Container,
    /// The limit of a pod.
    Pod,
    /// The limit of a `QoS` class.
    Qos,
    /// The limit of the machine, or of kubepods.
    Node,
    /// The limit of a cgroup outside of kubepods.
    System,
}

impl Scope {
    /// Its word in events.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Pod => "pod",
            Self::Qos => "qos",
            Self::Node => "node",
            Self::System => "system",
        }
    }
}

/// How the limit owner was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum LimitSource {
    /// From the kernel's own record of this OOM.
    Traced,
    /// From the counter that moved. In a burst that is a guess.
    Counters,
    /// The limit owner is unknown.
    Unknown,
}

/// The task whose allocation failed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Trigger {
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Name of the thread, as its owner chose it.
    pub comm: String,
    /// Its pod and container.
    #[serde(flatten)]
    pub place: Place,
}

/// The evidence that a process shared a victim's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum SharedBy {
    /// It had the same memory when the OOM killer killed it.
    Kill,
    /// The OOM killer killed it after the victim without marking it; its memory could not be read.
    Exit,
}

/// A process that was killed: marked by the OOM killer, or dying with a marked one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Victim {
    /// Process id; the thread id if the kernel reported only that.
    pub pid: u32,
    /// When its thread started, in milliseconds since boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time_ms: Option<u64>,
    /// Name of the thread, as its owner chose it.
    pub comm: String,
    /// Its pod and container.
    #[serde(flatten)]
    pub place: Place,
    /// User id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_id: Option<u32>,
    /// Its memory when it was marked.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub memory: Option<VictimMemory>,
    /// Its `oom_score_adj`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_score_adj: Option<i32>,
    /// Whether it was its container's init, so that its death ends the container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_init: Option<bool>,
    /// Exit code as in `wait(2)`, once it has exited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u32>,
    /// The signal that ended it, from the exit code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<u32>,
    /// It was not chosen as a victim: it shared the memory of the process with this id, and was killed with it. The
    /// kernel does not count it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares_memory_with: Option<u32>,
    /// The evidence for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_by: Option<SharedBy>,
}

/// A victim's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VictimMemory {
    /// Anonymous memory.
    pub anon_bytes: u64,
    /// Mapped files.
    pub file_bytes: u64,
    /// Shared memory and tmpfs.
    pub shmem_bytes: u64,
    /// Swapped-out memory.
    pub swap_bytes: u64,
    /// Page tables.
    pub pgtables_bytes: u64,
}

/// Milliseconds from the first reclaim of the trigger, or from the mark where no reclaim was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeline {
    /// The trigger began to reclaim: always 0, absent if that was not seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_reclaim: Option<u64>,
    /// The first victim was marked; absent if no mark was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub marked: Option<u64>,
    /// The last killed process had exited; absent if one has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exited: Option<u64>,
    /// The victims' memory was freed; absent if it was not, or could not be observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_back: Option<u64>,
    /// The source of `memory_back`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_back_source: Option<MemoryBackSource>,
}

/// How the time when a victim's memory was freed is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum MemoryBackSource {
    /// The kernel reported the release.
    Traced,
    /// The last victim had released it by then. Another process that shared it may still hold it.
    Exit,
}

/// Data of `oom.detected`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Detected {
    /// Shared with the `oom.incident` that closes it.
    #[schemars(with = "String")]
    pub incident_id: Ulid,
    /// What kind of limit was hit, if known already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// The cgroup whose limit was hit, if known already; `/` is the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_owner: Option<String>,
    /// The task whose allocation failed; absent if it was not traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger: Option<Trigger>,
    /// The first victim; absent if it was not traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub victim: Option<Victim>,
    /// The cgroup whose counters showed it, if it was not traced.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
    /// Whether it is based on counters alone, without a traced mark.
    pub reconstructed: bool,
}

/// Data of `oom.incident`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Incident {
    /// The id of its `oom.detected`.
    #[schemars(with = "String")]
    pub incident_id: Ulid,
    /// What kind of limit was hit; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// The cgroup whose limit was hit; `/` is the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_owner: Option<String>,
    /// How the limit owner was found.
    pub limit_source: LimitSource,
    /// The task whose allocation failed; absent if it was not traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger: Option<Trigger>,
    /// The cgroup whose counters showed it, if it was not traced.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
    /// How many processes the OOM killer killed for it, without those that died for sharing memory. It may be one too
    /// many for a group kill that was not traced, as the kernel counts the first victim twice.
    pub kills: u64,
    /// All killed processes: victims in the order of their marks, then those that shared their memory.
    pub victims: Vec<Victim>,
    /// What happened when.
    pub timeline_ms: Timeline,
    /// By how much the counters of limit owner and victims moved for this OOM.
    pub counters: OomCounts,
    /// The counters before, summed. The previous incident of the same cgroup ended at these values.
    pub counters_before: OomCounts,
    /// `counters_before` plus `counters`. A kill that another incident reports is not included, though the kernel may
    /// have counted it by the time of the reading.
    pub counters_after: OomCounts,
    /// Whether the kernel counted as many kills as were traced.
    pub reconciled: bool,
    /// How `reconciled` was decided.
    pub reconciliation: Reconciliation,
    /// Whether it is based on counters alone, without a traced mark.
    pub reconstructed: bool,
}

/// Why a marked task was not an OOM kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum AvertedCause {
    /// We were evicting its pod: it was dying from our signal.
    OwnEviction,
    /// It was dying from a signal of another process, or exiting.
    AlreadyDying,
}

impl AvertedCause {
    /// Its word in events.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OwnEviction => "ownEviction",
            Self::AlreadyDying => "alreadyDying",
        }
    }
}

/// Data of `oom.averted`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Averted {
    /// The id of its `oom.detected`, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub incident_id: Option<Ulid>,
    /// Why it was not an OOM kill.
    pub cause: AvertedCause,
    /// The task whose allocation failed.
    pub trigger: Trigger,
    /// The marked tasks.
    pub victims: Vec<Victim>,
}

/// The OOM counters of `memory.events.local`: of the cgroup itself, without its descendants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OomCounts {
    /// Times its limit was hit and the OOM killer called. Not a count of kills: the kernel may retry often.
    pub oom: u64,
    /// Processes in it that the OOM killer killed.
    pub oom_kill: u64,
    /// Times it was killed as a group.
    pub oom_group_kill: u64,
}

/// How the traced kills compare with the kernel's own count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Reconciliation {
    /// They are equal, or one more for the first victim of a group kill, which the kernel counts twice.
    Matched,
    /// The kernel counted fewer kills than were traced.
    Differs,
    /// A victim's cgroup was not known before it was marked, so the increase is unknown.
    NoBaseline,
    /// A victim's counters could not be read: its cgroup is gone or was never known.
    Unreadable,
}

impl OomCounts {
    /// Parses the file. A missing line counts as zero (`oom_group_kill` came with 5.17).
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let count = |key: &str| {
            text.lines()
                .filter_map(|line| line.split_once(' '))
                .find(|(name, _)| *name == key)
                .and_then(|(_, value)| value.trim().parse().ok())
                .unwrap_or(0)
        };
        Self { oom: count("oom"), oom_kill: count("oom_kill"), oom_group_kill: count("oom_group_kill") }
    }

    /// The increase since `before`. A counter that decreased belongs to another cgroup, and counts as unchanged.
    #[must_use]
    pub const fn since(self, before: Self) -> Self {
        Self {
            oom: self.oom.saturating_sub(before.oom),
            oom_kill: self.oom_kill.saturating_sub(before.oom_kill),
            oom_group_kill: self.oom_group_kill.saturating_sub(before.oom_group_kill),
        }
    }

    /// The sum.
    #[must_use]
    pub const fn plus(self, more: Self) -> Self {
        Self {
            oom: self.oom.saturating_add(more.oom),
            oom_kill: self.oom_kill.saturating_add(more.oom_kill),
            oom_group_kill: self.oom_group_kill.saturating_add(more.oom_group_kill),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_file_of_newer_and_older_kernels() {
        let new = "low 0\nhigh 7\nmax 12\noom 3\noom_kill 2\noom_group_kill 1\n";
        assert_eq!(OomCounts::parse(new), OomCounts { oom: 3, oom_kill: 2, oom_group_kill: 1 });
        assert_eq!(OomCounts::parse("oom 3\noom_kill 2\n").oom_group_kill, 0);
        assert_eq!(OomCounts::parse("oom\noom_kill x\n\n"), OomCounts::default());
    }

    #[test]
    fn a_counter_that_went_back_is_no_difference() {
        let one = OomCounts { oom: 1, oom_kill: 5, oom_group_kill: 0 };
        let other = OomCounts { oom: 4, oom_kill: 2, oom_group_kill: 0 };
        assert_eq!(other.since(one), OomCounts { oom: 3, oom_kill: 0, oom_group_kill: 0 });
    }
}
