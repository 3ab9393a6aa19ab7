//! What callers append to the journal, before it has a sequence, an id and a time.

use std::fmt;

use enforcer_events::{EventType, Payload};
use serde_json::Value;

use crate::nearest::nearest;

/// Counts events that are appended to a journal and events that are lost. Called by the appending thread, so it must
/// not block.
pub trait Observer: fmt::Debug + Send + Sync {
    /// An event is being appended. `namespace` is that of its pod, if it is about one.
    fn on_event(&self, namespace: Option<&str>, payload: &Payload);

    /// The log dropped `events` events before a reader had read them.
    fn on_lost_to_reader(&self, events: u64);

    /// Memory dropped `events` events before the disk took them.
    fn on_lost_by_disk(&self, events: u64);
}

/// Finds a type by its name, with or without the prefix `dev.enforcer.`; the error suggests similar names.
pub fn named_type(name: &str) -> Result<EventType, String> {
    EventType::parse(name).ok_or_else(|| {
        let short = name.strip_prefix("dev.enforcer.").unwrap_or(name);
        let names = || EventType::ALL.iter().map(|kind| kind.short());
        // A prefix such as `eviction.` means all types that begin with it.
        let begun = short.trim_end_matches(['.', '*']);
        let family: Vec<_> = names().filter(|name| !begun.is_empty() && name.starts_with(begun)).collect();
        let hint = match nearest(short, names()) {
            _ if !family.is_empty() => {
                format!("did you mean {}? It may be repeated", family.join(" or "))
            }
            Some(near) => {
                let others: Vec<_> = names().filter(|name| *name != near).collect();
                format!("did you mean {near}? There are also {}", others.join(", "))
            }
            None => format!("it is one of {}", names().collect::<Vec<_>>().join(", ")),
        };
        format!("there is no event type {name:?}: {hint}")
    })
}

/// An event to append. The journal writes it as a `CloudEvents` record.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The pod, or the node.
    pub subject: Subject,
    /// What happened.
    pub payload: Payload,
}

impl Event {
    /// An event with that payload.
    #[must_use]
    pub fn new(subject: Subject, payload: Payload) -> Self {
        Self { subject, payload }
    }

    /// Its type.
    #[must_use]
    pub fn kind(&self) -> EventType {
        self.payload.kind()
    }

    /// Its payload as JSON.
    #[must_use]
    pub fn data(&self) -> Value {
        // A payload has no map with keys that are not strings, the only thing that JSON cannot take.
        let data = self.payload.to_value().unwrap_or_default();
        debug_assert!(reads_back(self.kind(), &data), "{data} is not read back as it was written");
        data
    }
}

/// An event whose payload has any keys: for tests and benches of what keeps and carries events.
#[derive(Clone, Debug, PartialEq)]
pub struct RawEvent {
    /// The event's type.
    pub kind: EventType,
    /// The pod, or the node.
    pub subject: Subject,
    /// The payload, an object.
    pub data: Value,
}

/// Whether a reader of the payload sees all of it.
fn reads_back(kind: EventType, data: &Value) -> bool {
    let again = Payload::parse(kind, data).and_then(|payload| payload.to_value());
    again.is_ok_and(|again| again == *data)
}

/// The subject of an event.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Subject {
    /// The node itself.
    Node,
    /// A pod.
    Pod(crate::model::PodName),
}

impl Subject {
    /// The namespace of the pod, if it is one.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        match self {
            Self::Node => None,
            Self::Pod(pod) => Some(&pod.namespace),
        }
    }
}
