//! Whose `memory.high` the reflex holds for now, so that the reconciler leaves it alone.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::model::CgroupId;

/// The cgroups whose `memory.high` is held down on purpose for a while, so that the reconciler leaves that file alone
/// meanwhile. Shared by its clones.
#[derive(Clone, Debug, Default)]
pub struct Throttled(Arc<Mutex<BTreeSet<CgroupId>>>);

impl Throttled {
    /// Adds a cgroup; call it before the file is written.
    pub fn begin(&self, id: CgroupId) {
        self.lock().insert(id);
    }

    /// Removes a cgroup; call it after the file has its value again.
    pub fn end(&self, id: CgroupId) {
        self.lock().remove(&id);
    }

    /// Whether a cgroup is one of them now.
    #[must_use]
    pub fn holds(&self, id: CgroupId) -> bool {
        self.lock().contains(&id)
    }

    /// All of them. Read this before looking at files, as one may end meanwhile.
    #[must_use]
    pub fn all(&self) -> BTreeSet<CgroupId> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<CgroupId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
