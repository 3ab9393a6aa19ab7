//! A YAML document as a tree with line numbers, which keeps every scalar as written.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::{
    MessageFormatter as _, NonFiniteFloatPolicy, Options, Spanned, UserMessageFormatter, alias_limits,
    budget, options,
};

/// One value of a document.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) line: u64,
    pub(crate) value: Value,
}

#[derive(Debug)]
pub(crate) enum Value {
    Null,
    /// A quoted or block scalar, or a plain one that is neither number, boolean nor null.
    Text(String),
    /// A plain number or boolean, as written.
    Plain(String),
    List(Vec<Node>),
    /// In the document's order.
    Map(Vec<Entry>),
}

/// One key of a map.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    /// The key's line; the value may be on another one.
    pub(crate) line: u64,
    pub(crate) node: Node,
}

/// How large a document may be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Size {
    /// A file that somebody wrote, or that the daemon reads.
    File,
    /// A list as the API server has it, of thousands of pods, read by a verb once.
    List,
}

impl Node {
    /// Parses one document; an error contains its line in the file.
    pub(crate) fn parse(text: &str, first_line: u64, size: Size) -> Result<Self, (u64, String)> {
        let in_file = |line: u64| first_line.saturating_add(line.saturating_sub(1));
        let parsed: Spanned<Raw> = serde_saphyr::from_str_with_options(text, bounded(text.len(), size))
            .map_err(|error| {
                let error = error.without_snippet();
                let line = error.location().map_or(1, |location| location.line());
                (in_file(line), shown(&UserMessageFormatter.format_message(error)))
            })?;
        Ok(Self::new(parsed, text, &in_file))
    }

    fn new(raw: Spanned<Raw>, text: &str, in_file: &impl Fn(u64) -> u64) -> Self {
        let line = in_file(raw.defined.line());
        let value = match raw.value {
            Raw::Null => Value::Null,
            Raw::Text(text) => Value::Text(text),
            Raw::Plain(shown) => Value::Plain(written(&raw.defined, text).map_or(shown, ToOwned::to_owned)),
            Raw::List(items) => {
                Value::List(items.into_iter().map(|item| Self::new(item, text, in_file)).collect())
            }
            Raw::Map(entries) => Value::Map(
                entries
                    .into_iter()
                    .map(|(key, item)| Entry {
                        line: in_file(key.referenced.line()),
                        key: key.value,
                        node: Self::new(item, text, in_file),
                    })
                    .collect(),
            ),
        };
        Self { line, value }
    }
}

/// A text with content of a file, prepared for messages: on one line, without terminal control characters, and at most
/// 400 characters.
pub(crate) fn shown(text: &str) -> String {
    const MOST_CHARS: usize = 400;
    let mut shown = String::new();
    for (index, char) in text.chars().enumerate() {
        if index == MOST_CHARS {
            shown.push('\u{2026}');
            break;
        }
        match char {
            '"' | '\'' | '\\' => shown.push(char),
            _ => shown.extend(char.escape_debug()),
        }
    }
    shown
}

/// The scalar at that location, as written.
fn written<'text>(location: &serde_saphyr::Location, text: &'text str) -> Option<&'text str> {
    let start = usize::try_from(location.span().byte_offset()?).ok()?;
    let len = usize::try_from(location.span().byte_len()?).ok()?;
    text.get(start..start.checked_add(len)?)
}

/// How much text aliases may repeat, in bytes: seven times the largest document of a file.
const MOST_REPEATED_BYTES: usize = 7 * (4 << 20);

/// Limits the cost of a file by its size: no deep nesting, no aliases that multiply. Text repeated by aliases counts
/// towards the scalars, and is limited by the document's own length: a file may contain many documents.
fn bounded(len_bytes: usize, size: Size) -> Options {
    let (nodes, events) = match size {
        Size::File => (200_000, 500_000),
        Size::List => (2_000_000, 5_000_000),
    };
    options! {
        budget: budget! {
            max_depth: 32,
            flow_nesting_limit: 32,
            max_documents: 1,
            max_nodes: nodes,
            max_events: events,
            max_aliases: 1_000,
            max_anchors: 1_000,
            max_merge_keys: 1_000,
            max_recorded_anchor_events: 100_000,
            max_total_scalar_bytes: len_bytes
                .saturating_add(len_bytes.saturating_mul(7).min(MOST_REPEATED_BYTES))
                .saturating_add(4_096),
        },
        alias_limits: alias_limits! {
            max_total_replayed_events: (len_bytes / 4).saturating_add(256).min(20_000),
            max_replay_stack_depth: 16,
        },
        // A number that is not finite stays text: the reader of the field reports it by name.
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        with_snippet: false,
    }
}

enum Raw {
    Null,
    Text(String),
    /// With an equivalent text; the written one is taken from the source.
    Plain(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_none<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Plain(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Plain(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Plain(value.to_string()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Raw, E> {
        Ok(Raw::Plain(value.to_string()))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Raw, E> {
        Ok(Raw::Plain(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Plain(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Raw, E> {
        Ok(Raw::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Raw::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(Raw::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_know_their_lines_and_scalars_their_text() {
        let node = Node::parse("mode: enforce\nlist:\n  - 1\n  - 0.50\n", 1, Size::File).unwrap();
        let Value::Map(entries) = node.value else { panic!("{node:?}") };
        let lines: Vec<_> = entries.iter().map(|entry| (entry.key.as_str(), entry.line)).collect();
        assert_eq!(lines, [("mode", 1), ("list", 2)]);
        let Value::List(items) = &entries[1].node.value else { panic!("{entries:?}") };
        assert!(
            matches!(&items[1], Node { line: 4, value: Value::Plain(text) } if text == "0.50"),
            "{items:?}"
        );
    }

    #[test]
    fn a_key_given_twice_is_an_error() {
        assert_eq!(Node::parse("a: 1\na: 2\n", 1, Size::File).unwrap_err().0, 2);
    }

    #[test]
    fn a_message_repeats_no_control_characters_and_not_everything() {
        let key = format!("\"\\e[2J{}\"", "x".repeat(900));
        let (line, message) = Node::parse(&format!("{key}: 1\n{key}: 2\n"), 1, Size::File).unwrap_err();
        assert_eq!(line, 2);
        assert!(message.contains("\\u{1b}[2Jxxx") && message.len() < 500, "{message:?}");
    }
}
