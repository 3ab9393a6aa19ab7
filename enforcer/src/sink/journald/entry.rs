//! Turns an event into a sentence and the fields that `journalctl` filters by.

use serde_json::Value;

use super::{catalog::meaning, fields::Fields};
use crate::{
    journal::EventType,
    render::{detail, escape},
};

/// The longest message in bytes; the data has all of it.
const MESSAGE_BYTES: usize = 2_048;

/// The entry for an event; `cursor` is the position after it.
pub(super) fn entry(line: &[u8], cursor: &str) -> Vec<u8> {
    let event: Value = serde_json::from_slice(line).unwrap_or_default();
    let text = |key: &str| event.get(key).and_then(Value::as_str).unwrap_or_default();
    let mut fields = Fields::default();
    let kind = EventType::parse(text("type"));
    let data = event.get("data").unwrap_or(&Value::Null);
    fields.add("MESSAGE", message(kind, text("subject"), data).as_bytes());
    if let Some(kind) = kind {
        let meaning = meaning(kind);
        fields.add("MESSAGE_ID", meaning.message_id.as_bytes());
        fields.add("PRIORITY", meaning.priority.to_string().as_bytes());
    }
    fields.add("SYSLOG_IDENTIFIER", b"enforcer");
    let (namespace, pod) = text("subject").split_once('/').unwrap_or_default();
    for (name, value) in [
        ("ENFORCER_TYPE", text("type")),
        ("ENFORCER_ID", text("id")),
        ("ENFORCER_TIME", text("time")),
        ("ENFORCER_SEQUENCE", text("sequence")),
        ("ENFORCER_CURSOR", cursor),
        ("ENFORCER_SUBJECT", text("subject")),
        ("ENFORCER_NAMESPACE", namespace),
        ("ENFORCER_POD", pod),
        ("ENFORCER_CONTAINER", found(data, "container")),
        ("OBJECT_CGROUP", found(data, "cgroup")),
    ] {
        if !value.is_empty() {
            fields.add(name, value.as_bytes());
        }
    }
    fields.add("ENFORCER_DATA", data.to_string().as_bytes());
    fields.into_bytes()
}

/// The event as one sentence.
fn message(kind: Option<EventType>, subject: &str, data: &Value) -> String {
    let Some(kind) = kind else { return String::from("an event that cannot be read") };
    let whose = match subject {
        "" => String::from("enforcer"),
        pod if pod.contains('/') => format!("pod {}", escape(pod)),
        node => format!("node {}", escape(node)),
    };
    let detail = detail(Some(kind), data);
    let says = meaning(kind).says;
    let mut message =
        if detail.is_empty() { format!("{whose} {says}") } else { format!("{whose} {says}: {detail}") };
    if message.len() > MESSAGE_BYTES {
        let end = (0..=MESSAGE_BYTES).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
        message.truncate(end);
        message.push('…');
    }
    message
}

/// The value of a key in the event's data, or in its `victim`, or in the first of its `victims`.
fn found<'a>(data: &'a Value, key: &str) -> &'a str {
    let victims = data.get("victims").and_then(|victims| victims.get(0));
    [Some(data), data.get("victim"), victims]
        .into_iter()
        .flatten()
        .find_map(|object| object.get(key)?.as_str())
        .unwrap_or_default()
}
