//! Looks again whether a candidate holds what must never be killed, apart from the eviction thread, which looks nothing
//! up.

use std::sync::atomic::Ordering;

use super::candidate::{Candidate, Target};
use crate::cgroup::Origin;

impl Candidate {
    /// Whether one of its cgroups was made for something else, which may put any process into it.
    #[must_use]
    pub fn is_adopted(&self) -> bool {
        self.targets.iter().any(|target| target.origin == Origin::Adopted)
    }

    /// Whether it held what must never be killed when it was [looked at](Self::recheck) last. Then it gets no signal.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        self.is_forbidden.load(Ordering::Acquire)
    }

    /// Looks at all processes of the cgroups that are killed: something may have been moved or started there since they
    /// were opened. Returns whether it must not be killed by now, if it might be before.
    #[must_use]
    pub fn recheck(&self) -> bool {
        let reason = self.targets.iter().find_map(|target| self.why_spared(target));
        let was_forbidden = self.is_forbidden.swap(reason.is_some(), Ordering::AcqRel);
        let Some(reason) = reason.filter(|_| !was_forbidden) else { return false };
        tracing::warn!(pod = %self.identity.pod, %reason, "the pod is not killed any more");
        true
    }

    fn why_spared(&self, target: &Target) -> Option<String> {
        match self.guard.forbidden(&target.dir, target.origin) {
            Ok(reason) => reason.map(|reason| reason.to_string()),
            // What is gone is killed no more.
            Err(error) if error.is_gone() => None,
            // What cannot be seen may be anything, but a cgroup that was made for a pod holds only what came with it.
            Err(error) => (target.origin == Origin::Adopted).then(|| crate::chain(&error)),
        }
    }
}
