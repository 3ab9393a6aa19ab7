//! The daemon's own evictions, so that marks on their victims are not reported as the kernel's kills.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{
    model::{CgroupId, CgroupPath},
    sense::incident::Eviction,
};

/// How long an eviction is remembered after its end: longer than the tracer may lag behind the kernel.
const REMEMBERED: Duration = Duration::from_mins(1);

/// The cgroups that the daemon kills itself: a mark on their dying processes is not reported as the kernel's kill. The
/// tracer reads marks later than the kernel makes them, so an ended eviction still covers marks from
/// before its end.
#[derive(Clone, Debug, Default)]
pub(in crate::daemon) struct BeingEvicted(Arc<Mutex<HashMap<CgroupId, Evicted>>>);

#[derive(Debug)]
struct Evicted {
    path: CgroupPath,
    begun_ns: u64,
    /// `None` while it lasts.
    ended_ns: Option<u64>,
}

impl Evicted {
    fn at(&self, at_ns: u64) -> Option<Eviction> {
        match self.ended_ns {
            _ if at_ns < self.begun_ns => None,
            Some(ended_ns) if ended_ns < at_ns => self.is_remembered(at_ns).then_some(Eviction::Ended),
            _ => Some(Eviction::Lasts),
        }
    }

    fn is_remembered(&self, now_ns: u64) -> bool {
        let most_ns = u64::try_from(REMEMBERED.as_nanos()).unwrap_or(u64::MAX);
        self.ended_ns.is_none_or(|ended_ns| now_ns.saturating_sub(ended_ns) <= most_ns)
    }
}

impl BeingEvicted {
    /// An eviction begins with a decision at `begun_ns` (`CLOCK_BOOTTIME`).
    pub(in crate::daemon) fn begin(&self, cgroup: CgroupId, path: CgroupPath, begun_ns: u64) {
        self.lock().insert(cgroup, Evicted { path, begun_ns, ended_ns: None });
    }

    /// Ends the eviction at `now_ns` (`CLOCK_BOOTTIME`), and forgets those that ended more than a minute before.
    pub(in crate::daemon) fn end(&self, cgroup: CgroupId, now_ns: u64) {
        let mut evicted = self.lock();
        evicted.retain(|_, one| one.is_remembered(now_ns));
        if let Some(one) = evicted.get_mut(&cgroup) {
            one.ended_ns = Some(now_ns);
        }
    }

    /// Whether the cgroup, or an ancestor, is being evicted at `at_ns` (`CLOCK_BOOTTIME`).
    pub(in crate::daemon) fn lasts(
        &self,
        cgroup: CgroupId,
        at_ns: u64,
        path: impl FnOnce() -> Option<CgroupPath>,
    ) -> bool {
        self.at(cgroup, at_ns, path) == Some(Eviction::Lasts)
    }

    /// The eviction of the cgroup, or of an ancestor, at `at_ns` (`CLOCK_BOOTTIME`), or within the minute before.
    pub(in crate::daemon) fn at(
        &self,
        cgroup: CgroupId,
        at_ns: u64,
        path: impl FnOnce() -> Option<CgroupPath>,
    ) -> Option<Eviction> {
        let evicted = self.lock();
        if evicted.is_empty() {
            return None;
        }
        let path = path();
        let below = |above: &CgroupPath| {
            path.as_ref().is_some_and(|path| {
                path.as_str().strip_prefix(above.as_str()).is_some_and(|rest| rest.starts_with('/'))
            })
        };
        let ours = evicted.iter().filter(|(id, one)| **id == cgroup || below(&one.path));
        ours.filter_map(|(_, one)| one.at(at_ns)).max()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<CgroupId, Evicted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_of_an_evicted_pod_is_being_evicted_until_its_end() {
        let evicted = BeingEvicted::default();
        let path = |path| CgroupPath::parse(path).unwrap();
        let container = || Some(path("/kubepods/pod1/c"));
        evicted.begin(CgroupId(5), path("/kubepods/pod1"), 50);
        assert_eq!(evicted.at(CgroupId(5), 49, || None), None, "a kill before the decision");
        assert_eq!(evicted.at(CgroupId(5), 100, || None), Some(Eviction::Lasts));
        assert_eq!(evicted.at(CgroupId(6), 100, container), Some(Eviction::Lasts));
        assert_eq!(evicted.at(CgroupId(7), 100, || Some(path("/kubepods/pod10/c"))), None);
        evicted.end(CgroupId(5), 200);
        assert_eq!(
            evicted.at(CgroupId(6), 200, container),
            Some(Eviction::Lasts),
            "a mark that is read late"
        );
        assert_eq!(evicted.at(CgroupId(6), 201, container), Some(Eviction::Ended));
        assert_eq!(evicted.at(CgroupId(5), 201, || None), Some(Eviction::Ended));
        assert!(!evicted.lasts(CgroupId(5), 201, || None));
        let much_later_ns = 201 + u64::try_from(REMEMBERED.as_nanos()).unwrap();
        assert_eq!(evicted.at(CgroupId(5), much_later_ns, || None), None);
        evicted.begin(CgroupId(5), path("/kubepods/pod1"), 300);
        assert_eq!(evicted.at(CgroupId(6), 300, container), Some(Eviction::Lasts), "a second eviction");
    }

    #[test]
    fn an_eviction_is_forgotten_a_minute_after_its_end() {
        let evicted = BeingEvicted::default();
        let path = |path| CgroupPath::parse(path).unwrap();
        for number in 0..100 {
            let now_ns = number * u64::try_from(REMEMBERED.as_nanos()).unwrap() * 2;
            evicted.begin(CgroupId(number), path("/kubepods/pod1"), now_ns);
            evicted.end(CgroupId(number), now_ns);
        }
        assert_eq!(evicted.lock().len(), 1);
    }
}
