//! An event as a line: its payload in a `CloudEvents` envelope.

use jiff::Timestamp;
use serde_json::{Value, json};
use ulid::Ulid;

use crate::journal::EventType;

/// The longest payload. A longer one is left out of its event: readers of the stream accept no lines longer than 1 MiB.
const MAX_PAYLOAD_BYTES: usize = (1 << 20) - (4 << 10);

/// The envelope of a payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Envelope<'event> {
    pub(super) id: Ulid,
    pub(super) kind: EventType,
    pub(super) sequence: u64,
    pub(super) source: &'event str,
    pub(super) subject: &'event str,
    pub(super) time: Timestamp,
}

impl Envelope<'_> {
    /// One line of JSON, with its line end. Its keys are in alphabetical order, like those of a payload.
    pub(super) fn line(&self, payload: &str) -> String {
        let Self { id, kind, sequence, source, subject, time } = *self;
        let (source, subject, kind) = (Value::from(source), Value::from(subject), json!(kind));
        let mut line = String::with_capacity(payload.len() + 512);
        line.push_str(&format!(
            "{{\"data\":{payload},\"datacontenttype\":\"application/json\",\"id\":\"{id}\",\"sequence\":\"{sequence:020}\",\
             \"source\":{source},\"specversion\":\"1.0\",\"subject\":{subject},\"time\":\"{time:.6}\",\"type\":{kind}}}\n"
        ));
        line
    }
}

/// A payload as text. One that is too long for an event is replaced by a note that it was left out.
pub(super) fn payload(data: &Value) -> String {
    let whole = data.to_string();
    if whole.len() <= MAX_PAYLOAD_BYTES {
        return whole;
    }
    let bytes = whole.len();
    let message = format!("the payload of {bytes} bytes is left out: it is too long for an event");
    json!({"leftOutBytes": bytes, "message": message}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_an_event_whatever_the_names_hold() {
        let (source, subject) = ("urn:enforcer:n\"\\\n:b", "a\u{1b}[31m/\"b");
        let envelope = Envelope {
            id: Ulid::from_parts(7, 9),
            kind: EventType::PodAdded,
            sequence: 12,
            source,
            subject,
            time: Timestamp::UNIX_EPOCH,
        };
        let data = json!({"b": [1, null], "a": "\n"});
        let line = envelope.line(&payload(&data));
        assert_eq!(line.find('\n'), Some(line.len() - 1));
        let wanted = json!({
            "specversion": "1.0",
            "id": Ulid::from_parts(7, 9).to_string(),
            "source": source,
            "type": "dev.enforcer.pod.added",
            "subject": subject,
            "time": "1970-01-01T00:00:00.000000Z",
            "sequence": "00000000000000000012",
            "datacontenttype": "application/json",
            "data": data,
        });
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), wanted);
        assert_eq!(line.trim_end(), wanted.to_string(), "as the lines of before");
    }

    #[test]
    fn a_payload_that_is_too_long_is_reported_instead() {
        let long = json!({"a": "x".repeat(MAX_PAYLOAD_BYTES)});
        let text = payload(&long);
        assert!(text.contains("leftOutBytes") && text.len() < 200, "{text}");
    }
}
