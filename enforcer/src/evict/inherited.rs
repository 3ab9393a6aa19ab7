//! An eviction of an earlier process of the daemon, which this one goes on with.

use std::os::fd::OwnedFd;

use ulid::Ulid;

use super::executor;
use crate::{
    cgroup::{self, CgroupDir},
    model::{CgroupPath, PodName, PodUid},
    policy::engine::Inherited,
};

/// What is known of such an eviction before its victim is among the candidates.
#[derive(Debug)]
pub struct InheritedEviction {
    /// The eviction's id, which it keeps.
    pub id: Ulid,
    /// The victim.
    pub pod: PodName,
    /// Its uid: another pod of that name is no victim.
    pub uid: PodUid,
    /// Its cgroup.
    pub path: CgroupPath,
    /// What the engine begins with.
    pub facts: Inherited,
    /// The position of its decision in the journal; 0 if that was not reported. The disk need not have it yet.
    pub sequence: u64,
    /// `cgroup.events` of what was to be killed and still exists; `None` if not all of it can be opened.
    events: Option<Vec<OwnedFd>>,
}

impl InheritedEviction {
    /// Opens what shows whether the victim has ended: `killed` are the cgroups that were to be killed, `None` if not all of them
    /// can be found. Without that, the victim counts as alive until it is among the candidates.
    #[must_use]
    pub fn open(
        (id, pod, uid, path): (Ulid, PodName, PodUid, CgroupPath),
        (facts, sequence): (Inherited, u64),
        killed: Option<&[CgroupDir]>,
    ) -> Self {
        let open = |dir: &CgroupDir| match dir.open_read("cgroup.events") {
            Ok(events) => Some(Ok(events)),
            Err(error) if error.is_gone() => None,
            Err(error) => Some(Err(error)),
        };
        let events =
            killed.map(|killed| killed.iter().filter_map(open).collect::<Result<_, cgroup::Error>>());
        Self { id, pod, uid, path, facts, sequence, events: events.and_then(Result::ok) }
    }

    /// Whether nothing of what was to be killed holds a process, for certain.
    pub(super) fn has_ended(&self) -> bool {
        let is_empty = |events| executor::has_processes(events) == Ok(false);
        self.events.as_ref().is_some_and(|events| events.iter().all(is_empty))
    }
}
