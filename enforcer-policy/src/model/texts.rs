//! Paths of cgroups and ids as texts in a document: checked like any other from outside when they are read.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, Unexpected, Visitor},
};

use super::{CgroupPath, ContainerId, PodUid};

/// Reads a text into a type that does not accept all.
struct Checked<T> {
    /// What is accepted, for the error.
    accepted: &'static str,
    read: fn(&str) -> Option<T>,
}

impl<T> Visitor<'_> for Checked<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.accepted)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.read)(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

impl Serialize for CgroupPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for CgroupPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Checked {
            accepted: "a cgroup's path, with names of 1 to 255 bytes without a NUL byte, and not . or ..",
            read: |text| Self::parse(text).ok(),
        })
    }
}

impl Serialize for PodUid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for PodUid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_str(Checked { accepted: "a pod's uid: 1 to 63 of [A-Za-z0-9-]", read: Self::new })
    }
}

impl Serialize for ContainerId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ContainerId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Checked {
            accepted: "a container's id: 64 lower-case hexadecimal digits",
            read: Self::new,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde::de::{
        DeserializeOwned,
        value::{Error, StrDeserializer},
    };

    use super::*;

    fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
        T::deserialize(StrDeserializer::<Error>::new(text)).map_err(|error| error.to_string())
    }

    fn written(value: &impl Serialize) -> String {
        postcard::from_bytes(&postcard::to_stdvec(value).unwrap()).unwrap()
    }

    #[test]
    fn each_is_written_as_its_text_and_read_from_it() {
        for text in ["/", "/kubepods/burstable/pod1/app"] {
            let path = CgroupPath::parse(text).unwrap();
            assert_eq!((written(&path), read::<CgroupPath>(text)), (text.to_owned(), Ok(path)));
        }
        let text = "6c1a4e95-6bb6-11e6-bc26-28d2444e470d";
        let uid = PodUid::new(text).unwrap();
        assert_eq!((written(&uid), read::<PodUid>(text)), (text.to_owned(), Ok(uid)));
        let text = "0f9a".repeat(16);
        let id = ContainerId::new(&text).unwrap();
        assert_eq!((written(&id), read::<ContainerId>(&text)), (text, Ok(id)));
    }

    #[test]
    fn an_error_says_the_value_and_what_is_accepted() {
        for (error, value, accepted) in [
            (read::<CgroupPath>("/a/../b").unwrap_err(), "/a/../b", "not . or .."),
            (read::<PodUid>("a\u{1b}b").unwrap_err(), "a\u{1b}b", "1 to 63"),
            (read::<ContainerId>("0F").unwrap_err(), "0F", "64 lower-case"),
        ] {
            assert!(error.contains(&format!("{value:?}")) && error.contains(accepted), "{error:?}");
            assert!(!error.contains('\u{1b}'), "{error:?}");
        }
    }
}
