//! Walks a document, with the path of each field and a report of all that is wrong.

use super::error::{ManifestError, Origin, Problem, Warning};
use crate::yaml::{Node, Value, shown};

/// How many warnings of a file are kept: a list of thousands of pods may have the same one for each.
const MOST_WARNINGS: usize = 20;

/// A value and its path in the document.
#[derive(Clone, Debug)]
pub(super) struct Place<'doc> {
    node: &'doc Node,
    path: String,
}

/// Shows that an error was reported already.
#[derive(Debug)]
pub(super) struct Reported;

impl<'doc> Place<'doc> {
    pub(super) fn root(node: &'doc Node) -> Self {
        Self { node, path: String::new() }
    }

    pub(super) fn line(&self) -> u64 {
        self.node.line
    }

    pub(super) fn node(&self) -> &'doc Node {
        self.node
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// The same value, at the path of a key below this one.
    pub(super) fn named(&self, key: &str) -> Self {
        Self { node: self.node, path: self.below(key) }
    }

    /// The same value, at the path of an item of this one.
    pub(super) fn numbered(&self, index: usize) -> Self {
        Self { node: self.node, path: format!("{}[{index}]", self.path) }
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(self.node.value, Value::Null)
    }

    /// The number or text as written; `None` if it is neither.
    pub(super) fn written(&self) -> Option<&'doc str> {
        match &self.node.value {
            Value::Text(text) | Value::Plain(text) => Some(text),
            Value::Null | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// The entries of a map, null ones too; empty for anything else.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'doc str, Self)> {
        let entries = match &self.node.value {
            Value::Map(entries) => entries.as_slice(),
            Value::Null | Value::Text(_) | Value::Plain(_) | Value::List(_) => &[],
        };
        entries
            .iter()
            .map(|entry| (entry.key.as_str(), Self { node: &entry.node, path: self.below(&entry.key) }))
    }

    /// The items of a list; none for anything else.
    pub(super) fn items(&self) -> impl Iterator<Item = Self> {
        let items = match &self.node.value {
            Value::List(items) => items.as_slice(),
            Value::Null | Value::Text(_) | Value::Plain(_) | Value::Map(_) => &[],
        };
        items.iter().enumerate().map(|(index, node)| Self { node, path: format!("{}[{index}]", self.path) })
    }

    /// The value of a key; a null counts as missing.
    pub(super) fn get(&self, key: &str) -> Option<Self> {
        match &self.node.value {
            Value::Map(entries) => entries
                .iter()
                .find(|entry| entry.key == key && !matches!(entry.node.value, Value::Null))
                .map(|entry| Self { node: &entry.node, path: self.below(key) }),
            Value::Null | Value::Text(_) | Value::Plain(_) | Value::List(_) => None,
        }
    }

    fn below(&self, key: &str) -> String {
        let plain = !key.is_empty()
            && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        match (plain, self.path.is_empty()) {
            (true, true) => shown(key),
            (true, false) => format!("{}.{}", self.path, shown(key)),
            (false, _) => format!("{}[{}]", self.path, shown(key)),
        }
    }
}

/// Everything that is wrong with a file.
pub(super) struct Report<'source> {
    source: &'source str,
    errors: Vec<ManifestError>,
    warnings: Vec<Warning>,
    /// The line of the first warning that is not kept, and how many there are.
    further: Option<(u64, usize)>,
}

impl<'source> Report<'source> {
    pub(super) fn new(source: &'source str) -> Self {
        Self { source, errors: Vec::new(), warnings: Vec::new(), further: None }
    }

    /// What is wrong, and what is odd.
    pub(super) fn finish(mut self) -> (Vec<ManifestError>, Vec<Warning>) {
        if let Some((line, count)) = self.further {
            let origin = self.origin(line);
            self.warnings.push(Warning::FurtherFields { origin, count });
        }
        (self.errors, self.warnings)
    }

    pub(super) fn count(&self) -> usize {
        self.errors.len()
    }

    pub(super) fn origin(&self, line: u64) -> Origin {
        Origin { source: self.source.to_owned(), line }
    }

