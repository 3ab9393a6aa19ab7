//! Which pod or container a kernel event is about, even just after its cgroup is removed.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::Notify;

use crate::model::{CgroupId, Owner};

/// How many removed cgroups are remembered, so that late events still name their pod.
const TOMBSTONES: usize = 4096;

/// Resolves cgroup ids to owners; shared between the reconciler that feeds it and every reader of kernel events.
///
/// An event may be read after its cgroup is gone: `cgroup_rmdir` comes a few milliseconds after the last exit. So
/// removed cgroups stay resolvable as tombstones, the last 4,096 of them.
#[derive(Clone, Debug, Default)]
pub struct Index {
    state: Arc<RwLock<State>>,
    /// Counts the changes.
    generation: Arc<AtomicU64>,
    changed: Arc<Notify>,
}

/// What an id resolves to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Resolved {
    /// The owner of the cgroup, or its last one.
    pub owner: Arc<Owner>,
    /// Whether the cgroup still exists.
    pub alive: bool,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<CgroupId, Resolved>,
    /// Removed ids, oldest first; an id that lives again is taken out.
    graves: VecDeque<CgroupId>,
}

impl Index {
    /// An index without entries.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A number that differs after every change, so that a reader need not compare.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Waits for a change since the last wait; for a single reader.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    fn note_change(&self) {
        self.generation.fetch_add(1, Ordering::Release);
        self.changed.notify_one();
    }

    /// The owner of a cgroup, or its last one if it was removed lately.
    #[must_use]
    pub fn resolve(&self, id: CgroupId) -> Option<Resolved> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).entries.get(&id).cloned()
    }

    /// Adds an existing cgroup. Returns whether that was news.
    pub fn insert(&self, id: CgroupId, owner: impl Into<Arc<Owner>>) -> bool {
        let owner = owner.into();
        // Most calls repeat what is known and take only the shared lock.
        if self.resolve(id).is_some_and(|known| known.alive && known.owner == owner) {
            return false;
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let revived = state.entries.insert(id, Resolved { owner, alive: true });
        if revived.is_some_and(|entry| !entry.alive) {
            state.graves.retain(|grave| *grave != id);
        }
        drop(state);
        self.note_change();
        true
    }

    /// Notes that a cgroup is gone; it stays resolvable until 4,096 more are gone.
    pub fn remove(&self, id: CgroupId) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let died = match state.entries.get_mut(&id) {
            Some(entry) => std::mem::replace(&mut entry.alive, false),
            None => false,
        };
        if died {
            state.graves.push_back(id);
        }
        while state.graves.len() > TOMBSTONES {
            if let Some(oldest) = state.graves.pop_front() {
                state.entries.remove(&oldest);
            }
        }
        drop(state);
        self.note_change();
    }

    /// The ids of the existing cgroups with their owners, unordered.
    #[must_use]
    pub fn alive(&self) -> Vec<(CgroupId, Arc<Owner>)> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        state
            .entries
            .iter()
            .filter(|(_, entry)| entry.alive)
            .map(|(id, entry)| (*id, Arc::clone(&entry.owner)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{CgroupPath, OwnerLevel};

    fn owner(path: &str) -> Owner {
        Owner { path: CgroupPath::parse(path).unwrap(), level: OwnerLevel::Node }
    }

    #[test]
    fn a_removed_cgroup_still_resolves() {
        let index = Index::new();
        assert!(index.insert(CgroupId(7), owner("/a")));
        assert!(!index.insert(CgroupId(7), owner("/a")), "known already");
        let generation = index.generation();
        index.remove(CgroupId(7));
        assert_ne!(index.generation(), generation);
        let resolved = index.resolve(CgroupId(7)).unwrap();
        assert!(!resolved.alive);
        assert_eq!(resolved.owner.path.as_str(), "/a");
        assert_eq!(index.alive(), []);
        assert_eq!(index.resolve(CgroupId(8)), None);
    }

    #[test]
    fn tombstones_are_bounded_and_the_oldest_go_first() {
        let index = Index::new();
        let count = u64::try_from(TOMBSTONES).unwrap() + 10;
        for id in 0..count {
            index.insert(CgroupId(id), owner("/a"));
            index.remove(CgroupId(id));
            index.remove(CgroupId(id));
        }
        assert_eq!(index.resolve(CgroupId(9)), None);
        assert!(index.resolve(CgroupId(10)).is_some());
        assert!(index.resolve(CgroupId(count - 1)).is_some());
    }

    #[test]
    fn an_id_that_comes_back_is_alive_and_outlives_its_tombstone() {
        let index = Index::new();
        index.insert(CgroupId(1), owner("/a"));
        index.remove(CgroupId(1));
        index.insert(CgroupId(1), owner("/b"));
        for id in 2..5000 {
            index.insert(CgroupId(id), owner("/c"));
            index.remove(CgroupId(id));
        }
        let resolved = index.resolve(CgroupId(1)).unwrap();
        assert!(resolved.alive);
        assert_eq!(resolved.owner.path.as_str(), "/b");
    }
}
