//! When candidates are checked again for what must never be killed. The eviction thread cannot do it: it looks nothing
//! up, and its candidates may have been opened long ago.
use std::sync::Weak;

use crate::evict::Candidate;

/// The least time between two passes, as each reads every process of the candidates.
const PAUSE_NS: u64 = 2_000_000_000;

/// The candidates to check.
#[derive(Debug, Default)]
pub(super) struct Rechecks {
    /// Also those of former sets that are still used, such as a victim in its grace period.
    candidates: Vec<Weak<Candidate>>,
    due_ns: u64,
}

impl Rechecks {
    /// Adds candidates, most of which it may have.
    pub(super) fn add(&mut self, candidates: Vec<Weak<Candidate>>) {
        self.candidates.extend(candidates);
        self.candidates.retain(|candidate| candidate.strong_count() > 0);
        self.candidates.sort_unstable_by_key(Weak::as_ptr);
        self.candidates.dedup_by(|one, other| Weak::ptr_eq(one, other));
    }

    /// Checks them if it is time: all while a threshold may be crossed soon, and at rest those that adopted a cgroup, as
    /// only there other processes come and go. Returns whether one must not be killed any more.
    pub(super) fn look(&mut self, now_ns: u64, is_of_concern: bool) -> bool {
        if now_ns < self.due_ns {
            return false;
        }
        self.due_ns = now_ns.saturating_add(PAUSE_NS);
        let mut is_found = false;
        self.candidates.retain(|candidate| {
            let Some(candidate) = candidate.upgrade() else { return false };
            if is_of_concern || candidate.is_adopted() {
                is_found |= candidate.recheck();
            }
            true
        });
        is_found
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, sync::Arc};

    use super::*;
    use crate::{
        cgroup::{CgroupDir, Guard},
        model::{CgroupPath, PodName, PodUid},
        policy::PodPlan,
    };

    /// A pod's cgroup of ordinary files.
    fn candidate(root: &Path, name: &str, adopted: bool) -> Arc<Candidate> {
        let dir = root.join(name);
        fs::create_dir(&dir).unwrap();
        for (file, text) in [("cgroup.kill", ""), ("cgroup.procs", ""), ("cgroup.events", "populated 1\n")] {
            fs::write(dir.join(file), text).unwrap();
        }
        let full_name = PodName { namespace: "default".into(), name: name.into() };
        let path = CgroupPath::parse(name).unwrap();
        let plan = PodPlan { adopted, ..PodPlan::new(full_name, PodUid::new(name).unwrap(), path) };
        let guard = Arc::new(Guard::new(Path::new("/proc"), &[]));
        Arc::new(Candidate::open(&CgroupDir::unchecked(root).unwrap(), &guard, &plan).unwrap())
    }

    /// Moves this process, which must never be killed, into the pod's cgroup.
    fn hold(root: &Path, name: &str) {
        fs::write(root.join(name).join("cgroup.procs"), format!("{}\n", std::process::id())).unwrap();
    }

    #[test]
    fn at_rest_only_adopted_cgroups_are_checked_and_all_when_a_threshold_is_near() {
        let temp = tempfile::tempdir().unwrap();
        let (made, adopted) =
            (candidate(temp.path(), "made", false), candidate(temp.path(), "adopted", true));
        let mut rechecks = Rechecks::default();
        rechecks.add(vec![Arc::downgrade(&made), Arc::downgrade(&adopted)]);
        assert!(!rechecks.look(1, true));
        hold(temp.path(), "made");
        hold(temp.path(), "adopted");
        assert!(!rechecks.look(PAUSE_NS, true), "it is too soon");
        assert!(rechecks.look(1 + PAUSE_NS, false));
        assert_eq!([&made, &adopted].map(|candidate| candidate.is_forbidden()), [false, true]);
        assert!(rechecks.look(1 + 2 * PAUSE_NS, true));
        assert!(made.is_forbidden());
        assert!(!rechecks.look(1 + 3 * PAUSE_NS, true), "that is no news");
        fs::write(temp.path().join("made/cgroup.procs"), "").unwrap();
        assert!(!rechecks.look(1 + 4 * PAUSE_NS, true));
        assert!(!made.is_forbidden() && adopted.is_forbidden());
    }

    /// A victim in its grace period may be of a set that was replaced.
    #[test]
    fn one_of_a_former_set_is_checked_as_long_as_it_is_used() {
        let temp = tempfile::tempdir().unwrap();
        let (victim, other) = (candidate(temp.path(), "a", true), candidate(temp.path(), "b", true));
        let mut rechecks = Rechecks::default();
        rechecks.add(vec![Arc::downgrade(&victim), Arc::downgrade(&other)]);
        rechecks.add(vec![Arc::downgrade(&other)]);
        assert_eq!(rechecks.candidates.len(), 2);
        hold(temp.path(), "a");
        assert!(rechecks.look(1, false));
        assert!(victim.is_forbidden());
        drop(victim);
        rechecks.add(vec![Arc::downgrade(&other)]);
        assert_eq!(rechecks.candidates.len(), 1);
    }
}
