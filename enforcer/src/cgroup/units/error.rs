//! Distinguishes a unit that is gone from a refusal and from a systemd that does not answer.

use super::UnitName;
use crate::model::CgroupPath;

/// Why systemd did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnitError {
    /// The system bus, or systemd on it, cannot be reached.
    #[error("cannot reach systemd on the system bus: is dbus running?")]
    Unreachable {
        /// The underlying error.
        #[source]
        source: Box<zbus::Error>,
    },
    /// systemd refused.
    #[error("systemd refuses {call} for {unit}")]
    Refused {
        /// The method of `org.freedesktop.systemd1.Manager`.
        call: &'static str,
        /// The unit.
        unit: UnitName,
        /// Its reply.
        #[source]
        source: Box<zbus::Error>,
    },
    /// systemd started the unit, but its cgroup is not where its name says.
    #[error(
        "systemd started {unit}, but there is no cgroup {path} after {waited_ms} ms: see `systemctl status {unit}`"
    )]
    NoCgroup {
        /// The unit.
        unit: UnitName,
        /// Where its cgroup must be.
        path: CgroupPath,
        /// How long it was waited for, in milliseconds.
        waited_ms: u64,
    },
    /// systemd has no unit for that cgroup.
    #[error(
        "systemd cannot make {path}: it is not a path of slices, each of which repeats the name of the one above it"
    )]
    NoUnit {
        /// The cgroup.
        path: CgroupPath,
    },
}

impl UnitError {
    /// The cgroup or unit that it is about, or else `systemd`.
    #[must_use]
    pub fn path(&self) -> &str {
        match self {
            Self::Unreachable { .. } => "systemd",
            Self::Refused { unit, .. } => unit.as_str(),
            Self::NoCgroup { path, .. } | Self::NoUnit { path } => path.as_str(),
        }
    }

    /// Whether systemd does not know the unit, such as a scope whose last process has ended.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.has_name("org.freedesktop.systemd1.NoSuchUnit")
    }

    /// Whether systemd replied with an error.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }

    /// Whether the unit exists already.
    #[must_use]
    pub fn is_there_already(&self) -> bool {
        self.has_name("org.freedesktop.systemd1.UnitExists")
    }

    fn has_name(&self, name: &str) -> bool {
        match self {
            Self::Refused { source, .. } => {
                matches!(source.as_ref(), zbus::Error::MethodError(own, _, _) if own.as_str() == name)
            }
            Self::Unreachable { .. } | Self::NoCgroup { .. } | Self::NoUnit { .. } => false,
        }
    }
}
