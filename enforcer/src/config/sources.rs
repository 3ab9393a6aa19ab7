//! Where the values of a configuration come from.

use std::{collections::BTreeMap, fmt};

use serde_json::{Map, Value};

use super::{Config, FIELDS, Origin};

/// Where a value comes from, if it is no default.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ValueSource {
    /// A line of a file.
    File(Origin),
    /// A flag of the command line.
    Flag(&'static str),
    /// The kubelet, beside which the daemon runs; where that says it.
    Kubelet(String),
    /// What this machine is.
    Host(&'static str),
}

impl fmt::Display for ValueSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(origin) => origin.fmt(f),
            Self::Flag(flag) => write!(f, "flag {flag}"),
            Self::Kubelet(place) => write!(f, "kubelet: {place}"),
            Self::Host(why) => write!(f, "host: {why}"),
        }
    }
}

/// The sources of all values that are no defaults. Two configurations are the same wherever their values come from.
#[derive(Clone, Default)]
pub struct ValueSources(BTreeMap<&'static str, ValueSource>);

impl ValueSources {
    /// Those of values in files.
    pub(super) fn of_files(origins: &BTreeMap<&'static str, Origin>) -> Self {
        Self(origins.iter().map(|(field, origin)| (*field, ValueSource::File(origin.clone()))).collect())
    }

    /// Notes that the field has its value from elsewhere.
    pub fn set(&mut self, field: &'static str, source: ValueSource) {
        self.0.insert(field, source);
    }

    /// Where the field's value comes from, in words.
    #[must_use]
    pub fn of(&self, field: &str) -> String {
        self.0.get(field).map_or_else(|| String::from("default"), ToString::to_string)
    }
}

impl PartialEq for ValueSources {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl fmt::Debug for ValueSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ValueSources")
    }
}

impl Config {
    /// Every field's value as in a file, and where it comes from.
    #[must_use]
    pub fn shown(&self) -> (Map<String, Value>, BTreeMap<String, String>) {
        let values = FIELDS.iter().map(|field| (field.name.to_owned(), (field.show)(self)));
        let sources = FIELDS.iter().map(|field| (field.name.to_owned(), self.value_sources.of(field.name)));
        (values.collect(), sources.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_values_come_from_is_shown_and_makes_no_other_configuration() {
        let text = "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\nmode: observe\n";
        let one = Config::parse("/one.yaml", text).unwrap();
        let mut other = Config::parse("/other.yaml", text).unwrap();
        other.value_sources.set("runDir", ValueSource::Flag("--run-dir"));
        assert_eq!((&one, one.hash()), (&other, other.hash()));
        assert_eq!(one.shown().1["mode"], "/one.yaml:3");
        assert_eq!(one.shown().1["runDir"], "default");
        assert_eq!(other.shown().1["runDir"], "flag --run-dir");
        assert_eq!(one.shown().0["mode"], "observe");
    }
}
