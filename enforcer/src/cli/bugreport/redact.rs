//! Removes from JSON what is nobody else's business, and keeps account of it.

use std::collections::BTreeSet;

use serde_json::Value;

/// What stands in place of a value.
const REMOVED: &str = "removed";

/// Keys whose values are removed.
const KEYS: &[&str] = &["env", "environment", "annotations", "args", "arguments", "command"];

/// Parts of keys whose values are removed, in lower case.
const WORDS: &[&str] = &[
    "token",
    "password",
    "passwd",
    "secret",
    "authorization",
    "credential",
    "apikey",
    "api_key",
    "privatekey",
    "cookie",
];

/// The places where something was removed.
#[derive(Debug, Default)]
pub(super) struct Redacted(BTreeSet<String>);

impl Redacted {
    /// Each as `FILE: PATH`, in order.
    pub(super) fn places(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Removes all secrets from a part of that name.
    pub(super) fn from(&mut self, name: &str, value: &mut Value) {
        self.walk(name, "", value);
    }

    fn walk(&mut self, name: &str, path: &str, value: &mut Value) {
        match value {
            Value::Object(entries) => {
                for (key, value) in entries {
                    let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    if is_secret(key) && !value.is_null() {
                        self.note(name, &path);
                        *value = Value::from(REMOVED);
                    } else {
                        self.walk(name, &path, value);
                    }
                }
            }
            Value::Array(items) => {
                for item in items {
                    self.walk(name, &format!("{path}[]"), item);
                }
            }
            Value::String(text) => {
                if let Some(safe) = without_credentials(text) {
                    self.note(name, path);
                    *text = safe;
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn note(&mut self, name: &str, path: &str) {
        self.0.insert(format!("{name}: {path}"));
    }
}

fn is_secret(key: &str) -> bool {
    let key = key.to_lowercase();
    KEYS.contains(&key.as_str()) || WORDS.iter().any(|word| key.contains(word))
}

/// The text without what an address or a header authorises with; `None` if there is nothing of it.
fn without_credentials(text: &str) -> Option<String> {
    if text.to_lowercase().contains("bearer ") {
        return Some(REMOVED.to_owned());
    }
    let mut changed = false;
    let words: Vec<String> = text
        .split(' ')
        .map(|word| match word.split_once("://") {
            Some((scheme, rest)) => {
                let safe = address(rest);
                changed |= safe != rest;
                format!("{scheme}://{safe}")
            }
            None => word.to_owned(),
        })
        .collect();
    changed.then(|| words.join(" "))
}

/// An address behind its scheme, without user, password, query and fragment.
fn address(rest: &str) -> String {
    let end = rest.find(['?', '#']).unwrap_or(rest.len());
    let (address, tail) = rest.split_at(end);
    let (host, path) = match address.find('/') {
        Some(at) => address.split_at(at),
        None => (address, ""),
    };
    let host = match host.rsplit_once('@') {
        Some((_, host)) => format!("{REMOVED}@{host}"),
        None => host.to_owned(),
    };
    let tail = if tail.len() > 1 { format!("?{REMOVED}") } else { String::new() };
    format!("{host}{path}{tail}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_secret_goes_and_its_place_is_known() {
        let mut value = json!({
            "pods": [{"name": "web", "annotations": {"a": "hunter2"}, "env": [{"name": "A", "value": "hunter2"}]}],
            "sinks": [{"url": "https://me:hunter2@host:8443/hook/x?key=hunter2", "tokenFile": "/etc/hunter2"}],
            "header": "Bearer hunter2",
            "said": "asked https://host/path and got hunter",
            "clientSecret": null,
            "count": 3,
        });
        let mut removed = Redacted::default();
        removed.from("x.json", &mut value);
        let text = value.to_string();
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.contains("https://removed@host:8443/hook/x?removed"), "{text}");
        assert!(text.contains("asked https://host/path and got hunter"), "{text}");
        let places: Vec<_> = removed.places().collect();
        let expected = [
            "x.json: header",
            "x.json: pods[].annotations",
            "x.json: pods[].env",
            "x.json: sinks[].tokenFile",
            "x.json: sinks[].url",
        ];
        assert_eq!(places, expected);
    }
}
