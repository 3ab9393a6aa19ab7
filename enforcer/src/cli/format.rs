//! Prints a verb's output in the requested format.

use std::{
    borrow::Cow,
    io::{self, IsTerminal as _, Write as _},
};

use anyhow::{Context as _, anyhow};
use clap::ValueEnum;
use serde::Serialize;

use super::Failure;
use crate::render;

/// The output format of a verb.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(super) enum Output {
    /// For people
    #[value(alias = "text")]
    Table,
    /// The same with everything that does not fit 80 columns
    Wide,
    /// JSON, indented
    Json,
    /// YAML
    Yaml,
    /// One JSON document per line
    Jsonl,
    /// A page that stands alone; of `report`, whose help names it
    #[value(hide = true)]
    Html,
}

impl Output {
    /// Whether it is for people.
    pub(super) fn is_table(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }
}

/// The failure of a verb that has no page.
pub(super) fn no_html() -> Failure {
    Failure::usage(anyhow!("-o html is a format of `enforcer report` alone"))
}

/// Prints a text that is made already.
pub(super) fn print_text(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::printing)
}

/// Prints a document; `table` makes the lines for people.
pub(super) fn print<T: Serialize>(
    output: Output,
    document: &T,
    table: impl FnOnce() -> String,
) -> Result<(), Failure> {
    let json = |written: serde_json::Result<String>| -> anyhow::Result<String> {
        Ok(shown(&written.context("cannot write JSON")?, is_on_terminal()).into_owned() + "\n")
    };
    let text = match output {
        Output::Table | Output::Wide => table(),
        Output::Json => json(serde_json::to_string_pretty(document))?,
        Output::Jsonl => json(serde_json::to_string(document))?,
        Output::Yaml => yaml(document)?,
        Output::Html => return Err(no_html()),
    };
    print_text(&text)
}

/// A list as one document.
#[derive(Debug, Serialize)]
struct List<'a, T> {
    items: &'a [T],
}

/// Prints a list: one document, or a line for each item.
pub(super) fn print_list<T: Serialize>(
    output: Output,
    items: &[T],
    table: impl FnOnce() -> String,
) -> Result<(), Failure> {
    match output {
        Output::Jsonl => items.iter().try_for_each(|item| print(output, item, String::new)),
        Output::Table | Output::Wide | Output::Json | Output::Yaml | Output::Html => {
            print(output, &List { items }, table)
        }
    }
}

/// Refuses to print one after the other in a format that is one document.
pub(super) fn no_document(output: Output, what: &str) -> Result<(), Failure> {
    match output {
        Output::Table | Output::Wide | Output::Jsonl => Ok(()),
        Output::Json | Output::Yaml => {
            Err(Failure::usage(anyhow!("{what} cannot be one document: use -o jsonl")))
        }
        Output::Html => Err(no_html()),
    }
}

/// Whether stdout is a terminal.
pub(super) fn is_on_terminal() -> bool {
    io::stdout().is_terminal()
}

/// JSON for output: unchanged for a program; on a terminal, control and invisible characters are escaped.
pub(super) fn shown(json: &str, is_on_terminal: bool) -> Cow<'_, str> {
    if is_on_terminal { render::escape_json(json) } else { Cow::Borrowed(json) }
}

/// The document as YAML, with a final line feed.
pub(super) fn yaml<T: Serialize>(document: &T) -> anyhow::Result<String> {
    yaml_for(document, is_on_terminal())
}

/// On a terminal, a document with control or invisible characters is written as JSON, which is YAML too: YAML's plain
/// scalars have no escapes.
fn yaml_for<T: Serialize>(document: &T, is_on_terminal: bool) -> anyhow::Result<String> {
    let text = serde_saphyr::to_string(document).map_err(|error| anyhow!("cannot write YAML: {error}"))?;
    if is_on_terminal && matches!(render::escape_yaml(&text), Cow::Owned(_)) {
        let json = serde_json::to_string_pretty(document).context("cannot write YAML")?;
        return Ok(render::escape_yaml(&json).into_owned() + "\n");
    }
    Ok(if text.ends_with('\n') { text } else { text + "\n" })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{shown, yaml, yaml_for};

    /// C1 controls, a change of direction, and what is not seen: alone and as a pair of surrogates.
    const HOSTILE: &str = "a\u{9b}2J\u{7f}\u{202e}b\u{200b}\u{e0041}é";

    #[test]
    fn a_terminal_gets_nothing_that_it_obeys_or_hides_and_a_program_the_same_document() {
        let document = json!({"name": HOSTILE, HOSTILE: [1]});
        for json in [document.to_string(), serde_json::to_string_pretty(&document).unwrap()] {
            assert_eq!(shown(&json, false), json);
            let safe = shown(&json, true);
            assert!(safe.contains("\\u009b2J\\u007f\\u202eb\\u200b\\udb40\\udc41é"), "{safe}");
            assert_eq!(serde_json::from_str::<Value>(&safe).unwrap(), document);
        }
        let safe = yaml_for(&document, true).unwrap();
        assert!(
            safe.contains("\\U0000202e") && !safe.contains(['\u{9b}', '\u{202e}', '\u{200b}']),
            "{safe:?}"
        );
        assert_eq!(serde_saphyr::from_str::<Value>(&safe).unwrap(), document);
        assert_eq!(yaml_for(&json!({"a": "é"}), true).unwrap(), "a: é\n");
    }

    #[test]
    fn what_is_text_stays_text_in_yaml() {
        let values = [
            "4",
            "max",
            "1e3",
            "true",
            "null",
            "~",
            "20000 100000",
            "0x10",
            "a: b",
            "- a",
            "#",
            "",
            "\u{1b}[2J\n",
            "é",
        ];
        let document = json!({"files": values, "number": 4, "none": null});
        let text = yaml(&document).unwrap();
        let read: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(read, document, "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}