    pub(super) fn fail(&mut self, line: u64, field: &str, problem: Problem) {
        let origin = self.origin(line);
        self.errors.push(if field.is_empty() {
            ManifestError::Document { origin, problem }
        } else {
            ManifestError::Field { origin, field: field.to_owned(), problem }
        });
    }

    /// Warns of a field that its object does not have; the path is asked for if it is kept.
    pub(super) fn unknown_field(
        &mut self,
        line: u64,
        near: Option<&'static str>,
        path: impl FnOnce() -> String,
    ) {
        if self.warnings.len() < MOST_WARNINGS {
            let origin = self.origin(line);
            self.warnings.push(Warning::UnknownField { origin, field: path(), near });
        } else {
            let (line, count) = self.further.unwrap_or((line, 0));
            self.further = Some((line, count + 1));
        }
    }

    /// Warns of an object whose kind is nearly that of one that pods are made of.
    pub(super) fn unknown_kind(&mut self, place: &Place<'_>, kind: &str, near: &'static str) {
        if self.warnings.len() < MOST_WARNINGS {
            let origin = self.origin(place.get("kind").map_or(place.line(), |value| value.line()));
            self.warnings.push(Warning::UnknownKind { origin, kind: shown(kind), near });
        }
    }

    pub(super) fn fail_here(&mut self, place: &Place<'_>, problem: Problem) -> Reported {
        self.fail(place.line(), &place.path, problem);
        Reported
    }

    /// Reports a problem of a key, at its value's line if it has one.
    pub(super) fn fail_at(&mut self, place: &Place<'_>, key: &str, problem: Problem) -> Reported {
        let line = place.get(key).map_or(place.line(), |value| value.line());
        self.fail(line, &place.below(key), problem);
        Reported
    }

    pub(super) fn missing(&mut self, place: &Place<'_>, key: &str) -> Reported {
        self.fail_at(place, key, Problem::Missing)
    }

    pub(super) fn is_map(&mut self, place: &Place<'_>) -> bool {
        let is_map = matches!(place.node.value, Value::Map(_));
        if !is_map {
            self.fail_here(place, Problem::Type { expected: "a mapping" });
        }
        is_map
    }

    /// A mapping, if there is one.
    pub(super) fn map<'doc>(&mut self, place: &Place<'doc>, key: &str) -> Option<Place<'doc>> {
        place.get(key).filter(|value| self.is_map(value))
    }

    /// The items of a list; empty if there is no list.
    pub(super) fn list<'doc>(&mut self, place: &Place<'doc>, key: &str) -> Vec<Place<'doc>> {
        let Some(list) = place.get(key) else { return Vec::new() };
        if let Value::List(_) = &list.node.value {
            list.items().collect()
        } else {
            self.fail_here(&list, Problem::Type { expected: "a list" });
            Vec::new()
        }
    }

    /// A text; a plain number or boolean is not one, as for the API server.
    pub(super) fn optional_text<'doc>(
        &mut self,
        place: &Place<'doc>,
        key: &str,
    ) -> Result<Option<&'doc str>, Reported> {
        place.get(key).map(|value| self.text(&value)).transpose()
    }

    pub(super) fn text<'doc>(&mut self, place: &Place<'doc>) -> Result<&'doc str, Reported> {
        match &place.node.value {
            Value::Text(text) => Ok(text),
            Value::Plain(_) => {
                Err(self.fail_here(place, Problem::Type { expected: "a text: put it in quotes" }))
            }
            Value::Null | Value::List(_) | Value::Map(_) => {
                Err(self.fail_here(place, Problem::Type { expected: "a text" }))
            }
        }
    }

    /// A whole number, unquoted; `expected` describes the allowed ones.
    pub(super) fn optional_integer<T: std::str::FromStr>(
        &mut self,
        place: &Place<'_>,
        key: &str,
        expected: &'static str,
    ) -> Option<T> {
        let value = place.get(key)?;
        let number = match &value.node.value {
            Value::Plain(written) => written.parse().ok(),
            Value::Null | Value::Text(_) | Value::List(_) | Value::Map(_) => None,
        };
        if number.is_none() {
            self.fail_here(&value, Problem::Type { expected });
        }
        number
    }
}
