//! `sinks`: where events are pushed to.

use std::{collections::BTreeSet, path::PathBuf};

use serde_json::{Map, Value, json};

use super::{
    Config,
    fields::{Fields, Inner},
    read::absolute,
    table::{Form, duration},
};
use crate::{
    journal::EventType,
    model::{ParseQuantityError, Quantity},
    policy::duration as durations,
    sink::{BatchSettings, JournaldSettings, KubernetesSettings, SinkSettings, Url, WebhookSettings},
};

/// The most webhooks; each has a thread.
const MOST_WEBHOOKS: usize = 8;

const DEFAULT_CONNECT_TIMEOUT_MS: u64 = 5_000;
const DEFAULT_TIMEOUT_MS: u64 = 10_000;

/// The form of `sinks`.
pub(super) const FORM: Form = Form::Object(&[
    ("journald", Form::Object(&[("enabled", Form::Boolean), ("socket", Form::Path), ("types", Form::Names)])),
    ("kubernetes", Form::Object(&[("enabled", Form::Boolean), ("dryRun", Form::Boolean)])),
    (
        "webhook",
        Form::Objects(&[
            ("name", Form::Text),
            ("url", Form::Text),
            ("types", Form::Names),
            ("secretFile", Form::Path),
            ("tokenFile", Form::Path),
            ("caFile", Form::Path),
            ("batch", Form::Object(&[("maxEvents", Form::Integer(1)), ("maxBytes", Form::Quantity)])),
            ("connectTimeout", Form::Duration),
            ("timeout", Form::Duration),
            ("handshake", Form::Boolean),
        ]),
    ),
]);

/// Reads the field.
pub(super) fn read(fields: &mut Fields) -> SinkSettings {
    let mut settings = SinkSettings::default();
    let Some(mut inner) = fields.inner("sinks") else { return settings };
    if let Some(inner) = fields.inner_of(&mut inner, "journald") {
        settings.journald = journald(fields, inner);
    }
    if let Some(mut inner) = fields.inner_of(&mut inner, "kubernetes") {
        settings.kubernetes = KubernetesSettings {
            enabled: fields.inner_boolean(&mut inner, "enabled").unwrap_or(false),
            dry_run: fields.inner_boolean(&mut inner, "dryRun").unwrap_or(false),
        };
        fields.inner_end(inner);
    }
    let webhooks = fields.inners_of(&mut inner, "webhook");
    fields.inner_end(inner);
    let mut names = BTreeSet::new();
    for (index, inner) in webhooks.into_iter().enumerate() {
        if index == MOST_WEBHOOKS {
            fields.wrong_inner(&inner, "", &format!("there may be {MOST_WEBHOOKS} webhooks at most"));
            break;
        }
        settings.webhooks.extend(webhook(fields, inner, &mut names));
    }
    settings
}

fn journald(fields: &mut Fields, mut inner: Inner) -> JournaldSettings {
    let default = JournaldSettings::default();
    let settings = JournaldSettings {
        enabled: fields.inner_boolean(&mut inner, "enabled").unwrap_or(default.enabled),
        socket: fields.inner_text(&mut inner, "socket", socket).unwrap_or(default.socket),
        types: fields.inner_list(&mut inner, "types", event_type).unwrap_or_default(),
    };
    fields.inner_end(inner);
    settings
}

fn webhook(fields: &mut Fields, mut inner: Inner, names: &mut BTreeSet<String>) -> Option<WebhookSettings> {
    let name = fields.inner_text(&mut inner, "name", name);
    let url = fields.inner_text(&mut inner, "url", url);
    let types = fields.inner_list(&mut inner, "types", event_type).unwrap_or_default();
    let secret_file = fields.inner_text(&mut inner, "secretFile", absolute);
    let token_file = fields.inner_text(&mut inner, "tokenFile", absolute);
    let ca_file = fields.inner_text(&mut inner, "caFile", absolute);
    let batch = fields.inner_of(&mut inner, "batch").map(|inner| batch(fields, inner));
    let connect_timeout_ms = fields
        .inner_text(&mut inner, "connectTimeout", |text| timeout_ms(text, 60_000, "10ms to 1m"))
        .unwrap_or(DEFAULT_CONNECT_TIMEOUT_MS);
    let timeout_ms = fields
        .inner_text(&mut inner, "timeout", |text| timeout_ms(text, 600_000, "10ms to 10m"))
        .unwrap_or(DEFAULT_TIMEOUT_MS);
    let handshake = fields.inner_boolean(&mut inner, "handshake").unwrap_or(false);
    for (field, example) in [("name", "pager"), ("url", "https://events.example.com/enforcer")] {
        if !inner.has(field) {
            fields.wrong_inner(&inner, field, &format!("missing: write such as {field}: {example}"));
        }
    }
    if let Some(name) = &name
        && !names.insert(name.clone())
    {
        fields.wrong_inner(&inner, "name", &format!("{name:?} is another webhook's name"));
    }
    if let Some(url) = &url {
        if token_file.is_some() && url.is_readable() {
            fields.wrong_inner(
                &inner,
                "tokenFile",
                "could be read in transit: the url must begin with https://",
            );
        }
        if ca_file.is_some() && !url.is_tls() {
            fields.wrong_inner(&inner, "caFile", "has no use: the url does not begin with https://");
        }
    }
    fields.inner_end(inner);
    Some(WebhookSettings {
        name: name?,
        url: url?,
        types,
        secret_file,
        token_file,
        ca_file,
        batch,
        connect_timeout_ms,
        timeout_ms,
        handshake,
    })
}

