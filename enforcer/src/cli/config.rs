//! `enforcer config`: writes a first configuration, checks and prints one, that of files or that of the daemon.

mod init;
mod unit;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::anyhow;
use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::{Context, Failure, Files, client, completions, format, format::Output, render};
use crate::{
    config::{self, Effective, FIELDS, Ignored},
    daemon,
    serve::ConfigView,
};

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Write a commented configuration file that fits this machine, unless there is one
    Init {
        /// The file, instead of --config; - prints it
        file: Option<PathBuf>,
    },
    /// Check a configuration, whether it fits this machine, and whether it can evict
    Check {
        /// The file, instead of --config
        file: Option<PathBuf>,
    },
    /// Print the whole effective configuration, and where each value comes from;
    /// with --live the one that the daemon runs with
    Effective,
    /// Print the configuration's JSON Schema
    Schema,
}

pub(super) fn config(context: &Context, files: &Files, verb: Verb) -> Result<(), Failure> {
    let output = context.output;
    match verb {
        Verb::Init { file } => init::init(files, output, file.as_deref()),
        Verb::Check { file } => check(files, output, file.as_deref()),
        Verb::Effective if context.live => running(context, files),
        Verb::Effective => effective(context, files),
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
    let fitting = daemon::fits(&effective.config).map_err(Failure::usage)?;
    let mut notes = effective.config.unwatched();
    notes.extend(fitting);
    notes.extend(daemon::unbindable(&effective.config));
    notes.extend(unit::notes(&effective.config));
    // It may be a draft; only `run` refuses it.
    if !files.no_config
        && let Err(error) = Effective::load_trusted(own, files.kubelet_config.as_deref())
    {
        notes.push(format!("the daemon will not start with this: {}", crate::chain(&error)));
    }
    format::print(output, &json!({"ok": true, "notes": notes}), || {
        notes
            .iter()
            .map(|note| format!("note: {}\n", render::escape(note)))
            .chain([String::from("ok\n")])
            .collect::<Vec<_>>()
            .concat()
    })
}

fn effective(context: &Context, files: &Files) -> Result<(), Failure> {
    let Effective { config, origins: _, ignored } = files.effective()?;
    let (configuration, origins) = config.shown();
    let shown = Shown { configuration, origins, ignored, notes: config.unwatched() };
    shown.print(context)
}

/// What the daemon runs with.
fn running(context: &Context, files: &Files) -> Result<(), Failure> {
    let run_dir = files.for_asking()?.run_dir;
    let ConfigView { configuration, origins, .. } =
        client::block_on(client::get_json(&run_dir, "/v1/config"))?;
    let (ignored, notes) = (Vec::new(), Vec::new());
    Shown { configuration, origins, ignored, notes }.print(context)
}

/// How many columns a field's name and its value take before its place.
const BEFORE_PLACE: usize = 56;

/// A configuration to print.
struct Shown {
    configuration: Map<String, Value>,
    origins: BTreeMap<String, String>,
    ignored: Vec<Ignored>,
    notes: Vec<String>,
}

impl Shown {
    fn print(&self, context: &Context) -> Result<(), Failure> {
        if context.output == Output::Yaml {
            return completions::print(self.file()?.as_bytes());
        }
        let ignored: Vec<_> = self
            .ignored
            .iter()
            .map(|ignored| json!({"field": ignored.field, "at": ignored.origin.to_string()}))
            .collect();
        let document = json!({
            "configuration": self.configuration,
            "origins": self.origins,
            "ignored": ignored,
            "notes": self.notes,
        });
        format::print(context.output, &document, || self.table(context.columns))
    }

    fn origin(&self, field: &str) -> &str {
        self.origins.get(field).map_or("default", String::as_str)
    }

    /// The fields in the order of the table; those that only the daemon knows come last.
    fn fields(&self) -> impl Iterator<Item = (&String, &Value)> {
        let known = FIELDS.iter().filter_map(|field| self.configuration.get_key_value(field.name));
        let others =
            self.configuration.iter().filter(|(name, _)| FIELDS.iter().all(|field| field.name != *name));
        known.chain(others)
    }

    /// A configuration file that says the same, with where each value comes from above it.
    fn file(&self) -> Result<String, Failure> {
        let mut text = String::from("apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\n");
        for (name, value) in self.fields().filter(|(_, value)| !value.is_null()) {
            let entry: Map<String, Value> = [(name.clone(), value.clone())].into_iter().collect();
            text.push_str(&format!("# {}\n{}", render::escape(self.origin(name)), format::yaml(&entry)?));
        }
        Ok(text)
    }

    /// One line per value; the further lines of a value follow below.
    fn table(&self, columns: Option<usize>) -> String {
        let room = columns.map_or(usize::MAX, |columns| columns.saturating_sub(BEFORE_PLACE).max(24));
        let mut text = String::from("FIELD                             VALUE                 WHERE\n");
        for (name, value) in self.fields() {
            let place = render::shorten(self.origin(name), room);
            let values = lines(value);
            let mut values = values.iter().map(String::as_str);
            let first = values.next().unwrap_or("-");
            text.push_str(&format!("{:<33} {first:<21} {place}\n", render::escape(name)));
            for value in values {
                text.push_str(&format!("{:<33} {value}\n", ""));
            }
        }
        for ignored in &self.ignored {
            let field = render::shorten(&ignored.field, 40);
            text.push_str(&format!("ignored: {field} ({})\n", render::escape(&ignored.origin.to_string())));
        }
        for note in &self.notes {
            for line in render::wrap(&format!("note: {note}"), 80) {
                text.push_str(&line);
                text.push('\n');
            }
        }
        text
    }
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
