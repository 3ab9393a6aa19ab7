//! Takes the configuration apart field by field; collects all errors with file and line.

mod nested;

use std::collections::BTreeMap;

use super::{Error, Ignored, Origin, Problem, table};
use crate::{
    nearest::nearest,
    yaml::{Entry, Node, Size, Value, shown},
};

/// The fields of one or two files. Each field is taken once, and problems are collected.
#[derive(Default)]
pub(super) struct Fields {
    /// The later layer wins if both have a field.
    layers: Vec<Layer>,
    problems: Vec<Problem>,
    origins: BTreeMap<&'static str, Origin>,
    #[cfg(test)]
    pub(super) taken: Vec<String>,
}

struct Layer {
    file: String,
    /// Whether it is a kubelet's file, most of whose fields we do not use.
    kubelets: bool,
    entries: Vec<Entry>,
}

/// A field's value and its place.
struct Taken {
    file: String,
    line: u64,
    node: Node,
}

/// The places of fields that were taken, and the fields that were not.
pub(super) struct Provenance {
    pub(super) origins: BTreeMap<&'static str, Origin>,
    pub(super) ignored: Vec<Ignored>,
}

/// An entry of a mapping from names to strings.
pub(super) struct Pair {
    pub(super) key: String,
    pub(super) text: String,
    file: String,
    line: u64,
}

impl Pair {
    /// Its place.
    pub(super) fn origin(&self) -> Origin {
        Origin { file: self.file.clone(), line: self.line }
    }
}

impl Fields {
    /// Reads a document on top of earlier ones; it must have that version and kind.
    pub(super) fn read(
        &mut self,
        file: &str,
        text: &str,
        kubelets: bool,
        api_version: &str,
        kind: &str,
    ) -> Result<(), Error> {
        let root = Node::parse(text, 1, Size::File).map_err(|(line, message)| Error::Invalid {
            problems: vec![Problem { file: file.to_owned(), line, field: String::new(), message }],
        })?;
        let mut layer = Layer { file: file.to_owned(), kubelets, entries: Vec::new() };
        match root.value {
            Value::Map(entries) => layer.entries = entries,
            other => {
                self.problem(
                    file,
                    root.line.max(1),
                    "",
                    &format!("expected a mapping, found {}", describe(&other)),
                );
            }
        }
        for (name, expected) in [("apiVersion", api_version), ("kind", kind)] {
            match layer.take(name) {
                None => self.problem(file, 1, name, &format!("missing: write {name}: {expected}")),
                Some(Entry { node: Node { line, value }, .. }) => match value {
                    Value::Text(text) | Value::Plain(text) if text == expected => {}
                    Value::Text(text) | Value::Plain(text) => {
                        self.problem(
                            file,
                            line,
                            name,
                            &format!("{text:?} is not supported: write {expected}"),
                        );
                    }
                    other => {
                        let found = describe(&other);
                        self.problem(file, line, name, &format!("expected {expected}, found {found}"));
                    }
                },
            }
        }
        self.layers.push(layer);
        Ok(())
    }

    /// Returns all problems in the order of the files. A field that was not taken is unknown, or only the kubelet's.
    pub(super) fn finish(mut self) -> Result<Provenance, Vec<Problem>> {
        let mut ignored = Vec::new();
        for Layer { file, kubelets, entries } in std::mem::take(&mut self.layers) {
            for Entry { key, line, node: _ } in entries {
                if kubelets {
                    ignored.push(Ignored { field: key, origin: Origin { file: file.clone(), line } });
                } else {
                    let message = unknown(&key, table::FIELDS.iter().map(|field| field.name));
                    self.problem(&file, line, &key, &message);
                }
            }
        }
        if self.problems.is_empty() {
            return Ok(Provenance { origins: self.origins, ignored });
        }
        self.problems.sort_by(|left, right| (&left.file, left.line).cmp(&(&right.file, right.line)));
        Err(self.problems)
    }

    /// The place of a field that was taken from our own file, not a kubelet's.
    pub(super) fn own_origin(&self, field: &str) -> Option<Origin> {
        let is_kubelets = |file: &str| self.layers.iter().any(|layer| layer.kubelets && layer.file == file);
        self.origins.get(field).filter(|origin| !is_kubelets(&origin.file)).cloned()
    }

    /// Whether there are problems so far.
    pub(super) fn has_problems(&self) -> bool {
        !self.problems.is_empty()
    }

