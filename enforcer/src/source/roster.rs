//! The one list of pods that plan and views are made from, and which of them may run.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{AdmittedBy, SourceName, SourcePod};
use crate::{
    model::{Pod, PodName, PodUid},
    policy::admission::{Admission, Amounts, Rejection},
};

mod admit;
mod ended;

pub use self::{
    admit::{CpuGrounds, Decisions, Grounds},
    ended::{EndedPod, Why},
};

/// The pods of the node by uid, from all sources, and the state of each.
#[derive(Clone, Debug, Default)]
pub struct Roster {
    entries: BTreeMap<PodUid, Entry>,
    remembered: ended::Remembered,
    arrivals: u64,
    admissions: u64,
    requested: Amounts,
}

/// A pod and its state.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Entry {
    /// The pod as it is in force.
    pub pod: Arc<Pod>,
    /// Its state.
    pub state: State,
    /// The source that names it, or named it last.
    pub source: SourceName,
    /// Who decides whether it may run.
    pub admitted_by: AdmittedBy,
    /// Its place in the order of arrival.
    arrival: u64,
}

/// The state of a pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum State {
    /// It is not admitted, and is looked at again whenever something changes.
    Waiting {
        /// Why; `None` until it is first looked at.
        rejection: Option<Rejection>,
    },
    /// It is to run, and stays admitted while it exists.
    Active(Active),
    /// It was evicted, and stays so until its manifest changes or is removed.
    Evicted,
    /// It made way for a critical pod, and stays so until its manifest changes or is removed.
    Preempted,
    /// Its source no longer names it; it stays until its cgroup is empty and gone.
    Leaving,
}

/// What is known about an admitted pod.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Active {
    /// Its place in the order of admission.
    admission: u64,
    /// The pods that must be gone before it may start.
    pub awaits: BTreeSet<PodUid>,
    /// The manifest that its source has now, if it is not in force.
    pub held_back: Option<HeldBack>,
}

/// A changed manifest that is not in force, as its requests do not fit. The former one stays.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HeldBack {
    /// The pod as its source has it.
    pub pod: Arc<Pod>,
    /// Why it is not in force; `None` until it is first looked at.
    pub rejection: Option<Rejection>,
}

impl Entry {
    /// The pod as its source has it.
    fn wanted(&self) -> &Arc<Pod> {
        self.held_back().map_or(&self.pod, |held_back| &held_back.pod)
    }

    /// Notes which source names the pod now. Once another has admitted it, it is in force as it is.
    fn name_by(&mut self, source: SourceName, admitted_by: AdmittedBy) {
        let is_taken = self.admitted_by == AdmittedBy::Roster && admitted_by == AdmittedBy::Other;
        (self.source, self.admitted_by) = (source, admitted_by);
        if is_taken && self.state != State::Leaving {
            self.pod = Arc::clone(self.wanted());
            self.state = admitted_by.first_state();
        }
    }

    /// The changed manifest of an admitted pod that is not in force.
    #[must_use]
    pub fn held_back(&self) -> Option<&HeldBack> {
        match &self.state {
            State::Active(active) => active.held_back.as_ref(),
            State::Waiting { .. } | State::Evicted | State::Preempted | State::Leaving => None,
        }
    }

    /// Whether it may run; `None` until it is first looked at, and for a leaving one, which is not to run.
    #[must_use]
    pub fn admission(&self) -> Option<Admission> {
        match &self.state {
            State::Waiting { rejection } => rejection.clone().map(Admission::Rejected),
            State::Active(_) => Some(Admission::plain()),
            State::Evicted => Some(Admission::Rejected(Rejection::Evicted)),
            State::Preempted => Some(Admission::Rejected(Rejection::Preempted)),
            State::Leaving => None,
        }
    }

    /// Whether it may start processes now.
    #[must_use]
    pub fn may_start(&self) -> bool {
        matches!(&self.state, State::Active(active) if active.awaits.is_empty())
    }
}

/// What a new set of pods changed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Change {
    /// A pod is new, or returned before it was gone.
    Added(Arc<Pod>),
    /// A pod has changed.
    Changed {
        /// The former pod.
        old: Arc<Pod>,
        /// The new pod.
        new: Arc<Pod>,
    },
    /// No source names the pod any longer.
    Removed(Arc<Pod>),
}

impl AdmittedBy {
    /// The state of a pod that was not known before.
    fn first_state(self) -> State {
        match self {
            Self::Roster => State::Waiting { rejection: None },
            Self::Other => State::Active(Active::default()),
        }
    }
}

