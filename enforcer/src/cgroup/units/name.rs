//! Derives units from planned paths, so that systemd puts each exactly where it is planned.

use std::fmt;

use crate::model::CgroupPath;

const SLICE: &str = ".slice";
const SCOPE: &str = ".scope";
const SERVICE: &str = ".service";

/// The name of a slice, a scope or a service, made only from a planned path.
///
/// It has only characters that systemd allows in a unit name and gives no meaning to. systemd puts that unit exactly at
/// the path that it was made from: a slice repeats the names above it.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct UnitName {
    text: String,
    kind: UnitKind,
}

/// The kinds of units that pods have.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum UnitKind {
    /// It holds units: the node's, a class's or a pod's.
    Slice,
    /// It holds processes that others started: a container's.
    Scope,
    /// It holds processes that systemd started: what a pod adopts.
    Service,
}

impl UnitName {
    /// The unit whose cgroup is at that path; `None` if systemd puts none there.
    #[must_use]
    pub fn of(path: &CgroupPath) -> Option<Self> {
        let names: Vec<&str> = path.names().collect();
        let (last, above) = names.split_last()?;
        let (kind, slices) = match (last.strip_suffix(SCOPE), last.strip_suffix(SERVICE)) {
            (Some(name), _) if is_plain(name) => (UnitKind::Scope, above),
            // An instance of a template has its argument after one `@`.
            (_, Some(name))
                if name
                    .split_once('@')
                    .map_or(is_plain(name), |(name, argument)| is_plain(name) && is_plain(argument)) =>
            {
                (UnitKind::Service, above)
            }
            (None, None) => (UnitKind::Slice, names.as_slice()),
            (Some(_), _) | (_, Some(_)) => return None,
        };
        let are_slices = slices.iter().enumerate().all(|(depth, name)| {
            let parts = name.strip_suffix(SLICE).map(|name| name.split('-').collect::<Vec<_>>());
            let above = depth.checked_sub(1).and_then(|above| slices.get(above)?.strip_suffix(SLICE));
            parts.is_some_and(|parts| {
                parts.len() == depth + 1
                    && parts.iter().all(|part| is_plain(part))
                    && above.is_none_or(|above| {
                        name.strip_prefix(above).is_some_and(|rest| rest.starts_with('-'))
                    })
            })
        });
        (are_slices && !slices.is_empty()).then(|| Self { text: (*last).to_owned(), kind })
    }

    /// What kind of unit it is.
    #[must_use]
    pub fn kind(&self) -> UnitKind {
        self.kind
    }

    /// The name with its ending.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for UnitName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

/// What systemd allows (`VALID_CHARS` in `src/basic/unit-name.c`) except the backslash, which begins an escape there.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b":-_.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("/kubepods.slice", Some(UnitKind::Slice))]
    #[case("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu_1.slice", Some(UnitKind::Slice))]
    #[case("/kubepods.slice/kubepods-podu.slice/enforcer-u-app.scope", Some(UnitKind::Scope))]
    #[case("/machine.slice/machine-kubepods.slice", Some(UnitKind::Slice))]
    #[case("/system.slice/ssh.service", Some(UnitKind::Service))]
    #[case("/system.slice/system-getty.slice/getty@tty1.service", Some(UnitKind::Service))]
    // Not where systemd would put them.
    #[case("/kubepods-burstable.slice", None)]
    #[case("/kubepods.slice/other-burstable.slice", None)]
    #[case("/kubepods.slice/kubepods.slice", None)]
    #[case("/kubepods.slice/kubepodsx-a.slice", None)]
    #[case("/a.slice/a--b.slice", None)]
    #[case("/enforcer-u-app.scope", None)]
    #[case("/kubepods/enforcer-u-app.scope", None)]
    // Not slices or scopes.
    #[case("/", None)]
    #[case("/kubepods/burstable", None)]
    #[case("/system.slice/ssh.service/inner", None)]
    #[case("/system.slice/ssh.service/inner.scope", None)]
    #[case("/system.slice/ssh.socket", None)]
    #[case("/ssh.service", None)]
    #[case("/system.slice/getty@.service", None)]
    #[case("/system.slice/a@b@c.service", None)]
    #[case("/system.slice/a\\x2db.service", None)]
    #[case("/-.slice", None)]
    #[case("/.slice", None)]
    #[case("/kubepods.slice/.scope", None)]
    // Not characters of a plain name.
    #[case("/a\\x2db.slice", None)]
    #[case("/kubepods.slice/a b.scope", None)]
    #[case("/kubepods.slice/a@b.scope", None)]
    #[case("/kubepods.slice/é.scope", None)]
    fn names_lead_to_their_paths(#[case] path: &str, #[case] kind: Option<UnitKind>) {
        let path = CgroupPath::parse(path).unwrap();
        let name = UnitName::of(&path);
        assert_eq!(name.as_ref().map(UnitName::kind), kind);
        if let Some(name) = name {
            assert!(path.as_str().ends_with(&format!("/{name}")));
        }
    }
}
