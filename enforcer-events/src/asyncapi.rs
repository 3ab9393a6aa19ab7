//! Generates `docs/asyncapi.json`, the description of the stream for the tools of `AsyncAPI` 3.0, from the types.

use std::fs;

use serde_json::{Map, Value, json};

use crate::{Event, EventType};

/// Set to write the file instead of comparing it.
const WRITE: &str = "ENFORCER_WRITE_SCHEMA";

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/asyncapi.json");

/// The version of the stream, which is that of the schema: additions do not change it.
const VERSION: &str = "1.0.0";

/// Events that a daemon emitted in a guest.
const RECORDED: &str = include_str!("../../enforcer/tests/golden/events.json");

const DESCRIPTION: &str = "Everything that the daemon does or observes, in one order.

Each event is a CloudEvents 1.0 object in the JSON event format (structured content mode), with the attributes \
`specversion`, `id`, `source`, `type`, `subject`, `time` and `datacontenttype`, the extension attribute `sequence`, and \
`data`, an object whose form the type says. On the stream an event is one line of JSON.

Types, keys and words are added without notice, so ignore what you do not know. None is changed or removed.";

const CHANNEL: &str = "`GET` over HTTP/1.1 on the Unix socket `observe.sock` of the `runDir`. With `Accept: \
text/event-stream` the events come as server-sent events, whose ids are cursors, otherwise as `application/x-ndjson`. \
A cursor that is no longer kept is answered with 410. The same events, in the same form, are pushed to webhooks as \
`application/cloudevents+json` or, several in a request, as `application/cloudevents-batch+json`.";

fn document() -> Value {
    let recorded = recorded();
    let mut schema = moved(&crate::schema());
    let payloads = schema["allOf"].take();
    let messages: Map<_, _> = EventType::ALL
        .iter()
        .map(|kind| {
            let is_its = |case: &&Value| case["if"]["properties"]["type"]["const"] == kind.as_str();
            let case = payloads.as_array().unwrap().iter().find(is_its).unwrap();
            let event = json!({
                "allOf": [
                    {"$ref": "#/components/schemas/CloudEvent"},
                    {"properties": {"type": {"const": kind.as_str()}}},
                    case["then"],
                ],
            });
            let mut message = json!({
                "name": kind.as_str(),
                "title": kind.short(),
                "summary": kind.summary(),
                "contentType": "application/cloudevents+json",
                "payload": event,
            });
            if let Some(example) = recorded.iter().find(|event| event["type"] == kind.as_str()) {
                message["examples"] = json!([{"payload": example}]);
            }
            (kind.short().to_owned(), message)
        })
        .collect();
    let named = |name: &String| (name.clone(), json!({"$ref": format!("#/components/messages/{name}")}));
    let listed: Map<_, _> = messages.keys().map(named).collect();
    let mut schemas = schema["$defs"].take();
    let schemas = schemas.as_object_mut().unwrap();
    let before = schemas.insert(String::from("CloudEvent"), envelope(schema));
    assert_eq!(before, None, "a payload has the envelope's name");
    json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "Events of enforcer",
            "version": VERSION,
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0 OR MIT"},
            "externalDocs": {"url": "https://github.com/enforcer-dev/enforcer/blob/main/docs/events.md"},
        },
        "defaultContentType": "application/cloudevents+json",
        "servers": {
            "observe": {
                "host": "localhost",
                "protocol": "http",
                "description": "The Unix socket `/run/enforcer/observe.sock`; the host of a request is not looked at.",
            },
        },
        "channels": {
            "events": {
                "address": "/v1/events",
                "title": "The event stream",
                "description": CHANNEL,
                "servers": [{"$ref": "#/servers/observe"}],
                "messages": listed,
            },
        },
        "operations": {
            "sendEvents": {
                "action": "send",
                "summary": "The daemon sends the events that it keeps, oldest first, and with `follow=true` each new one.",
                "channel": {"$ref": "#/channels/events"},
                "bindings": {"http": {"method": "GET", "query": query(), "bindingVersion": "0.3.0"}},
            },
        },
        "components": {"messages": messages, "schemas": schemas},
    })
}

