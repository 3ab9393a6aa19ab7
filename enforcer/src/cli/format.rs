//! What a verb prints, in the format that was asked for.

use std::io::{self, Write as _};

use anyhow::{Context as _, anyhow};
use clap::ValueEnum;
use serde::Serialize;

use super::Failure;

/// How a verb prints.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(super) enum Output {
    /// For people
    Table,
    /// JSON, indented
    Json,
    /// YAML
    Yaml,
    /// One JSON document a line
    Jsonl,
}

/// Prints a document; `table` makes the lines that people read.
pub(super) fn print<T: Serialize>(
    output: Output,
    document: &T,
    table: impl FnOnce() -> String,
) -> Result<(), Failure> {
    let text = match output {
        Output::Table => table(),
        Output::Json => serde_json::to_string_pretty(document).context("cannot write JSON")? + "\n",
        Output::Jsonl => serde_json::to_string(document).context("cannot write JSON")? + "\n",
        Output::Yaml => yaml(document)?,
    };
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::printing)
}

/// The document as YAML, with its line's end.
pub(super) fn yaml<T: Serialize>(document: &T) -> anyhow::Result<String> {
    let text = serde_saphyr::to_string(document).map_err(|error| anyhow!("cannot write YAML: {error}"))?;
    Ok(if text.ends_with('\n') { text } else { text + "\n" })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::yaml;

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
