use std::collections::BTreeMap;

use super::CgroupPath;

/// The cgroups that a pod or its containers take instead of their own: existing ones, which somebody else makes and
/// removes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Adoption {
    /// The pod's; none where it gets its own.
    pub pod: Option<CgroupPath>,
    /// Its containers', by name. Of an adopted pod, those that are not among them share its cgroup.
    pub containers: BTreeMap<String, CgroupPath>,
}

impl Adoption {
    /// A container's; none where it gets its own.
    #[must_use]
    pub fn container(&self, name: &str) -> Option<&CgroupPath> {
        self.containers.get(name).or(self.pod.as_ref())
    }
}