impl Roster {
    /// A roster without pods.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the current pods, in the order in which they are to be admitted, and returns the changes. [`Self::admit`]
    /// decides which of them may run.
    ///
    /// Of two pods with one uid the first counts: the sources report the other.
    pub fn apply(&mut self, pods: Vec<SourcePod>) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut named = BTreeSet::new();
        for SourcePod { pod, source, admitted_by } in pods {
            if !named.insert(pod.uid.clone()) {
                continue;
            }
            if let Some(entry) = self.entries.get_mut(&pod.uid) {
                entry.name_by(source, admitted_by);
            }
            match self.entries.get_mut(&pod.uid) {
                Some(entry) if entry.state == State::Leaving => {
                    entry.state = admitted_by.first_state();
                    entry.pod = Arc::clone(&pod);
                    changes.push(Change::Added(pod));
                }
                Some(entry) if *entry.wanted() != pod => {
                    let old = Arc::clone(entry.wanted());
                    match &mut entry.state {
                        // It is in force already, even where another finds that it does not fit.
                        State::Active(active) if admitted_by == AdmittedBy::Other => {
                            active.held_back = None;
                            entry.pod = Arc::clone(&pod);
                        }
                        State::Active(active) => {
                            active.held_back = (entry.pod != pod)
                                .then(|| HeldBack { pod: Arc::clone(&pod), rejection: None });
                        }
                        State::Waiting { .. } | State::Evicted | State::Preempted | State::Leaving => {
                            entry.pod = Arc::clone(&pod);
                            entry.state = admitted_by.first_state();
                        }
                    }
                    changes.push(Change::Changed { old, new: pod });
                }
                Some(_) => {}
                None => {
                    let remembered =
                        self.remembered.state(&pod).filter(|_| admitted_by == AdmittedBy::Roster);
                    let state = remembered.unwrap_or_else(|| admitted_by.first_state());
                    let pod_of_entry = Arc::clone(&pod);
                    let entry =
                        Entry { pod: pod_of_entry, state, source, admitted_by, arrival: self.arrivals };
                    self.arrivals += 1;
                    self.entries.insert(pod.uid.clone(), entry);
                    changes.push(Change::Added(pod));
                }
            }
        }
        for (uid, entry) in &mut self.entries {
            if entry.state != State::Leaving && !named.contains(uid) {
                entry.state = State::Leaving;
                changes.push(Change::Removed(Arc::clone(&entry.pod)));
            }
        }
        changes
    }

    /// Marks a pod as evicted. Returns whether it was active. A pod that another admitted stays active: its owner removes
    /// it, or starts it again.
    pub fn evict(&mut self, uid: &PodUid) -> bool {
        match self.entries.get_mut(uid) {
            Some(entry)
                if matches!(entry.state, State::Active(_)) && entry.admitted_by == AdmittedBy::Roster =>
            {
                entry.pod = Arc::clone(entry.wanted());
                entry.state = State::Evicted;
                true
            }
            Some(_) | None => false,
        }
    }

    /// Forgets a pod that no source names and whose cgroup is gone. Returns the pod, if there was one.
    pub fn forget(&mut self, uid: &PodUid) -> Option<Arc<Pod>> {
        if self.entries.get(uid)?.state != State::Leaving {
            return None;
        }
        self.entries.remove(uid).map(|entry| entry.pod)
    }

    /// All entries, in order of arrival.
    #[must_use]
    pub fn entries(&self) -> Vec<&Entry> {
        let mut entries: Vec<&Entry> = self.entries.values().collect();
        entries.sort_unstable_by_key(|entry| entry.arrival);
        entries
    }

    /// Whether an admitted pod waits for one that has no cgroup in `standing` any longer, and so need not wait.
    #[must_use]
    pub fn awaits_other_than(&self, standing: &BTreeSet<PodUid>) -> bool {
        self.entries.values().any(|entry| match &entry.state {
            State::Active(active) => !active.awaits.is_subset(standing),
            State::Waiting { .. } | State::Evicted | State::Preempted | State::Leaving => false,
        })
    }

    /// What the pods that count requested together when they were last decided on.
    #[must_use]
    pub fn requested(&self) -> &Amounts {
        &self.requested
    }

    /// The pod of that uid.
    #[must_use]
    pub fn get(&self, uid: &PodUid) -> Option<&Entry> {
        self.entries.get(uid)
    }

    /// The pod of that name; a leaving one only if there is no other.
    #[must_use]
    pub fn named(&self, name: &PodName) -> Option<&Entry> {
        self.entries
            .values()
            .filter(|entry| entry.pod.name == *name)
            .min_by_key(|entry| (entry.state == State::Leaving, entry.arrival))
    }
}

#[cfg(test)]
mod tests;
