//! The events of the desired state: pods that come, change and go, and what was written for them.
use serde_json::json;

use super::{
    Desired,
    emit::{self, Writers},
};
use crate::{
    cgroup::{Reason, Report},
    journal::{Event, EventType, Subject},
    model::CgroupPath,
    policy,
    source::Change,
};

impl Desired {
    pub(super) fn emit(&self, kind: EventType, subject: Subject, data: serde_json::Value) {
        self.journal.append(Event { kind, subject, data });
    }

    pub(super) fn emit_change(&self, change: &Change) {
        let (kind, pod, old) = match change {
            Change::Added(pod) => (EventType::PodAdded, pod, None),
            Change::Changed { old, new } => (EventType::PodChanged, new, Some(old)),
            Change::Removed(pod) => (EventType::PodRemoved, pod, None),
        };
        // A changed manifest that is not in force has no plan.
        let in_force = self.roster.get(&pod.uid).is_some_and(|entry| entry.pod == *pod);
        let plan = self.plan.pods.iter().find(|plan| in_force && plan.uid == pod.uid);
        let mut data = emit::pod(pod, plan);
        if let Some(old) = old {
            data["oldQosClass"] = json!(policy::qos::class(old).as_str());
        }
        self.emit(kind, Subject::Pod(pod.name.clone()), data);
    }

    /// The pod and the container that a cgroup belongs to, by this plan or an earlier one.
    fn owned(&self, path: &CgroupPath) -> Option<emit::Owned<'_>> {
        let going = || {
            let level = &self.going.get(path)?.level;
            Some((level.pod()?, level.container()))
        };
        emit::owner(path, &self.plan).or_else(going)
    }

    pub(super) fn emit_report(&mut self, report: &Report, writers: &Writers) {
        for drift in &report.drifted {
            let (subject, data) = emit::drifted(drift, self.owned(&drift.path), writers);
            self.emit(EventType::LimitsDrifted, subject, data);
        }
        for moved in &report.moved {
            let (subject, data) = emit::moved(moved, &self.plan);
            self.emit(EventType::LimitsApplied, subject, data);
        }
        for applied in report.limits_applied() {
            let kind = match applied.reason {
                Reason::Drifted => EventType::LimitsRestored,
                Reason::Initial | Reason::PlanChanged | Reason::Released | Reason::Ranked => {
                    EventType::LimitsApplied
                }
            };
            let (subject, data) = emit::limits(&applied, self.owned(&applied.path), writers);
            self.emit(kind, subject, data);
        }
    }
}
