//! The JSON Schema of events, generated from the types.

use schemars::{SchemaGenerator, generate::SchemaSettings};
use serde_json::{Value, json};

/// Where the schema is found, and what it is called. A new major version gets another one.
const ID: &str = "https://enforcer.dev/schemas/events/v1.json";

/// The schema of an event on the stream: an envelope, and for each type the payload.
#[must_use]
pub fn schema() -> Value {
    let mut generator: SchemaGenerator = SchemaSettings::draft2020_12().into_generator();
    let payloads: Vec<_> = crate::payload_schemas(&mut generator)
        .into_iter()
        .map(|(kind, payload)| {
            json!({
                "if": {"properties": {"type": {"const": kind.as_str()}}},
                "then": {"properties": {"data": payload}},
            })
        })
        .collect();
    let kinds: Vec<_> = crate::EventType::ALL.iter().map(|kind| kind.as_str()).collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": ID,
        "title": "An event of enforcer",
        "description": "A CloudEvents 1.0 object. Later versions may add types, keys and words, and never change or \
                        remove one.",
        "type": "object",
        "required": ["specversion", "id", "source", "type", "subject", "time", "sequence", "datacontenttype", "data"],
        "properties": {
            "specversion": {"const": "1.0"},
            "id": {"type": "string", "description": "A ULID."},
            "source": {"type": "string", "description": "The daemon: urn:enforcer:<node>:<boot id>."},
            "type": {"enum": kinds},
            "subject": {"type": "string", "description": "The pod as namespace/name, or the node's name."},
            "time": {"type": "string", "format": "date-time"},
            "sequence": {
                "type": "string",
                "description": "The place in the log, with leading zeros; contiguous over restarts.",
            },
            "datacontenttype": {"const": "application/json"},
            "data": {"type": "object"},
        },
        "allOf": payloads,
        "$defs": generator.take_definitions(true),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set to write the file instead of comparing it.
    const WRITE: &str = "ENFORCER_WRITE_SCHEMA";

    #[test]
    fn the_published_schema_is_that_of_the_types() {
        let mut text = serde_json::to_string_pretty(&schema()).unwrap();
        text.push('\n');
        if std::env::var_os(WRITE).is_some() {
            std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/events.schema.json"), &text).unwrap();
            return;
        }
        assert_eq!(text, crate::SCHEMA, "{WRITE}=1 cargo test --package enforcer-events writes it");
    }
}