/// The parameters of the request.
fn query() -> Value {
    let text = |description: &str| json!({"type": "string", "description": description});
    let kinds: Vec<_> = EventType::ALL.iter().map(|kind| kind.short()).collect();
    json!({
        "type": "object",
        "properties": {
            "after": text("A cursor, `<log epoch>:<sequence>`: only events after it."),
            "follow": {"type": "boolean", "description": "Whether new events are sent as they come."},
            "type": {
                "type": "array",
                "items": {"enum": kinds},
                "description": "Only these types; given once for each, with or without the prefix `dev.enforcer.`.",
            },
            "namespace": text("Only events about pods of this namespace."),
            "pod": text("Only events about this pod, as `name` or `namespace/name`."),
            "since": text("Only events from this time on: an age such as `2h`, or RFC 3339."),
            "until": text("Only events up to this time."),
        },
        "additionalProperties": false,
    })
}

/// The schema with its definitions where this document has them. It uses no word that draft 7 lacks, the version that
/// `AsyncAPI` takes without being asked to.
fn moved(schema: &Value) -> Value {
    let text = schema.to_string().replace("\"#/$defs/", "\"#/components/schemas/");
    serde_json::from_str(&text).unwrap()
}

/// What all events have.
fn envelope(mut schema: Value) -> Value {
    let envelope = schema.as_object_mut().unwrap();
    for key in ["$schema", "$id", "$defs", "allOf"] {
        envelope.remove(key).unwrap();
    }
    // Each message says its own.
    envelope["properties"]["type"] = json!({"type": "string"});
    schema
}

/// The recorded events, with the folder that a user would have.
fn recorded() -> Vec<Value> {
    let text = RECORDED.replace("/tmp/g/", "/etc/enforcer/");
    let document: Value = serde_json::from_str(&text).unwrap();
    document["items"].as_array().unwrap().clone()
}

#[test]
fn the_published_description_is_that_of_the_types() {
    let mut text = serde_json::to_string_pretty(&document()).unwrap();
    text.push('\n');
    if std::env::var_os(WRITE).is_some() {
        fs::write(FILE, &text).unwrap();
        return;
    }
    let published = fs::read_to_string(FILE).unwrap();
    assert!(text == published, "{WRITE}=1 cargo test --package enforcer-events writes docs/asyncapi.json");
}

#[test]
fn every_event_type_is_a_message_and_no_other_is() {
    let document: Value = serde_json::from_str(&fs::read_to_string(FILE).unwrap()).unwrap();
    let messages = document["components"]["messages"].as_object().unwrap();
    let listed = document["channels"]["events"]["messages"].as_object().unwrap();
    assert_eq!(messages.len(), EventType::ALL.len());
    assert_eq!(messages.keys().collect::<Vec<_>>(), listed.keys().collect::<Vec<_>>());
    for kind in EventType::ALL {
        let message = &messages[kind.short()];
        assert_eq!(message["name"], kind.as_str());
        let summary = message["summary"].as_str().unwrap();
        assert!(summary.ends_with('.') && !summary.starts_with(' '), "{kind}: {summary:?}");
        assert_eq!(message["payload"]["allOf"][1]["properties"]["type"]["const"], kind.as_str());
    }
}

#[test]
fn every_example_is_an_event_of_its_message() {
    let document = document();
    let messages = document["components"]["messages"].as_object().unwrap();
    let mut examples = 0;
    for (name, message) in messages {
        let Some(example) = message.get("examples") else { continue };
        let event = Event::parse(example[0]["payload"].to_string().as_bytes()).unwrap();
        assert_eq!(event.payload.kind().short(), name);
        examples += 1;
    }
    assert!(examples > 10, "{examples} examples");
}

#[test]
fn every_reference_leads_somewhere() {
    fn references(value: &Value, into: &mut Vec<String>) {
        match value {
            Value::Object(object) => {
                into.extend(object.get("$ref").and_then(Value::as_str).map(str::to_owned));
                object.values().for_each(|value| references(value, into));
            }
            Value::Array(array) => array.iter().for_each(|value| references(value, into)),
            _ => {}
        }
    }
    let document = document();
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > EventType::ALL.len(), "{}", found.len());
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}
