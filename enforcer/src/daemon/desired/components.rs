//! The scores of the node's own components, looked at separately.
use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Arc, Mutex, PoisonError, TryLockError},
    time::Instant,
};

use super::{super::ownership::Sightings, Desired, emit};
use crate::{
    cgroup::{ComponentReport, Components, Members, ScoreFate},
    config::Ownership,
    journal::{Journal, Subject},
    model::NodeComponent,
};

/// How many reported problems are remembered.
const MAX_REPORTED: usize = 256;

/// The components; `None` without /proc or cgroup v2.
#[derive(Debug)]
pub(super) struct Looked {
    looking: Option<Arc<Mutex<Looking>>>,
    members: Members,
    /// The kubepods of others that the last look found.
    sightings: Sightings,
}

/// The state that a look holds locked.
#[derive(Debug)]
struct Looking {
    components: Components,
    /// What was reported once and need not be reported again.
    reported: BTreeSet<String>,
}

impl Looked {
    pub(super) fn new(components: &[NodeComponent], has_cgroups: bool, journal: &Journal) -> Self {
        // Without cgroups, this is reported with the other losses.
        let looking = has_cgroups
            .then(|| Components::new(Path::new("/proc"), components))
            .and_then(|components| {
                components
                    .inspect_err(|error| {
                        let message = format!("the scores of nodeComponents are not kept: no /proc: {error}");
                        emit::degraded(journal, "nodeComponents", &message);
                    })
                    .ok()
            })
            .map(|components| Arc::new(Mutex::new(Looking { components, reported: BTreeSet::new() })));
        Self { looking, members: Members::default(), sightings: Sightings::default() }
    }
}

impl Desired {
    /// The processes of the node's components, as they are looked at.
    pub(in crate::daemon) fn members(&self) -> Members {
        Arc::clone(&self.components.members)
    }

    /// Whether a kubelet may come to which the cgroups are to be given back.
    fn awaits_kubelet(&self) -> bool {
        self.placing.is_none() && self.config.ownership == Ownership::Auto
    }

    /// Looks for a kubepods that others have made, at each tick: a kubelet in a container is known by that alone. It
    /// costs two look-ups of a name, which wait for nothing.
    fn look_for_kubepods(&mut self) {
        let Some(hierarchy) = self.hierarchy.as_ref().filter(|_| self.awaits_kubelet()) else { return };
        let (root, is_writer) = (Arc::clone(hierarchy.root()), self.permit.is_some());
        if let Some(path) = self.components.sightings.look(&root, &self.config.settings, is_writer) {
            emit_kubelet(&self.journal, &format!("a kubelet has made the cgroup {path}"));
            self.kubelet_came.notify_one();
        }
    }

    /// Starts a look at the node's components if there may be new ones, at each tick. It runs on a thread that may block, and
    /// nothing waits for it.
    pub(in crate::daemon) fn look_at_components(&mut self) {
        self.look_for_kubepods();
        let now = Instant::now();
        let (Some(looking), Some(hierarchy)) = (&self.components.looking, &self.hierarchy) else { return };
        let wants = match looking.try_lock() {
            Ok(looking) => looking.components.wants_look(now),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().components.wants_look(now),
            // The last look is still running.
            Err(TryLockError::WouldBlock) => false,
        };
        if !wants {
            return;
        }
        let (root, plan, permit) =
            (Arc::clone(hierarchy.root()), Arc::clone(self.pods.plan()), self.permit.clone());
        let made_by_runtimes = self.guarding.made_by_runtimes().clone();
        let (looking, members, journal) =
            (Arc::clone(looking), Arc::clone(&self.components.members), self.journal.clone());
        let kubelet_came = self.awaits_kubelet().then(|| Arc::clone(&self.kubelet_came));
        tokio::task::spawn_blocking(move || {
            let mut looking = looking.lock().unwrap_or_else(PoisonError::into_inner);
            let report = looking.components.look(&root, &plan, &made_by_runtimes, permit.as_deref(), now);
            *members.lock().unwrap_or_else(PoisonError::into_inner) = looking.components.members();
            emit(&report, &mut looking.reported, &journal);
            if let (Some(pid), Some(kubelet_came)) = (report.kubelet, kubelet_came) {
                emit_kubelet(&journal, &format!("a kubelet was started (process {pid})"));
                kubelet_came.notify_one();
            }
        });
    }
}

/// Reports that a kubelet has come, after what shows it.
fn emit_kubelet(journal: &Journal, shown: &str) {
    let message = format!(
        "{shown}: the pods' cgroups are its own from now on; limits and scores are given back, and the daemon starts \
         again beside it"
    );
    emit::degraded(journal, "ownership", &message);
}

fn emit(report: &ComponentReport, reported: &mut BTreeSet<String>, journal: &Journal) {
    let ComponentReport { scores, hidden, errors, kubelet: _ } = report;
    for score in scores {
        for payload in emit::component(score) {
            journal.emit(Subject::Node, payload);
        }
    }
    let mut problems: Vec<String> = errors.iter().map(|error| crate::chain(error)).collect();
    if scores.iter().any(|score| score.fate == ScoreFate::Refused) {
        problems.push(String::from("processes of nodeComponents keep their score: no CAP_SYS_RESOURCE"));
    }
    if *hidden > 0 {
        problems.push(String::from(
            "nodeComponents may be overlooked: the programs of some processes cannot be seen: no CAP_SYS_PTRACE",
        ));
    }
    // Problems name processes, so their number has no bound.
    if reported.len() > MAX_REPORTED {
        reported.clear();
    }
    for message in problems {
        if reported.insert(message.clone()) {
            emit::degraded(journal, "nodeComponents", &message);
        }
    }
}
