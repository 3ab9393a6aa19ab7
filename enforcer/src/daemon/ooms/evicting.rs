use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use crate::model::{CgroupId, CgroupPath};

/// The cgroups that the daemon kills itself: a mark on their dying processes is not reported as the kernel's kill.
#[derive(Clone, Debug, Default)]
pub(in crate::daemon) struct BeingEvicted(Arc<Mutex<HashMap<CgroupId, CgroupPath>>>);

impl BeingEvicted {
    pub(in crate::daemon) fn add(&self, cgroup: CgroupId, path: CgroupPath) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(cgroup, path);
    }

    pub(in crate::daemon) fn remove(&self, cgroup: CgroupId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&cgroup);
    }

    /// Whether the cgroup, or an ancestor, is being evicted.
    pub(in crate::daemon) fn covers(
        &self,
        cgroup: CgroupId,
        path: impl FnOnce() -> Option<CgroupPath>,
    ) -> bool {
        let evicted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if evicted.is_empty() {
            return false;
        }
        let path = path();
        let below = |above: &CgroupPath| {
            path.as_ref().is_some_and(|path| {
                path.as_str().strip_prefix(above.as_str()).is_some_and(|rest| rest.starts_with('/'))
            })
        };
        evicted.contains_key(&cgroup) || evicted.values().any(below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_of_an_evicted_pod_is_being_evicted() {
        let evicted = BeingEvicted::default();
        let path = |path| CgroupPath::parse(path).unwrap();
        evicted.add(CgroupId(5), path("/kubepods/pod1"));
        assert!(evicted.covers(CgroupId(5), || None));
        assert!(evicted.covers(CgroupId(6), || Some(path("/kubepods/pod1/c"))));
        assert!(!evicted.covers(CgroupId(7), || Some(path("/kubepods/pod10/c"))));
        evicted.remove(CgroupId(5));
        assert!(!evicted.covers(CgroupId(6), || Some(path("/kubepods/pod1/c"))));
    }
}
