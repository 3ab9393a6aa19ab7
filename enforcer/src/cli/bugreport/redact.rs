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
    let safe: String = text
        .split_inclusive(char::is_whitespace)
        .map(|word| {
            let (word, space) = word.split_at(word.trim_end().len());
            safe_word(word) + space
        })
        .collect();
    (safe != text).then_some(safe)
}

/// What may stand between two addresses in the same word.
const BETWEEN: [char; 9] = [',', ';', '|', '(', '<', '[', '{', '"', '\''];

/// A word whose addresses have no secret. If it cannot be told where one ends, nothing of the word stays.
fn safe_word(word: &str) -> String {
    let mut begins = Vec::new();
    for (at, _) in word.match_indices("://") {
        let before = word.get(..at).unwrap_or_default();
        let begin = before.trim_end_matches(|c: char| c.is_ascii_alphanumeric() || "+-.".contains(c)).len();
        let (above, scheme) = before.split_at(begin);
        let is_known = matches!(scheme, "http" | "https" | "unix" | "file") && above.ends_with(BETWEEN);
        if !begins.is_empty() && !is_known {
            return REMOVED.to_owned();
        }
        begins.push(begin);
    }
    let ends = begins.iter().skip(1).copied().chain([word.len()]);
    let first = word.get(..begins.first().copied().unwrap_or(word.len())).unwrap_or_default().to_owned();
    begins
        .iter()
        .zip(ends)
        .fold(first, |safe, (begin, end)| safe + &address(word.get(*begin..end).unwrap_or_default()))
}

/// An address without user, password, path, query and fragment: the path of a webhook may be a secret. That of a socket or a
/// file is none.
fn address(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    if matches!(scheme, "unix" | "file") {
        return text.to_owned();
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (host, tail) = rest.split_at(end);
    // A password with such a character in it is not taken for a host.
    if tail.contains('@') {
        return format!("{scheme}://{REMOVED}");
    }
    let host = match host.rsplit_once('@') {
        Some((_, host)) => format!("{REMOVED}@{host}"),
        None => host.to_owned(),
    };
    let tail = if tail.len() > 1 { format!("/{REMOVED}") } else { tail.to_owned() };
    format!("{scheme}://{host}{tail}")
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
            "said": "asked https://host/ and got hunter",
            "clientSecret": null,
            "count": 3,
        });
        let mut removed = Redacted::default();
        removed.from("x.json", &mut value);
        let text = value.to_string();
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.contains("https://removed@host:8443/removed"), "{text}");
        assert!(text.contains("asked https://host/ and got hunter"), "{text}");
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

    #[test]
    fn no_address_keeps_a_secret_however_they_stand_together() {
        for (text, safe) in [
            ("http://a:b@x,http://c:d@y", "http://removed@x,http://removed@y"),
            ("http://a:b,c@x;https://y/T0/B0/SECRET", "http://removed@x;https://y/removed"),
            ("(https://hooks.example/services/T0/B0/SECRET)", "(https://hooks.example/removed"),
            ("http://x?key=SECRET\nhttp://y#SECRET", "http://x/removed\nhttp://y/removed"),
            ("http://a:b/SECRET@x", "http://removed"),
            // Where the first one ends is not known.
            ("at http://a:SECREThttp://c:d@y now", "at removed now"),
            ("http://a:SECRET+http://c:d@y", "removed"),
        ] {
            assert_eq!(without_credentials(text).as_deref(), Some(safe), "{text}");
        }
        for text in ["no address", "unix:///run/containerd/containerd.sock", "https://host:6443/", "a@b /c?d"]
        {
            assert_eq!(without_credentials(text), None, "{text}");
        }
    }
}
