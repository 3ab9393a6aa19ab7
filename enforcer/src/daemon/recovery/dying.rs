//! An eviction whose victim was killed and is not dead yet: the next daemon awaits its death and its memory, as the one that
//! killed it would have.

use enforcer_events::eviction::{EvictionSignalled, Timeline};

use super::recorded::{MS, Recorded};
use crate::{
    evict::{self, InheritedEviction},
    journal::{Intent, Journal},
};

/// What goes on of such an eviction; `None` if its victim or its signal cannot be named.
///
/// If its decision was not reported any more, what its cgroups are charged for now is what they are still to release.
pub(super) fn inherit(intent: &Intent<'_>, journal: &Journal) -> Option<InheritedEviction> {
    let mut recorded = Recorded::read(intent, journal)?;
    let killed = recorded.killed();
    let (facts, reported) = (&mut recorded.facts, &recorded.reported);
    facts.signalled_ns = Some(reported.killed_ms.map_or(facts.decided_ns, |at_ms| at_ms.saturating_mul(MS)));
    if reported.decision.is_none()
        && let Some(now) = killed.as_deref().and_then(evict::usage_of)
    {
        facts.predicted_freed_bytes = now.freed_by_death_bytes();
        facts.current_bytes = Some(now.current_bytes);
    }
    Some(recorded.inherited(killed.as_deref()))
}

/// The event of the kill, if the daemon that killed it did not live to report that.
pub(super) fn signalled(eviction: &InheritedEviction) -> EvictionSignalled {
    let InheritedEviction { id, pod, uid, facts, .. } = eviction;
    EvictionSignalled {
        eviction_id: id.to_string(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: uid.to_string(),
        signal: Some(facts.shortage.signal.as_str().into()),
        controller: None,
        spec: None,
        terminating: false,
        sent: "SIGKILL".into(),
        grace_ms: None,
        killed_because: None,
        brakes_failed: None,
        boot_ms: facts.signalled_ns.map(|at_ns| at_ns / MS),
        timeline: Timeline::default(),
        decided_to_terminated_ms: None,
        decided_to_signalled_ms: None,
        hook: None,
        operator: None,
    }
}