    /// A string or number, parsed by `parse`.
    pub(super) fn text<T>(
        &mut self,
        field: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let Taken { file, line: _, node } = self.take(field)?;
        self.scalar(&file, field, &node, parse)
    }

    /// The text of a field that only a kubelet's file has, and the table has not.
    pub(super) fn kubelets_alone(&mut self, field: &str) -> Option<String> {
        let mut layers = self.layers.iter_mut().rev().filter(|layer| layer.kubelets);
        let Entry { node, .. } = layers.find_map(|layer| layer.take(field))?;
        match node.value {
            Value::Text(text) | Value::Plain(text) => Some(text),
            Value::Null | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// One of the field's choices.
    pub(super) fn choice<T: Copy>(&mut self, field: &'static str, choices: &[(&str, T)]) -> Option<T> {
        self.text(field, |text| {
            choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(|| {
                let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
                format!("{text:?} is not one of {}", names.join(", "))
            })
        })
    }

    /// A whole number of at least `least`.
    pub(super) fn integer(&mut self, field: &'static str, least: i64) -> Option<i64> {
        self.text(field, |text| match text.parse::<i64>() {
            Ok(number) if number >= least => Ok(number),
            Ok(_) => Err(format!("{text} is too small: it must be {least} or more")),
            Err(_) => Err(format!("{text:?} is not a whole number of 64 bits")),
        })
    }

    pub(super) fn boolean(&mut self, field: &'static str) -> Option<bool> {
        let Taken { file, line: _, node } = self.take(field)?;
        match node.value {
            Value::Plain(text) if text == "true" || text == "false" => Some(text == "true"),
            other => {
                let found = describe(&other);
                self.problem(&file, node.line, field, &format!("expected true or false, found {found}"));
                None
            }
        }
    }

    /// A list of strings; `None` if it is not set.
    pub(super) fn list<T>(
        &mut self,
        field: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let Taken { file, line: _, node } = self.take(field)?;
        let Value::List(items) = node.value else {
            self.problem(
                &file,
                node.line,
                field,
                &format!("expected a list, found {}", describe(&node.value)),
            );
            return None;
        };
        let name = |index: usize| format!("{field}[{index}]");
        Some(
            items
                .iter()
                .enumerate()
                .filter_map(|(index, item)| self.scalar(&file, &name(index), item, &parse))
                .collect(),
        )
    }

    /// A mapping from names to strings; empty if it is not set.
    pub(super) fn mapping<T>(
        &mut self,
        field: &'static str,
        parse: impl Fn(&str, &str) -> Result<T, String>,
    ) -> Vec<(String, T)> {
        let pairs = self.pairs(field).unwrap_or_default();
        pairs
            .into_iter()
            .filter_map(|pair| match parse(&pair.key, &pair.text) {
                Ok(value) => Some((pair.key, value)),
                Err(message) => {
                    self.wrong_pair(field, &pair, &message);
                    None
                }
            })
            .collect()
    }

    /// The unparsed entries of a mapping from names to strings; `None` if it is not set.
    pub(super) fn pairs(&mut self, field: &'static str) -> Option<Vec<Pair>> {
        let Taken { file, line: _, node } = self.take(field)?;
        let entries = match node.value {
            Value::Map(entries) => entries,
            other => {
                let found = describe(&other);
                self.problem(&file, node.line, field, &format!("expected a mapping, found {found}"));
                return Some(Vec::new());
            }
        };
        let pairs = entries.into_iter().filter_map(|Entry { key, line: _, node }| {
            let text = self.scalar(&file, &format!("{field}.{key}"), &node, |text| Ok(text.to_owned()))?;
            Some(Pair { key, text, file: file.clone(), line: node.line })
        });
        Some(pairs.collect())
    }

    /// A mapping with its own fields; `None` if it is not set.
    pub(super) fn inner(&mut self, field: &'static str) -> Option<Inner> {
        let Taken { file, line, node } = self.take(field)?;
        match node.value {
            Value::Map(entries) => Some(Inner::new(field.to_owned(), file, line, entries)),
            other => {
                let found = describe(&other);
                self.problem(&file, line, field, &format!("expected a mapping, found {found}"));
                None
            }
        }
    }

    /// A string or number in a mapping, parsed by `parse`.
    pub(super) fn inner_text<T>(
        &mut self,
        inner: &mut Inner,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let node = inner.take(name)?;
        self.scalar(&inner.file, &format!("{}.{name}", inner.field), &node, parse)
    }

    /// A list of strings in a mapping.
    pub(super) fn inner_list<T>(
        &mut self,
        inner: &mut Inner,
        name: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let node = inner.take(name)?;
        let field = format!("{}.{name}", inner.field);
        let Value::List(items) = &node.value else {
            let found = describe(&node.value);
            self.problem(&inner.file, node.line, &field, &format!("expected a list, found {found}"));
            return None;
        };
        let one = |(index, item)| self.scalar(&inner.file, &format!("{field}[{index}]"), item, &parse);
        Some(items.iter().enumerate().filter_map(one).collect())
    }

    /// Reports all fields of a mapping that were not taken as unknown.
    pub(super) fn inner_end(&mut self, inner: Inner) {
        for Entry { key, line, node: _ } in inner.entries {
            let message = unknown(&key, inner.asked.iter().copied());
            self.problem(&inner.file, line, &format!("{}.{key}", inner.field), &message);
        }
    }

    /// Reports a problem with an entry.
    pub(super) fn wrong_pair(&mut self, field: &str, pair: &Pair, message: &str) {
        self.problem(&pair.file, pair.line, &format!("{field}.{}", pair.key), message);
    }

    /// Reports a problem with a field in combination with others; for a default, at the start of the last file.
    pub(super) fn wrong(&mut self, field: &str, message: &str) {
        let origin = self.origins.get(field).cloned();
        let file = self.layers.last().map(|layer| layer.file.clone()).unwrap_or_default();
        let Origin { file, line } = origin.unwrap_or(Origin { file, line: 1 });
        self.problem(&file, line, field, message);
    }

    fn take(&mut self, field: &'static str) -> Option<Taken> {
        let known = table::field(field);
        debug_assert!(known.is_some(), "{field} is not in the table");
        #[cfg(test)]
        self.taken.push(field.to_owned());
        let mut last = None;
        for layer in &mut self.layers {
            if layer.kubelets && !known.is_some_and(|known| known.kubelets) {
                continue;
            }
            // As in Kubernetes, a field without a value counts as absent.
            if let Some(Entry { line, node, .. }) = layer.take(field)
                && !matches!(node.value, Value::Null)
            {
                last = Some(Taken { file: layer.file.clone(), line, node });
            }
        }
        let taken = last?;
        self.origins.insert(field, Origin { file: taken.file.clone(), line: taken.line });
        Some(taken)
    }

    fn scalar<T>(
        &mut self,
        file: &str,
        field: &str,
        node: &Node,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let result = match &node.value {
            Value::Text(text) | Value::Plain(text) => parse(text),
            other => Err(format!("expected a string or number, found {}", describe(other))),
        };
        result.map_err(|message| self.problem(file, node.line, field, &message)).ok()
    }

    fn problem(&mut self, file: &str, line: u64, field: &str, message: &str) {
        let field = if field.is_empty() { String::new() } else { format!("{}: ", shown(field)) };
        let message = shown(message);
        self.problems.push(Problem { file: file.to_owned(), line, field, message });
    }
}

/// A mapping, from which fields are taken one by one.
pub(super) struct Inner {
    field: String,
    file: String,
    line: u64,
    /// The fields that were present.
    named: Vec<&'static str>,
    /// The fields that may be present.
    asked: Vec<&'static str>,
    entries: Vec<Entry>,
}

impl Inner {
    fn new(field: String, file: String, line: u64, entries: Vec<Entry>) -> Self {
        Self { field, file, line, named: Vec::new(), asked: Vec::new(), entries }
    }

    /// Whether it had that field.
    pub(super) fn has(&self, name: &str) -> bool {
        self.named.contains(&name)
    }

    fn take(&mut self, name: &'static str) -> Option<Node> {
        self.asked.push(name);
        let index = self.entries.iter().position(|entry| entry.key == name)?;
        let Entry { node, .. } = self.entries.remove(index);
        // As in Kubernetes, a field without a value counts as absent.
        let node = (!matches!(node.value, Value::Null)).then_some(node)?;
        self.named.push(name);
        Some(node)
    }
}

impl Layer {
    fn take(&mut self, field: &str) -> Option<Entry> {
        let index = self.entries.iter().position(|entry| entry.key == field)?;
        Some(self.entries.remove(index))
    }
}

fn unknown<'a>(key: &str, known: impl Iterator<Item = &'a str>) -> String {
    match nearest(key, known) {
        Some(near) => format!("unknown field: did you mean {near}?"),
        None => String::from("unknown field"),
    }
}

fn describe(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Text(_) | Value::Plain(_) => "a string or number",
        Value::List(_) => "a list",
        Value::Map(_) => "a mapping",
    }
}
