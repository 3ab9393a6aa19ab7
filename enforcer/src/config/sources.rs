//! Where the values of a configuration come from.

use std::{collections::BTreeMap, fmt};

use serde_json::{Map, Value};

use super::{Config, FIELDS, Origin, sinks};

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

    /// Has the field from where another configuration has it.
    pub fn take(&mut self, field: &'static str, other: &Self) {
        match other.0.get(field) {
            Some(source) => self.0.insert(field, source.clone()),
            None => self.0.remove(field),
        };
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

    /// The same for who may ask the daemon, but perhaps not read the file.
    #[must_use]
    pub fn shown_to_others(&self) -> (Map<String, Value>, BTreeMap<String, String>) {
        let (mut values, sources) = self.shown();
        values.insert(String::from("sinks"), sinks::show_to_others(self));
        (values, sources)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_not_shown_by_which_path_a_webhook_is_reached() {
        let text = "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\n\
                    sinks: {webhook: [{name: a, url: \"https://hooks.example/T0/SECRET?key=SECRET\"}]}\n";
        let config = Config::parse("/one.yaml", text).unwrap();
        let url = |(shown, _): (Map<String, Value>, BTreeMap<String, String>)| {
            shown["sinks"]["webhook"][0]["url"].as_str().unwrap().to_owned()
        };
        assert_eq!(url(config.shown()), "https://hooks.example/T0/SECRET?key=SECRET");
        assert_eq!(url(config.shown_to_others()), "https://hooks.example/<removed>");
        let none = Config::default();
        assert_eq!(none.shown_to_others(), none.shown());
    }

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
