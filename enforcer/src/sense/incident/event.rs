//! The events: the data of `oom.detected`, `oom.incident` and `oom.averted`.
use serde::Serialize;
use ulid::Ulid;

use super::{OomCounts, Reconciliation};
use crate::{
    journal::Subject,
    model::{CgroupPath, Owner, OwnerLevel, PodName},
    sense::record::{Exit, Mark, Memory, Sharer, Task},
};

/// What kind of limit was hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
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
    pub(super) const fn of(owner: Option<&Owner>) -> Self {
        match owner {
            None => Self::System,
            Some(owner) => match owner.level {
                OwnerLevel::Node => Self::Node,
                OwnerLevel::Qos(_) => Self::Qos,
                OwnerLevel::Pod { .. } => Self::Pod,
                OwnerLevel::Container { .. } => Self::Container,
            },
        }
    }
}

/// How the limit owner was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum LimitSource {
    /// From the kernel's own record of this OOM.
    Traced,
    /// From the counter that moved. In a burst that is a guess.
    Counters,
    /// The limit owner is unknown.
    Unknown,
}

/// Pod and container of a process or cgroup, where it belongs to one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Place {
    /// The pod's namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The pod's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The pod's uid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// The container's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The cgroup's path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
}

impl Place {
    pub(in crate::sense) fn new(owner: Option<&Owner>, path: Option<CgroupPath>) -> Self {
        let Some(owner) = owner else {
            return Self { cgroup: path.map(|path| path.to_string()), ..Self::default() };
        };
        let uid = match &owner.level {
            OwnerLevel::Node | OwnerLevel::Qos(_) => None,
            OwnerLevel::Pod { uid, .. } | OwnerLevel::Container { uid, .. } => Some(uid.to_string()),
        };
        let pod = owner.level.pod();
        Self {
            namespace: pod.map(|pod| pod.namespace.clone()),
            pod: pod.map(|pod| pod.name.clone()),
            uid,
            container: owner.level.container().map(str::to_owned),
            cgroup: Some(owner.path.to_string()),
        }
    }

    /// The pod's name, if the place is in a pod.
    #[must_use]
    pub fn pod_name(&self) -> Option<PodName> {
        Some(PodName { namespace: self.namespace.clone()?, name: self.pod.clone()? })
    }
}

/// The task whose allocation failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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

impl Trigger {
    pub(super) fn new(task: &Task, place: Place) -> Self {
        Self { pid: task.pid, tid: task.tid, comm: task.comm.clone(), place }
    }
}

/// The evidence that a process shared a victim's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum SharedBy {
    /// It had the same memory when the OOM killer killed it.
    Kill,
    /// The OOM killer killed it after the victim without marking it; its memory could not be read.
    Exit,
}

/// A process that was killed: marked by the OOM killer, or dying with a marked one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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

/// How a process ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ended {
    exit_code: Option<u32>,
}

impl Ended {
    pub(super) fn of(exit: Option<&Exit>) -> Self {
        Self { exit_code: exit.and_then(|exit| exit.exit_code) }
    }

    fn signal(self) -> Option<u32> {
        self.exit_code.map(|code| code & 0x7f).filter(|signal| *signal != 0)
    }
}

/// A victim's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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

impl From<Memory> for VictimMemory {
    fn from(memory: Memory) -> Self {
        let Memory { anon_bytes, file_bytes, shmem_bytes, swap_bytes, pgtables_bytes } = memory;
        Self { anon_bytes, file_bytes, shmem_bytes, swap_bytes, pgtables_bytes }
    }
}

impl Victim {
    pub(super) fn new(mark: &Mark, place: Place, ended: Ended) -> Self {
        Self {
            pid: mark.pid.unwrap_or(mark.tid),
            start_time_ms: mark.start_ns.map(|start_ns| start_ns / 1_000_000),
            comm: mark.comm.clone(),
            place,
            user_id: mark.uid,
            memory: mark.memory.map(VictimMemory::from),
            oom_score_adj: mark.oom_score_adj,
            container_init: mark.container_init,
            exit_code: ended.exit_code,
            signal: ended.signal(),
            shares_memory_with: None,
            shared_by: None,
        }
    }

    pub(super) fn sharing(sharer: &Sharer, by: SharedBy, place: Place, ended: Ended) -> Self {
        Self {
            pid: sharer.pid,
            start_time_ms: sharer.start_ns.map(|start_ns| start_ns / 1_000_000),
            comm: sharer.comm.clone(),
            place,
            user_id: None,
            memory: None,
            oom_score_adj: sharer.oom_score_adj,
            container_init: sharer.container_init,
            exit_code: ended.exit_code,
            signal: ended.signal(),
            shares_memory_with: Some(sharer.victim),
            shared_by: Some(by),
        }
    }
}

/// Milliseconds from the first reclaim of the trigger, or from the mark where no reclaim was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum MemoryBackSource {
    /// The kernel reported the release.
    Traced,
    /// The last victim had released it by then. Another process that shared it may still hold it.
    Exit,
}

/// Data of `oom.detected`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Detected {
    /// Shared with the `oom.incident` that closes it.
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Incident {
    /// The id of its `oom.detected`.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum AvertedCause {
    /// We were evicting its pod: it was dying from our signal.
    OwnEviction,
    /// It was dying from a signal of another process, or exiting.
    AlreadyDying,
}

/// Data of `oom.averted`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Averted {
    /// The id of its `oom.detected`, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incident_id: Option<Ulid>,
    /// Why it was not an OOM kill.
    pub cause: AvertedCause,
    /// The task whose allocation failed.
    pub trigger: Trigger,
    /// The marked tasks.
    pub victims: Vec<Victim>,
}

/// The subject of an event: the pod of the first victim, else of the cgroup whose counters moved.
fn subject(victim: Option<&Victim>, place: Option<&Place>) -> Subject {
    victim.map(|victim| &victim.place).or(place).and_then(Place::pod_name).map_or(Subject::Node, Subject::Pod)
}

impl Detected {
    /// The pod or node that the event is about.
    #[must_use]
    pub fn subject(&self) -> Subject {
        subject(self.victim.as_ref(), self.place.as_ref())
    }
}

impl Incident {
    /// The pod or node that the event is about.
    #[must_use]
    pub fn subject(&self) -> Subject {
        subject(self.victims.first(), self.place.as_ref())
    }
}

impl Averted {
    /// The pod or node that the event is about.
    #[must_use]
    pub fn subject(&self) -> Subject {
        subject(self.victims.first(), None)
    }
}
