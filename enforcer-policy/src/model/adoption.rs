//! A manifest's request for cgroups that exist, in place of new ones.

use std::collections::BTreeMap;

use super::CgroupPath;

/// The existing cgroups that a pod or its containers use instead of their own; another process creates and removes
/// them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Adoption {
    /// The pod's; `None` if it gets its own.
    pub pod: Option<CgroupPath>,
    /// Its containers', by name. Containers of an adopted pod that are not listed share its cgroup.
    pub containers: BTreeMap<String, CgroupPath>,
}

impl Adoption {
    /// A container's; `None` if it gets its own.
    #[must_use]
    pub fn container(&self, name: &str) -> Option<&CgroupPath> {
        self.containers.get(name).or(self.pod.as_ref())
    }
}
