//! The names of the three classes; the rule that gives a pod its class is in `crate::qos`.

use std::fmt;

/// A pod's quality-of-service class.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum QosClass {
    /// Every container has limits for cpu and memory, and the requests equal them.
    Guaranteed,
    /// Some request or limit is set.
    Burstable,
    /// No request or limit is set.
    BestEffort,
}

impl QosClass {
    /// All classes, the best first.
    pub const ALL: [Self; 3] = [Self::Guaranteed, Self::Burstable, Self::BestEffort];

    /// The class of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.as_str() == name)
    }

    /// The name as Kubernetes writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

impl fmt::Display for QosClass {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}
