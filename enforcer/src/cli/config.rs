//! `enforcer config`: checks and prints the configuration, without a daemon.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::{Failure, Files, format, format::Output, render};
use crate::{
    config::{self, Effective, FIELDS},
    daemon,
};

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Check a configuration, and whether it fits this machine
    Check {
        /// The file, instead of --config
        file: Option<PathBuf>,
    },
    /// Print the whole effective configuration, and where each value comes from
    Effective,
    /// Print the configuration's JSON Schema
    Schema,
}

pub(super) fn config(files: &Files, output: Output, verb: Verb) -> Result<(), Failure> {
    match verb {
        Verb::Check { file } => check(files, output, file.as_deref()),
        Verb::Effective => effective(files, output),
        Verb::Schema => {
            let schema = config::schema();
            // A schema has no table.
            let output = if output == Output::Table { Output::Json } else { output };
            format::print(output, &schema, String::new)
        }
    }
}

fn check(files: &Files, output: Output, file: Option<&Path>) -> Result<(), Failure> {
    let own = file.or(files.config.as_deref());
    if file.is_some() && files.no_config {
        return Err(Failure::usage(anyhow!("--no-config leaves no file to check")));
    }
    let effective = if files.reads_none()? {
        Effective::parse(None, None)
    } else {
        Effective::load(own, files.kubelet_config.as_deref())
    }
    .map_err(|error| Failure::usage(error.into()))?;
    daemon::fits(&effective.config).map_err(Failure::usage)?;
    let mut notes = effective.config.unwatched();
    // It may be a draft; only `run` refuses it.
    if !files.no_config
        && let Err(error) = Effective::load_trusted(own, files.kubelet_config.as_deref())
    {
        notes.push(format!("the daemon will not start with this: {}", crate::chain(&error)));
    }
    format::print(output, &json!({"ok": true, "notes": notes}), || {
        notes
            .iter()
            .map(|note| format!("note: {note}\n"))
            .chain([String::from("ok\n")])
            .collect::<Vec<_>>()
            .concat()
    })
}

fn effective(files: &Files, output: Output) -> Result<(), Failure> {
    let effective = files.configured()?;
    let Effective { config, origins, ignored } = &effective;
    let mut values = Map::new();
    let mut places = Map::new();
    for field in FIELDS {
        let place = origins.get(field.name).map_or_else(|| String::from("default"), ToString::to_string);
        values.insert(field.name.to_owned(), (field.show)(config));
        places.insert(field.name.to_owned(), place.into());
    }
    let ignored: Vec<_> = ignored
        .iter()
        .map(|ignored| json!({"field": ignored.field, "at": ignored.origin.to_string()}))
        .collect();
    let document = json!({
        "configuration": values,
        "origins": places,
        "ignored": ignored,
        "notes": config.unwatched(),
    });
    format::print(output, &document, || table(&effective))
}

/// One line per value; the further lines of a value follow below.
fn table(effective: &Effective) -> String {
    let Effective { config, origins, ignored } = effective;
    let mut text = String::from("FIELD                             VALUE                 WHERE\n");
    for field in FIELDS {
        let place = origins.get(field.name).map_or_else(|| String::from("default"), ToString::to_string);
        let place = render::shorten(&place, 24);
        let values = lines(&(field.show)(config));
        let mut values = values.iter().map(String::as_str);
        let first = values.next().unwrap_or("-");
        text.push_str(&format!("{:<33} {first:<21} {place}\n", field.name));
        for value in values {
            text.push_str(&format!("{:<33} {value}\n", ""));
        }
    }
    for ignored in ignored {
        let field = render::shorten(&ignored.field, 40);
        text.push_str(&format!("ignored: {field} ({})\n", render::escape(&ignored.origin.to_string())));
    }
    for note in config.unwatched() {
        for line in render::wrap(&format!("note: {note}"), 80) {
            text.push_str(&line);
            text.push('\n');
        }
    }
    text
}

/// A value in lines for people: one for each entry of an object or list.
fn lines(value: &Value) -> Vec<String> {
    let plain = |value: &Value| match value {
        Value::String(text) => render::escape(text),
        other => other.to_string(),
    };
    match value {
        Value::Null => vec![String::from("-")],
        Value::Object(entries) if entries.is_empty() => vec![String::from("-")],
        Value::Object(entries) => {
            entries.iter().map(|(name, value)| format!("{name}: {}", plain(value))).collect()
        }
        Value::Array(items) if items.is_empty() => vec![String::from("-")],
        Value::Array(items) => items.iter().map(plain).collect(),
        other => vec![plain(other)],
    }
}
