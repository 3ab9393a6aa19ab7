//! Reads mappings within mappings.

use super::{Fields, Inner, describe};
use crate::yaml::{Node, Value};

impl Fields {
    /// A nested mapping with its own fields; `None` if it is not set.
    pub(in crate::config) fn inner_of(&mut self, inner: &mut Inner, name: &'static str) -> Option<Inner> {
        let node = inner.take(name)?;
        self.inner_from(inner, name, node)
    }

    /// A list of such mappings; empty if it is not set.
    pub(in crate::config) fn inners_of(&mut self, inner: &mut Inner, name: &'static str) -> Vec<Inner> {
        let Some(node) = inner.take(name) else { return Vec::new() };
        match node.value {
            Value::List(items) => items
                .into_iter()
                .enumerate()
                .filter_map(|(index, item)| self.inner_from(inner, &format!("{name}[{index}]"), item))
                .collect(),
            other => {
                let found = describe(&other);
                let field = format!("{}.{name}", inner.field);
                self.problem(&inner.file, node.line, &field, &format!("expected a list, found {found}"));
                Vec::new()
            }
        }
    }

    /// A boolean; `None` if it is not set.
    pub(in crate::config) fn inner_boolean(&mut self, inner: &mut Inner, name: &'static str) -> Option<bool> {
        let node = inner.take(name)?;
        match node.value {
            Value::Plain(text) if text == "true" || text == "false" => Some(text == "true"),
            other => {
                let found = describe(&other);
                let field = format!("{}.{name}", inner.field);
                self.problem(
                    &inner.file,
                    node.line,
                    &field,
                    &format!("expected true or false, found {found}"),
                );
                None
            }
        }
    }

    /// Reports a problem with the mapping, or with one of its fields in combination with others.
    pub(in crate::config) fn wrong_inner(&mut self, inner: &Inner, name: &str, message: &str) {
        let field = if name.is_empty() { inner.field.clone() } else { format!("{}.{name}", inner.field) };
        self.problem(&inner.file, inner.line, &field, message);
    }

    fn inner_from(&mut self, outer: &Inner, name: &str, node: Node) -> Option<Inner> {
        let field = format!("{}.{name}", outer.field);
        match node.value {
            Value::Map(entries) => Some(Inner::new(field, outer.file.clone(), node.line, entries)),
            other => {
                let found = describe(&other);
                self.problem(&outer.file, node.line, &field, &format!("expected a mapping, found {found}"));
                None
            }
        }
    }
}
