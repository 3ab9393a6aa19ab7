//! The events of enforcer as types: one struct for the payload of each event type.
//!
//! An event is a `CloudEvents` object on one line of JSON; its `type` says which payload its `data` is ([`Payload`]).
//! Readers accept unknown keys, as later versions may add some; no key is ever changed or removed.

#[cfg(test)]
mod asyncapi;
pub mod eviction;
pub mod kind;
pub mod limits;
pub mod node;
pub mod oom;
pub mod pod;
pub mod pressure;
pub mod reservation;
mod schema;

use std::borrow::Cow;

use crate::{eviction::EvictionDecided, node::ConfigLoaded, pressure::PressureRising};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use ulid::Ulid;

pub use kind::EventType;
pub use schema::schema;

/// The JSON Schema of events, as published: generated from the types here.
pub const SCHEMA: &str = include_str!("../events.schema.json");

/// A word of a list that later versions may extend, such as a reason; each field's documentation has the list.
pub type Word = Cow<'static, str>;

macro_rules! payloads {
    ($($(#[$doc:meta])* $variant:ident($data:ty),)*) => {
        /// The payload of an event.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Payload {
            $($(#[$doc])* $variant($data),)*
        }

        impl Payload {
            /// The type of the event that it is the payload of.
            #[must_use]
            pub fn kind(&self) -> EventType {
                match self {
                    $(Self::$variant(_) => EventType::$variant,)*
                }
            }

            /// Reads the payload of an event of that type. Unknown keys are ignored.
            pub fn parse(kind: EventType, data: &Value) -> serde_json::Result<Self> {
                Ok(match kind {
                    $(EventType::$variant => Self::$variant(<$data>::deserialize(data)?),)*
                })
            }

            /// The payload as JSON: an object.
            pub fn to_value(&self) -> serde_json::Result<Value> {
                match self {
                    $(Self::$variant(data) => serde_json::to_value(data),)*
                }
            }
        }

        /// The schema of each payload, by its event type.
        fn payload_schemas(generator: &mut SchemaGenerator) -> Vec<(EventType, Schema)> {
            vec![$((EventType::$variant, generator.subschema_for::<$data>()),)*]
        }
    };
}

payloads! {
    /// A threshold will be crossed soon, or tasks wait for memory.
    PressureRising(PressureRising),
    /// The pressure is over.
    PressureCleared(pressure::PressureCleared),
    /// A threshold was crossed.
    ThresholdCrossed(pressure::Shortage),
    /// A victim was chosen.
    EvictionDecided(EvictionDecided),
    /// A candidate was throttled to gain time, or released.
    EvictionContained(eviction::EvictionContained),
    /// The victim was signalled.
    EvictionSignalled(eviction::EvictionSignalled),
    /// The victim is gone.
    EvictionCompleted(eviction::EvictionEnded),
    /// The victim did not end.
    EvictionFailed(eviction::EvictionEnded),
    /// No victim was chosen.
    EvictionSuppressed(eviction::EvictionSuppressed),
    /// The API server was asked to evict the victim, or did not have to be.
    EvictionRequested(eviction::EvictionRequested),
    /// The API server no longer has the victim.
    EvictionConfirmed(eviction::EvictionConfirmed),
    /// The kubelet started containers of the victim again.
    EvictionRepeated(eviction::EvictionRepeated),
    /// The kubelet evicted a pod by its own decision.
    EvictionForeign(eviction::EvictionForeign),
    /// The kernel's OOM killer marked its first victim.
    OomDetected(oom::Detected),
    /// One kernel OOM, closed.
    OomIncident(oom::Incident),
    /// The kernel marked a task that was already dying.
    OomAverted(oom::Averted),
    /// A source reported a new pod.
    PodAdded(pod::PodReported),
    /// A pod's specification changed.
    PodChanged(pod::PodReported),
    /// A pod is gone from its source.
    PodRemoved(pod::PodReported),
    /// A pod was not admitted, or its manifest not accepted.
    PodRejected(pod::PodRejected),
    /// Limits were written.
    LimitsApplied(limits::LimitsWritten),
    /// A cgroup file that enforcer owns holds another value.
    LimitsDrifted(limits::LimitsDrifted),
    /// The value was restored.
    LimitsRestored(limits::LimitsWritten),
    /// A configuration came into force.
    ConfigLoaded(ConfigLoaded),
    /// A configuration was refused.
    ConfigRejected(node::ConfigChanged),
    /// A source of pods works.
    SourceUp(node::SourceReported),
    /// A source of pods does not work.
    SourceDown(node::SourceReported),
    /// Resources were reserved for others than pods.
    ReservationMade(reservation::ReservationMade),
    /// They are for pods again.
    ReservationEnded(reservation::ReservationEnded),
    /// A part of the system uses more than is reserved for it.
    ReservationExceeded(reservation::ReservationExceeded),
    /// The node lacks something.
    DegradedEntered(node::Degraded),
    /// It is available again.
    DegradedLeft(node::Degraded),
    /// This reader missed events.
    StreamGap(node::StreamGap),
}

impl Payload {
    /// The eviction that it is about.
    #[must_use]
    pub fn eviction_id(&self) -> Option<&str> {
        match self {
            Self::EvictionDecided(EvictionDecided::Decision(decision)) => Some(&decision.eviction_id),
            Self::EvictionDecided(EvictionDecided::Reconstructed(decision)) => Some(&decision.eviction_id),
            Self::EvictionContained(contained) => Some(&contained.eviction_id),
            Self::EvictionSignalled(signalled) => Some(&signalled.eviction_id),
            Self::EvictionCompleted(ended) | Self::EvictionFailed(ended) => Some(&ended.eviction_id),
            Self::EvictionRequested(requested) => Some(&requested.eviction_id),
            Self::EvictionConfirmed(confirmed) => Some(&confirmed.eviction_id),
            Self::EvictionRepeated(repeated) => Some(&repeated.eviction_id),
            _ => None,
        }
    }

    /// The kernel's OOM that it is about.
    #[must_use]
    pub fn incident_id(&self) -> Option<Ulid> {
        match self {
            Self::OomDetected(detected) => Some(detected.incident_id),
            Self::OomIncident(incident) => Some(incident.incident_id),
            Self::OomAverted(averted) => averted.incident_id,
            _ => None,
        }
    }

    /// What it says in words, if it says so.
    #[must_use]
    pub fn message(&self) -> Option<&str> {
        match self {
            Self::PressureRising(PressureRising::Headroom(shrinking)) => Some(&shrinking.message),
            Self::EvictionDecided(EvictionDecided::Decision(decision)) => Some(&decision.message),
            Self::EvictionContained(contained) => contained.message.as_deref(),
            Self::EvictionCompleted(ended) | Self::EvictionFailed(ended) => ended.message.as_deref(),
            Self::EvictionSuppressed(suppressed) => Some(&suppressed.message),
            Self::EvictionRequested(requested) => Some(&requested.message),
            Self::EvictionRepeated(repeated) => Some(&repeated.message),
            Self::EvictionForeign(foreign) => foreign.message.as_deref(),
            Self::PodRejected(rejected) => Some(&rejected.message),
            Self::ConfigLoaded(ConfigLoaded::Started(started)) => Some(&started.message),
            Self::ConfigLoaded(ConfigLoaded::Changed(changed)) | Self::ConfigRejected(changed) => {
                Some(&changed.message)
            }
            Self::SourceUp(source) | Self::SourceDown(source) => Some(&source.message),
            Self::ReservationMade(made) => Some(&made.message),
            Self::ReservationEnded(ended) => Some(&ended.message),
            Self::ReservationExceeded(exceeded) => Some(&exceeded.message),
            Self::DegradedEntered(degraded) | Self::DegradedLeft(degraded) => degraded.message.as_deref(),
            _ => None,
        }
    }
}

/// An event as it is on the stream, read back.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Its id, a ULID.
    pub id: String,
    /// The daemon that emitted it: `urn:enforcer:<node>:<boot id>`.
    pub source: String,
    /// The pod as `namespace/name`, or the node's name.
    pub subject: String,
    /// When it was appended (RFC 3339).
    pub time: String,
    /// Its place in the log, with leading zeros.
    pub sequence: String,
    /// What happened.
    pub payload: Payload,
}

/// Why a line is not an event that this version can read.
#[derive(Debug)]
#[non_exhaustive]
pub enum ParseError {
    /// It is not a JSON object with the attributes of an event, or its payload is not that of its type.
    Malformed(serde_json::Error),
    /// Its type is not known: that of a later version.
    UnknownType(String),
}

impl std::fmt::Display for ParseError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Malformed(error) => write!(formatter, "it is not an event of enforcer: {error}"),
            Self::UnknownType(kind) => write!(formatter, "this version knows no event type {kind:?}"),
        }
    }
}

impl std::error::Error for ParseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Malformed(error) => Some(error),
            Self::UnknownType(_) => None,
        }
    }
}

impl Event {
    /// Reads one line of the stream.
    pub fn parse(line: &[u8]) -> Result<Self, ParseError> {
        #[derive(Deserialize)]
        struct Envelope {
            id: String,
            source: String,
            #[serde(rename = "type")]
            kind: String,
            subject: String,
            time: String,
            sequence: String,
            data: Value,
        }
        let envelope: Envelope = serde_json::from_slice(line).map_err(ParseError::Malformed)?;
        let Envelope { id, source, kind, subject, time, sequence, data } = envelope;
        let Some(kind) = EventType::parse(&kind) else { return Err(ParseError::UnknownType(kind)) };
        let payload = Payload::parse(kind, &data).map_err(ParseError::Malformed)?;
        Ok(Self { id, source, subject, time, sequence, payload })
    }
}

/// A process, as far as the kernel reported it.
#[derive(Clone, Debug, Deserialize, JsonSchema, Eq, PartialEq, Serialize)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// The name of its thread, which the process chose.
    pub comm: String,
}

/// For `skip_serializing_if`: a flag that is present only where it holds.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_false(flag: &bool) -> bool {
    !*flag
}
