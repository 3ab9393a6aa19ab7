//! A soft eviction whose victim another was asked to end, or may have been asked to end: the next daemon goes on with it.

use std::path::Path;

use enforcer_events::{
    Event, EventType, Payload,
    eviction::{Decision, EvictionDecided},
};
use ulid::Ulid;

use super::{BACK, subject};
use crate::{
    cgroup::{self, CgroupDir, Handles, Sought},
    evict::{self, InheritedEviction},
    journal::{Batch, Filter, Intent, Journal, Subject},
    model::{CgroupId, CgroupPath, PodUid},
    policy::{
        engine::{Inherited, Shortage},
        threshold::Signal,
    },
};

pub(super) const MS: u64 = 1_000_000;

/// What the journal says of an eviction.
#[derive(Debug, Default)]
pub(super) struct Reported {
    /// Its decision, and the position of that.
    pub(super) decision: Option<(u64, Box<Decision>)>,
    /// When another had accepted to end the victim, in milliseconds since the machine was started.
    pub(super) requested_ms: Option<u64>,
    /// When the victim was killed.
    pub(super) killed_ms: Option<u64>,
}

/// What goes on of an eviction that an earlier process began and did not end; `None` if it was hard, or if no one can have
/// been asked to end its victim.
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
    let Reported { decision, requested_ms, killed_ms: _ } = reported(journal, &id.to_string());
    let (sequence, decision) = decision.filter(|(_, decision)| is_soft(decision) && !hard)?;
    // Someone may have been asked even if it is not known yet whether the disk has the decision: after a kill, what an
    // earlier process of this boot wrote counts as durable only once it is synced again. Who asks waits for that, the
    // start does not. No one was asked before a program had run, of which nothing is known now.
    let may_be_asked = decision.hook.is_none();
    let (Subject::Pod(name), true) = (subject(pod), requested_ms.is_some() || may_be_asked) else {
        return None;
    };
    let path = CgroupPath::parse(path).ok()?;
    let (threshold, observed) = (*threshold, *observed);
    let victim = decision.victim.as_ref();
    let facts = Inherited {
        cgroup: *cgroup,
        pod: evict::pod_key(&name),
        shortage: Shortage { signal: Signal::from_name(signal)?, hard: false, threshold, observed },
        crossed_ns: decided_ns.saturating_sub(nanoseconds(decision.crossed_to_decided_ms)),
        decided_ns: *decided_ns,
        requested_ns: requested_ms.map(|at_ms| at_ms.saturating_mul(MS)),
        signalled_ns: None,
        grace_ns: decision.grace_ms.saturating_mul(MS),
        predicted_freed_bytes: decision.predicted_freed_bytes,
        current_bytes: victim.and_then(|victim| victim.current_bytes),
        process_count: victim.and_then(|victim| victim.process_count),
    };
    let own = whole.then_some((&path, *cgroup));
    let killed = killed(own, targets);
    let who = (id, name, PodUid::new(uid)?, path);
    Some(InheritedEviction::open(who, (facts, sequence), killed.as_deref()))
}

fn is_soft(decision: &Decision) -> bool {
    let Decision { dry_run, hard, grace_ms, operator, .. } = decision;
    !dry_run && !hard && *grace_ms > 0 && operator.is_none()
}

/// A duration of an event, which has a fraction.
pub(super) fn nanoseconds(milliseconds: Option<f64>) -> u64 {
    let seconds = milliseconds.unwrap_or(0.0) / 1_000.0;
    let duration = std::time::Duration::try_from_secs_f64(seconds).unwrap_or_default();
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn reported(journal: &Journal, id: &str) -> Reported {
    let kinds = vec![EventType::EvictionDecided, EventType::EvictionRequested, EventType::EvictionSignalled];
    let from = journal.range().newest.saturating_sub(BACK);
    let mut reader = journal.reader(Some(from), Filter { kinds, ..Filter::default() });
    let mut found = Reported::default();
    while let Some(batch) = reader.read() {
        let Batch::Records(records) = batch else { continue };
        for record in records {
            match Event::parse(&record.line).map(|event| event.payload) {
                Ok(Payload::EvictionDecided(EvictionDecided::Decision(decision)))
                    if decision.eviction_id == id =>
                {
                    found.decision = Some((record.sequence, decision));
                }
                Ok(Payload::EvictionRequested(requested)) if requested.eviction_id == id => {
                    found.requested_ms = found.requested_ms.or(requested.boot_ms);
                }
                Ok(Payload::EvictionSignalled(signalled))
                    if signalled.eviction_id == id && signalled.sent == "SIGKILL" =>
                {
                    found.killed_ms = found.killed_ms.or(signalled.boot_ms);
                }
                _ => {}
            }
        }
    }
    found
}

/// Opens the cgroups that were to be killed and still exist; `None` if not all of them can be found.
pub(super) fn killed(own: Option<(&CgroupPath, CgroupId)>, targets: &[CgroupId]) -> Option<Vec<CgroupDir>> {
    let mount = Path::new(cgroup::MOUNT);
    let root = CgroupDir::mount(mount).ok()?;
    let handles = if targets.is_empty() { None } else { Some(Handles::of(mount).ok()?) };
    let mut found = Vec::new();
    if let Some((path, id)) = own {
        found.push((path.clone(), id));
    }
    for id in targets {
        match handles.as_ref()?.find(*id) {
            Sought::Found(path) => found.push((path, *id)),
            Sought::Gone => {}
            Sought::Unknown => return None,
        }
    }
    let mut killed = Vec::new();
    for (path, id) in found {
        match root.open(&path) {
            Ok(dir) if dir.id() == id => killed.push(dir),
            // Another has its name: this one is gone.
            Ok(_) => {}
            Err(error) if error.is_gone() => {}
            Err(_) => return None,
        }
    }
    Some(killed)
}
