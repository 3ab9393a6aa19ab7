//! Finds the case that the argument means.

use std::collections::BTreeSet;

use anyhow::anyhow;
use enforcer_events::{
    Payload,
    eviction::{Decision, EvictionDecided},
    node::ConfigLoaded,
};

use super::{fold::is_end, log::Entry};
use crate::{cli::Failure, journal::EventType, nearest::nearest};

/// The case to be explained.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Subject {
    /// The eviction of this id.
    Eviction(String),
    /// The kernel's OOM of this id.
    Oom(String),
    /// The event at this index, which is a case of its own.
    Event(usize),
    /// The pod that the decision, or the suppressed one, at this index spared.
    Spared { place: usize, pod: String },
}

pub(super) fn find(entries: &[Entry], what: &str) -> Result<Subject, Failure> {
    if what == "latest" {
        let mut happened = entries.iter().enumerate().rev().filter(|(_, entry)| is_happening(entry.kind()));
        let found = happened.find_map(|(place, entry)| subject(place, entry));
        return found.or_else(|| latest_other(entries)).ok_or_else(|| {
            Failure::not_there(anyhow!(
                "nothing is kept to explain: no eviction, none that was suppressed, no OOM kill, no rejected pod, and \
                 nothing is degraded; `enforcer next` shows which pod would be next"
            ))
        });
    }
    if is_id(what) { by_id(entries, &what.to_ascii_uppercase()) } else { by_pod(entries, what) }
}

/// Whether an event of this type is a case to explain.
fn is_happening(kind: EventType) -> bool {
    matches!(
        kind,
        EventType::EvictionDecided
            | EventType::EvictionSuppressed
            | EventType::OomDetected
            | EventType::OomIncident
    )
}

fn subject(place: usize, entry: &Entry) -> Option<Subject> {
    match entry.kind() {
        EventType::EvictionDecided
        | EventType::EvictionContained
        | EventType::EvictionSignalled
        | EventType::EvictionCompleted
        | EventType::EvictionFailed
        | EventType::EvictionRequested
        | EventType::EvictionConfirmed
        | EventType::EvictionRepeated => entry.case.clone().map(Subject::Eviction),
        EventType::OomDetected | EventType::OomIncident => entry.case.clone().map(Subject::Oom),
        EventType::OomAverted => Some(entry.case.clone().map_or(Subject::Event(place), Subject::Oom)),
        EventType::EvictionSuppressed
        | EventType::EvictionForeign
        | EventType::PodRejected
        | EventType::DegradedEntered
        | EventType::DegradedLeft => Some(Subject::Event(place)),
        _ => None,
    }
}

/// An id is a ULID: 26 letters and digits, the first a digit.
fn is_id(what: &str) -> bool {
    what.len() == 26
        && what.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && what.starts_with(|first: char| first.is_ascii_digit())
}

fn by_id(entries: &[Entry], id: &str) -> Result<Subject, Failure> {
    let is_it = |entry: &Entry| entry.id() == id || entry.case.as_deref() == Some(id);
    let Some((place, entry)) = entries.iter().enumerate().find(|(_, entry)| is_it(entry)) else {
        let ids = entries.iter().filter(|entry| subject(0, entry).is_some());
        let ids = ids.flat_map(|entry| entry.case.as_deref().into_iter().chain([entry.id()]));
        let hint = match nearest(id, ids) {
            Some(near) => format!("did you mean {near}?"),
            None => String::from("it may no longer be kept;"),
        };
        return Err(Failure::not_there(anyhow!(
            "no event, eviction or OOM has the id {id}: {hint} `enforcer events` shows all"
        )));
    };
    if let Some(found) = subject(place, entry) {
        return Ok(found);
    }
    // For a crossing, take the decision that followed.
    let decided = |entry: &&Entry| {
        entry.record.sequence > entries[place].record.sequence
            && entry.signal() == entries[place].signal()
            && matches!(entry.kind(), EventType::EvictionDecided | EventType::EvictionSuppressed)
    };
    if entry.kind() == EventType::ThresholdCrossed
        && let Some(place) = entries.iter().position(|entry| decided(&entry))
        && let Some(found) = entries.get(place).and_then(|entry| subject(place, entry))
    {
        return Ok(found);
    }
    let kind = entry.kind();
    Err(anyhow!(
        "event {id} is {kind}: only evictions, OOM kills, rejected pods and what is degraded are explained; `enforcer events -o jsonl --type {kind}` \
         shows all of it"
    )
    .into())
}

