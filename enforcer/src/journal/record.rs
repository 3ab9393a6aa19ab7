//! What readers get from the log: stored events, filters and cursors.

use std::{borrow::Cow, fmt, str::FromStr};

use bytes::Bytes;

use super::EventType;
use crate::model::PodName;

/// An event in the log.
#[derive(Clone, Debug)]
pub struct Record {
    /// Its position in the log, counted from 1.
    pub sequence: u64,
    /// When it was appended, in milliseconds since 1970.
    pub time_ms: i64,
    /// Its type.
    pub kind: EventType,
    /// The pod's namespace and name, if it is about a pod.
    pub pod: Option<PodName>,
    /// The whole event, one line of JSON with its line end.
    pub line: Bytes,
}

/// An event as the log holds it. Its type may be unknown here: a newer version wrote it before a downgrade, and will
/// read it again after an upgrade.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    /// See [`Record`].
    pub(super) sequence: u64,
    pub(super) time_ms: i64,
    /// `None` for a type that this version does not know.
    pub(super) kind: Option<EventType>,
    pub(super) pod: Option<PodName>,
    pub(super) line: Bytes,
}

/// The members of an event that the log itself needs.
#[derive(serde::Deserialize)]
struct Envelope<'line> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'line, str>,
    #[serde(borrow)]
    subject: Cow<'line, str>,
    #[serde(borrow)]
    time: Cow<'line, str>,
    #[serde(borrow)]
    sequence: Cow<'line, str>,
}

/// The only member that identifies the event in a line.
#[derive(serde::Deserialize)]
struct Place<'line> {
    #[serde(borrow)]
    sequence: Cow<'line, str>,
}

/// The sequence of the event in a line of the log; `None` if the line has none.
pub(super) fn sequence(line: &[u8]) -> Option<u64> {
    let place: Place<'_> = serde_json::from_slice(line.strip_suffix(b"\n")?).ok()?;
    place.sequence.parse().ok()
}

impl Record {
    /// Reads a line of the log. Returns `None` if it is not a whole event, or if this version does not know its type.
    #[must_use]
    pub fn from_line(line: &[u8]) -> Option<Self> {
        Kept::from_line(line)?.known()
    }
}

impl Kept {
    /// Reads a line of the log. Returns `None` if it is not a whole event.
    pub(super) fn from_line(line: &[u8]) -> Option<Self> {
        // JSON is text. A parser of bytes does not look at the members that it passes over: the payload is one.
        let text = str::from_utf8(line.strip_suffix(b"\n")?).ok()?;
        let envelope: Envelope<'_> = serde_json::from_str(text).ok()?;
        let time: jiff::Timestamp = envelope.time.parse().ok()?;
        // A node's name is a host name, which has no slash. A pod's subject is `namespace/name`.
        let pod = envelope
            .subject
            .split_once('/')
            .map(|(namespace, name)| PodName { namespace: namespace.to_owned(), name: name.to_owned() });
        Some(Self {
            sequence: envelope.sequence.parse().ok()?,
            time_ms: time.as_millisecond(),
            kind: EventType::parse(&envelope.kind),
            pod,
            line: Bytes::copy_from_slice(line),
        })
    }

    /// The event, if this version knows its type.
    pub(super) fn known(self) -> Option<Record> {
        let Self { sequence, time_ms, kind, pod, line } = self;
        Some(Record { sequence, time_ms, kind: kind?, pod, line })
    }

    /// Whether `next` has the sequence after this one.
    pub(super) fn is_before(&self, next: &Self) -> bool {
        self.sequence.checked_add(1) == Some(next.sequence)
    }
}

/// Which events a reader wants. An empty list or `None` means all.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Filter {
    /// These types.
    pub kinds: Vec<EventType>,
    /// This namespace.
    pub namespace: Option<String>,
    /// This pod: its name, or `namespace/name`.
    pub pod: Option<String>,
    /// Events appended at or after this time, in milliseconds since 1970.
    pub since_ms: Option<i64>,
    /// Events appended at or before this time, in milliseconds since 1970.
    pub until_ms: Option<i64>,
}

impl Filter {
    /// Whether the reader wants everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { kinds, namespace, pod, since_ms, until_ms } = self;
        kinds.is_empty() && namespace.is_none() && pod.is_none() && since_ms.is_none() && until_ms.is_none()
    }

    /// Whether the reader wants the event. A filter by type takes no unknown type.
    pub(super) fn takes(&self, record: &Kept) -> bool {
        let Self { kinds, namespace, pod, since_ms, until_ms } = self;
        let kind = kinds.is_empty() || record.kind.is_some_and(|kind| kinds.contains(&kind));
        let namespace = namespace
            .as_ref()
            .is_none_or(|namespace| record.pod.as_ref().is_some_and(|pod| pod.namespace == *namespace));
        let pod = pod.as_ref().is_none_or(|wanted| {
            record.pod.as_ref().is_some_and(|pod| match wanted.split_once('/') {
                Some((namespace, name)) => pod.namespace == namespace && pod.name == name,
                None => pod.name == *wanted,
            })
        });
        let since = since_ms.is_none_or(|since_ms| record.time_ms >= since_ms);
        kind && namespace && pod && since && until_ms.is_none_or(|until_ms| record.time_ms <= until_ms)
    }
}

/// A position in a log, `<log epoch>:<sequence>`: the last event that was read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Cursor {
    /// The log's epoch. A cursor of another epoch is stale.
    pub epoch: String,
    /// The last sequence that was read; 0 before the first.
    pub sequence: u64,
}

/// The text is not a cursor.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{text:?} is not a cursor: take one from an earlier answer, such as 01J8Z3NDEKTSV4RRFFQ69G5FAV:42")]
pub struct InvalidCursor {
    /// The text as it was given.
    pub text: String,
}

impl FromStr for Cursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let invalid = || InvalidCursor { text: text.to_owned() };
        let (epoch, sequence) = text.split_once(':').ok_or_else(invalid)?;
        let epoch = if epoch.is_empty() { Err(invalid()) } else { Ok(epoch.to_owned()) }?;
        // `parse` would accept a sign.
        let is_number = sequence.bytes().all(|byte| byte.is_ascii_digit());
        let sequence = sequence.parse().ok().filter(|_| is_number);
        Ok(Self { epoch, sequence: sequence.ok_or_else(invalid)? })
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.epoch, self.sequence)
    }
}
