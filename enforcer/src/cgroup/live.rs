//! Which planned cgroups exist now, and which are retired and removed once empty.

use std::{collections::BTreeMap, sync::Arc};

use super::{Index, desired::pack};
use crate::model::{CgroupId, CgroupPath, Owner, OwnerLevel, PodName};

/// The existing cgroups that a plan names or has named; feeds the index.
#[derive(Debug)]
pub(super) struct LiveCgroups {
    known: BTreeMap<CgroupPath, Known>,
    /// Whether one came, went or became another since that was last asked.
    have_changed: bool,
    index: Index,
}

/// One of them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Known {
    pub(super) id: CgroupId,
    pub(super) owner: Arc<Owner>,
    /// Whether no plan names it any longer, so that it is removed once it is empty.
    pub(super) is_retired: bool,
    /// Whether others remove it.
    pub(super) is_outside: bool,
}

impl Known {
    /// Whether it is removed once it is retired and empty.
    pub(super) fn is_removable(&self) -> bool {
        !self.is_outside
            && match self.owner.level {
                OwnerLevel::Pod { .. } | OwnerLevel::Container { .. } => true,
                OwnerLevel::Node | OwnerLevel::Qos(_) => false,
            }
    }
}

impl LiveCgroups {
    pub(super) fn new(index: Index) -> Self {
        Self { known: BTreeMap::new(), have_changed: false, index }
    }

    /// Adds a cgroup. Returns the one that was at the path before, if it was another.
    pub(super) fn know(&mut self, path: &CgroupPath, known: Known) -> Option<Known> {
        if self.known.get(path) == Some(&known) {
            return None;
        }
        self.have_changed = true;
        let replaced = self
            .known
            .get(path)
            .is_some_and(|before| before.id != known.id)
            // It was removed and made again unnoticed.
            .then(|| self.remove(path))
            .flatten();
        self.index.insert(known.id, Arc::clone(&known.owner));
        self.known.insert(path.clone(), known);
        replaced
    }

    /// Removes a cgroup that is gone.
    pub(super) fn remove(&mut self, path: &CgroupPath) -> Option<Known> {
        let known = self.known.remove(path)?;
        self.have_changed = true;
        self.index.remove(known.id);
        Some(known)
    }

    /// Marks those as retired that no plan names any longer.
    pub(super) fn retire_all_but(&mut self, is_wanted: impl Fn(&CgroupPath) -> bool) {
        for (path, known) in &mut self.known {
            let is_retired = !is_wanted(path);
            self.have_changed |= known.is_retired != is_retired;
            known.is_retired = is_retired;
        }
    }

    /// Whether one came, went or became another since the last call.
    pub(super) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.have_changed)
    }

    /// Whether [`take_change`](Self::take_change) would say so.
    pub(super) fn have_changed(&self) -> bool {
        self.have_changed
    }

    /// Makes it [small](pack): cgroups come in the order of their paths.
    pub(super) fn pack(&mut self) {
        pack(&mut self.known);
    }

    pub(super) fn get(&self, path: &CgroupPath) -> Option<&Known> {
        self.known.get(path)
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (&CgroupPath, &Known)> {
        self.known.iter()
    }

    /// The retired ones, deepest first.
    pub(super) fn retired(&self) -> Vec<(CgroupPath, Known)> {
        let retired = self.known.iter().rev().filter(|(_, known)| known.is_retired);
        retired.map(|(path, known)| (path.clone(), known.clone())).collect()
    }

    /// The cgroup of a pod, or of one of its containers, that is not retired.
    pub(super) fn find(&self, pod: &PodName, container: Option<&str>) -> Option<&CgroupPath> {
        let is_it = |known: &Known| {
            !known.is_retired
                && known.owner.level.pod() == Some(pod)
                && known.owner.level.container() == container
        };
        self.known.iter().find(|(_, known)| is_it(known)).map(|(path, _)| path)
    }

    pub(super) fn index(&self) -> &Index {
        &self.index
    }
}
