//! Translates cgroup names between cgroupfs and systemd, as the kubelet's cgroup manager does.

use crate::model::{CgroupPath, InvalidCgroupName};

use super::{CgroupDriver, SLICE};

/// A cgroup's name regardless of the driver: its components from the root down (upstream `CgroupName`).
///
/// A component is not empty, not `.` or `..`, and has no slash, NUL byte or `_`. Both drivers map each name to a unique
/// path that can be parsed back: systemd's writes `-` within a component as `_`, and `-` between components.
#[derive(Clone, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct CgroupName(Vec<String>);

/// Why something is not a cgroup name, or a driver has no path for it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// A component that could not be parsed back from a driver's path.
    #[error(
        "{component:?} cannot be part of a cgroup's name: it must be 1 to 255 bytes without a slash, a NUL byte or an underscore, and not . or .."
    )]
    Component {
        /// The component.
        component: String,
    },
    /// A character that systemd does not accept in a unit's name.
    #[error(
        "{component:?} cannot be part of a slice's name: write letters, digits, and . : - only (systemd.unit(5))"
    )]
    Unit {
        /// The component.
        component: String,
    },
    /// A slice whose name does not begin with the names of those above it, or whose parent is not a slice.
    #[error(
        "{path} is not a path of slices: each must repeat the name of the one above it, as in /a.slice/a-b.slice"
    )]
    NotSlices {
        /// The path.
        path: CgroupPath,
    },
    /// Too long for the kernel and for systemd.
    #[error(
        "{name:?}, the name of a cgroup that would be created there, is longer than 255 bytes: use a shorter path"
    )]
    TooLong {
        /// The directory's name, its first 64 characters.
        name: String,
    },
}

impl CgroupName {
    /// The root of the hierarchy.
    #[must_use]
    pub fn root() -> Self {
        Self::default()
    }

    /// The name with one more component (upstream `NewCgroupName`).
    pub fn child(&self, component: &str) -> Result<Self, NameError> {
        if component.contains('_') || CgroupPath::root().child(component).is_err() {
            return Err(NameError::Component { component: component.to_owned() });
        }
        let mut components = self.0.clone();
        components.push(component.to_owned());
        Ok(Self(components))
    }

    /// The components from the root down.
    pub fn components(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// The driver's path for it (upstream `ToCgroupfs`, `ToSystemd`).
    pub fn path(&self, driver: CgroupDriver) -> Result<CgroupPath, NameError> {
        let path = match driver {
            CgroupDriver::Cgroupfs => self.0.join("/"),
            CgroupDriver::Systemd => {
                let escaped: Vec<_> = self.0.iter().map(|component| escape(component)).collect();
                let slices =
                    (1..=escaped.len()).map(|depth| format!("{}{SLICE}", escaped[..depth].join("-")));
                slices.collect::<Vec<_>>().join("/")
            }
        };
        CgroupPath::parse(&path).map_err(|InvalidCgroupName { name }| NameError::TooLong {
            name: name.chars().take(64).collect(),
        })
    }

    /// Parses a path of the driver (upstream `ParseCgroupfsToCgroupName`, `ParseSystemdToCgroupName`).
    ///
    /// Under systemd a path without any slice is parsed like cgroupfs', as the configuration may contain one. Anything
    /// else is not a name: a scope, for example, is a container and not a cgroup of slices.
    pub fn parse(path: &CgroupPath, driver: CgroupDriver) -> Result<Self, NameError> {
        let is_sliced = path.names().any(|name| name.ends_with(SLICE));
        match driver {
            CgroupDriver::Cgroupfs => path.names().try_fold(Self::root(), |name, part| name.child(part)),
            CgroupDriver::Systemd if !is_sliced => {
                path.names().try_fold(Self::root(), |name, part| name.child(part))
            }
            CgroupDriver::Systemd => {
                let not_slices = || NameError::NotSlices { path: path.clone() };
                let last = path.names().last().and_then(|name| name.strip_suffix(SLICE));
                let name = last
                    .ok_or_else(not_slices)?
                    .split('-')
                    .try_fold(Self::root(), |name, part| name.child(&unescape(part)))
                    .map_err(|_component| not_slices())?;
                if name.path(driver).as_ref() == Ok(path) { Ok(name) } else { Err(not_slices()) }
            }
        }
    }

    /// Checks that systemd accepts every component in a unit's name (`VALID_CHARS` in `src/basic/unit-name.c`; `\` and
    /// `@`, which have another meaning there, are excluded).
    pub(super) fn check_unit(&self) -> Result<(), NameError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".:-".contains(&byte);
        match self.0.iter().find(|component| !component.bytes().all(is_plain)) {
            Some(component) => Err(NameError::Unit { component: component.clone() }),
            None => Ok(()),
        }
    }
}

/// A component as part of a unit's name (upstream `escapeSystemdCgroupName`).
pub(super) fn escape(component: &str) -> String {
    component.replace('-', "_")
}

/// The inverse (upstream `unescapeSystemdCgroupName`).
pub(super) fn unescape(part: &str) -> String {
    part.replace('_', "-")
}
