//! Requests and limits, as manifests give them and as nodes have capacity: amounts by name.

use std::{
    borrow::{Borrow, Cow},
    fmt,
};

use super::{Quantity, SmallMap};

/// A resource's name: `cpu`, `memory`, `ephemeral-storage`, `hugepages-2Mi`, `example.com/gpu`.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ResourceName(Cow<'static, str>);

impl ResourceName {
    /// `cpu`, in cores.
    pub const CPU: &'static str = "cpu";
    /// `memory`, in bytes.
    pub const MEMORY: &'static str = "memory";
    /// `ephemeral-storage`, in bytes.
    pub const EPHEMERAL_STORAGE: &'static str = "ephemeral-storage";

    /// Names a resource; any text is accepted, sources check it.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let known =
            [Self::CPU, Self::MEMORY, Self::EPHEMERAL_STORAGE].into_iter().find(|known| *known == name);
        Self(known.map_or_else(|| Cow::Owned(name.to_owned()), Cow::Borrowed))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for ResourceName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Quantities by resource name, sorted by name.
pub type ResourceList = SmallMap<ResourceName, Quantity>;

/// Requests and limits of a container or a pod.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Requirements {
    /// The guaranteed amounts.
    pub requests: ResourceList,
    /// The maximum amounts.
    pub limits: ResourceList,
}
