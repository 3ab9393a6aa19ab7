use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::model::CgroupId;

/// The cgroups whose `memory.high` is held down for a while on purpose, so that whoever keeps files as planned leaves that
/// one alone meanwhile. Shared by its clones.
#[derive(Clone, Debug, Default)]
pub struct Throttled(Arc<Mutex<BTreeSet<CgroupId>>>);

impl Throttled {
    /// From now on; to be called before the file is written.
    pub fn begin(&self, id: CgroupId) {
        self.lock().insert(id);
    }

    /// No longer; to be called after the file has its value again.
    pub fn end(&self, id: CgroupId) {
        self.lock().remove(&id);
    }

    /// Whether it is one of them now.
    #[must_use]
    pub fn holds(&self, id: CgroupId) -> bool {
        self.lock().contains(&id)
    }

    /// All of them. Who looks at files asks before that, as one may end while it looks.
    #[must_use]
    pub fn all(&self) -> BTreeSet<CgroupId> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<CgroupId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
