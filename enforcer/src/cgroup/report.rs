//! What the daemon learns from a reconciliation, and makes events of.

use std::sync::Arc;

use super::{
    Abandoned, ApplyError, Controller, Drift, Error, KeptFile, Missing, Reason, Step, Sweep, Withheld, Write,
};
use crate::model::{CgroupPath, Owner};

/// What a reconciliation did, and what it could not do.
#[derive(Debug, Default)]
#[must_use]
pub struct Report {
    /// The cgroups that were made.
    pub created: Vec<Arc<Owner>>,
    /// The controllers that were handed on, by cgroup.
    pub enabled: Vec<(CgroupPath, Vec<Controller>)>,
    /// The files that were written, in order.
    pub written: Vec<Written>,
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
    pub removed: Vec<Arc<Owner>>,
    /// The cgroups of retired pods and containers that still hold processes.
    pub draining: Vec<Arc<Owner>>,
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

/// A file that was written.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Written {
    /// The cgroup.
    pub path: CgroupPath,
    /// Why it was written.
    pub reason: Reason,
    /// What changed.
    pub change: FileChange,
}

impl From<Write> for Written {
    fn from(Write { path, value, old, reason }: Write) -> Self {
        let old = old.map(|held| held.to_string());
        let change = FileChange { file: value.file().into(), old, new: value.to_string() };
        Self { path, reason, change }
    }
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
    pub file: KeptFile,
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
        for Written { path, reason, change } in &self.written {
            let place = *places.entry((path, *reason)).or_insert_with(|| {
                applied.push(Applied { path: path.clone(), reason: *reason, files: Vec::new() });
                applied.len() - 1
            });
            if let Some(entry) = applied.get_mut(place) {
                entry.files.push(change.clone());
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
    use crate::{cgroup::Held, model::CgroupFile};

    fn write(path: &str, file: CgroupFile, reason: Reason) -> Written {
        let (path, value) = (CgroupPath::parse(path).unwrap(), file.parse("2").unwrap());
        Write { path, value, old: Some(Held::read(file, "1\n")), reason }.into()
    }

    #[test]
    fn writes_are_reported_by_cgroup_and_reason() {
        let report = Report {
            written: vec![
                write("/a", CgroupFile::MemoryMax, Reason::Initial),
                write("/b", CgroupFile::MemoryMax, Reason::Initial),
                write("/a", CgroupFile::CpuWeight, Reason::Initial),
                write("/a", CgroupFile::PidsMax, Reason::Drifted),
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
