use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::model::{Pod, PodName, PodUid};

/// The pods of the node by uid, whatever source they come from, and what has become of each.
#[derive(Clone, Debug, Default)]
pub struct Roster {
    entries: BTreeMap<PodUid, Entry>,
    arrivals: u64,
}

/// A pod and its state.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Entry {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Its state.
    pub state: State,
    /// Its place in the order of arrival.
    arrival: u64,
}

/// What has become of a pod.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum State {
    /// It is to run.
    Active,
    /// It was evicted, and stays so until its manifest changes or goes.
    Evicted,
    /// Its source no longer names it; it stays until its cgroup is empty and gone.
    Leaving,
}

/// What a new set of pods changed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Change {
    /// A pod is new, or is back before it was gone.
    Added(Arc<Pod>),
    /// A pod is another than before.
    Changed {
        /// As it was.
        old: Arc<Pod>,
        /// As it is.
        new: Arc<Pod>,
    },
    /// No source names the pod any longer.
    Removed(Arc<Pod>),
}

impl Roster {
    /// A roster without pods.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the pods that there are now, in the order in which they are to be admitted, and says what is different.
    ///
    /// Of two pods with one uid the first counts: the sources tell of the other.
    pub fn apply(&mut self, pods: Vec<Pod>) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut named = BTreeSet::new();
        for pod in pods {
            if !named.insert(pod.uid.clone()) {
                continue;
            }
            let pod = Arc::new(pod);
            match self.entries.get_mut(&pod.uid) {
                Some(entry) if entry.state == State::Leaving => {
                    entry.state = State::Active;
                    entry.pod = Arc::clone(&pod);
                    changes.push(Change::Added(pod));
                }
                Some(entry) if entry.pod != pod => {
                    entry.state = State::Active;
                    let old = std::mem::replace(&mut entry.pod, Arc::clone(&pod));
                    changes.push(Change::Changed { old, new: pod });
                }
                Some(_) => {}
                None => {
                    let entry = Entry { pod: Arc::clone(&pod), state: State::Active, arrival: self.arrivals };
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

    /// Marks a pod as evicted. Answers whether it was active.
    pub fn evict(&mut self, uid: &PodUid) -> bool {
        match self.entries.get_mut(uid) {
            Some(entry) if entry.state == State::Active => {
                entry.state = State::Evicted;
                true
            }
            Some(_) | None => false,
        }
    }

    /// Forgets a pod that no source names and whose cgroup is gone. Answers the pod, if there was such a one.
    pub fn forget(&mut self, uid: &PodUid) -> Option<Arc<Pod>> {
        if self.entries.get(uid)?.state != State::Leaving {
            return None;
        }
        self.entries.remove(uid).map(|entry| entry.pod)
    }

    /// The pods in that state, in the order in which they came.
    #[must_use]
    pub fn in_state(&self, state: State) -> Vec<&Arc<Pod>> {
        let mut entries: Vec<&Entry> = self.entries.values().filter(|entry| entry.state == state).collect();
        entries.sort_unstable_by_key(|entry| entry.arrival);
        entries.into_iter().map(|entry| &entry.pod).collect()
    }

    /// The pod of that uid.
    #[must_use]
    pub fn get(&self, uid: &PodUid) -> Option<&Entry> {
        self.entries.get(uid)
    }

    /// The pod of that name; one that is not leaving comes before one that is.
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