fn batch(fields: &mut Fields, mut inner: Inner) -> BatchSettings {
    let default = BatchSettings::default();
    let max_events = fields.inner_text(&mut inner, "maxEvents", |text| {
        text.parse()
            .ok()
            .filter(|events| (1..=256).contains(events))
            .ok_or_else(|| format!("{text:?} is not a number of events: write 1 to 256"))
    });
    let max_bytes = fields.inner_text(&mut inner, "maxBytes", |text| {
        let quantity: Quantity = text.parse().map_err(|error: ParseQuantityError| error.to_string())?;
        usize::try_from(quantity.value_ceil())
            .ok()
            .filter(|bytes| (1 << 10..=4 << 20).contains(bytes))
            .ok_or_else(|| format!("{text:?} is not a size of a batch: write 1Ki to 4Mi"))
    });
    fields.inner_end(inner);
    BatchSettings {
        max_events: max_events.unwrap_or(default.max_events),
        max_bytes: max_bytes.unwrap_or(default.max_bytes),
    }
}

fn event_type(text: &str) -> Result<EventType, String> {
    EventType::parse(text)
        .ok_or_else(|| format!("{text:?} is not a type of event: write such as oom.incident"))
}

/// A webhook's name, which is also the name of its cursor's file.
fn name(text: &str) -> Result<String, String> {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = (1..=40).contains(&text.len())
        && text.bytes().all(|byte| is_inner(byte) || byte == b'-')
        && text.bytes().next().is_some_and(is_inner)
        && text.bytes().last().is_some_and(is_inner);
    if is_label {
        Ok(text.to_owned())
    } else {
        Err(format!("{text:?} is not a name: write up to 40 of a-z, 0-9 and - between them"))
    }
}

fn url(text: &str) -> Result<Url, String> {
    // The error does not quote the text, which may contain a password.
    text.parse().map_err(|error: crate::sink::InvalidUrl| error.to_string())
}

/// The path of a unix socket, whose length the kernel limits.
fn socket(text: &str) -> Result<PathBuf, String> {
    if text.len() > 107 { Err(String::from("is longer than a socket's path may be")) } else { absolute(text) }
}

fn timeout_ms(text: &str, most_ms: u64, range: &str) -> Result<u64, String> {
    let timeout = durations::parse(text).map_err(|error| error.to_string())?;
    u64::try_from(timeout.as_millis())
        .ok()
        .filter(|ms| (10..=most_ms).contains(ms))
        .ok_or_else(|| format!("{text:?} is not a timeout: write {range}, such as 5s"))
}

/// The field as written in a file; null at its default. Secrets have their own files, but for the path of a url.
pub(super) fn show(config: &Config) -> Value {
    shown(config, Url::to_string)
}

/// The same for who may not read the file.
pub(super) fn show_to_others(config: &Config) -> Value {
    shown(config, Url::without_path)
}

fn shown(config: &Config, url: fn(&Url) -> String) -> Value {
    let SinkSettings { journald, kubernetes, webhooks } = &config.sinks;
    let mut shown = Map::new();
    if *journald != JournaldSettings::default() {
        let JournaldSettings { enabled, socket, types } = journald;
        let mut object = json!({"enabled": enabled, "socket": socket});
        show_types(&mut object, types);
        shown.insert(String::from("journald"), object);
    }
    if *kubernetes != KubernetesSettings::default() {
        let KubernetesSettings { enabled, dry_run } = kubernetes;
        shown.insert(String::from("kubernetes"), json!({"enabled": enabled, "dryRun": dry_run}));
    }
    if !webhooks.is_empty() {
        shown.insert(
            String::from("webhook"),
            webhooks.iter().map(|webhook| show_webhook(webhook, url)).collect(),
        );
    }
    if shown.is_empty() { Value::Null } else { Value::Object(shown) }
}

fn show_webhook(webhook: &WebhookSettings, shown_url: fn(&Url) -> String) -> Value {
    let WebhookSettings {
        name,
        url,
        types,
        secret_file,
        token_file,
        ca_file,
        batch,
        connect_timeout_ms,
        timeout_ms,
        handshake,
    } = webhook;
    let shown = |ms: &u64| duration(ms.saturating_mul(1_000));
    let mut object = json!({
        "name": name,
        "url": shown_url(url),
        "connectTimeout": shown(connect_timeout_ms),
        "timeout": shown(timeout_ms),
        "handshake": handshake,
    });
    for (key, path) in [("secretFile", secret_file), ("tokenFile", token_file), ("caFile", ca_file)] {
        if let Some(path) = path {
            object[key] = json!(path);
        }
    }
    if let Some(BatchSettings { max_events, max_bytes }) = batch {
        object["batch"] = json!({"maxEvents": max_events, "maxBytes": max_bytes});
    }
    show_types(&mut object, types);
    object
}

fn show_types(object: &mut Value, types: &[EventType]) {
    if !types.is_empty() {
        object["types"] = types.iter().map(|kind| kind.short()).collect();
    }
}

#[cfg(test)]
mod tests;
