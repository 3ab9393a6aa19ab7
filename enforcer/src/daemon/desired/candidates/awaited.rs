//! How long to wait for a controller that a candidate's cgroup does not have yet, though the host has it.
use std::time::Duration;

use crate::{cgroup::CgroupDir, evict::Candidate};

/// The first and the longest pause before its files are looked for again; each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// A candidate without the files by which its usage is known, which may come: whoever makes a cgroup may hand controllers on
/// to it after that.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Awaited(Duration);

impl Awaited {
    /// `None` if the candidate has all such files that it can get on this host.
    pub(super) fn of(root: &CgroupDir, candidate: &Candidate) -> Option<Self> {
        let accounted = candidate.accounted();
        if accounted.memory && accounted.pids {
            return None;
        }
        let available = root.read("cgroup.controllers").unwrap_or_default();
        let has = |name| available.split_ascii_whitespace().any(|known| known == name);
        let may_come = !accounted.memory && has("memory") || !accounted.pids && has("pids");
        may_come.then_some(Self(FIRST_PAUSE))
    }

    pub(super) fn pause(self) -> Duration {
        self.0
    }

    pub(super) fn longer(self) -> Self {
        Self((self.0 * 2).min(LONGEST_PAUSE))
    }
}
