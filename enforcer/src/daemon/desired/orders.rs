//! Operators' orders about pods.
use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use super::Desired;
use crate::{
    evict::{Candidate, OpenError},
    model::{Node, PodName, PodUid, ResourceList},
    nearest::nearest,
    policy::{Settings, admission::Amounts, engine::Reading},
    serve::No,
    source::State,
};

/// A pod that an operator may evict.
pub(in crate::daemon) struct Evictable {
    pub(in crate::daemon) uid: PodUid,
    pub(in crate::daemon) candidate: Arc<Candidate>,
    /// The grace period of its manifest.
    pub(in crate::daemon) grace: Duration,
}

impl Desired {
    /// Protects these pods from now on, and no others.
    pub(in crate::daemon) fn set_protected(&mut self, protected: BTreeSet<PodName>) {
        if self.candidates.set_protected(protected) {
            self.aligning.renew();
        }
    }

    /// Reserves these resources for others than pods from now on. What follows for pods is decided a moment later.
    pub(in crate::daemon) fn set_reserved(&mut self, reserved: ResourceList) {
        if self.pods.set_reserved(reserved) {
            self.schedule.request_resync(Instant::now());
        }
    }

    /// What is allocated by: the node, the settings in force, and what pods request.
    pub(in crate::daemon) fn allocation(&self) -> (&Node, &Settings, &Amounts) {
        self.pods.allocation()
    }

    /// The node's memory.
    pub(in crate::daemon) fn memory_bytes(&self) -> u64 {
        self.pods.node().memory_bytes
    }

    /// Whether a pod of that name exists.
    pub(in crate::daemon) fn knows(&self, name: &PodName) -> bool {
        self.pods.roster().named(name).is_some()
    }

    /// Returns the error for an unknown pod, with the nearest name.
    pub(in crate::daemon) fn unknown(&self, name: &PodName) -> No {
        let names: Vec<_> =
            self.pods.roster().entries().iter().map(|entry| entry.pod.name.to_string()).collect();
        let hint = match nearest(&name.to_string(), names.iter().map(String::as_str)) {
            Some(near) => format!("did you mean {near}?"),
            None => String::from("is its manifest in staticPodPath, and accepted?"),
        };
        No::Unknown(format!("there is no pod {name}: {hint}"))
    }

    /// How much of the node's memory these pods hold at least: for each the greater of request and usage, as far as that is
    /// known.
    pub(in crate::daemon) fn held_bytes(&self, names: &BTreeSet<PodName>) -> u64 {
        let plans = self.pods.plan().pods.iter().filter(|plan| names.contains(&plan.name));
        plans.fold(0_u64, |sum, plan| {
            let used_bytes = self.candidates.get(&plan.uid).map_or(0, |candidate| match candidate.usage() {
                Reading::Usage(usage) => usage.working_set_bytes,
                Reading::Missing | Reading::Gone | Reading::Uncounted { .. } => 0,
            });
            sum.saturating_add(used_bytes.max(plan.ranking_request_bytes))
        })
    }

    /// Returns the pod of that name if an operator may evict it. A pod that is never evicted is not by order either.
    pub(in crate::daemon) fn evictable(&self, name: &PodName) -> Result<Evictable, No> {
        let entry = self.pods.roster().named(name).ok_or_else(|| self.unknown(name))?;
        let refused = |why: &str| No::Refused(format!("pod {name} {why}"));
        match &entry.state {
            // A pod that was evicted and lives on may be tried again.
            State::Active(_) | State::Evicted => {}
            State::Waiting { .. } => return Err(refused("is not admitted: there is nothing to evict")),
            State::Preempted => return Err(refused("makes way for a critical pod already")),
            State::Leaving => {
                return Err(refused("has no manifest any more, and goes when its last process does"));
            }
        }
        let plan = self.pods.plan().pods.iter().find(|plan| plan.uid == entry.pod.uid);
        let plan = plan.ok_or_else(|| refused("is not planned: there is nothing to evict"))?;
        if plan.critical {
            return Err(refused("is critical, and critical pods are never evicted"));
        }
        if !plan.is_known_enough() {
            let why = "is a kubelet's, and what is known of it does not say whether it may be evicted";
            return Err(refused(why));
        }
        if self.candidates.is_protected(name) {
            return Err(refused("is protected: `enforcer protect --end` ends that first"));
        }
        let present = self.present().ok_or_else(|| refused("has no cgroup: this host has no cgroup v2"))?;
        let opened = self.candidates.open_apart(present, plan);
        let opened = opened.ok_or_else(|| refused("names a cgroup that is another pod's"))?;
        let candidate = opened.map_err(|error| match error {
            OpenError::Cgroup(error) if error.is_gone() => {
                refused("has no cgroup: there is nothing to evict")
            }
            error @ (OpenError::Cgroup(_) | OpenError::Forbidden { .. } | OpenError::Unnamed { .. }) => {
                refused(&format!("cannot be evicted: {}", crate::chain(&error)))
            }
        })?;
        if candidate.usage().is_empty() {
            return Err(refused("holds no process: there is nothing to evict"));
        }
        let grace = Duration::from_secs(entry.pod.termination_grace_period_seconds);
        Ok(Evictable { uid: plan.uid.clone(), candidate, grace })
    }
}
