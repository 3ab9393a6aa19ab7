//! What is known of a pod that a kubelet runs: its cgroups, and how fresh its spec is.

use std::sync::Arc;

use super::{CgroupPath, SmallMap};

/// The cgroups that a kubelet and its container runtime made for a pod, which another process creates, limits and
/// removes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Placement {
    /// The pod's.
    pub pod: CgroupPath,
    /// Those of its containers that exist, by the container's name.
    pub containers: SmallMap<String, CgroupPath>,
    /// Those of its containers that no name leads to; `None` if there are none.
    pub unnamed: Option<Arc<Unnamed>>,
    /// How much is known of the pod.
    pub knowledge: Knowledge,
}

/// Cgroups of a pod's containers that no name leads to: the runtime has not named them yet, or a later attempt has the
/// name. They use memory like the others, and are killed with them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Unnamed {
    /// Their paths.
    pub containers: Vec<CgroupPath>,
    /// The pod's sandbox: only while it lives it is certain that none of them is the next one. `None` if that is certain
    /// without it.
    pub sandbox: Option<CgroupPath>,
}

/// How much is known of a pod that another made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Knowledge {
    /// Its spec.
    Spec {
        /// Whether it may be evicted: its priority is known, and each of its cgroups is known to be the sandbox's or a
        /// container's, so that none is missed.
        is_settled: bool,
        /// Where it is from.
        origin: SpecOrigin,
        /// Whether its deletion was requested, or it has ended but for its last processes, so that it ends by itself.
        is_terminating: bool,
    },
    /// Only its cgroups and names: neither requests nor limits, priority nor grace period.
    Names {
        /// Whether it may be evicted all the same, if its class is BestEffort: it is known for long enough that no source
        /// will bring its spec in a moment.
        is_settled: bool,
    },
}

impl Knowledge {
    /// Where the spec is from; `None` without one.
    #[must_use]
    pub fn origin(self) -> Option<SpecOrigin> {
        match self {
            Self::Spec { origin, .. } => Some(origin),
            Self::Names { .. } => None,
        }
    }

    /// The same as known from elsewhere; without a spec there is no difference.
    #[must_use]
    pub fn with_origin(self, origin: SpecOrigin) -> Self {
        match self {
            Self::Spec { is_settled, origin: _, is_terminating } => {
                Self::Spec { is_settled, origin, is_terminating }
            }
            Self::Names { .. } => self,
        }
    }
}

/// Where a pod's spec is from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SpecOrigin {
    /// The source that gave it.
    pub source: &'static str,
    /// Whether that is how the pod is now.
    pub freshness: Freshness,
}

/// Whether a spec is that of a pod now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Freshness {
    /// The source that gave it answers, and has the pod.
    Live,
    /// The source that gave it no longer answers, or no longer has the pod.
    Stale {
        /// When it had it last, in milliseconds since 1970.
        read_ms: u64,
    },
    /// An earlier process kept it, and no source has given it since.
    Disk {
        /// When that process read it as changed, in milliseconds since 1970: it is kept only then.
        read_ms: u64,
    },
}

impl Freshness {
    /// Whether what the spec says holds now. Only then may something be left out that asks again.
    #[must_use]
    pub const fn is_live(self) -> bool {
        matches!(self, Self::Live)
    }

    /// Its name in events and answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Stale { .. } => "stale",
            Self::Disk { .. } => "disk",
        }
    }

    /// When it was read last, in milliseconds since 1970; `None` while it is read again and again.
    #[must_use]
    pub const fn read_ms(self) -> Option<u64> {
        match self {
            Self::Live => None,
            Self::Stale { read_ms } | Self::Disk { read_ms } => Some(read_ms),
        }
    }
}
