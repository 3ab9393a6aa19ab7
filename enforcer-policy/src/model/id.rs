//! Identities of pods and containers as types of their own, checked when they are made.

use std::{fmt, sync::Arc};

/// A pod's namespace and name, unique on a node; displays as `namespace/name`.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PodName {
    /// The namespace, a DNS label.
    pub namespace: String,
    /// The name, a DNS subdomain.
    pub name: String,
}

impl fmt::Display for PodName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

/// A pod's unique id; sources accept only `[A-Za-z0-9-]`, 1 to 63 characters, as it becomes part of a cgroup's name.
/// Clones share the text.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PodUid(Arc<str>);

impl PodUid {
    /// The longest uid, in bytes.
    pub const MAX_BYTES: usize = 63;

    /// A uid of 1 to 63 characters of `[A-Za-z0-9-]`; `None` for anything else.
    #[must_use]
    pub fn new(uid: &str) -> Option<Self> {
        let fits = (1..=Self::MAX_BYTES).contains(&uid.len());
        let plain = uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        (fits && plain).then(|| Self(uid.into()))
    }

    /// The uid as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A container's id as container runtimes give it: 64 lower-case hexadecimal digits, unique on the machine.
#[derive(Clone, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ContainerId([u8; Self::BYTES]);

impl ContainerId {
    /// The length of every id; each byte is two digits.
    const BYTES: usize = 32;

    /// An id of 64 lower-case hexadecimal digits; `None` for anything else.
    #[must_use]
    pub fn new(id: &str) -> Option<Self> {
        let (pairs, rest) = id.as_bytes().as_chunks::<2>();
        if pairs.len() != Self::BYTES || !rest.is_empty() {
            return None;
        }
        let mut bytes = [0; Self::BYTES];
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Some(Self(bytes))
    }
}

fn digit(text: u8) -> Option<u8> {
    match text {
        b'0'..=b'9' => Some(text - b'0'),
        b'a'..=b'f' => Some(text - b'a' + 10),
        _ => None,
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for ContainerId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ContainerId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::{ContainerId, PodUid};

    #[test]
    fn a_container_id_is_what_runtimes_give() {
        let id = "0f9a".repeat(16);
        assert_eq!(ContainerId::new(&id).unwrap().to_string(), id);
        for wrong in ["", "0f", &"0F".repeat(32), &"0g".repeat(32), &"0f".repeat(33)] {
            assert_eq!(ContainerId::new(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_uid_is_plain_and_bounded() {
        assert!(PodUid::new("6c1a4e95-6bb6-11e6-bc26-28d2444e470d").is_some());
        for uid in ["", "..", "a/b", "a_b", "ü", &"a".repeat(64)] {
            assert!(PodUid::new(uid).is_none(), "{uid:?} was accepted");
        }
    }
}
