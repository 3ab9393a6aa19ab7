//! What one cgroup is called.

use std::sync::Arc;

use crate::model::{CgroupPath, Owner};

/// What a cgroup is called within its parent. Equal if the text is.
#[derive(Clone, Debug)]
pub(super) enum Name {
    /// That text.
    Text(Box<str>),
    /// As the path of its owner ends. The index has that owner too, and may forget it first.
    OfOwner(Arc<Owner>),
}

impl Name {
    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Text(name) => name,
            Self::OfOwner(owner) => last(&owner.path),
        }
    }

    /// Shares the text with the owner of the cgroup, if the owner's path ends with it.
    pub(super) fn share(&mut self, owner: &Arc<Owner>) {
        let is_shared = matches!(self, Self::OfOwner(known) if Arc::ptr_eq(known, owner));
        if !is_shared && self.as_str() == last(&owner.path) {
            *self = Self::OfOwner(Arc::clone(owner));
        }
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Name {}

impl From<Box<str>> for Name {
    fn from(name: Box<str>) -> Self {
        Self::Text(name)
    }
}

/// The name of the cgroup at that path; empty for the root.
pub(super) fn last(path: &CgroupPath) -> &str {
    path.names().last().unwrap_or_default()
}
