//! Reads fields of an event, whatever its origin.
use serde_json::Value;

/// A string; `None` if it is missing or empty.
pub(super) fn text<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.get(key)?.as_str().filter(|text| !text.is_empty())
}

pub(super) fn number(object: &Value, key: &str) -> Option<u64> {
    object.get(key)?.as_u64()
}

pub(super) fn signed(object: &Value, key: &str) -> Option<i64> {
    object.get(key)?.as_i64()
}

pub(super) fn real(object: &Value, key: &str) -> Option<f64> {
    object.get(key)?.as_f64()
}

pub(super) fn is(object: &Value, key: &str) -> bool {
    object.get(key) == Some(&Value::Bool(true))
}

pub(super) fn list<'a>(object: &'a Value, key: &str) -> &'a [Value] {
    object.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// `namespace/name`, with the name under `key`.
pub(super) fn pod(object: &Value, key: &str) -> Option<String> {
    Some(format!("{}/{}", text(object, "namespace")?, text(object, key)?))
}

/// The data of an event.
pub(super) fn data(event: &Value) -> &Value {
    event.get("data").unwrap_or(&Value::Null)
}

/// Bytes in a unit; `?` if they are missing.
pub(super) fn bytes(object: &Value, key: &str) -> String {
    number(object, key).map_or_else(|| String::from("?"), crate::cli::render::human_bytes)
}

/// A duration: in milliseconds, from one second on in seconds.
pub(super) fn span(ms: f64) -> String {
    if ms < 100.0 {
        format!("{ms:.1} ms")
    } else if ms < 1_000.0 {
        format!("{ms:.0} ms")
    } else {
        format!("{:.1} s", ms / 1_000.0)
    }
}
