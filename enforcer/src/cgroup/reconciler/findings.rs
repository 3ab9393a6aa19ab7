//! The problems that were found.
use std::collections::{BTreeMap, BTreeSet};

use super::Reconciler;
use crate::{
    cgroup::{Missing, Sweep, report::Problem},
    model::CgroupPath,
};

/// The problems that the last look at everything found.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) missing: Vec<Missing>,
    pub(super) strangers: Vec<CgroupPath>,
    /// By cgroup.
    pub(super) errors: BTreeMap<String, String>,
    pub(super) scores: BTreeMap<CgroupPath, Vec<Problem>>,
    pub(super) frozen: BTreeSet<CgroupPath>,
    /// The last failure to mark cgroups; it is never cleared.
    pub(super) unmarked: Option<Problem>,
    /// Cgroups in pods whose container is unknown.
    pub(super) unnamed: BTreeMap<CgroupPath, Problem>,
}

impl Seen {
    /// Notes problems with the scores of a container's processes.
    pub(super) fn note_scores(&mut self, path: &CgroupPath, sweep: &Sweep) {
        let problem = |place: String, message: String| Problem { what: "scores", place, message };
        let mut problems: Vec<Problem> =
            sweep.errors.iter().map(|error| problem(path.to_string(), crate::chain(error))).take(1).collect();
        if sweep.refused > 0 {
            problems.push(problem(
                String::from("oom_score_adj"),
                String::from(
                    "some processes keep a higher score than planned: lowering it needs CAP_SYS_RESOURCE",
                ),
            ));
        }
        if problems.is_empty() {
            self.scores.remove(path);
        } else {
            self.scores.insert(path.clone(), problems);
        }
    }
}

impl Reconciler {
    /// All current problems.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let seen = &self.seen;
        let missing = seen.missing.iter().map(|missing| Problem {
            what: "limits",
            place: format!("{}/{}", missing.path, missing.file),
            message: missing.to_string(),
        });
        let strangers = seen.strangers.iter().map(|path| Problem {
            what: "stranger",
            place: path.to_string(),
            message: format!("cgroup {path} belongs to no pod: it is left alone"),
        });
        let errors = seen.errors.iter().map(|(path, message)| Problem {
            what: "cgroup",
            place: path.clone(),
            message: message.clone(),
        });
        let frozen = seen.frozen.iter().map(|path| Problem {
            what: "frozen",
            place: path.to_string(),
            message: format!(
                "cgroup {path} or one above it is frozen: its processes do not run until it is thawed"
            ),
        });
        let failing = self.failing.problems().chain(self.lowering.problems()).chain(self.drift.problems());
        let scores =
            seen.scores.values().flatten().chain(seen.unnamed.values()).chain(&seen.unmarked).cloned();
        missing.chain(strangers).chain(errors).chain(frozen).chain(failing).chain(scores).collect()
    }

    /// Notes problems with the scores of a container's processes.
    pub(super) fn note_scores(&mut self, path: &CgroupPath, sweep: &Sweep) {
        self.seen.note_scores(path, sweep);
    }

    /// Forgets problems with the scores of containers that are gone: beside a kubelet no sweep of all of them follows.
    pub(super) fn forget_gone_scores(&mut self) {
        let mut scores = std::mem::take(&mut self.seen.scores);
        scores.retain(|path, _| !self.is_gone(path));
        self.seen.scores = scores;
    }

    /// Notes whether a container or pod is frozen.
    pub(super) fn note_frozen(&mut self, path: &CgroupPath) {
        let events = self.root.open(path).and_then(|dir| dir.read("cgroup.events"));
        let is_frozen =
            events.is_ok_and(|events| events.lines().any(|line| line.trim_ascii_end() == "frozen 1"));
        if is_frozen {
            self.seen.frozen.insert(path.clone());
        } else {
            self.seen.frozen.remove(path);
        }
    }
}