fn by_pod(entries: &[Entry], what: &str) -> Result<Subject, Failure> {
    let is_it = |pod: &str| pod == what || pod.split_once('/').is_some_and(|(_, name)| name == what);
    let about = entries
        .iter()
        .enumerate()
        .filter(|(_, entry)| {
            is_happening(entry.kind())
                || matches!(entry.kind(), EventType::EvictionCompleted | EventType::PodRejected)
        })
        .flat_map(|(place, entry)| pods(entry).into_iter().map(move |pod| (place, entry, pod)))
        .filter(|(.., pod)| is_it(pod))
        .collect::<Vec<_>>();
    let names: BTreeSet<_> = about.iter().map(|(.., pod)| pod.as_str()).collect();
    if names.len() > 1 {
        let names: Vec<_> = names.into_iter().collect();
        return Err(Failure::usage(anyhow!(
            "{what:?} is in more than one namespace: write {}",
            names.join(" or ")
        )));
    }
    if let Some(found) = about.iter().rev().find_map(|(place, entry, _)| subject(*place, entry)) {
        return Ok(found);
    }
    let known: BTreeSet<_> = entries.iter().flat_map(pods).chain(entries.iter().flat_map(ranked)).collect();
    let alike: Vec<_> = known.iter().filter(|pod| is_it(pod)).map(String::as_str).collect();
    if alike.len() > 1 {
        return Err(Failure::usage(anyhow!(
            "{what:?} is in more than one namespace: write {}",
            alike.join(" or ")
        )));
    }
    if let [pod] = alike.as_slice() {
        if let Some(found) = spared(entries, pod) {
            return Ok(found);
        }
        return Err(Failure::not_there(anyhow!(
            "pod {pod} was neither evicted nor killed by the kernel in the kept events: `enforcer events --pod {pod}` \
             shows what happened to it, `enforcer next` its rank"
        )));
    }
    if let Some(found) = degraded(entries, what) {
        return Ok(found);
    }
    let short = known.iter().filter_map(|pod| pod.split_once('/').map(|(_, name)| name));
    let near = nearest(what, known.iter().map(String::as_str)).or_else(|| nearest(what, short));
    let hint = match near {
        Some(near) => format!("did you mean {near:?}?"),
        None => String::from("write NAME or NAMESPACE/NAME, the id of an event, or latest;"),
    };
    Err(Failure::not_there(anyhow!("no event is about a pod {what:?}: {hint} `enforcer events` shows all")))
}

/// The latest rejected pod or missing feature, if nothing was evicted or killed.
fn latest_other(entries: &[Entry]) -> Option<Subject> {
    let rejected = entries.iter().rposition(|entry| entry.kind() == EventType::PodRejected);
    rejected.max(open_degradation(entries, |_| true)).map(Subject::Event)
}

/// What is degraded, by its word such as `btf`; the latest by `degraded`.
fn degraded(entries: &[Entry], what: &str) -> Option<Subject> {
    let is_it = |word: &str| what == "degraded" || word == what;
    let was = || {
        entries.iter().rposition(
            |entry| matches!(&entry.event.payload, Payload::DegradedEntered(entered) if is_it(&entered.what)),
        )
    };
    open_degradation(entries, is_it).or_else(was).map(Subject::Event)
}

/// The latest event of what is still degraded. A daemon that starts reports all of it again.
fn open_degradation(entries: &[Entry], is_it: impl Fn(&str) -> bool) -> Option<usize> {
    let started = entries
        .iter()
        .rposition(|entry| matches!(&entry.event.payload, Payload::ConfigLoaded(ConfigLoaded::Started(_))));
    let since = entries.get(started.unwrap_or(0)..).unwrap_or_default();
    let is_open = |place: usize, entry: &Entry| {
        let Payload::DegradedEntered(entered) = &entry.event.payload else { return false };
        let ends = |later: &Entry| match &later.event.payload {
            Payload::DegradedLeft(left) => is_end(entered, left),
            _ => false,
        };
        is_it(&entered.what) && !since.get(place + 1..).unwrap_or_default().iter().any(ends)
    };
    let found = since.iter().enumerate().rev().find(|(place, entry)| is_open(*place, entry));
    found.map(|(place, _)| started.unwrap_or(0) + place)
}

/// The latest decision that was about another pod, or that none is evicted.
fn spared(entries: &[Entry], pod: &str) -> Option<Subject> {
    let place = entries.iter().rposition(|entry| match &entry.event.payload {
        Payload::EvictionSuppressed(_) => true,
        _ => decision(entry).is_some(),
    })?;
    // One that names the pod says more than a later one that does not.
    let named = entries.iter().rposition(|entry| ranked(entry).iter().any(|one| one == pod));
    Some(Subject::Spared { place: named.unwrap_or(place), pod: pod.to_owned() })
}

/// A decision by the ranking, and by no order.
fn decision(entry: &Entry) -> Option<&Decision> {
    match &entry.event.payload {
        Payload::EvictionDecided(EvictionDecided::Decision(decision)) if decision.operator.is_none() => {
            Some(decision)
        }
        _ => None,
    }
}

/// The pods that a decision ranked or left out.
fn ranked(entry: &Entry) -> Vec<String> {
    let Some(decision) = decision(entry) else { return Vec::new() };
    let ranked = decision.ranking.iter().map(|one| format!("{}/{}", one.namespace, one.name));
    let excluded = decision.excluded.iter().map(|one| format!("{}/{}", one.namespace, one.name));
    ranked.chain(excluded).collect()
}

/// The pods that an event is about: its own, and those of all victims.
fn pods(entry: &Entry) -> Vec<String> {
    let mut pods: Vec<_> = entry.record.pod.iter().map(ToString::to_string).collect();
    if let Payload::OomIncident(incident) = &entry.event.payload {
        let places = incident.victims.iter().map(|victim| &victim.place);
        pods.extend(
            places.filter_map(|place| Some(format!("{}/{}", place.namespace.as_ref()?, place.pod.as_ref()?))),
        );
    }
    pods
}
