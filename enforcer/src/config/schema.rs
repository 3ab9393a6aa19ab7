//! The configuration as a JSON Schema, for editors and generators.

use serde_json::{Map, Value, json};

use super::{API_VERSION, Config, FIELDS, Field, Form, KIND};
use crate::policy::threshold::Signal;

/// The schema (JSON Schema 2020-12) of our own file. It is as strict as the reader, except for rules that span fields.
#[must_use]
pub fn schema() -> Value {
    let default = Config::default();
    let mut properties = Map::from_iter([
        (String::from("apiVersion"), json!({"const": API_VERSION})),
        (String::from("kind"), json!({"const": KIND})),
    ]);
    for Field { name, form, kubelets: _, help, show } in FIELDS {
        let mut property = of(*form);
        let value = show(&default);
        if let Some(property) = property.as_object_mut() {
            property.insert(String::from("description"), json!(help));
            if !value.is_null() {
                property.insert(String::from("default"), value);
            }
        }
        properties.insert((*name).to_owned(), property);
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": KIND,
        "type": "object",
        "required": ["apiVersion", "kind"],
        "additionalProperties": false,
        "properties": properties,
    })
}

fn of(form: Form) -> Value {
    let quantity = json!({"type": ["string", "number"]});
    let object = |names: &[&str], value: &Value| {
        let properties: Map<_, _> = names.iter().map(|name| ((*name).to_owned(), value.clone())).collect();
        json!({"type": "object", "properties": properties, "additionalProperties": false})
    };
    let signals: Vec<_> = Signal::ALL.iter().map(|signal| signal.as_str()).collect();
    match form {
        Form::Boolean => json!({"type": "boolean"}),
        Form::Integer(least) => json!({"type": "integer", "minimum": least}),
        Form::Share => json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
        Form::Choice(words) => json!({"enum": words}),
        Form::Account => json!({"type": ["string", "integer"], "minimum": 0}),
        Form::Address => json!({"type": "string", "pattern": ":[0-9]+$"}),
        Form::Duration | Form::Cgroup | Form::Text => json!({"type": "string"}),
        Form::Quantity => quantity,
        Form::Path => json!({"type": "string", "pattern": "^/"}),
        Form::Names => json!({"type": "array", "items": {"type": "string"}}),
        Form::Words(words) => json!({"type": "array", "items": {"enum": words}}),
        Form::Quantities(names) => object(names, &quantity),
        Form::Thresholds => object(&signals, &quantity),
        Form::Durations => object(&signals, &json!({"type": "string"})),
        Form::Object(fields) => of_fields(fields),
        Form::Objects(fields) => json!({"type": "array", "items": of_fields(fields)}),
    }
}

fn of_fields(fields: &[(&str, Form)]) -> Value {
    let properties: Map<_, _> = fields.iter().map(|(name, form)| ((*name).to_owned(), of(*form))).collect();
    json!({"type": "object", "properties": properties, "additionalProperties": false})
}
