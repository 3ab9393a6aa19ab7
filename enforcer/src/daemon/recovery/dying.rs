//! An eviction whose victim was killed and is not dead yet: the next daemon awaits its death and its memory, as the one that
//! killed it would have.

use enforcer_events::eviction::{EvictionSignalled, Timeline};
use ulid::Ulid;

use super::{
    soft::{self, MS, Reported},
    subject,
};
use crate::{
    evict::{self, InheritedEviction},
    journal::{Intent, Journal, Subject},
    model::{CgroupPath, PodUid},
    policy::{
        engine::{Inherited, Shortage, Usage},
        threshold::Signal,
    },
};

/// What goes on of such an eviction; `None` if its victim or its signal cannot be named.
///
/// If its decision was not reported any more, what its cgroups are charged for now is what they are still to release.
pub(super) fn inherit(intent: &Intent<'_>, journal: &Journal) -> Option<InheritedEviction> {
    let Intent::Eviction {
        id,
        pod,
        uid,
        path,
        cgroup,
        whole,
        targets,
        signal,
        hard,
        threshold,
        observed,
        decided_ns,
    } = intent
    else {
        return None;
    };
    let id = Ulid::from(*id);
    let Subject::Pod(name) = subject(pod) else { return None };
    let path = CgroupPath::parse(path).ok()?;
    let killed = soft::killed(whole.then_some((&path, *cgroup)), targets);
    let Reported { decision, requested_ms, killed_ms } = soft::reported(journal, &id.to_string());
    let (sequence, decision) = decision.unzip();
    let victim = decision.as_ref().and_then(|decision| decision.victim.as_ref());
    let now = killed.as_deref().filter(|_| decision.is_none()).and_then(evict::usage_of);
    let (hard, threshold, observed) = (*hard, *threshold, *observed);
    let crossed_to_decided_ms = decision.as_ref().and_then(|decision| decision.crossed_to_decided_ms);
    let facts = Inherited {
        cgroup: *cgroup,
        pod: evict::pod_key(&name),
        shortage: Shortage { signal: Signal::from_name(signal)?, hard, threshold, observed },
        crossed_ns: decided_ns.saturating_sub(soft::nanoseconds(crossed_to_decided_ms)),
        decided_ns: *decided_ns,
        requested_ns: requested_ms.map(|at_ms| at_ms.saturating_mul(MS)),
        signalled_ns: Some(killed_ms.map_or(*decided_ns, |at_ms| at_ms.saturating_mul(MS))),
        grace_ns: decision.as_ref().map_or(0, |decision| decision.grace_ms.saturating_mul(MS)),
        predicted_freed_bytes: decision.as_ref().map_or_else(
            || now.as_ref().map_or(0, Usage::freed_by_death_bytes),
            |decision| decision.predicted_freed_bytes,
        ),
        current_bytes: victim
            .and_then(|victim| victim.current_bytes)
            .or(now.map(|usage| usage.current_bytes)),
        process_count: victim.and_then(|victim| victim.process_count),
    };
    let who = (id, name, PodUid::new(uid)?, path);
    Some(InheritedEviction::open(who, (facts, sequence.unwrap_or(0)), killed.as_deref()))
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
