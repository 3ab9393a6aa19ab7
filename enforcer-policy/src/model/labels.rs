//! `metadata.labels` for reports, bounded in number and size because tenants choose them.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    sync::Arc,
};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{MapAccess, Visitor},
};

/// The most labels that are kept of a pod.
const MOST: usize = 32;

/// How long they may be together.
const MOST_BYTES: usize = 2_048;

/// The longest key: a prefix, a slash and a name.
const MOST_KEY_BYTES: usize = 317;

/// The longest value.
const MOST_VALUE_BYTES: usize = 63;

/// A pod's labels in the order of their keys, the first that have room. Clones share them.
///
/// Anyone who may create a pod chooses them, so nothing is decided by them. What Kubernetes does not take as a label is
/// left out.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Labels(Arc<[(Arc<str>, Arc<str>)]>);

impl Labels {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keys and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    /// Shares each key and value with the other labels that were shared through `texts`.
    pub fn share(&mut self, texts: &mut LabelTexts) {
        self.0 = self.0.iter().map(|(key, value)| (texts.common(key), texts.common(value))).collect();
    }
}

/// The keys and values of many pods, each once: most pods of a node have the same keys, and many the same values.
#[derive(Debug, Default)]
pub struct LabelTexts {
    known: HashSet<Arc<str>>,
    /// At this size, texts that no pod has any longer are dropped.
    most: usize,
}

impl LabelTexts {
    /// Up to this size, none are dropped.
    const FEW: usize = 64;

    fn common(&mut self, text: &Arc<str>) -> Arc<str> {
        if let Some(known) = self.known.get(text) {
            return Arc::clone(known);
        }
        if self.known.len() >= self.most {
            self.known.retain(|known| Arc::strong_count(known) > 1);
            self.most = Self::FEW.max(2 * self.known.len());
        }
        self.known.insert(Arc::clone(text));
        Arc::clone(text)
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Labels {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(labels: I) -> Self {
        let mut kept = Kept::default();
        for (key, value) in labels {
            kept.add(key, value);
        }
        kept.into_labels()
    }
}

/// Labels as they come in, never more than are kept.
#[derive(Default)]
struct Kept(BTreeMap<Arc<str>, Arc<str>>);

impl Kept {
    fn add(&mut self, key: &str, value: &str) {
        let is_word =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        let is_key = (1..=MOST_KEY_BYTES).contains(&key.len()) && key.split('/').all(is_word);
        if is_key && value.len() <= MOST_VALUE_BYTES && is_word(value) {
            self.0.insert(key.into(), value.into());
        }
        if self.0.len() > MOST {
            self.0.pop_last();
        }
    }

    fn into_labels(self) -> Labels {
        let mut bytes = 0;
        let fits = |(key, value): &(Arc<str>, Arc<str>)| {
            bytes += key.len() + value.len();
            bytes <= MOST_BYTES
        };
        Labels(self.0.into_iter().take_while(fits).collect())
    }
}

impl Serialize for Labels {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reading;
        impl<'de> Visitor<'de> for Reading {
            type Value = Labels;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("labels")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut labels: A) -> Result<Labels, A::Error> {
                let mut kept = Kept::default();
                while let Some((key, value)) = labels.next_entry::<String, String>()? {
                    kept.add(&key, &value);
                }
                Ok(kept.into_labels())
            }
        }
        from.deserialize_map(Reading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_kept_in_order_and_what_is_none_is_left_out() {
        let long = "x".repeat(64);
        let labels: Labels = [
            ("tier", "web"),
            ("app.kubernetes.io/name", "shop"),
            ("empty", ""),
            ("", "x"),
            ("a b", "x"),
            ("escape", "\u{1b}[31m"),
            ("long", &long),
        ]
        .into_iter()
        .collect();
        let kept: Vec<_> = labels.iter().collect();
        assert_eq!(kept, [("app.kubernetes.io/name", "shop"), ("empty", ""), ("tier", "web")]);
    }

    fn texts(labels: &Labels) -> Vec<*const u8> {
        labels.0.iter().flat_map(|(key, value)| [key.as_ptr(), value.as_ptr()]).collect()
    }

    #[test]
    fn pods_share_the_texts_that_they_have_alike() {
        let mut known = LabelTexts::default();
        let mut of = |version: &str| {
            let mut labels: Labels = [("app", "web"), ("version", version)].into_iter().collect();
            labels.share(&mut known);
            labels
        };
        let [first, second, third] = ["1", "1", "2"].map(&mut of);
        assert_eq!(texts(&first), texts(&second));
        assert_eq!(texts(&first)[..3], texts(&third)[..3]);
        assert_eq!(third.iter().collect::<Vec<_>>(), [("app", "web"), ("version", "2")]);
    }

    /// A tenant may change a label of its pod without end.
    #[test]
    fn texts_that_no_pod_has_any_longer_are_dropped() {
        let mut known = LabelTexts::default();
        let mut pod = Labels::default();
        for number in 0..10_000 {
            pod = [("app", "web"), ("number", &*number.to_string())].into_iter().collect();
            pod.share(&mut known);
            assert!(known.known.len() <= LabelTexts::FEW, "{} after {number}", known.known.len());
        }
        assert_eq!(pod.iter().last(), Some(("number", "9999")));
    }

    /// A pod's author can write as many as an object of the API server holds.
    #[test]
    fn many_labels_take_little_whatever_their_order() {
        let all: Vec<(String, String)> =
            (0..20_000).map(|number| (format!("example.com/{number:05}"), "v".repeat(60))).collect();
        let forwards: Labels = all.iter().map(|(key, value)| (&**key, &**value)).collect();
        let backwards: Labels = all.iter().rev().map(|(key, value)| (&**key, &**value)).collect();
        assert_eq!(forwards, backwards);
        assert_eq!(forwards.iter().count(), MOST_BYTES / 77);
        let short: Labels = all.iter().map(|(key, _)| (&**key, "v")).collect();
        assert_eq!(short.iter().count(), MOST);
    }
}
