//! The events: the data of `oom.detected`, `oom.incident` and `oom.averted`, as they are told.
use serde::Serialize;
use ulid::Ulid;

use super::{OomCounts, Reconciliation};
use crate::{
    journal::Subject,
    model::{CgroupPath, Owner, OwnerLevel, PodName},
    sense::record::{Mark, Memory, Task},
};

/// What kind of limit was hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Scope {
    /// A container's.
    Container,
    /// A pod's.
    Pod,
    /// That of a `QoS` class.
    Qos,
    /// The machine's, or that of kubepods.
    Node,
    /// That of a cgroup outside of kubepods.
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

/// How it is known whose limit was hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum LimitSource {
    /// From the kernel's own account of this OOM.
    Traced,
    /// From the counter that moved. In a burst that is a guess.
    Counters,
    /// It is not known.
    Unknown,
}

/// Pod and container, where it is one's.
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

    /// The pod's name, if it is a pod's.
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
    /// Whose it is.
    #[serde(flatten)]
    pub place: Place,
}

impl Trigger {
    pub(super) fn new(task: &Task, place: Place) -> Self {
        Self { pid: task.pid, tid: task.tid, comm: task.comm.clone(), place }
    }
}

/// A task that was marked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Victim {
    /// Process id; the thread's where the kernel tells no more.
    pub pid: u32,
    /// When its thread started, in milliseconds since boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time_ms: Option<u64>,
    /// Name of the thread, as its owner chose it.
    pub comm: String,
    /// Whose it is.
    #[serde(flatten)]
    pub place: Place,
    /// User id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_id: Option<u32>,
    /// What it had in memory.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub memory: Option<VictimMemory>,
    /// Its `oom_score_adj`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_score_adj: Option<i32>,
    /// Whether it was its container's init, so that the container goes down with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_init: Option<bool>,
    /// Exit code as in `wait(2)`, once it has exited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u32>,
}

/// A victim's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "the names are part of the public contract")]
pub struct VictimMemory {
    /// Anonymous.
    pub anon_bytes: u64,
    /// Mapped files.
    pub file_bytes: u64,
    /// Shared memory and tmpfs.
    pub shmem_bytes: u64,
    /// Swapped out.
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
    pub(super) fn new(mark: &Mark, place: Place, exit_code: Option<u32>) -> Self {
        Self {
            pid: mark.pid.unwrap_or(mark.tid),
            start_time_ms: mark.start_ns.map(|start_ns| start_ns / 1_000_000),
            comm: mark.comm.clone(),
            place,
            user_id: mark.uid,
            memory: mark.memory.map(VictimMemory::from),
            oom_score_adj: mark.oom_score_adj,
            container_init: mark.container_init,
            exit_code,
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
    /// The first victim was marked.
    pub marked: u64,
    /// The last victim had exited; absent if one has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exited: Option<u64>,
}

/// Data of `oom.detected`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Detected {
    /// Shared with the `oom.incident` that closes it.
    pub incident_id: Ulid,
    /// What kind of limit, if known already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// The cgroup whose limit was hit, if known already; `/` is the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_owner: Option<String>,
    /// The task whose allocation failed.
    pub trigger: Trigger,
    /// The first victim.
    pub victim: Victim,
}

/// Data of `oom.incident`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Incident {
    /// That of its `oom.detected`.
    pub incident_id: Ulid,
    /// What kind of limit; absent if it could not be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// The cgroup whose limit was hit; `/` is the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_owner: Option<String>,
    /// How that is known.
    pub limit_source: LimitSource,
    /// The task whose allocation failed.
    pub trigger: Trigger,
    /// All victims, in the order in which they were marked.
    pub victims: Vec<Victim>,
    /// What happened when.
    pub timeline_ms: Timeline,
    /// By how much the counters of limit owner and victims moved for this OOM.
    pub counters: OomCounts,
    /// What they were before, summed.
    pub counters_before: OomCounts,
    /// What they are now, summed.
    pub counters_after: OomCounts,
    /// Whether the kernel counted as many kills as were traced.
    pub reconciled: bool,
    /// How that was found.
    pub reconciliation: Reconciliation,
    /// Whether it was made of counters alone, without a traced mark.
    pub reconstructed: bool,
}

/// Why a marked task was no OOM kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum AvertedCause {
    /// We were evicting its pod: it was dying by our signal.
    OwnEviction,
    /// It was dying by another's signal, or exiting.
    AlreadyDying,
}

/// Data of `oom.averted`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Averted {
    /// That of its `oom.detected`, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incident_id: Option<Ulid>,
    /// Why it was none.
    pub cause: AvertedCause,
    /// The task whose allocation failed.
    pub trigger: Trigger,
    /// The marked tasks.
    pub victims: Vec<Victim>,
}

/// Whom an event is about: the pod of the first victim.
fn subject(victim: Option<&Victim>) -> Subject {
    victim.and_then(|victim| victim.place.pod_name()).map_or(Subject::Node, Subject::Pod)
}

impl Detected {
    /// Whom it is about.
    #[must_use]
    pub fn subject(&self) -> Subject {
        subject(Some(&self.victim))
    }
}

impl Incident {
    /// Whom it is about.
    #[must_use]
    pub fn subject(&self) -> Subject {
        subject(self.victims.first())
    }
}

impl Averted {
    /// Whom it is about.
    #[must_use]
    pub fn subject(&self) -> Subject {
        subject(self.victims.first())
    }
}
