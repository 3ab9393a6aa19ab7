use super::{Abandoned, ApplyError, Controller, Drift, Error, Missing, Reason, Step, Sweep, Withheld, Write};
use crate::{
    model::{CgroupPath, Owner},
    policy::FileName,
};

/// What a reconciliation did, and what it could not do.
#[derive(Debug, Default)]
#[must_use]
pub struct Report {
    /// The cgroups that were made.
    pub created: Vec<Owner>,
    /// The controllers that were handed on, by cgroup.
    pub enabled: Vec<(CgroupPath, Vec<Controller>)>,
    /// The files that were written, in order.
    pub written: Vec<Write>,
    /// The writes that wait for usage to go down.
    pub withheld: Vec<Withheld>,
    /// The limits that could not be lowered for now.
    pub abandoned: Vec<Abandoned>,
    /// The processes that were moved from a pod's former cgroup into its present one.
    pub moved: Vec<Moved>,
    /// The values that others wrote and that were not reported before.
    pub drifted: Vec<Drift>,
    /// The steps that failed.
    pub failed: Vec<Failure>,
    /// The cgroups of retired pods and containers that are gone now.
    pub removed: Vec<Owner>,
    /// The cgroups of retired pods and containers that still hold processes.
    pub draining: Vec<Owner>,
    /// The scores that were set.
    pub scores: Sweep,
    /// The planned files that do not exist: the whole list each time, so that the degraded state follows from it.
    pub missing: Vec<Missing>,
    /// The cgroups below kubepods that no pod names: the whole list each time. They are never touched.
    pub strangers: Vec<CgroupPath>,
    /// What could not be read or watched.
    pub errors: Vec<Error>,
    /// Without a permit, the steps that would be carried out.
    pub planned: Vec<Step>,
}

/// A problem, listed for as long as it lasts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Problem {
    /// What it concerns, in one word.
    pub what: &'static str,
    /// The cgroup or file; two problems of one kind and place are the same.
    pub place: String,
    /// What is wrong and what follows from it: one line.
    pub message: String,
}

/// A step that failed.
#[derive(Debug)]
pub struct Failure {
    /// The step.
    pub step: Step,
    /// The error.
    pub error: ApplyError,
    /// Whether the same step failed for the same reason last time, and so was already reported.
    pub repeated: bool,
}

/// Processes that were moved.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Moved {
    /// Where they were.
    pub from: CgroupPath,
    /// Where they are.
    pub to: CgroupPath,
    /// How many, counting those that were there one after the other.
    pub processes: usize,
}

/// What was written to one cgroup for one reason: the data of a `limits.applied` event.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Applied {
    /// The cgroup.
    pub path: CgroupPath,
    /// Why they were written.
    pub reason: Reason,
    /// The files, in the order in which they were written.
    pub files: Vec<FileChange>,
}

/// A file's value before and after.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FileChange {
    /// The file.
    pub file: FileName,
    /// What it held; `None` for a cgroup that was just made.
    pub old: Option<String>,
    /// What was written.
    pub new: String,
}

impl Report {
    /// The writes, one entry per cgroup and reason, in the order of their first writes.
    #[must_use]
    pub fn limits_applied(&self) -> Vec<Applied> {
        let mut applied: Vec<Applied> = Vec::new();
        let mut places = std::collections::HashMap::new();
        for write in &self.written {
            let place = *places.entry((&write.path, write.reason)).or_insert_with(|| {
                applied.push(Applied { path: write.path.clone(), reason: write.reason, files: Vec::new() });
                applied.len() - 1
            });
            if let Some(entry) = applied.get_mut(place) {
                entry.files.push(FileChange {
                    file: write.file.clone(),
                    old: write.old.clone(),
                    new: write.value.clone(),
                });
            }
        }
        applied
    }

    /// Whether nothing was changed and nothing is left to be done.
    #[must_use]
    pub fn is_converged(&self) -> bool {
        self.created.is_empty()
            && self.enabled.is_empty()
            && self.written.is_empty()
            && self.moved.is_empty()
            && self.withheld.is_empty()
            && self.failed.is_empty()
            && self.removed.is_empty()
            && self.scores.changed.is_empty()
            && self.errors.is_empty()
            && self.planned.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &str, file: &'static str, reason: Reason) -> Write {
        let path = CgroupPath::parse(path).unwrap();
        Write { path, file: file.into(), value: "2".into(), old: Some("1".into()), reason }
    }

    #[test]
    fn writes_are_reported_by_cgroup_and_reason() {
        let report = Report {
            written: vec![
                write("/a", "memory.max", Reason::Initial),
                write("/b", "memory.max", Reason::Initial),
                write("/a", "cpu.weight", Reason::Initial),
                write("/a", "pids.max", Reason::Drifted),
            ],
            ..Report::default()
        };
        let applied = report.limits_applied();
        let reported: Vec<(&str, Reason, usize)> =
            applied.iter().map(|entry| (entry.path.as_str(), entry.reason, entry.files.len())).collect();
        assert_eq!(
            reported,
            [("/a", Reason::Initial, 2), ("/b", Reason::Initial, 1), ("/a", Reason::Drifted, 1)]
        );
        assert!(!report.is_converged());
        assert!(Report::default().is_converged());
    }
}
