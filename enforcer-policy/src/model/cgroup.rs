//! The two names of a cgroup: its id, as kernel events have it, and its checked path.

use std::{fmt, sync::Arc};

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

/// A cgroup's id: on cgroup v2 the inode number of its directory, never 0 and never reused while it exists.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Schema, Serialize)]
pub struct CgroupId(pub u64);

impl fmt::Display for CgroupId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A cgroup's path below the cgroup v2 mount point: `/`, or `/a/b` with names that stay below it.
///
/// Each name was checked: not empty, not `.` or `..`, no slash, no NUL byte, at most 255 bytes. Clones share the text.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct CgroupPath(Arc<str>);

/// A cgroup name that would leave its parent, or that the kernel does not accept.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "{name:?} is not a cgroup name: it must be 1 to 255 bytes without a slash or NUL byte, and not . or .."
)]
pub struct InvalidCgroupName {
    /// The name as given.
    pub name: String,
}

impl CgroupPath {
    /// The root of the hierarchy.
    #[must_use]
    pub fn root() -> Self {
        Self(Arc::from("/"))
    }

    /// Reads `/a/b`, `a/b` or `/`; every component is checked.
    pub fn parse(path: &str) -> Result<Self, InvalidCgroupName> {
        path.split('/')
            .filter(|name| !name.is_empty())
            .try_fold(Self::root(), |parent, name| parent.child(name))
    }

    /// The path of the child of that name.
    pub fn child(&self, name: &str) -> Result<Self, InvalidCgroupName> {
        let bad = name.is_empty()
            || name == "."
            || name == ".."
            || name.len() > 255
            || name.bytes().any(|byte| byte == b'/' || byte == 0);
        if bad {
            return Err(InvalidCgroupName { name: name.to_owned() });
        }
        Ok(self.join(name))
    }

    /// The child with a name that is known to be valid: made of letters, digits, `-` and `_`.
    pub(crate) fn plain_child(&self, name: &str) -> Self {
        debug_assert!(self.child(name).is_ok(), "{name:?} is no cgroup name");
        self.join(name)
    }

    fn join(&self, name: &str) -> Self {
        let above = if self.is_root() { "" } else { self.as_str() };
        Self(format!("{above}/{name}").into())
    }

    /// The parent's path; `None` for the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        match self.0.rsplit_once('/') {
            Some(("", _)) | None => Some(Self::root()),
            Some((parent, _)) => Some(Self(parent.into())),
        }
    }

    /// The names from the root down.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.split('/').filter(|name| !name.is_empty())
    }

    /// The names of this path below `above`; `None` if it is not below it.
    #[must_use]
    pub fn below(&self, above: &Self) -> Option<&str> {
        let rest = if above.is_root() { self.as_str() } else { self.0.strip_prefix(above.as_str())? };
        rest.strip_prefix('/').filter(|rest| !rest.is_empty())
    }

    /// Whether this is the root of the hierarchy.
    #[must_use]
    pub fn is_root(&self) -> bool {
        &*self.0 == "/"
    }

    /// The path as text, with its leading slash.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CgroupPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_never_leaves_its_parent() {
        for name in ["", ".", "..", "a/b", "a\0b", &"x".repeat(256)] {
            assert!(CgroupPath::root().child(name).is_err(), "{name:?} was accepted");
        }
        assert!(CgroupPath::parse("/kubepods/../etc").is_err());
    }

    #[test]
    fn only_what_is_below_is_below() {
        let path = |text: &str| CgroupPath::parse(text).unwrap();
        for (inner, above, rest) in [
            ("/a/b/c", "/a", Some("b/c")),
            ("/a/b", "/", Some("a/b")),
            ("/a", "/a", None),
            ("/ab", "/a", None),
            ("/", "/", None),
        ] {
            assert_eq!(path(inner).below(&path(above)), rest, "{inner} {above}");
        }
    }

    #[test]
    fn parse_child_and_parent_agree() {
        let pod = CgroupPath::parse("kubepods//burstable/pod1/").unwrap();
        assert_eq!(pod.as_str(), "/kubepods/burstable/pod1");
        assert_eq!(pod.names().collect::<Vec<_>>(), ["kubepods", "burstable", "pod1"]);
        assert_eq!(pod.parent().unwrap().child("pod1").unwrap(), pod);
        assert_eq!(CgroupPath::parse("/a").unwrap().parent(), Some(CgroupPath::root()));
        assert_eq!(CgroupPath::root().parent(), None);
    }
}
