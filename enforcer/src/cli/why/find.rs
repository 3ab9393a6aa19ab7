//! Finds the case that the argument means.

use std::collections::BTreeSet;

use anyhow::anyhow;
use enforcer_events::Payload;

use super::log::Entry;
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
}

pub(super) fn find(entries: &[Entry], what: &str) -> Result<Subject, Failure> {
    if what == "latest" {
        let mut happened = entries.iter().enumerate().rev().filter(|(_, entry)| is_happening(entry.kind()));
        return happened.find_map(|(place, entry)| subject(place, entry)).ok_or_else(|| {
            Failure::not_there(anyhow!(
                "nothing is kept to explain: no eviction, none that was suppressed, and no OOM kill; \
                 `enforcer next` shows which pod would be next"
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
        EventType::EvictionSuppressed | EventType::EvictionForeign => Some(Subject::Event(place)),
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
        "event {id} is {kind}: only evictions and OOM kills are explained; `enforcer events -o jsonl --type {kind}` \
         shows all of it"
    )
    .into())
}

fn by_pod(entries: &[Entry], what: &str) -> Result<Subject, Failure> {
    let is_it = |pod: &str| pod == what || pod.split_once('/').is_some_and(|(_, name)| name == what);
    let about = entries
        .iter()
        .enumerate()
        .filter(|(_, entry)| is_happening(entry.kind()) || entry.kind() == EventType::EvictionCompleted)
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
    let known: BTreeSet<_> = entries.iter().flat_map(pods).collect();
    if let Some(pod) = known.iter().find(|pod| is_it(pod)) {
        return Err(Failure::not_there(anyhow!(
            "pod {pod} was neither evicted nor killed by the kernel in the kept events: `enforcer events --pod {pod}` \
             shows what happened to it, `enforcer next` its rank"
        )));
    }
    let short = known.iter().filter_map(|pod| pod.split_once('/').map(|(_, name)| name));
    let near = nearest(what, known.iter().map(String::as_str)).or_else(|| nearest(what, short));
    let hint = match near {
        Some(near) => format!("did you mean {near:?}?"),
        None => String::from("write NAME or NAMESPACE/NAME, the id of an event, or latest;"),
    };
    Err(Failure::not_there(anyhow!("no event is about a pod {what:?}: {hint} `enforcer events` shows all")))
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
