//! Fills the payloads of `oom.detected`, `oom.incident` and `oom.averted`.

use enforcer_events::{
    oom::{Averted, Detected, Incident, Scope, SharedBy, Trigger, Victim, VictimMemory},
    pod::Place,
};

use crate::{
    journal::Subject,
    model::{CgroupPath, Owner, OwnerLevel, PodName},
    sense::record::{Exit, Mark, Memory, Sharer, Task},
};

pub(super) const fn scope_of(owner: Option<&Owner>) -> Scope {
    match owner {
        None => Scope::System,
        Some(owner) => match owner.level {
            OwnerLevel::Node => Scope::Node,
            OwnerLevel::Qos(_) => Scope::Qos,
            OwnerLevel::Pod { .. } => Scope::Pod,
            OwnerLevel::Container { .. } => Scope::Container,
        },
    }
}

/// The pod and container that own a cgroup, or else only its path.
pub(in crate::sense) fn place_of(owner: Option<&Owner>, path: Option<CgroupPath>) -> Place {
    let Some(owner) = owner else {
        return Place { cgroup: path.map(|path| path.to_string()), ..Place::default() };
    };
    let uid = match &owner.level {
        OwnerLevel::Node | OwnerLevel::Qos(_) => None,
        OwnerLevel::Pod { uid, .. } | OwnerLevel::Container { uid, .. } => Some(uid.to_string()),
    };
    let pod = owner.level.pod();
    Place {
        namespace: pod.map(|pod| pod.namespace.clone()),
        pod: pod.map(|pod| pod.name.clone()),
        uid,
        container: owner.level.container().map(str::to_owned),
        container_kind: None,
        attempt: None,
        cgroup: Some(owner.path.to_string()),
    }
}

/// The pod's name, if the place is in a pod.
pub(in crate::sense) fn pod_name(place: &Place) -> Option<PodName> {
    Some(PodName { namespace: place.namespace.clone()?, name: place.pod.clone()? })
}

pub(super) fn trigger(task: &Task, place: Place) -> Trigger {
    Trigger { pid: task.pid, tid: task.tid, comm: task.comm.clone(), place }
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

fn memory_of(memory: Memory) -> VictimMemory {
    let Memory { anon_bytes, file_bytes, shmem_bytes, swap_bytes, pgtables_bytes } = memory;
    VictimMemory { anon_bytes, file_bytes, shmem_bytes, swap_bytes, pgtables_bytes }
}

pub(super) fn marked_victim(mark: &Mark, place: Place, ended: Ended) -> Victim {
    Victim {
        pid: mark.pid.unwrap_or(mark.tid),
        start_time_ms: mark.start_ns.map(|start_ns| start_ns / 1_000_000),
        comm: mark.comm.clone(),
        place,
        user_id: mark.uid,
        memory: mark.memory.map(memory_of),
        oom_score_adj: mark.oom_score_adj,
        container_init: mark.container_init,
        exit_code: ended.exit_code,
        signal: ended.signal(),
        shares_memory_with: None,
        shared_by: None,
    }
}

pub(super) fn sharing_victim(sharer: &Sharer, by: SharedBy, place: Place, ended: Ended) -> Victim {
    Victim {
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

/// The subject of an event: the pod of the first victim, else of the cgroup whose counters moved.
fn subject(victim: Option<&Victim>, place: Option<&Place>) -> Subject {
    let place = victim.map(|victim| &victim.place).or(place);
    place.and_then(pod_name).map_or(Subject::Node, Subject::Pod)
}

/// The pod or node that an event is about.
pub trait About {
    /// That pod, or the node.
    fn subject(&self) -> Subject;
}

impl About for Detected {
    fn subject(&self) -> Subject {
        subject(self.victim.as_ref(), self.place.as_ref())
    }
}

impl About for Incident {
    fn subject(&self) -> Subject {
        subject(self.victims.first(), self.place.as_ref())
    }
}

impl About for Averted {
    fn subject(&self) -> Subject {
        subject(self.victims.first(), None)
    }
}
