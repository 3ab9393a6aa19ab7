//! Looks again whether a candidate holds what must never be killed, apart from the eviction thread, which looks nothing
//! up.

use std::sync::atomic::Ordering;

use super::candidate::Candidate;
use crate::cgroup::{self, Origin};

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
    /// were opened. Returns whether this look is the first to find that it must not be killed.
    #[must_use]
    pub fn recheck(&self) -> bool {
        // What cannot be found out now is as it was.
        let Ok(reason) = self.why_spared() else { return false };
        let was_forbidden = self.is_forbidden.swap(reason.is_some(), Ordering::AcqRel);
        let Some(reason) = reason.filter(|_| !was_forbidden) else { return false };
        tracing::warn!(pod = %self.identity.pod, %reason, "the pod is not killed any more");
        true
    }

    /// Why it must not be killed, if so.
    fn why_spared(&self) -> Result<Option<String>, cgroup::Error> {
        let mut failed = Ok(None);
        for target in &self.targets {
            match self.guard.forbidden(&target.dir, target.origin) {
                Ok(None) => {}
                Ok(Some(reason)) => return Ok(Some(reason.to_string())),
                // What is gone is killed no more.
                Err(error) if error.is_gone() => {}
                // Any process may be put there.
                Err(error) if target.origin == Origin::Adopted => return Ok(Some(crate::chain(&error))),
                Err(error) => failed = Err(error),
            }
        }
        failed
    }
}
