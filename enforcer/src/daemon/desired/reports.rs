//! The events of the desired state: pods that come, change and go, and what was written for them.

use enforcer_events::{Payload, pod::PodReported};

use super::{
    Desired,
    emit::{self, Writers},
};
use crate::{
    cgroup::{Reason, Report},
    journal::Subject,
    model::CgroupPath,
    policy,
    source::{Change, SourceName},
};

impl Desired {
    pub(super) fn emit(&self, subject: Subject, payload: Payload) {
        self.journal.emit(subject, payload);
    }

    pub(super) fn emit_change(&self, change: &Change) {
        let pod = match change {
            Change::Added(pod) | Change::Removed(pod) | Change::Changed { old: _, new: pod } => pod,
        };
        // A changed manifest that is not in force has no plan.
        let entry = self.pods.roster().get(&pod.uid);
        let in_force = entry.is_some_and(|entry| entry.pod == *pod);
        let plan = self.pods.plan().pods.iter().find(|plan| in_force && plan.uid == pod.uid);
        let source = entry.map_or(SourceName::STATIC, |entry| entry.source);
        let data = emit::pod(pod, source, plan.map(AsRef::as_ref));
        let payload = match change {
            Change::Added(_) => Payload::PodAdded(data),
            Change::Removed(_) => Payload::PodRemoved(data),
            Change::Changed { old, new: _ } => {
                let old_qos_class = Some(policy::qos::class(old).as_str().into());
                Payload::PodChanged(PodReported { old_qos_class, ..data })
            }
        };
        self.emit(Subject::Pod(pod.name.clone()), payload);
    }

    /// The pod and the container that a cgroup belongs to, by this plan or an earlier one.
    fn owned(&self, path: &CgroupPath) -> Option<emit::Owned<'_>> {
        let going = || {
            let level = &self.existing.going.get(path)?.level;
            Some((level.pod()?, level.container()))
        };
        emit::owner(path, self.pods.plan()).or_else(going)
    }

    pub(super) fn emit_report(&mut self, report: &Report, writers: &Writers) {
        for drift in &report.drifted {
            let (subject, data) = emit::drifted(drift, self.owned(&drift.path), writers);
            self.emit(subject, Payload::LimitsDrifted(data));
        }
        for moved in &report.moved {
            let (subject, data) = emit::moved(moved, self.pods.plan());
            self.emit(subject, Payload::LimitsApplied(data));
        }
        for applied in report.limits_applied() {
            let (subject, data) = emit::limits(&applied, self.owned(&applied.path), writers);
            let payload = match applied.reason {
                Reason::Drifted | Reason::Interrupted => Payload::LimitsRestored(data),
                Reason::Initial | Reason::PlanChanged | Reason::Released | Reason::Ranked => {
                    Payload::LimitsApplied(data)
                }
            };
            self.emit(subject, payload);
        }
    }
}
