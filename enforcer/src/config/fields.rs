use super::{Entry, Node, Problem, Value, shown};

/// The fields of the document: each is taken once, and what was wrong is collected.
pub(super) struct Fields {
    file: String,
    entries: Vec<Entry>,
    problems: Vec<Problem>,
}

impl Fields {
    pub(super) fn new(file: &str, root: Node) -> Self {
        let mut fields = Self { file: file.to_owned(), entries: Vec::new(), problems: Vec::new() };
        match root.value {
            Value::Map(entries) => fields.entries = entries,
            other => fields.problem(
                root.line.max(1),
                "",
                &format!("expected a mapping, found {}", describe(&other)),
            ),
        }
        fields
    }

    /// Everything that was wrong, in the file's order; a field that nobody took is unknown.
    pub(super) fn finish(mut self) -> Vec<Problem> {
        for Entry { key, line, node: _ } in std::mem::take(&mut self.entries) {
            self.problem(line, &key, "unknown field");
        }
        self.problems.sort_by_key(|problem| problem.line);
        self.problems
    }

    pub(super) fn has(&self, field: &str) -> bool {
        self.entries.iter().any(|entry| entry.key == field)
    }

    pub(super) fn missing(&mut self, field: &str, expected: &str) {
        // A field that was there and wrong has its problem already.
        if !self.problems.iter().any(|problem| problem.field == format!("{field}: ")) {
            self.problem(1, field, &format!("missing: write {field}: {expected}"));
        }
    }

    /// A string or number, read by `parse`.
    pub(super) fn text<T>(
        &mut self,
        field: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let node = self.take(field)?;
        self.scalar(field, &node, parse)
    }

    /// One of some words.
    pub(super) fn choice<T: Copy>(&mut self, field: &str, choices: &[(&str, T)]) -> Option<T> {
        self.text(field, |text| {
            choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(|| {
                let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
                format!("{text:?} is not one of {}", names.join(", "))
            })
        })
    }

    pub(super) fn boolean(&mut self, field: &str) -> Option<bool> {
        let node = self.take(field)?;
        match node.value {
            Value::Plain(text) if text == "true" || text == "false" => Some(text == "true"),
            other => {
                self.problem(
                    node.line,
                    field,
                    &format!("expected true or false, found {}", describe(&other)),
                );
                None
            }
        }
    }

    /// A list of strings; none where it is not given.
    pub(super) fn list<T>(
        &mut self,
        field: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let node = self.take(field)?;
        let Value::List(items) = node.value else {
            self.problem(node.line, field, &format!("expected a list, found {}", describe(&node.value)));
            return None;
        };
        let name = |index: usize| format!("{field}[{index}]");
        Some(
            items
                .iter()
                .enumerate()
                .filter_map(|(index, item)| self.scalar(&name(index), item, &parse))
                .collect(),
        )
    }

    /// A mapping from names to strings; empty where it is not given.
    pub(super) fn mapping<T>(
        &mut self,
        field: &str,
        parse: impl Fn(&str, &str) -> Result<T, String>,
    ) -> Vec<(String, T)> {
        let Some(node) = self.take(field) else { return Vec::new() };
        let entries = match node.value {
            Value::Map(entries) => entries,
            Value::Null => return Vec::new(),
            other => {
                self.problem(node.line, field, &format!("expected a mapping, found {}", describe(&other)));
                return Vec::new();
            }
        };
        entries
            .into_iter()
            .filter_map(|Entry { key, line: _, node: value }| {
                let parsed = self.scalar(&format!("{field}.{key}"), &value, |text| parse(&key, text))?;
                Some((key, parsed))
            })
            .collect()
    }

    fn take(&mut self, field: &str) -> Option<Node> {
        let index = self.entries.iter().position(|entry| entry.key == field)?;
        Some(self.entries.remove(index).node)
    }

    fn scalar<T>(
        &mut self,
        field: &str,
        node: &Node,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let result = match &node.value {
            Value::Text(text) | Value::Plain(text) => parse(text),
            other => Err(format!("expected a string or number, found {}", describe(other))),
        };
        result.map_err(|message| self.problem(node.line, field, &message)).ok()
    }

    fn problem(&mut self, line: u64, field: &str, message: &str) {
        // A key may hold anything: what is shown of it stays on its line.
        let field = if field.is_empty() { String::new() } else { format!("{}: ", shown(field)) };
        self.problems.push(Problem { file: self.file.clone(), line, field, message: shown(message) });
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
