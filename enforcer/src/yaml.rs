//! A YAML document as a tree in which every value knows its line, so that errors can name it.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// A value and the line that it stands on.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Counted from 1; 0 where the parser does not know it.
    pub line: u64,
    /// The value.
    pub value: Value,
}

/// What a YAML value may be here.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing, `~` or `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number or a string, as text.
    Scalar(String),
    /// A list.
    Sequence(Vec<Node>),
    /// Keys and values in the order of the document, each key with its line.
    Mapping(Vec<(String, u64, Node)>),
}

impl Value {
    /// What it is, for an error message.
    #[must_use]
    pub fn describe(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(_) => "a boolean",
            Self::Scalar(_) => "a string or number",
            Self::Sequence(_) => "a list",
            Self::Mapping(_) => "a mapping",
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value, referenced, defined: _ } = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self { line: referenced.line(), value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any YAML value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Scalar(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Scalar(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Scalar(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Scalar(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Value, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = sequence.next_element()? {
            nodes.push(node);
        }
        Ok(Value::Sequence(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut mapping: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(Spanned { value: key, referenced, defined: _ }) =
            mapping.next_key::<Spanned<String>>()?
        {
            entries.push((key, referenced.line(), mapping.next_value()?));
        }
        Ok(Value::Mapping(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_knows_its_line() {
        let node: Node = serde_saphyr::from_str("mode: enforce\nlist:\n  - 1\n  - 0.5\nnone:\n").unwrap();
        let Value::Mapping(entries) = node.value else { panic!("{node:?}") };
        let lines: Vec<_> = entries.iter().map(|(key, line, _)| (key.as_str(), *line)).collect();
        assert_eq!(lines, [("mode", 1), ("list", 2), ("none", 5)]);
        let Value::Sequence(list) = &entries[1].2.value else { panic!() };
        assert_eq!(list[1], Node { line: 4, value: Value::Scalar("0.5".into()) });
        assert_eq!(entries[2].2.value, Value::Null);
    }

    #[test]
    fn a_key_given_twice_is_an_error() {
        assert!(serde_saphyr::from_str::<Node>("a: 1\na: 2\n").is_err());
    }
}
