//! What an earlier daemon recorded of an eviction, on the intent page and in the journal.

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
    model::{CgroupId, CgroupPath, PodName, PodUid},
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
    requested_ms: Option<u64>,
    /// When the victim was killed.
    pub(super) killed_ms: Option<u64>,
}

/// An eviction as it was recorded.
pub(super) struct Recorded<'intent> {
    /// Its facts, but for a kill; what only its decision says is 0 or `None` if that was not reported.
    pub(super) facts: Inherited,
    pub(super) reported: Reported,
    who: (Ulid, PodName, PodUid, CgroupPath),
    /// Whether the victim's own cgroup was to be killed.
    whole: bool,
    /// The other cgroups that were.
    targets: &'intent [CgroupId],
}

impl<'intent> Recorded<'intent> {
    /// `None` if its victim or its signal cannot be named.
    pub(super) fn read(intent: &'intent Intent<'_>, journal: &Journal) -> Option<Self> {
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
        let reported = reported(journal, &id.to_string());
        let decision = reported.decision.as_ref().map(|(_, decision)| decision);
        let victim = decision.and_then(|decision| decision.victim.as_ref());
        let crossed_to_decided_ms = decision.and_then(|decision| decision.crossed_to_decided_ms);
        let (hard, threshold, observed) = (*hard, *threshold, *observed);
        let facts = Inherited {
            cgroup: *cgroup,
            pod: evict::pod_key(&name),
            shortage: Shortage { signal: Signal::from_name(signal)?, hard, threshold, observed },
            crossed_ns: decided_ns.saturating_sub(nanoseconds(crossed_to_decided_ms)),
            decided_ns: *decided_ns,
            requested_ns: reported.requested_ms.map(|at_ms| at_ms.saturating_mul(MS)),
            signalled_ns: None,
            grace_ns: decision.map_or(0, |decision| decision.grace_ms.saturating_mul(MS)),
            predicted_freed_bytes: decision.map_or(0, |decision| decision.predicted_freed_bytes),
            current_bytes: victim.and_then(|victim| victim.current_bytes),
            process_count: victim.and_then(|victim| victim.process_count),
        };
        let who = (id, name, PodUid::new(uid)?, CgroupPath::parse(path).ok()?);
        Some(Self { facts, reported, who, whole: *whole, targets })
    }

    /// Opens the cgroups that were to be killed and still exist; `None` if not all of them can be found.
    pub(super) fn killed(&self) -> Option<Vec<CgroupDir>> {
        let mount = Path::new(cgroup::MOUNT);
        let root = CgroupDir::mount(mount).ok()?;
        let handles = if self.targets.is_empty() { None } else { Some(Handles::of(mount).ok()?) };
        let mut found = Vec::new();
        if self.whole {
            let (.., path) = &self.who;
            found.push((path.clone(), self.facts.cgroup));
        }
        for id in self.targets {
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

    /// What goes on of it.
    pub(super) fn inherited(self, killed: Option<&[CgroupDir]>) -> InheritedEviction {
        let sequence = self.reported.decision.map_or(0, |(sequence, _)| sequence);
        InheritedEviction::open(self.who, (self.facts, sequence), killed)
    }
}

/// A duration of an event, which has a fraction.
fn nanoseconds(milliseconds: Option<f64>) -> u64 {
    let seconds = milliseconds.unwrap_or(0.0) / 1_000.0;
    let duration = std::time::Duration::try_from_secs_f64(seconds).unwrap_or_default();
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn reported(journal: &Journal, id: &str) -> Reported {
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
